//! `idem_release`: the effect is known not to have happened.

use super::{rows_as_stored, E};
use harness::{Calls, Cluster, Failure};

#[test]
fn a_released_key_is_claimed_again_as_if_new() {
    let db = Cluster::shared().database();
    let (mut c, mut other) = (db.admin(), db.admin());
    for register in ["SELECT 1", "SELECT idem_protect('POST /x', 'external')"] {
        c.batch_execute(register).unwrap();
        assert!(!c.release("t", E, "k").unwrap(), "nothing to release");
        c.claim("t", E, "k", b"first").unwrap();
        assert!(other.release("t", E, "k").unwrap());
        assert!(!other.release("t", E, "k").unwrap(), "released already");
        let again = c.claim("t", E, "k", b"second").unwrap();
        assert_eq!((again.outcome.as_str(), again.attempt), ("execute", Some(1)));
        assert!(c.release("t", E, "k").unwrap());
    }
}

#[test]
fn release_within_the_transaction_satisfies_the_commit_guard() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    c.batch_execute("SELECT idem_protect('POST /x')").unwrap();
    let mut t = c.transaction().unwrap();
    t.claim("t", E, "k", b"first").unwrap();
    assert!(t.release("t", E, "k").unwrap());
    assert_eq!(t.claim("t", E, "k", b"second").unwrap().outcome, "execute");
    assert!(t.release("t", E, "k").unwrap());
    t.commit().unwrap();
    assert_eq!(c.value::<i64>("SELECT count(*) FROM idempotency_keys"), 0);
}

#[test]
fn a_rolled_back_release_leaves_the_claim_open() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    c.claim("t", E, "k", b"{}").unwrap();
    let mut t = c.transaction().unwrap();
    assert!(t.release("t", E, "k").unwrap());
    t.rollback().unwrap();
    assert_eq!(c.claim("t", E, "k", b"{}").unwrap().outcome, "in_progress");
}

#[test]
fn a_finished_claim_is_not_released() {
    let db = Cluster::shared().database();
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
    let db = Cluster::shared().database();
    let mut c = db.admin();
    for key in ["NULL", "''", "repeat('k', 256)", "E'\\t'"] {
        assert!(!c.value::<bool>(&format!("SELECT idem_release('t', 'POST /x', {key})")), "{key}");
    }
    assert!(c.value::<bool>("SELECT outcome = 'execute' FROM idem_claim('t', 'POST /x', 'k', ''::text)"));
    assert!(c.value::<bool>("SELECT idem_release('t', 'POST /x', 'k', 1)"));
}
