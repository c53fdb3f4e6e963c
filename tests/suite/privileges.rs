//! `idem_grant`, `idem_revoke` and what each kind of role may do.

use crate::security::{database_with_schema, sqlstate, ODD_SCHEMA};
use harness::{Calls, Cluster, Database};
use postgres::Client;

/// What a role may do with the extension's functions and relations, as `name: privilege`, sorted.
fn rights(admin: &mut Client, role: &str) -> Vec<String> {
    let sql = "
        WITH member AS (
          SELECT d.classid, d.objid
            FROM pg_depend d JOIN pg_extension x ON x.oid = d.refobjid AND d.refclassid = 'pg_extension'::regclass
           WHERE x.extname = 'idempotency_enforcer' AND d.deptype = 'e')
        SELECT DISTINCT p.proname || ': EXECUTE' AS granted
          FROM member m JOIN pg_proc p ON m.classid = 'pg_proc'::regclass AND p.oid = m.objid
         WHERE has_function_privilege($1::text::name, p.oid, 'EXECUTE')
        UNION
        SELECT c.relname || ': ' || privilege
          FROM member m JOIN pg_class c ON m.classid = 'pg_class'::regclass AND c.oid = m.objid AND c.relkind IN ('r', 'v'),
               unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER']) AS privilege
         WHERE has_table_privilege($1::text::name, c.oid, privilege)
            OR (privilege IN ('SELECT', 'INSERT', 'UPDATE', 'REFERENCES')
                AND has_any_column_privilege($1::text::name, c.oid, privilege))
         ORDER BY granted";
    admin.query(sql, &[&role]).unwrap().iter().map(|row| row.get(0)).collect()
}

const APPLICATION: [&str; 5] = [
    "idem_checkpoint: EXECUTE",
    "idem_claim: EXECUTE",
    "idem_complete: EXECUTE",
    "idem_fail: EXECUTE",
    "idem_release: EXECUTE",
];

fn grant(admin: &mut Client, role: &str, kind: &str) {
    admin.execute("SELECT idem_grant($1::text::name, $2)", &[&role, &kind]).unwrap();
}

#[test]
fn public_has_nothing() {
    let db = Cluster::shared().database();
    let role = db.role("fresh");
    assert_eq!(rights(&mut db.admin(), &role), [""; 0]);
    let mut c = db.connect_as(&role);
    assert_eq!(sqlstate(c.claim("t", "POST /x", "k", b"")), "42501");
    assert_eq!(sqlstate(c.batch_execute("TABLE idem_keys")), "42501");
}

/// Default privileges for the tables of an application are common; they are not meant for stored responses.
#[test]
fn default_privileges_of_the_installer_give_nothing_away() {
    let db = Cluster::shared().empty_database("");
    let role = db.role("app");
    let mut admin = db.admin();
    for grantee in ["PUBLIC", &role] {
        admin
            .batch_execute(&format!(
                "ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO {grantee};
                 ALTER DEFAULT PRIVILEGES GRANT ALL ON FUNCTIONS TO {grantee};
                 ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT ALL ON TABLES TO {grantee}"
            ))
            .unwrap();
    }
    admin.batch_execute("CREATE EXTENSION idempotency_enforcer").unwrap();
    assert_eq!(rights(&mut admin, &role), [""; 0]);
}

#[test]
fn an_application_may_claim_and_finish() {
    let db = Cluster::shared().database();
    let (role, mut admin) = (db.role("app"), db.admin());
    admin.execute("SELECT idem_grant($1::text::name)", &[&role]).unwrap();
    assert_eq!(rights(&mut admin, &role), APPLICATION);
    grant(&mut admin, &role, "application");
    assert_eq!(rights(&mut admin, &role), APPLICATION, "granted twice");
}

#[test]
fn a_reconciler_may_all_that_an_application_may_and_no_view() {
    let db = Cluster::shared().database();
    let (role, mut admin) = (db.role("rec"), db.admin());
    grant(&mut admin, &role, "reconciler");
    let has = rights(&mut admin, &role);
    assert!(APPLICATION.iter().all(|needed| has.iter().any(|h| h == needed)), "{has:?}");
    for no in ["idem_sweep", "idem_protect", "idem_unprotect", "idem_grant", "idem_revoke", "SELECT", "idempotency_"] {
        assert!(!has.iter().any(|h| h.contains(no)), "{no}: {has:?}");
    }
}

#[test]
fn an_operator_may_everything_but_own() {
    let db = Cluster::shared().database();
    let (role, mut admin) = (db.role("op"), db.admin());
    grant(&mut admin, &role, "operator");
    let all: Vec<String> = rights(&mut admin, "postgres")
        .into_iter()
        .filter(|r| !r.starts_with("idempotency_") && (r.ends_with("EXECUTE") || r.ends_with("SELECT")))
        .collect();
    assert_eq!(rights(&mut admin, &role), all);
    let mut c = db.connect_as(&role);
    c.batch_execute(
        "SELECT idem_protect('POST /x'); SELECT idem_sweep(); TABLE idem_keys; SELECT idem_unprotect('POST /x')",
    )
    .unwrap();
    let other = db.role("other");
    grant(&mut c, &other, "application");
    assert_eq!(rights(&mut admin, &other), APPLICATION);
    for owners in
        ["DROP EXTENSION idempotency_enforcer", "TABLE idempotency_keys", "ALTER TABLE idempotency_keys ADD x int"]
    {
        assert_eq!(sqlstate(c.batch_execute(owners)), "42501", "{owners}");
    }
}

#[test]
fn revoking_takes_everything_back_from_open_sessions_too() {
    let db = Cluster::shared().database();
    let (role, mut admin) = (db.role("app"), db.admin());
    for kind in ["application", "reconciler", "operator"] {
        grant(&mut admin, &role, kind);
        let mut c = db.connect_as(&role);
        c.claim("t", "POST /x", kind, b"").unwrap();
        admin.execute("SELECT idem_revoke($1::text::name)", &[&role]).unwrap();
        assert_eq!(rights(&mut admin, &role), [""; 0], "{kind}");
        assert_eq!(sqlstate(c.claim("t", "POST /x", kind, b"")), "42501");
        assert_eq!(sqlstate(c.complete("t", "POST /x", kind, 200, b"")), "42501");
    }
    admin.execute("SELECT idem_revoke($1::text::name)", &[&role]).unwrap();
}

#[test]
fn a_role_without_a_grant_works_through_one_that_has_it() {
    let db = Cluster::shared().database();
    let (group, member, mut admin) = (db.role("group"), db.role("member"), db.admin());
    grant(&mut admin, &group, "application");
    admin.batch_execute(&format!("GRANT {group} TO {member}")).unwrap();
    assert_eq!(db.connect_as(&member).claim("t", "POST /x", "k", b"").unwrap().outcome, "execute");
}

#[test]
fn role_and_schema_names_may_need_quotes() {
    let db = database_with_schema(Cluster::shared(), ODD_SCHEMA);
    let mut admin = db.admin();
    // The name starts with that of the database, so that it is dropped with it.
    for odd in ["App \"1\"; --", "ünï.cøde", "SELECT", "it's"] {
        let role = format!("{}_{odd}", db.name());
        let quoted = format!("\"{}\"", role.replace('"', "\"\""));
        admin.batch_execute(&format!("CREATE ROLE {quoted} LOGIN")).unwrap();
        grant(&mut admin, &role, "application");
        assert_eq!(rights(&mut admin, &role), APPLICATION);
        assert_eq!(db.connect_as(&role).claim("t", "POST /x", odd, b"").unwrap().outcome, "execute");
        admin.execute("SELECT idem_revoke($1::text::name)", &[&role]).unwrap();
        assert_eq!(rights(&mut admin, &role), [""; 0]);
        admin.batch_execute(&format!("DROP OWNED BY {quoted}; DROP ROLE {quoted}")).unwrap();
    }
}

/// The message, DETAIL and HINT are all there, and the SQLSTATE is this one.
fn assert_explained(c: &mut Client, statement: &str, code: &str, message: &str) {
    let error = c.batch_execute(statement).expect_err(statement);
    let error = error.as_db_error().unwrap();
    assert_eq!(error.code().code(), code, "{statement}");
    assert!(error.message().contains(message), "{statement}: {}", error.message());
    assert!(error.detail().is_some() && error.hint().is_some(), "{error:?}");
}

#[test]
fn unknown_roles_and_kinds_are_refused() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    for name in ["'nobody here'", "'public'", "'none'", "''", "NULL"] {
        assert_explained(&mut c, &format!("SELECT idem_grant({name})"), "42704", "does not exist");
        assert_explained(&mut c, &format!("SELECT idem_revoke({name})"), "42704", "does not exist");
    }
    for kind in ["'root'", "''", "'Application'", "NULL"] {
        assert_explained(&mut c, &format!("SELECT idem_grant('postgres', {kind})"), "22023", "kind must be");
    }
    assert_eq!(rights(&mut c, "pg_read_all_stats"), [""; 0]);
}

fn schema(admin: &mut Client) -> String {
    admin.value("SELECT extnamespace::regnamespace::text FROM pg_extension WHERE extname = 'idempotency_enforcer'")
}

fn monitor(db: &Database) -> String {
    let role = db.role("monitor");
    db.admin().batch_execute(&format!("GRANT pg_monitor TO {role}")).unwrap();
    role
}

#[test]
fn monitoring_may_read_every_view_but_those_with_every_key() {
    for db in [Cluster::shared().database(), database_with_schema(Cluster::shared(), "idem")] {
        let role = monitor(&db);
        let mut admin = db.admin();
        let views: Vec<String> = rights(&mut admin, "postgres")
            .into_iter()
            .filter(|r| r.ends_with(": SELECT") && r.starts_with("idem_"))
            .filter(|r| !r.starts_with("idem_keys:") && !r.starts_with("idem_key_details:"))
            .collect();
        assert!(views.len() >= 3);
        let may: Vec<String> = rights(&mut admin, &role).into_iter().filter(|r| r.ends_with(": SELECT")).collect();
        assert_eq!(may, views);
        // A schema that is not open to all is for its owner to open.
        let grant = format!("GRANT USAGE ON SCHEMA {} TO {role}", schema(&mut admin));
        admin.batch_execute(&grant).unwrap();
        let mut c = db.connect_as(&role);
        c.batch_execute("TABLE idem_stuck; TABLE idem_endpoint_summary").unwrap();
        for keys in ["TABLE idem_keys", "TABLE idem_key_details"] {
            assert_eq!(sqlstate(c.batch_execute(keys)), "42501");
        }
        assert_eq!(sqlstate(c.claim("t", "POST /x", "k", b"")), "42501");
    }
}

/// What `idem_grant` gave is part of the schema it was given in, not of a role that is gone.
#[test]
fn a_role_can_be_dropped_after_its_rights_were_taken() {
    let db = Cluster::shared().database();
    let (role, mut admin) = (db.role("app"), db.admin());
    grant(&mut admin, &role, "application");
    assert_eq!(sqlstate(admin.batch_execute(&format!("DROP ROLE {role}"))), "2BP01");
    admin.batch_execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).unwrap();
}
