//! pg_dump and restore: keys, registrations and rights survive.

use crate::security::{application, database_with_schema, ODD_SCHEMA};
use harness::{sqlstate, Calls, Cluster, Database};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Every byte there is.
fn every_byte() -> Vec<u8> {
    (0..=255).collect()
}

/// Runs a client program against a database.
fn run(db: &Database, program: &str, args: &[&str], file: &Path) {
    try_run(db, "postgres", program, args, file).unwrap_or_else(|errors| panic!("{program}: {errors}"));
}

/// As a role; what it writes to standard error is an error.
fn try_run(db: &Database, role: &str, program: &str, args: &[&str], file: &Path) -> Result<(), String> {
    let cluster = db.cluster();
    let mut command: Command = cluster.installation().client(program);
    command.args(["-h", "127.0.0.1", "-U", role, "-p"]).arg(cluster.port().to_string());
    let output = command.args(args).arg(file).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() && errors.is_empty() {
        Ok(())
    } else {
        Err(format!("{}\n{errors}", output.status))
    }
}

fn dump(db: &Database, directory: &Path, options: &[&str]) -> PathBuf {
    let file = directory.join("dump");
    let mut args = vec!["-d", db.name()];
    args.extend(options);
    args.push("-f");
    run(db, "pg_dump", &args, &file);
    file
}

fn restore_plain(db: &Database, file: &Path) {
    run(db, "psql", &["-X", "-q", "-o", "/dev/null", "-v", "ON_ERROR_STOP=1", "-d", db.name(), "-f"], file);
}

fn restore_custom(db: &Database, file: &Path) {
    run(db, "pg_restore", &["--exit-on-error", "-d", db.name()], file);
}

/// A replayable success, a failure, an open external claim and two registrations, made by a role with a grant.
fn fill(db: &Database) -> String {
    let role = application(db);
    db.admin()
        .batch_execute(
            "SELECT idem_protect('POST /pay', ttl => '90 h', guesses => ARRAY['ttl'], notes => 'a \"note\"\\');
             SELECT idem_protect('POST /mail', 'external', key_required => false)",
        )
        .unwrap();
    let mut c = db.connect_as(&role);
    let mut tx = c.transaction().unwrap();
    tx.claim("t", "POST /pay", "paid", b"{}").unwrap();
    let complete = "SELECT idem_complete('t', 'POST /pay', 'paid', 201, $1::bytea, $2, 'ref\\1')";
    tx.execute(complete, &[&every_byte(), &json!([["set-cookie", "a=1"], ["set-cookie", "b=\"\\\""]])]).unwrap();
    tx.claim("t", "POST /pay", "declined", b"{}").unwrap();
    tx.execute("SELECT idem_fail('t', 'POST /pay', 'declined', 402, NULL::bytea)", &[]).unwrap();
    tx.commit().unwrap();
    c.claim("t", "POST /mail", "open", b"{}").unwrap();
    role
}

/// What each key and an unprotected request are answered.
fn answers(db: &Database, role: &str) -> Vec<harness::Arrival> {
    let mut c = db.connect_as(role);
    let requests = [("POST /pay", "paid"), ("POST /pay", "declined"), ("POST /mail", "open"), ("POST /mail", "")];
    requests.map(|(endpoint, key)| c.claim("t", endpoint, key, b"{}").unwrap()).to_vec()
}

fn stored(db: &Database) -> Vec<String> {
    let sql = "SELECT k::text FROM idempotency_keys k UNION ALL SELECT e::text FROM idempotency_endpoints e ORDER BY 1";
    db.admin().query(sql, &[]).unwrap().iter().map(|row| row.get(0)).collect()
}

fn set_path(db: &Database, schema: &str) {
    let sql = format!("ALTER DATABASE {} SET search_path = \"{schema}\", public", db.name());
    db.admin().batch_execute(&sql).unwrap();
}

#[test]
fn a_retry_after_a_restore_into_another_database_replays() {
    let cluster = Cluster::shared();
    for schema in ["public", "idem", ODD_SCHEMA] {
        let original = if schema == "public" { cluster.database() } else { database_with_schema(cluster, schema) };
        let role = fill(&original);
        let (rows, expected) = (stored(&original), answers(&original, &role));
        assert_eq!(expected[0].response_body, Some(every_byte()));
        assert_eq!(
            expected.iter().map(|a| a.outcome.as_str()).collect::<Vec<_>>(),
            ["replay", "replay", "in_progress", "unprotected"]
        );
        let directory = tempfile::tempdir().unwrap();
        for (options, restore) in [(&["-Fp"], restore_plain as fn(&Database, &Path)), (&["-Fc"], restore_custom)] {
            let file = dump(&original, directory.path(), options);
            let copy = cluster.empty_database("");
            restore(&copy, &file);
            set_path(&copy, schema);
            assert_eq!(stored(&copy), rows, "{schema} {options:?}");
            // As the same role: what idem_grant gave is there as well.
            assert_eq!(answers(&copy, &role), expected, "{schema} {options:?}");
            let mut c = copy.connect_as(&role);
            assert_eq!(
                c.claim("t", "POST /pay", "new", b"{}").map_err(|e| e.code().cloned()).unwrap_err().unwrap().code(),
                "ID004"
            );
        }
    }
}

#[test]
fn a_restore_into_another_cluster_keeps_the_rights_of_every_kind() {
    let original = database_with_schema(Cluster::shared(), "idem");
    let role = fill(&original);
    let operator = original.role("operator");
    original.admin().execute("SELECT idem_grant($1::text::name, 'operator')", &[&operator]).unwrap();
    let expected = answers(&original, &role);
    let directory = tempfile::tempdir().unwrap();
    let file = dump(&original, directory.path(), &["-Fc"]);

    let cluster = Cluster::start(&[]);
    cluster.connect().batch_execute(&format!("CREATE ROLE {role} LOGIN; CREATE ROLE {operator} LOGIN")).unwrap();
    let copy = cluster.empty_database("");
    restore_custom(&copy, &file);
    set_path(&copy, "idem");
    assert_eq!(answers(&copy, &role), expected);
    let mut c = copy.connect_as(&operator);
    c.batch_execute("TABLE idem_keys; SELECT idem_sweep(); SELECT idem_protect('POST /new')").unwrap();
    let mut c = copy.connect_as(&role);
    let refused = c.batch_execute("SELECT idem_sweep()").unwrap_err();
    assert_eq!(refused.code().map(|c| c.code()), Some("42501"));
}

#[test]
fn a_dump_of_the_schema_alone_has_no_keys() {
    let original = Cluster::shared().database();
    let role = fill(&original);
    let directory = tempfile::tempdir().unwrap();
    let file = dump(&original, directory.path(), &["--schema-only"]);
    let copy = Cluster::shared().empty_database("");
    restore_plain(&copy, &file);
    assert_eq!(stored(&copy), [""; 0]);
    // CASES 54: nor any registrations, and without one nothing runs.
    let refused = copy.connect_as(&role).claim("t", "POST /pay", "paid", b"{}").unwrap_err();
    assert_eq!(sqlstate(&refused), "ID006");
}

/// A right that was given on the schema before the extension came is the administrator's, and must be dumped.
#[test]
fn rights_on_the_schema_from_before_the_extension_are_dumped() {
    let cluster = Cluster::shared();
    for schema in ["public", "idem"] {
        let original = cluster.empty_database("");
        let role = original.role("app");
        original
            .admin()
            .batch_execute(&format!(
                "CREATE SCHEMA IF NOT EXISTS {schema}; GRANT USAGE, CREATE ON SCHEMA {schema} TO {role};
                 CREATE EXTENSION idempotency_enforcer SCHEMA {schema}"
            ))
            .unwrap();
        let directory = tempfile::tempdir().unwrap();
        let file = dump(&original, directory.path(), &["-Fc"]);
        let copy = cluster.empty_database("");
        restore_custom(&copy, &file);
        let may_create = format!("SELECT has_schema_privilege('{role}', '{schema}', 'CREATE')");
        assert!(copy.admin().value::<bool>(&may_create), "{schema}");
    }
}

/// CASES 56
#[test]
fn a_database_owner_who_is_no_superuser_dumps_after_a_grant_of_backup() {
    let cluster = Cluster::shared();
    for schema in ["public", ODD_SCHEMA] {
        let original = if schema == "public" { cluster.database() } else { database_with_schema(cluster, schema) };
        let role = fill(&original);
        let owner = original.role("owner");
        original.admin().batch_execute(&format!("ALTER DATABASE {} OWNER TO {owner}", original.name())).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("dump");
        let dump = || try_run(&original, &owner, "pg_dump", &["-d", original.name(), "-Fc", "-f"], &file);
        let refused = dump().expect_err("no right on the tables");
        // For a table, or for the schema where that is not open to all; each message has the table's name.
        assert!(refused.contains("permission denied for") && refused.contains("idempotency_endpoints"), "{refused}");
        original.admin().execute("SELECT idem_grant($1::text::name, 'backup')", &[&owner]).unwrap();
        dump().unwrap();
        let copy = cluster.empty_database("");
        restore_custom(&copy, &file);
        set_path(&copy, schema);
        assert_eq!(stored(&copy), stored(&original));
        assert_eq!(answers(&copy, &role), answers(&original, &role));
        original.admin().execute("SELECT idem_revoke($1::text::name)", &[&owner]).unwrap();
        assert!(dump().is_err());
    }
}

/// CASES 77: the registry of the template conflicts with that of the dump. docs/operations.md says what to do.
#[test]
fn a_restore_over_a_template_with_registered_endpoints_fails_until_the_registry_is_emptied() {
    let cluster = Cluster::shared();
    let original = cluster.database();
    let role = fill(&original);
    let directory = tempfile::tempdir().unwrap();
    let file = dump(&original, directory.path(), &["-Fc"]);
    let template = cluster.database();
    template.admin().batch_execute("SELECT idem_protect('POST /mail', 'external')").unwrap();

    let copy = cluster.empty_database(&format!("TEMPLATE {}", template.name()));
    let restore = || try_run(&copy, "postgres", "pg_restore", &["--exit-on-error", "-d", copy.name()], &file);
    let conflict = restore().expect_err("POST /mail is there twice");
    assert!(conflict.contains("idempotency_endpoints") && conflict.contains("duplicate key"), "{conflict}");
    // Going on at an error leaves the registry of the template.
    try_run(&copy, "postgres", "pg_restore", &["-d", copy.name()], &file).unwrap_err();
    let registered = "SELECT string_agg(endpoint, ', ') FROM idempotency_endpoints";
    assert_eq!(copy.admin().value::<String>(registered), "POST /mail");
    copy.admin().batch_execute("TRUNCATE idempotency_endpoints, idempotency_keys").unwrap();
    restore().unwrap();
    assert_eq!(stored(&copy), stored(&original));
    assert_eq!(answers(&copy, &role), answers(&original, &role));
}
