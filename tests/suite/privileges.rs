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
        .filter(|r| !r.starts_with("_idem_"))
        .collect();
    let has = rights(&mut admin, &role);
    assert_eq!(has.iter().filter(|r| !r.starts_with("_idem_")).cloned().collect::<Vec<_>>(), all);
    for internal in ["_idem_change_rights", "_idem_log", "_idem_hold", "_idem_registry"] {
        assert!(!has.iter().any(|r| r.starts_with(internal)), "{internal}: {has:?}");
    }
    let mut c = db.connect_as(&role);
    c.batch_execute(
        "SELECT idem_protect('POST /x'); SELECT idem_sweep(); SELECT idem_unprotect('POST /x'); SELECT idem_design_doc();
         TABLE idem_keys; TABLE idem_key_details; TABLE idem_stuck; TABLE idem_endpoint_summary; TABLE idem_metrics",
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
    admin.batch_execute("SELECT idem_protect('POST /x', 'external')").unwrap();
    for kind in ["application", "reconciler", "operator"] {
        grant(&mut admin, &role, "backup");
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
    admin.batch_execute("SELECT idem_protect('POST /x', 'external')").unwrap();
    grant(&mut admin, &group, "application");
    admin.batch_execute(&format!("GRANT {group} TO {member}")).unwrap();
    assert_eq!(db.connect_as(&member).claim("t", "POST /x", "k", b"").unwrap().outcome, "execute");
}

#[test]
fn role_and_schema_names_may_need_quotes() {
    let db = database_with_schema(Cluster::shared(), ODD_SCHEMA);
    let mut admin = db.admin();
    admin.batch_execute("SELECT idem_protect('POST /x', 'external')").unwrap();
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
    for kind in ["'root'", "''", "'Application'", "'monitor'", "NULL"] {
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

/// A `backup` reads the tables and nothing else; only the owner of the extension lets it.
#[test]
fn a_backup_may_read_the_tables_and_an_operator_cannot_let_it() {
    let db = Cluster::shared().database();
    let (role, operator, mut admin) = (db.role("backup"), db.role("op"), db.admin());
    grant(&mut admin, &operator, "operator");
    let mut c = db.connect_as(&operator);
    for to in [&role, &operator] {
        assert_explained(&mut c, &format!("SELECT idem_grant('{to}', 'backup')"), "42501", "only the owner");
    }
    assert_eq!(rights(&mut admin, &role), [""; 0]);
    grant(&mut admin, &role, "backup");
    assert_eq!(rights(&mut admin, &role), ["idempotency_endpoints: SELECT", "idempotency_keys: SELECT"]);
    c.execute("SELECT idem_revoke($1::text::name)", &[&role]).unwrap();
    assert_eq!(rights(&mut admin, &role), [""; 0]);
}

/// Also what was given without `idem_grant`; an owner keeps what he has.
#[test]
fn revoking_takes_back_what_grant_all_gave_but_not_what_an_owner_has() {
    let db = Cluster::shared().database();
    let (role, owner, mut admin) = (db.role("app"), db.role("owner"), db.admin());
    admin
        .batch_execute(&format!(
            "GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}; GRANT ALL ON ALL FUNCTIONS IN SCHEMA public TO {role};
             ALTER TABLE idempotency_keys OWNER TO {owner}; ALTER TABLE idempotency_endpoints OWNER TO {owner}"
        ))
        .unwrap();
    let owned = rights(&mut admin, &owner);
    assert!(rights(&mut admin, &role).len() > 20 && owned.len() == 14, "{owned:?}");
    for of in [&role, &owner] {
        admin.execute("SELECT idem_revoke($1::text::name)", &[of]).unwrap();
    }
    assert_eq!(rights(&mut admin, &role), [""; 0]);
    assert_eq!(rights(&mut admin, &owner), owned);
}

/// `GRANT` in two sessions at once fails with an internal error where they change the same row of a catalog.
#[test]
fn grants_at_the_same_moment_wait_for_each_other() {
    let db = Cluster::shared().database();
    let roles: Vec<String> = (0..4).map(|n| db.role(&format!("r{n}"))).collect();
    let mut clients: Vec<Client> = roles.iter().map(|_| db.admin()).collect();
    harness::at_once(&mut clients, |n, c| {
        for _ in 0..5 {
            grant(c, &roles[n], "operator");
            c.execute("SELECT idem_revoke($1::text::name)", &[&roles[n]]).unwrap();
            grant(c, &roles[n], "application");
        }
    });
    for role in roles {
        assert_eq!(rights(&mut db.admin(), &role), APPLICATION);
    }
}

/// The line that a call leaves in the log says who and what, and nothing of the statement.
#[test]
fn each_change_of_rights_is_logged_without_its_statement() {
    let cluster = Cluster::start(&["log_statement = none", "log_min_error_statement = panic"]);
    let db = cluster.database();
    let mut admin = db.admin();
    let (alice, odd) = (db.role("alice"), format!("{}_b\"o\nb", db.name()));
    admin
        .batch_execute(&format!("CREATE ROLE \"{}\"; ALTER ROLE {alice} SUPERUSER", odd.replace('"', "\"\"")))
        .unwrap();
    let before = cluster.log().len();
    let mut c = db.connect_as(&alice);
    c.batch_execute("SET ROLE postgres").unwrap();
    let sql = "SELECT idem_grant($1::text::name, 'operator') /* a secret */";
    c.execute(sql, &[&odd]).unwrap();
    c.execute("SELECT idem_revoke($1::text::name) /* a secret */", &[&odd]).unwrap();
    let log = cluster.log_since(before);
    let printed = serde_json::Value::from(odd.as_str());
    for line in [
        format!("LOG:  idempotency_enforcer: role \"{alice}\" granted kind \"operator\" to role {printed}\n"),
        format!("LOG:  idempotency_enforcer: role \"{alice}\" revoked all rights from role {printed}\n"),
    ] {
        assert!(log.contains(&line), "{line} is not in {log}");
    }
    assert_eq!(log.matches("idempotency_enforcer: role").count(), 2, "{log}");
    assert!(!log.contains("secret") && !log.contains("STATEMENT") && !log.contains("CONTEXT"), "{log}");
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
