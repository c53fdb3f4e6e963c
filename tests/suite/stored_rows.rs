//! Rows that are written by other means than the functions: restored, imported, corrected by hand.

use harness::{Calls, Cluster, Failure};

/// Column and value by column and value, what makes a good finished row, and a good open one, impossible.
const IMPOSSIBLE: &[(&str, &str)] = &[
    ("finished", "tenant_id = repeat('t', 256)"),
    ("finished", "endpoint = ''"),
    ("finished", "endpoint = repeat('e', 256)"),
    ("finished", "key = ''"),
    ("finished", "key = repeat('é', 256)"),
    ("finished", "request_hash = '\\x00'"),
    ("finished", "request_hash = request_hash || '\\x00'"),
    ("finished", "status = 'done'"),
    ("finished", "status = 'in_progress'"),
    ("finished", "attempt = 0"),
    ("finished", "response_code = 99"),
    ("finished", "response_code = 600"),
    ("finished", "response_code = NULL"),
    ("finished", "completed_at = NULL"),
    ("finished", "open_since = now()"),
    ("finished", "lease_until = now()"),
    ("finished", "attempt = 1000000001"),
    ("finished", "expires_at = 'infinity'"),
    ("finished", "completed_at = '-infinity'"),
    ("finished", "erased_at = 'infinity'"),
    ("finished", "created_at = '1969-12-31'"),
    ("finished", "expires_at = '3000-01-02'"),
    ("finished", "status = 'released'"),
    ("open", "response_code = 200"),
    ("open", "completed_at = now()"),
    ("open", "status = 'succeeded'"),
    ("open", "attempt = -1"),
    ("open", "erased_at = now()"),
    ("open", "open_since = '-infinity'"),
    ("open", "lease_until = 'infinity'"),
    ("open", "status = 'released'"),
    ("open", "status = 'released', open_since = NULL, response_code = 200"),
];

const POSSIBLE: &[(&str, &str)] = &[
    ("finished", "tenant_id = ''"),
    ("finished", "tenant_id = repeat('t', 255), endpoint = repeat('e', 255), key = repeat('é', 255)"),
    ("finished", "status = 'failed', response_code = 599, attempt = 1000000000"),
    ("finished", "response_body = NULL, response_code = 100"),
    ("open", "open_since = NULL"),
    ("open", "lease_until = now(), attempt = 2"),
    ("open", "status = 'released', open_since = NULL"),
    ("open", "status = 'released', open_since = NULL, erased_at = now(), expires_at = now()"),
    ("finished", "erased_at = now(), response_body = NULL"),
    ("finished", "created_at = '1970-01-02', expires_at = '2999-12-31'"),
];

#[test]
fn a_row_that_no_call_could_have_made_is_refused() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    for key in ["finished", "open"] {
        c.claim("t", "POST /x", key, b"{}").unwrap();
    }
    c.complete("t", "POST /x", "finished", 201, b"done").unwrap();
    for (key, change) in IMPOSSIBLE {
        let sql = format!("UPDATE idempotency_keys SET {change} WHERE key = '{key}'");
        assert_eq!(Failure::of(c.batch_execute(&sql)).sqlstate, "23514", "{sql}");
    }
    for (key, change) in POSSIBLE {
        let sql = format!("UPDATE idempotency_keys SET {change} WHERE key = '{key}'");
        let mut t = c.transaction().unwrap();
        assert_eq!(t.execute(&sql, &[]).unwrap_or_else(|e| panic!("{sql}: {e}")), 1, "{sql}");
    }
}
