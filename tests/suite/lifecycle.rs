//! CREATE and DROP EXTENSION, schemas, pg_dump and restore.

mod dump;

use crate::security::{application, database_with_schema, sqlstate, whole_round, ODD_SCHEMA};
use harness::{Calls, Cluster};

#[test]
fn dropped_and_created_again_in_one_session_elsewhere_and_back() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    whole_round(&mut c, "public", "first");
    c.batch_execute("DROP EXTENSION idempotency_enforcer; CREATE EXTENSION idempotency_enforcer").unwrap();
    whole_round(&mut c, "public", "first");
    c.batch_execute(
        "DROP EXTENSION idempotency_enforcer; CREATE SCHEMA idem; CREATE EXTENSION idempotency_enforcer SCHEMA idem",
    )
    .unwrap();
    whole_round(&mut c, "idem", "first");
    // All of it in one transaction, with a claim on either side.
    let mut tx = c.transaction().unwrap();
    tx.batch_execute(
        "SELECT idem.idem_protect('POST /guarded'); SELECT idem.idem_claim('t', 'POST /guarded', 'k', ''::text);
         SELECT idem.idem_complete('t', 'POST /guarded', 'k', 200, ''::text);
         DROP EXTENSION idempotency_enforcer; CREATE EXTENSION idempotency_enforcer SCHEMA public",
    )
    .unwrap();
    assert_eq!(tx.claim("t", "POST /guarded", "k", b"").unwrap().outcome, "execute");
    tx.complete("t", "POST /guarded", "k", 200, b"").unwrap();
    tx.commit().unwrap();
    assert_eq!(c.claim("t", "POST /guarded", "k", b"").unwrap().outcome, "replay");
}

/// CASES 72
#[test]
fn an_extension_does_not_go_from_under_an_open_claim() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    c.batch_execute("SELECT idem_protect('POST /guarded')").unwrap();
    let claim = "BEGIN; SELECT idem_claim('t', 'POST /guarded', 'k', ''::text)";
    let drop = "DROP EXTENSION idempotency_enforcer; COMMIT";
    assert_eq!(sqlstate(c.batch_execute(&format!("{claim}; {drop}"))), "ID004");
    let there = "SELECT count(*) FROM pg_extension WHERE extname = 'idempotency_enforcer'";
    assert_eq!(c.value::<i64>(there), 1);
    let complete = "SELECT idem_complete('t', 'POST /guarded', 'k', 200, ''::text)";
    c.batch_execute(&format!("{claim}; {complete}; {drop}")).unwrap();
    assert_eq!(c.value::<i64>(there), 0);
}

#[test]
fn another_session_drops_and_creates_between_two_calls() {
    let db = Cluster::shared().lenient_database();
    let (mut c, mut admin) = (db.connect_as(&application(&db)), db.admin());
    whole_round(&mut c, "public", "first");
    admin.batch_execute("DROP EXTENSION idempotency_enforcer").unwrap();
    assert_eq!(sqlstate(c.claim("t", "POST /x", "k", b"")), "42883");
    admin.batch_execute("CREATE EXTENSION idempotency_enforcer").unwrap();
    assert_eq!(sqlstate(c.claim("t", "POST /x", "k", b"")), "42501", "rights went with the functions");
    admin
        .batch_execute("SELECT idem_grant(usename) FROM pg_user WHERE usename LIKE current_database() || '\\_%'")
        .unwrap();
    whole_round(&mut c, "public", "first");
}

#[test]
fn the_schema_is_renamed_between_two_calls() {
    let db = database_with_schema(Cluster::shared(), "before");
    let (mut c, mut admin) = (db.connect_as(&application(&db)), db.admin());
    whole_round(&mut c, "before", "before");
    for (from, to) in [("before", ODD_SCHEMA), (ODD_SCHEMA, "after")] {
        admin.batch_execute(&format!("ALTER SCHEMA \"{from}\" RENAME TO \"{to}\"")).unwrap();
        whole_round(&mut c, to, to);
    }
    // A table that takes the old place is not taken for ours.
    admin.batch_execute("CREATE SCHEMA before; CREATE TABLE before.idempotency_keys (); CREATE TABLE before.idempotency_endpoints ()").unwrap();
    whole_round(&mut c, "after", "impostor");
}

/// The functions in PL/pgSQL as well follow the schema to its new name, not to whatever takes the old one.
#[test]
fn operators_functions_follow_a_renamed_schema() {
    let db = database_with_schema(Cluster::shared(), "before");
    let other = db.role("other");
    let mut admin = db.admin();
    admin.batch_execute("ALTER SCHEMA before RENAME TO after; SET search_path = after").unwrap();
    // They run with their owner's rights: an impostor's trigger would, too.
    admin
        .batch_execute(
            "CREATE SCHEMA before;
             CREATE TABLE before.idempotency_endpoints (LIKE idempotency_endpoints INCLUDING ALL);
             CREATE FUNCTION before.trap() RETURNS trigger LANGUAGE plpgsql AS
               $$ BEGIN RAISE EXCEPTION 'TRAP as %', current_user; END $$;
             CREATE TRIGGER trap BEFORE INSERT ON before.idempotency_endpoints
               FOR EACH ROW EXECUTE FUNCTION before.trap()",
        )
        .unwrap();
    for call in [
        "SELECT idem_protect('POST /x')".to_owned(),
        "SELECT idem_unprotect('POST /x')".into(),
        "SELECT idem_sweep()".into(),
        "TABLE idem_endpoint_summary".into(),
        format!("SELECT idem_grant('{other}')"),
        format!("SELECT idem_revoke('{other}')"),
    ] {
        admin.batch_execute(&call).unwrap_or_else(|e| panic!("{call}: {e:?}"));
    }
}

#[test]
fn a_table_of_the_applications_own_is_reported_and_another_schema_works() {
    for name in ["idempotency_keys", "idempotency_endpoints", "idem_keys"] {
        let db = Cluster::shared().empty_database("");
        let mut c = db.admin();
        c.batch_execute(&format!("CREATE TABLE public.{name} (mine int); INSERT INTO public.{name} VALUES (7)"))
            .unwrap();
        let refused = c.batch_execute("CREATE EXTENSION idempotency_enforcer").unwrap_err();
        let refused = refused.as_db_error().unwrap();
        assert_eq!(refused.code().code(), "42P07");
        assert!(refused.message().contains(&format!("public.{name}")), "{refused:?}");
        assert!(
            refused.hint().is_some_and(|h| h.contains("CREATE EXTENSION idempotency_enforcer SCHEMA")),
            "{refused:?}"
        );
        c.batch_execute("CREATE SCHEMA idempotency; CREATE EXTENSION idempotency_enforcer SCHEMA idempotency").unwrap();
        // The application's own table stays first on the path.
        c.batch_execute("SET search_path = public, idempotency").unwrap();
        c.batch_execute("SELECT idem_protect('POST /round', 'external', retry_window => '1 h')").unwrap();
        whole_round(&mut c, "idempotency", "round");
        c.batch_execute("SELECT idem_sweep(); SELECT idem_unprotect('POST /round', true); TABLE idempotency.idem_keys; TABLE idempotency.idem_stuck; TABLE idempotency.idem_endpoint_summary").unwrap();
        c.batch_execute("SELECT idem_grant('pg_read_all_data'); SELECT idem_revoke('pg_read_all_data')").unwrap();
        assert_eq!(c.value::<i32>(&format!("SELECT mine FROM public.{name}")), 7);
        assert_eq!(c.value::<i64>("SELECT count(*) FROM idempotency.idempotency_keys"), 3);
    }
}

#[test]
fn dropping_the_extension_leaves_nothing() {
    let db = Cluster::shared().empty_database("");
    let mut c = db.admin();
    // Every catalog that can hold an object of a database.
    let count = "SELECT string_agg(n::text, ' ') FROM (
        SELECT count(*) FROM pg_class UNION ALL SELECT count(*) FROM pg_proc UNION ALL SELECT count(*) FROM pg_type
        UNION ALL SELECT count(*) FROM pg_constraint UNION ALL SELECT count(*) FROM pg_namespace
        UNION ALL SELECT count(*) FROM pg_trigger UNION ALL SELECT count(*) FROM pg_operator
        UNION ALL SELECT count(*) FROM pg_event_trigger UNION ALL SELECT count(*) FROM pg_extension
        UNION ALL SELECT count(*) FROM pg_description UNION ALL SELECT count(*) FROM pg_depend
        UNION ALL SELECT count(*) FROM pg_init_privs UNION ALL SELECT count(*) FROM pg_rewrite
        UNION ALL SELECT count(*) FROM pg_default_acl
        UNION ALL SELECT count(*) FROM pg_db_role_setting s JOIN pg_database d ON d.oid = s.setdatabase
                   WHERE d.datname = current_database()) AS c(n)";
    c.batch_execute("CREATE SCHEMA idem").unwrap();
    let before: String = c.value(count);
    c.batch_execute(
        "CREATE EXTENSION idempotency_enforcer SCHEMA idem; SELECT idem.idem_protect('POST /round', 'external')",
    )
    .unwrap();
    whole_round(&mut c, "idem", "round");
    assert_ne!(c.value::<String>(count), before);
    c.batch_execute("DROP EXTENSION idempotency_enforcer").unwrap();
    assert_eq!(c.value::<String>(count), before);
    c.batch_execute("DROP SCHEMA idem").unwrap();
}

#[test]
fn it_belongs_to_one_schema_and_is_created_once() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    c.batch_execute("CREATE SCHEMA other").unwrap();
    assert_eq!(sqlstate(c.batch_execute("ALTER EXTENSION idempotency_enforcer SET SCHEMA other")), "0A000");
    assert_eq!(sqlstate(c.batch_execute("CREATE EXTENSION idempotency_enforcer SCHEMA other")), "42710");
    c.batch_execute("CREATE EXTENSION IF NOT EXISTS idempotency_enforcer").unwrap();
    assert_eq!(sqlstate(c.batch_execute("DROP TABLE idempotency_keys")), "2BP01");
}
