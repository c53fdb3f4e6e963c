//! The same text in every session, whatever is set there and whatever others put into the schema.

use super::*;

#[test]
fn every_session_gets_the_same_text() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    c.batch_execute(
        "SELECT idem_protect('POST /b', effect => 'external', notes => E'a\\\\b', expected_writes_per_day => 1000);
         SELECT idem_protect('POST /a', stuck_after => '1 day 00:01:00')",
    )
    .unwrap();
    let first = without_figures(&markdown_of(&mut c));
    let mut other = db.admin();
    other
        .batch_execute(
            "SET datestyle = 'SQL, DMY'; SET intervalstyle = 'iso_8601'; SET timezone = 'Pacific/Kiritimati';
             SET standard_conforming_strings = off; SET search_path = pg_temp; SET backslash_quote = on;
             SET default_transaction_read_only = on; SET extra_float_digits = 3",
        )
        .unwrap();
    let second: String = other.value("SELECT public.idem_design_doc()");
    assert_eq!(first, without_figures(&second));
}

/// CASES 62
#[test]
fn quoting_of_all_identifiers_changes_nothing() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    c.batch_execute("SELECT idem_protect('POST /a', effect => 'external')").unwrap();
    let plain = without_figures(&markdown_of(&mut c));
    c.batch_execute("SET quote_all_identifiers = on").unwrap();
    assert_eq!(without_figures(&markdown_of(&mut c)), plain);
}

/// CASES 62
#[test]
fn quoting_of_all_identifiers_when_the_extension_is_created_changes_nothing() {
    let cluster = Cluster::shared();
    let (plain, quoting) = (cluster.empty_database(""), cluster.empty_database(""));
    let (mut plain_session, mut c) = (plain.admin(), quoting.admin());
    let create = "CREATE SCHEMA idem; CREATE EXTENSION idempotency_enforcer SCHEMA idem;
                    SET search_path = idem; SELECT idem_protect('POST /a', effect => 'external')";
    plain_session.batch_execute(create).unwrap();
    c.batch_execute(&format!("SET quote_all_identifiers = on; {create}")).unwrap();
    // The title has the database's name.
    let below_the_title = |c: &mut Client| without_figures(&markdown_of(c)).split_once('\n').unwrap().1.to_owned();
    let expected = below_the_title(&mut plain_session);
    for setting in ["on", "off"] {
        c.batch_execute(&format!("SET quote_all_identifiers = {setting}")).unwrap();
        assert_eq!(below_the_title(&mut c), expected, "{setting}");
        let findings: Vec<String> = c.value("SELECT array_agg(finding) FROM idem_health()");
        assert!(findings.len() == 1 && findings[0].starts_with("The library is not preloaded"), "{findings:?}");
        assert_eq!(c.claim("t", "POST /a", setting, b"").unwrap().outcome, "execute");
        c.complete("t", "POST /a", setting, 200, b"").unwrap();
    }
}

#[test]
fn psql_writes_the_document_as_it_is_from_any_schema() {
    let cluster = Cluster::shared();
    let db = cluster.empty_database("");
    let mut c = db.admin();
    c.batch_execute(r#"CREATE SCHEMA "odd | schema"; CREATE EXTENSION idempotency_enforcer SCHEMA "odd | schema""#)
        .unwrap();
    c.batch_execute(r#"SELECT "odd | schema".idem_protect('POST /a', effect => 'external')"#).unwrap();
    let output = cluster
        .installation()
        .client("psql")
        .args(["-X", "-At", "-h", "127.0.0.1", "-U", "postgres", "-d", db.name(), "-p", &cluster.port().to_string()])
        .args(["-c", r#"SELECT "odd | schema".idem_design_doc()"#])
        .output()
        .unwrap();
    let written = String::from_utf8(output.stdout).unwrap();
    let called: String = c.value(r#"SELECT "odd | schema".idem_design_doc()"#);
    assert_eq!(without_figures(&written), without_figures(&called));
    assert!(written.starts_with("# Idempotency design of database ") && written.contains("\n## 8. Open findings\n"));
    let doc = Document::read(&written);
    let statement = r#"SELECT * FROM "odd | schema".idem_reconcile(only_endpoint => 'POST /a');"#;
    assert_eq!(doc.row_of("reconciliation", "POST /a")[2], statement);
}

#[test]
fn functions_that_others_put_into_the_schema_are_not_run() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    let planter = db.role("planter");
    c.batch_execute(&format!("GRANT CREATE ON SCHEMA public TO {planter}")).unwrap();
    db.connect_as(&planter)
        .batch_execute(
            "CREATE FUNCTION _idem_markdown(text) RETURNS text LANGUAGE sql AS $$ SELECT 'planted' $$;
             CREATE FUNCTION _idem_markdown(name) RETURNS text LANGUAGE sql AS $$ SELECT 'planted' $$;
             CREATE FUNCTION _idem_markdown(anyelement, anyelement) RETURNS text LANGUAGE sql
             AS $$ SELECT 'planted' $$;
             CREATE FUNCTION _idem_markdown(name, boolean) RETURNS text LANGUAGE sql AS $$ SELECT 'planted' $$;
             CREATE FUNCTION _idem_markdown(varchar, boolean) RETURNS text LANGUAGE sql AS $$ SELECT 'planted' $$;
             CREATE FUNCTION format(text, text) RETURNS text LANGUAGE sql AS $$ SELECT 'planted' $$",
        )
        .unwrap();
    c.batch_execute("SELECT idem_protect('POST /a', effect => 'external', notes => 'a note')").unwrap();
    assert!(!markdown_of(&mut c).contains("planted"));
}
