//! Tables and schemas that are elsewhere, or under another name, or not what they were.

use super::*;
use harness::{wait_until, Calls};

// CASES 53
#[test]
fn an_unlogged_table_is_critical() {
    break_and_mend(
        "ALTER TABLE idempotency_keys SET UNLOGGED; ALTER TABLE idempotency_endpoints SET UNLOGGED",
        &[
            (
                "critical",
                "Table \"public.idempotency_keys\" is unlogged: a crash empties it, and a standby does not have it.",
            ),
            (
                "critical",
                "Table \"public.idempotency_endpoints\" is unlogged: a crash empties it, and a standby does not have it.",
            ),
        ],
    );
}

// CASES 63
#[test]
fn a_renamed_table_is_renamed_back_with_all_its_keys_whatever_is_in_its_place() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    c.batch_execute(
        "SELECT idem_protect('POST /x', 'external');
         SELECT idem_claim('t', 'POST /x', 'k', ''::bytea);
         ALTER TABLE idempotency_keys RENAME TO \"o\nld\";
         CREATE FUNCTION trap() RETURNS text IMMUTABLE LANGUAGE plpgsql AS
           'BEGIN RAISE EXCEPTION ''TRAP as %'', current_user; END';
         CREATE VIEW idempotency_keys AS SELECT trap() AS tenant_id, NULL::timestamptz AS open_since",
    )
    .unwrap();
    let found = about_tables(&mut c);
    let said: Vec<&str> = found.iter().map(|f| f.finding.as_str()).collect();
    assert_eq!(
        said,
        [
            "\"public.idempotency_keys\" is not the extension's, and is in the place of its table.",
            "Table idempotency_keys was renamed to \"public.o\\nld\": every function that needs it fails. Its keys are all there.",
        ]
    );
    for finding in found {
        assert_eq!(finding.severity, "critical");
        mend(&db, &finding.remedy);
    }
    assert!(about_tables(&mut c).is_empty(), "{:#?}", about_tables(&mut c));
    assert_eq!(c.claim("t", "POST /x", "k", b"").unwrap().outcome, "in_progress");
}

#[test]
fn a_table_that_was_moved_is_moved_back() {
    break_and_mend(
        "CREATE SCHEMA elsewhere; ALTER TABLE idempotency_endpoints SET SCHEMA elsewhere",
        &[(
            "critical",
            "Table \"elsewhere.idempotency_endpoints\" is not in the schema of its extension, \"public\": every function that \
             needs it fails.",
        )],
    );
}

#[test]
fn a_renamed_schema_is_renamed_back_when_its_name_is_free() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    c.batch_execute(
        "ALTER SCHEMA public RENAME TO \"else\nwhere\"; CREATE SCHEMA public; SET search_path = \"else\nwhere\"",
    )
    .unwrap();
    for _ in 0..2 {
        let found =
            the(health(&mut c), "critical", "The schema of the extension, \"public\", was renamed to \"else\\nwhere\"");
        mend(&db, &found.remedy);
    }
    c.batch_execute("SET search_path = public").unwrap();
    assert!(about_tables(&mut c).is_empty(), "{:#?}", about_tables(&mut c));
}

// CASES 62
#[test]
fn quoting_all_identifiers_is_no_finding() {
    let db = Cluster::shared().empty_database("");
    let mut c = db.admin();
    c.batch_execute(
        "CREATE SCHEMA \"say \"\"hi\";
         SET quote_all_identifiers = on;
         CREATE EXTENSION idempotency_enforcer SCHEMA public",
    )
    .unwrap();
    assert!(about_tables(&mut c).is_empty(), "{:#?}", about_tables(&mut c));
    c.batch_execute("RESET quote_all_identifiers").unwrap();
    assert!(about_tables(&mut c).is_empty(), "{:#?}", about_tables(&mut c));
}

#[test]
fn a_table_that_inherits_and_one_that_is_inherited_from_are_found() {
    break_and_mend(
        "CREATE TABLE heir () INHERITS (idempotency_keys);
         CREATE TABLE ancestor (notes text);
         ALTER TABLE idempotency_endpoints INHERIT ancestor",
        &[
            (
                "critical",
                "Table \"public.heir\" inherits from \"public.idempotency_keys\": a key can be in both, and be executed twice.",
            ),
            (
                "warning",
                "Table \"public.idempotency_endpoints\" is a part of \"public.ancestor\": who changes that one changes it.",
            ),
        ],
    );
}

#[test]
fn a_deferrable_primary_key_is_critical() {
    break_and_mend(
        "ALTER TABLE idempotency_keys DROP CONSTRAINT idempotency_keys_pkey,
           ADD CONSTRAINT idempotency_keys_pkey PRIMARY KEY (tenant_id, endpoint, key) DEFERRABLE",
        &[(
            "critical",
            "The primary key of \"public.idempotency_keys\" is deferrable: claims fail, or two are made before it is checked.",
        )],
    );
}

#[test]
fn tables_that_cannot_be_used_are_critical_and_the_rest_is_found_all_the_same() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    c.batch_execute(
        "ALTER TABLE idempotency_endpoints RENAME COLUMN stuck_after TO patience;
         ALTER TABLE idempotency_keys SET (autovacuum_enabled = off)",
    )
    .unwrap();
    let problem = the(health(&mut c), "critical", "The tables cannot be used");
    assert!(problem.finding.contains("stuck_after"), "{problem:?}");
    mend(&db, &problem.remedy);
    the(health(&mut c), "warning", "autovacuum_enabled is off");
    // It leaves the caller's transaction as it was.
    let mut t = c.transaction().unwrap();
    assert_eq!(t.value::<i64>("SELECT count(*) FROM idem_health() WHERE severity = 'critical'"), 1);
    assert_eq!(t.value::<i32>("SELECT 1"), 1);
}

/// A constant of the planner must not decide which condition is looked at first.
#[test]
fn options_that_are_no_booleans_are_not_read_as_such() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    c.batch_execute("SET cpu_operator_cost = 0; ALTER TABLE idempotency_keys SET (fillfactor = 71)").unwrap();
    assert!(about_tables(&mut c).is_empty());
}

// CASES 64
#[test]
fn a_prepared_transaction_that_was_forgotten_is_found() {
    let cluster = Cluster::start(&["max_prepared_transactions = 2"]);
    let db = cluster.database();
    let mut c = db.admin();
    c.batch_execute(
        "SELECT idem_protect('POST /x');
         BEGIN; SELECT idem_claim('t', 'POST /x', 'k', ''::bytea); SELECT idem_complete('t', 'POST /x', 'k', 200, ''::bytea);
         PREPARE TRANSACTION 'it''s \\ mine';
         BEGIN; CREATE TABLE other (); PREPARE TRANSACTION 'other'",
    )
    .unwrap();
    assert!(about_tables(&mut c).is_empty(), "it is young");
    // The server's clock cannot be set: what is an hour is made none.
    let sql: String = c.value("SELECT pg_get_functiondef('_idem_health_backlog'::regproc)");
    assert!(sql.contains("'01:00:00'::interval"), "{sql}");
    c.batch_execute(&sql.replace("'01:00:00'::interval", "'00:00:00'::interval")).unwrap();
    let found = the(about_tables(&mut c), "warning", "Prepared transaction \"it's \\\\ mine\" has used the tables");
    mend(&db, &found.remedy);
    let rows = c.query(found.remedy.as_str(), &[]).unwrap();
    assert_eq!(rows.len(), 1, "{}", found.remedy);
    // After a restart its locks are under another name.
    cluster.restart();
    let mut c = harness::wait_for("the server", || cluster.config(db.name(), "postgres").connect(postgres::NoTls).ok());
    the(about_tables(&mut c), "warning", "Prepared transaction");
    c.batch_execute("ROLLBACK PREPARED E'it''s \\\\ mine'").unwrap();
    c.batch_execute("ROLLBACK PREPARED 'other'").unwrap();
    assert!(about_tables(&mut c).is_empty());
}

// CASES 55
#[test]
fn a_subscription_that_feeds_the_tables_is_found_and_one_left_behind_is_ended() {
    let cluster = Cluster::start(&["wal_level = logical", "max_logical_replication_workers = 0"]);
    let (publisher, db) = (cluster.database(), cluster.database());
    let mut at_publisher = publisher.admin();
    at_publisher.batch_execute("CREATE PUBLICATION p FOR TABLE idempotency_keys").unwrap();
    at_publisher.batch_execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')").unwrap();
    let mut c = db.admin();
    let source = format!("host=127.0.0.1 port={} user=postgres dbname={}", cluster.port(), publisher.name());
    c.batch_execute(&format!(
        "CREATE SUBSCRIPTION \"the\nfeed\" CONNECTION '{source}' PUBLICATION p
           WITH (create_slot = false, slot_name = 's', copy_data = false)"
    ))
    .unwrap();
    the(about_tables(&mut c), "info", "Table \"public.idempotency_keys\" is fed by the subscription \"the\\nfeed\"");
    c.batch_execute("ALTER SUBSCRIPTION \"the\nfeed\" DISABLE").unwrap();
    let left = the(
        about_tables(&mut c),
        "warning",
        "Table \"public.idempotency_keys\" is fed by the subscription \"the\\nfeed\", which is disabled",
    );
    mend(&db, &left.remedy);
    assert!(about_tables(&mut c).is_empty());
    wait_until("the slot to be gone", || c.value("SELECT count(*) = 0 FROM pg_replication_slots"));
}
