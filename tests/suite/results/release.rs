//! `idem_release`: the effect is known not to have happened.

use super::{finish, rows_as_stored, E};
use harness::{Calls, Cluster, Failure};
use postgres::Client;

/// What is stored of the only key: its status, its attempt and whether anything is left of an open claim.
fn state(c: &mut impl Calls) -> (String, i32, bool) {
    let sql = "SELECT status, attempt,
                      open_since IS NOT NULL OR lease_until IS NOT NULL OR recovery_point IS NOT NULL
                        OR recovery_state IS NOT NULL
                 FROM idempotency_keys";
    let rows = c.rows(sql, &[]).unwrap();
    assert_eq!(rows.len(), 1);
    (rows[0].get(0), rows[0].get(1), rows[0].get(2))
}

/// The number of a claim that was committed is not given out again.
#[test]
fn a_released_key_is_claimed_again_with_the_next_attempt() {
    let db = Cluster::shared().lenient_database();
    let (mut c, mut other) = (db.admin(), db.admin());
    for register in ["SELECT 1", "SELECT idem_protect('POST /x', 'external')"] {
        c.batch_execute(&format!("{register}; DELETE FROM idempotency_keys")).unwrap();
        assert!(!c.release("t", E, "k").unwrap(), "nothing to release");
        c.claim("t", E, "k", b"first").unwrap();
        c.batch_execute("SELECT idem_checkpoint('t', 'POST /x', 'k', 'called', '{}')").unwrap();
        assert!(other.release("t", E, "k").unwrap());
        assert!(!other.release("t", E, "k").unwrap(), "released already");
        assert_eq!(state(&mut c), ("released".into(), 1, false));
        // Whatever the body, and whether or not the tombstone has expired.
        let again = c.claim("t", E, "k", b"second").unwrap();
        assert_eq!((again.outcome.as_str(), again.attempt), ("execute", Some(2)));
        assert!(finish(&mut c, "idem_release", "2").unwrap());
        c.batch_execute("UPDATE idempotency_keys SET expires_at = now() - interval '1 s'").unwrap();
        let again = c.claim("t", E, "k", b"third").unwrap();
        assert_eq!((again.outcome.as_str(), again.attempt), ("execute", Some(3)));
        assert_eq!(state(&mut c), ("in_progress".into(), 3, true));
    }
}

/// CASES 39: the answer to a release is lost, and it is sent again when another has claimed the key.
/// CASES 40: whoever held the key before a release is refused for good.
#[test]
fn whoever_held_a_released_key_is_refused_and_the_next_claim_stands() {
    let db = Cluster::shared().lenient_database();
    let (mut first, mut second) = (db.admin(), db.admin());
    first.claim("t", E, "k", b"first").unwrap();
    assert!(first.release("t", E, "k").unwrap());
    let late = ["idem_complete", "idem_fail", "idem_checkpoint", "idem_release"];
    let call = |c: &mut Client, function: &str, attempt: &str| {
        let rest = match function {
            "idem_checkpoint" => "'point', NULL, ",
            "idem_release" => "",
            _ => "200, 'late'::text, attempt => ",
        };
        finish(c, function, &format!("{rest}{attempt}"))
    };
    for attempt in ["1", "NULL"] {
        for function in &late[..3] {
            let refused = Failure::of(call(&mut first, function, attempt));
            assert_eq!(refused.sqlstate, "ID001", "{function} {attempt}: the attempt's own tombstone");
            assert!(refused.detail.contains("released") && !refused.hint.is_empty(), "{refused:?}");
        }
        assert!(!call(&mut first, "idem_release", attempt).unwrap());
    }
    assert_eq!(second.claim("t", E, "k", b"second").unwrap().attempt, Some(2));
    let refuse_all = |first: &mut Client| {
        let before = rows_as_stored(first);
        for attempt in ["1", "NULL"] {
            for function in late {
                let refused = Failure::of(call(first, function, attempt));
                assert_eq!(refused.sqlstate, "ID003", "{function} {attempt}");
            }
        }
        assert_eq!(rows_as_stored(first), before);
    };
    refuse_all(&mut first);
    assert_eq!(first.claim("t", E, "k", b"second").unwrap().outcome, "in_progress");
    assert!(finish(&mut second, "idem_complete", "201, 'second'::text, attempt => 2").unwrap());
    refuse_all(&mut first);
    let replay = first.claim("t", E, "k", b"second").unwrap();
    assert_eq!((replay.attempt, replay.response_body.as_deref()), (Some(2), Some(&b"second"[..])));
}

/// A tombstone protects for as long as a result would.
#[test]
fn a_tombstone_is_kept_for_a_full_ttl_from_the_release() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    c.batch_execute("SELECT idem_protect('POST /x', 'external', ttl => '72 hours')").unwrap();
    c.claim("t", E, "k", b"{}").unwrap();
    c.batch_execute(
        "UPDATE idempotency_keys SET created_at = created_at - interval '1 year',
                open_since = open_since - interval '1 year', expires_at = expires_at - interval '1 year'",
    )
    .unwrap();
    assert!(c.release("t", E, "k").unwrap());
    assert_eq!(c.value::<i32>("SELECT idem_sweep()"), 0);
    let full = "SELECT expires_at - clock_timestamp() BETWEEN '71:59:00' AND '72:00:00' FROM idempotency_keys";
    assert!(c.value::<bool>(full));
    c.batch_execute("UPDATE idempotency_keys SET expires_at = now()").unwrap();
    assert_eq!(c.value::<i32>("SELECT idem_sweep()"), 1, "then it is swept");
    assert_eq!(c.claim("t", E, "k", b"{}").unwrap().attempt, Some(1));
}

/// Nobody else has seen the number of a claim that was never committed.
#[test]
fn a_claim_that_was_never_committed_is_released_without_a_trace() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    let mut t = c.transaction().unwrap();
    for body in [b"first", b"other"] {
        assert_eq!(t.claim("t", E, "k", body).unwrap().attempt, Some(1));
        assert!(t.release("t", E, "k").unwrap());
        assert!(!t.release("t", E, "k").unwrap());
    }
    t.commit().unwrap();
    assert_eq!(c.value::<i64>("SELECT count(*) FROM idempotency_keys"), 0);
    // Over a tombstone, it is turned back into that.
    c.claim("t", E, "k", b"{}").unwrap();
    assert!(c.release("t", E, "k").unwrap());
    let mut t = c.transaction().unwrap();
    for _ in 0..2 {
        assert_eq!(t.claim("t", E, "k", b"{}").unwrap().attempt, Some(2));
        assert!(t.release("t", E, "k").unwrap());
        assert_eq!(state(&mut t), ("released".into(), 1, false));
    }
    t.commit().unwrap();
    assert_eq!(c.claim("t", E, "k", b"{}").unwrap().attempt, Some(2));
}

/// CASES 41: to commit then would leave an effect without a result.
#[test]
fn a_claim_of_this_transaction_on_a_transaction_endpoint_is_not_released() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    c.batch_execute("SELECT idem_protect('POST /x')").unwrap();
    let mut t = c.transaction().unwrap();
    t.claim("t", E, "k", b"first").unwrap();
    for attempt in ["NULL", "1"] {
        let mut savepoint = t.savepoint("s").unwrap();
        let refused = Failure::of(finish(&mut savepoint, "idem_release", attempt));
        assert_eq!(refused.sqlstate, "ID004");
        assert!(refused.message.contains("\"k\"") && refused.message.contains("\"POST /x\""), "{refused:?}");
        assert!(!refused.detail.is_empty() && refused.hint.contains("ROLLBACK TO"), "{refused:?}");
        savepoint.rollback().unwrap();
    }
    t.complete("t", E, "k", 200, b"ok").unwrap();
    t.commit().unwrap();
    assert_eq!(c.claim("t", E, "k", b"first").unwrap().outcome, "replay");
}

#[test]
fn a_rolled_back_release_leaves_the_claim_open() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    c.claim("t", E, "k", b"{}").unwrap();
    let mut t = c.transaction().unwrap();
    assert!(t.release("t", E, "k").unwrap());
    t.rollback().unwrap();
    assert_eq!(c.claim("t", E, "k", b"{}").unwrap().outcome, "in_progress");
}

#[test]
fn a_finished_claim_is_not_released() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    for (finish, status) in [("idem_complete", "succeeded"), ("idem_fail", "failed")] {
        c.batch_execute("DELETE FROM idempotency_keys").unwrap();
        c.claim("t", E, "k", b"{}").unwrap();
        c.batch_execute(&format!("SELECT {finish}('t', 'POST /x', 'k', 200, 'SECRET'::text)")).unwrap();
        let before = rows_as_stored(&mut c);
        let refused = Failure::of(c.release("t", E, "k"));
        assert_eq!(refused.sqlstate, "ID002");
        assert!(refused.message.contains("\"k\"") && refused.message.contains("\"POST /x\""), "{refused:?}");
        assert!(refused.detail.contains(status) && !refused.text().contains("SECRET"), "{refused:?}");
        assert_eq!(rows_as_stored(&mut c), before);
    }
}

#[test]
fn a_key_that_cannot_be_claimed_is_nothing_to_release() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    for key in ["NULL", "''", "repeat('k', 256)", "E'\\t'"] {
        assert!(!c.value::<bool>(&format!("SELECT idem_release('t', 'POST /x', {key})")), "{key}");
    }
    assert!(c.value::<bool>("SELECT outcome = 'execute' FROM idem_claim('t', 'POST /x', 'k', ''::text)"));
    assert!(c.value::<bool>("SELECT idem_release('t', 'POST /x', 'k', 1)"));
}
