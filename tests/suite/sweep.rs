//! `idem_sweep`: one bounded batch of what has expired.

use harness::{Calls, Cluster, Failure};
use postgres::Client;

/// Finished rows that expired 1, 2, ... `n` minutes ago, stored youngest first.
fn expired_rows(c: &mut Client, n: i32) {
    let sql = "INSERT INTO idempotency_keys (tenant_id, endpoint, key, request_hash, status, response_code, completed_at,
                                             expires_at)
               SELECT 't', 'POST /x', i::text, sha256(''), CASE i % 2 WHEN 0 THEN 'succeeded' ELSE 'failed' END, 200, now(),
                      now() - i * interval '1 minute'
                 FROM generate_series(1, $1) i";
    c.execute(sql, &[&n]).unwrap();
}

fn left(c: &mut Client) -> String {
    c.value("SELECT coalesce(string_agg(key, ' ' ORDER BY key), '') FROM idempotency_keys")
}

fn sweep(c: &mut Client, max_rows: i32) -> i32 {
    c.query_one("SELECT idem_sweep($1)", &[&max_rows]).unwrap().get(0)
}

#[test]
fn a_batch_is_bounded_and_takes_what_expired_first() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    expired_rows(&mut c, 7);
    assert_eq!(sweep(&mut c, 0), 0);
    assert_eq!(left(&mut c), "1 2 3 4 5 6 7");
    assert_eq!(sweep(&mut c, 3), 3);
    assert_eq!(left(&mut c), "1 2 3 4");
    assert_eq!(sweep(&mut c, 1), 1);
    assert_eq!(left(&mut c), "1 2 3");
    assert_eq!(sweep(&mut c, 1_000_000), 3);
    assert_eq!(sweep(&mut c, 1), 0);
}

#[test]
fn the_default_batch_is_ten_thousand() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    expired_rows(&mut c, 10_003);
    assert_eq!(c.value::<i32>("SELECT idem_sweep()"), 10_000);
    assert_eq!(c.value::<i32>("SELECT idem_sweep()"), 3);
}

#[test]
fn what_is_in_progress_or_has_not_expired_stays() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    c.claim("t", "POST /x", "open", b"").unwrap();
    c.claim("t", "POST /x", "fresh", b"").unwrap();
    c.complete("t", "POST /x", "fresh", 200, b"").unwrap();
    let expire = |key, when| format!("UPDATE idempotency_keys SET expires_at = now() + '{when}' WHERE key = '{key}'");
    c.batch_execute(&expire("open", "-50 years")).unwrap();
    assert_eq!(sweep(&mut c, 100), 0);
    assert_eq!(left(&mut c), "fresh open");
    c.batch_execute(&expire("fresh", "900 years")).unwrap();
    assert_eq!(sweep(&mut c, 100), 0);
}

/// Its number may be given out again a ttl after the release.
#[test]
fn tombstones_are_swept_like_results() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    for key in ["fresh", "expired"] {
        c.claim("t", "POST /x", key, b"").unwrap();
        assert!(c.release("t", "POST /x", key).unwrap());
    }
    c.batch_execute("UPDATE idempotency_keys SET expires_at = now() WHERE key = 'expired'").unwrap();
    assert_eq!(sweep(&mut c, 100), 1);
    assert_eq!(left(&mut c), "fresh");
}

/// Claims of others are never waited for, and a locked row does not use up the batch.
#[test]
fn locked_rows_are_skipped() {
    let db = Cluster::shared().lenient_database();
    let (mut c, mut other) = (db.admin(), db.admin());
    expired_rows(&mut c, 5);
    c.batch_execute("SET lock_timeout = '10 s'").unwrap();
    let mut claim = other.transaction().unwrap();
    assert_eq!(claim.claim("t", "POST /x", "5", b"new").unwrap().outcome, "execute");
    claim.query("SELECT FROM idempotency_keys WHERE key = '4' FOR KEY SHARE", &[]).unwrap();
    assert_eq!(sweep(&mut c, 2), 2);
    assert_eq!(left(&mut c), "1 4 5");
    assert_eq!(sweep(&mut c, 100), 1);
    claim.commit().unwrap();
    assert_eq!(sweep(&mut c, 100), 1);
    assert_eq!(left(&mut c), "5");
}

#[test]
fn a_batch_of_less_than_nothing_or_without_bound_is_refused() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    expired_rows(&mut c, 1);
    for size in ["-1", "-2147483648", "NULL", "1000001", "2147483647"] {
        let refused = Failure::of(c.query(&format!("SELECT idem_sweep({size})"), &[]));
        assert_eq!(refused.sqlstate, "22023", "{size}");
        assert!(!refused.message.is_empty() && !refused.detail.is_empty() && !refused.hint.is_empty());
    }
    assert_eq!(left(&mut c), "1");
}
