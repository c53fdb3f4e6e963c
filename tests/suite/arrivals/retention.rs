//! How long a result is kept, and what becomes of a key after that.

use super::claim_sql;
use harness::{Arrival, Calls, Cluster, Failure};
use postgres::Client;

const AGE: &str = "UPDATE idempotency_keys SET created_at = created_at - interval '10 days',
                          expires_at = expires_at - interval '10 days'";

/// Endpoints of each kind, the last one not registered.
fn protect_endpoints(c: &mut Client) -> [&'static str; 3] {
    c.batch_execute("SELECT idem_protect('POST /tx'), idem_protect('POST /ext', 'external')").unwrap();
    ["POST /tx", "POST /ext", "POST /x"]
}

/// Nothing of the expired row may shine through: it must equal that of a key that never was there.
#[test]
fn an_expired_finished_row_is_taken_over_as_new() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    for endpoint in protect_endpoints(&mut c) {
        for status in ["succeeded", "failed"] {
            let sql = format!(
                "DELETE FROM idempotency_keys;
                 INSERT INTO idempotency_keys VALUES ('t', '{endpoint}', 'k', sha256('old'), '{status}', 7, 299,
                   '[[\"a\", \"b\"]]', 'old', 'ref', gen_random_uuid(), 'point', '{{}}', NULL, NULL,
                   now() - interval '2 days', now() - interval '2 days', now(), now() - interval '1 s')"
            );
            c.batch_execute(&sql).unwrap();
            let mut t = c.transaction().unwrap();
            let taken = t.claim("t", endpoint, "k", b"new").unwrap();
            assert_eq!((taken.outcome.as_str(), taken.attempt), ("execute", Some(1)));
            let row = "SELECT (to_jsonb(k) - 'key' - 'provider_key' - 'open_since')::text
                              || (open_since > created_at)::text FROM idempotency_keys k WHERE key = 'k'";
            let taken_row: Option<String> = t.value(row);
            let is_late = taken_row.as_ref().is_none_or(|r| r.ends_with("true"));
            assert!(is_late, "open since the claim, not since its transaction began: {taken_row:?}");
            assert_eq!(t.value::<i64>("SELECT count(*) FROM idempotency_keys"), 1);
            t.execute("UPDATE idempotency_keys SET key = 'away'", &[]).unwrap();
            let fresh = t.claim("t", endpoint, "k", b"new").unwrap();
            assert_eq!(taken, fresh, "{endpoint} {status}");
            assert_eq!(taken_row, t.value::<Option<String>>(row));
        }
    }
}

#[test]
fn a_taken_over_key_is_completed_and_replayed_like_any_other() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    for endpoint in protect_endpoints(&mut c) {
        for body in [&b"one"[..], b"two"] {
            let mut t = c.transaction().unwrap();
            assert_eq!(t.claim("t", endpoint, "k", body).unwrap().outcome, "execute");
            t.complete("t", endpoint, "k", 200, body).unwrap();
            t.commit().unwrap();
            assert_eq!(c.claim("t", endpoint, "k", body).unwrap().response_body.as_deref(), Some(body));
            c.batch_execute("UPDATE idempotency_keys SET expires_at = now()").unwrap();
        }
    }
}

#[test]
fn a_row_in_progress_never_expires() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    c.claim("t", "POST /x", "k", b"{}").unwrap();
    c.batch_execute("UPDATE idempotency_keys SET expires_at = now() - interval '50 years'").unwrap();
    assert_eq!(c.claim("t", "POST /x", "k", b"{}").unwrap().outcome, "in_progress");
    assert_eq!(c.claim("t", "POST /x", "k", b"[]").unwrap().outcome, "key_reused");
    assert_eq!(c.value::<i32>("SELECT idem_sweep()"), 0);
    assert_eq!(c.value::<i64>("SELECT count(*) FROM idempotency_keys"), 1);
}

#[test]
fn the_ttl_is_the_calls_else_the_endpoints_else_a_day() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    c.batch_execute(
        "SELECT idem_protect('POST /plain'), idem_protect('POST /long', ttl => '6 days'),
                idem_protect('POST /window', retry_window => '3 days')",
    )
    .unwrap();
    for (endpoint, given, ttl) in [
        ("POST /x", "NULL", "24 hours"),
        ("POST /x", "'7 days'", "7 days"),
        ("POST /plain", "NULL", "48 hours"),
        ("POST /long", "NULL", "6 days"),
        ("POST /long", "'25 hours'", "25 hours"),
        ("POST /window", "NULL", "6 days"),
        ("POST /window", "'3 days 1 second'", "3 days 1 second"),
    ] {
        let mut t = c.transaction().unwrap();
        let answer = claim_sql(&mut t, &format!("'t', '{endpoint}', 'k', ''::text, ttl => {given}"));
        let expected: String = t.value(&format!("SELECT (now() + interval '{ttl}')::text"));
        assert_eq!(answer.expires_at, Some(expected.clone()), "{endpoint} {given}");
        let stored = "SELECT expires_at::text FROM idempotency_keys";
        assert_eq!(t.value::<String>(stored), expected);
        // Finished in its own transaction, a claim that cannot stay open keeps the time it was promised.
        if endpoint != "POST /x" {
            t.complete("t", endpoint, "k", 200, b"").unwrap();
            assert_eq!(t.claim("t", endpoint, "k", b"").unwrap().expires_at, Some(expected));
        }
    }
}

/// The red line holds for a single call too.
#[test]
fn a_ttl_that_does_not_outlast_the_retry_window_is_refused() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    c.batch_execute("SELECT idem_protect('POST /window', retry_window => '3 days')").unwrap();
    for ttl in ["3 days", "72 hours", "24 hours"] {
        let refused = Failure::of(
            c.query(&format!("SELECT idem_claim('t', 'POST /window', 'k', ''::text, ttl => '{ttl}')"), &[]),
        );
        assert_eq!(refused.sqlstate, "22023");
        assert!(refused.message.contains("\"POST /window\""), "{refused:?}");
    }
    assert_eq!(c.value::<i64>("SELECT count(*) FROM idempotency_keys"), 0);
}

/// A result stored long after the claim is not born expired: it is replayable for the full ttl.
#[test]
fn finishing_an_open_claim_sets_a_full_ttl_from_then() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    for endpoint in ["POST /x", "POST /ext"] {
        c.batch_execute("SELECT idem_protect('POST /ext', 'external')").unwrap();
        for (finish, age) in [("idem_complete", "10 days"), ("idem_fail", "10 days"), ("idem_complete", "30 seconds")] {
            c.batch_execute("DELETE FROM idempotency_keys").unwrap();
            claim_sql(&mut c, &format!("'t', '{endpoint}', 'k', ''::text, ttl => '72 hours'"));
            c.batch_execute(&AGE.replace("10 days", age)).unwrap();
            c.batch_execute(&format!("SELECT {finish}('t', '{endpoint}', 'k', 500, 'late'::text)")).unwrap();
            let full = "SELECT expires_at - completed_at BETWEEN '71:59:59' AND '72:00:01'
                               AND completed_at > clock_timestamp() - interval '1 min' FROM idempotency_keys";
            assert!(c.value::<bool>(full), "{endpoint} {finish} after {age}");
            assert_eq!(c.value::<i32>("SELECT idem_sweep()"), 0);
            let replay = c.claim("t", endpoint, "k", b"").unwrap();
            let expected =
                Arrival { response_code: Some(500), response_body: Some(b"late".to_vec()), ..replay.clone() };
            assert_eq!((replay.outcome.as_str(), &replay), ("replay", &expected));
        }
    }
}

#[test]
fn a_transaction_that_took_long_gets_a_full_ttl_too() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    let [transactional, ..] = protect_endpoints(&mut c);
    let mut t = c.transaction().unwrap();
    t.claim("t", transactional, "k", b"").unwrap();
    t.batch_execute(AGE).unwrap();
    t.complete("t", transactional, "k", 200, b"").unwrap();
    assert!(t.value::<bool>("SELECT completed_at > now() FROM idempotency_keys"), "when it was, not when it began");
    assert!(t.value::<bool>("SELECT expires_at > now() + interval '47 hours 59 minutes' FROM idempotency_keys"));
    assert_eq!(t.claim("t", transactional, "k", b"").unwrap().outcome, "replay");
}

/// A month counts 30 days in comparisons and 28 to 31 in sums: whatever is accepted must be kept as long as it says.
#[test]
fn a_ttl_that_was_accepted_is_never_shorter_than_it_compares() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    for ttl in ["-12 months 361 days", "12 months -359 days", "-120 months 3601 days", "1 month"] {
        let call = format!(
            "SELECT expires_at - now() >= interval '{ttl}', outcome
                              FROM idem_claim('t', 'POST /x', '{ttl}', ''::text, ttl => '{ttl}')"
        );
        match c.query_one(&call, &[]) {
            Ok(row) => assert!(row.get::<_, bool>(0), "ttl {ttl}"),
            Err(error) => assert_eq!(error.code().map(|code| code.code()), Some("22023"), "{error:?}"),
        }
    }
    let odd = "SELECT idem_protect('POST /odd', retry_window => '-12 months 361 days', ttl => '-12 months 362 days')";
    match c.batch_execute(odd) {
        Ok(()) => {
            let mut t = c.transaction().unwrap();
            t.claim("t", "POST /odd", "k", b"").unwrap();
            assert!(t.value::<bool>("SELECT expires_at > now() FROM idempotency_keys WHERE endpoint = 'POST /odd'"));
        }
        Err(error) => assert_eq!(error.code().map(|code| code.code()), Some("22023"), "{error:?}"),
    }
}
