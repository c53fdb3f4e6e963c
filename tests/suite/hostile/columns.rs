//! Columns that are not as the extension made them.

use harness::{Calls, Cluster, Failure};

/// Read as what it is not, the value of such a column would end the server.
#[test]
fn a_column_of_another_type_is_refused_and_not_read() {
    let db = Cluster::shared().database();
    let mut admin = db.admin();
    admin
        .batch_execute(
            "SELECT idem_protect('POST /x', 'external', stuck_after => '1 microsecond');
             SELECT idem_claim('t', 'POST /x', 'stored', ''::text), idem_complete('t', 'POST /x', 'stored', 200, ''::text);
             SELECT idem_claim('t', 'POST /x', 'open', ''::text)",
        )
        .unwrap();
    let started = "SELECT pg_postmaster_start_time()::text || pg_backend_pid()";
    let before = admin.value::<String>(started);
    for (column, other, call) in [
        ("resource_ref", "integer DEFAULT 7", "SELECT idem_claim('t', 'POST /x', 'stored', ''::text)"),
        ("response_headers", "text DEFAULT 'x'", "SELECT idem_claim('t', 'POST /x', 'stored', ''::text)"),
        ("provider_key", "boolean DEFAULT true", "SELECT idem_claim('t', 'POST /x', 'stored', ''::text)"),
        ("attempt", "bigint NOT NULL DEFAULT 1", "SELECT idem_claim('t', 'POST /x', 'new', ''::text)"),
        ("recovery_state", "integer DEFAULT 7", "SELECT * FROM idem_reconcile()"),
        ("recovery_point", "integer DEFAULT 7", "SELECT * FROM idem_reconcile()"),
    ] {
        let mut transaction = admin.transaction().unwrap();
        transaction
            .batch_execute(&format!(
                "ALTER TABLE idempotency_keys RENAME {column} TO renamed;
                 ALTER TABLE idempotency_keys ADD {column} {other}"
            ))
            .unwrap();
        let refused = Failure::of(transaction.batch_execute(call));
        assert_eq!(refused.sqlstate, "55000", "{column}: {refused:?}");
    }
    let mut transaction = admin.transaction().unwrap();
    transaction
        .batch_execute(
            "ALTER TABLE idempotency_endpoints RENAME ttl TO x; ALTER TABLE idempotency_endpoints ADD ttl int",
        )
        .unwrap();
    let refused = Failure::of(transaction.batch_execute("SELECT idem_claim('t', 'POST /x', 'new', ''::text)"));
    assert_eq!(refused.sqlstate, "55000");
    drop(transaction);
    assert_eq!(admin.claim("t", "POST /x", "stored", b"").unwrap().outcome, "replay", "the columns are back");
    assert_eq!(admin.value::<String>(started), before);
}
