//! `idem_release`: the effect is known not to have happened.

use super::{finish, rows_as_stored, E};
use harness::{Calls, Cluster, Failure};

/// The number of a claim that was committed is not given out again.
#[test]
fn a_released_key_is_claimed_again_with_the_next_attempt() {
    let db = Cluster::shared().lenient_database();
    let (mut c, mut other) = (db.admin(), db.admin());
    for register in ["SELECT 1", "SELECT idem_protect('POST /x', 'external')"] {
        c.batch_execute(&format!("{register}; DELETE FROM idempotency_keys")).unwrap();
        assert!(!c.release("t", E, "k").unwrap(), "nothing to release");
        c.claim("t", E, "k", b"first").unwrap();
        assert!(other.release("t", E, "k").unwrap());
        assert!(!other.release("t", E, "k").unwrap(), "released already");
        // Whatever the body, and whether or not the tombstone has expired.
        let again = c.claim("t", E, "k", b"second").unwrap();
        assert_eq!((again.outcome.as_str(), again.attempt), ("execute", Some(2)));
        assert!(finish(&mut c, "idem_release", "2").unwrap());
        c.batch_execute("UPDATE idempotency_keys SET expires_at = now() - interval '1 s'").unwrap();
        let again = c.claim("t", E, "k", b"third").unwrap();
        assert_eq!((again.outcome.as_str(), again.attempt), ("execute", Some(3)));
        assert_eq!(c.claim("t", E, "k", b"third").unwrap().outcome, "in_progress");
    }
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
