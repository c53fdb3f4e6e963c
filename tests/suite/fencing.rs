//! Released claims leave tombstones: a number that was given out is not given out again.

mod random;

use harness::{sqlstate, Calls, Cluster, Database, Failure};
use postgres::Client;

const CHARGE: &str = "POST /charges";
const BODY: &[u8] = b"body";

fn shop() -> Database<'static> {
    let db = Cluster::shared().database();
    db.admin()
        .batch_execute(
            "SELECT idem_protect('POST /charges', 'external', stuck_after => '1 microsecond'), idem_protect('POST /pay');
             CREATE TABLE effects (key text NOT NULL)",
        )
        .unwrap();
    db
}

fn granted(c: &mut Client, endpoint: &str, key: &str, body: &[u8]) -> i32 {
    let arrival = c.claim("t", endpoint, key, body).unwrap();
    assert_eq!(arrival.outcome, "execute", "{arrival:?}");
    arrival.attempt.expect("an attempt")
}

fn release(c: &mut Client, key: &str, attempt: i32) -> Result<bool, postgres::Error> {
    c.query_one("SELECT idem_release('t', $1, $2, $3)", &[&CHARGE, &key, &attempt]).map(|row| row.get(0))
}

fn call(c: &mut Client, function: &str, key: &str, attempt: Option<i32>) -> Result<bool, postgres::Error> {
    let arguments = match function {
        "idem_release" => "attempt => $2",
        "idem_checkpoint" => "'point', attempt => $2",
        _ => "201, '{}'::bytea, attempt => $2",
    };
    let sql = format!("SELECT {function}('t', '{CHARGE}', $1, {arguments})");
    c.query_one(&sql, &[&key, &attempt]).map(|row| row.get(0))
}

/// All that is stored for a key, as text.
fn row(c: &mut Client, key: &str) -> String {
    c.query_one("SELECT k::text FROM idempotency_keys k WHERE key = $1", &[&key]).unwrap().get(0)
}

// CASES 39
#[test]
fn a_release_that_is_sent_again_does_not_touch_the_next_owner() {
    for is_old in [false, true] {
        let db = shop();
        let (mut a, mut b, mut third) = (db.admin(), db.admin(), db.admin());
        assert_eq!(granted(&mut a, CHARGE, "k", BODY), 1);
        if is_old {
            a.batch_execute(
                "UPDATE idempotency_keys SET created_at = created_at - interval '60 days',
                        open_since = open_since - interval '60 days', expires_at = expires_at - interval '60 days'",
            )
            .unwrap();
        }
        assert!(release(&mut a, "k", 1).unwrap());
        // Only the answer to the COMMIT was lost. Nobody has swept meanwhile, however old the claim was.
        assert_eq!(a.value::<i32>("SELECT idem_sweep()"), 0);
        assert!(!release(&mut a, "k", 1).unwrap(), "released before: nothing to do");
        assert_eq!(granted(&mut b, CHARGE, "k", BODY), 2);
        let before = row(&mut b, "k");
        assert_eq!(Failure::of(release(&mut a, "k", 1)).sqlstate, "ID003");
        assert_eq!(row(&mut b, "k"), before);
        assert_eq!(third.claim("t", CHARGE, "k", BODY).unwrap().response_code, Some(409));
        assert!(call(&mut b, "idem_complete", "k", Some(2)).unwrap());
    }
}

// CASES 40
#[test]
fn the_first_owner_wakes_after_a_take_over_a_release_and_another_claim() {
    let db = shop();
    let (mut first, mut others) = (db.admin(), db.admin());
    assert_eq!(granted(&mut first, CHARGE, "k", b"one"), 1);
    assert_eq!(others.query("SELECT attempt FROM idem_reconcile()", &[]).unwrap()[0].get::<_, i32>(0), 2);
    assert!(release(&mut others, "k", 2).unwrap());
    assert_eq!(granted(&mut others, CHARGE, "k", b"two"), 3);
    let wake = |first: &mut Client, before: &str| {
        for function in ["idem_checkpoint", "idem_complete", "idem_fail", "idem_release"] {
            for attempt in [Some(1), None, Some(2)] {
                let refused = call(first, function, "k", attempt).expect_err(function);
                assert_eq!(sqlstate(&refused), "ID003", "{function} {attempt:?}: {refused}");
            }
        }
        assert_eq!(row(first, "k"), before);
    };
    let before = row(&mut others, "k");
    wake(&mut first, &before);
    assert!(call(&mut others, "idem_complete", "k", Some(3)).unwrap());
    let before = row(&mut others, "k");
    wake(&mut first, &before);
    let replay = first.claim("t", CHARGE, "k", b"two").unwrap();
    assert_eq!((replay.outcome.as_str(), replay.attempt), ("replay", Some(3)));
}

#[test]
fn a_tombstone_keeps_the_number_and_nothing_of_the_operation() {
    let db = shop();
    let mut c = db.admin();
    granted(&mut c, CHARGE, "k", BODY);
    c.batch_execute("SELECT idem_checkpoint('t', 'POST /charges', 'k', 'charging', '{\"card\": \"x\"}')").unwrap();
    assert!(release(&mut c, "k", 1).unwrap());
    let kept = "SELECT (status, attempt, recovery_point, recovery_state, open_since, lease_until)::text
                  FROM idempotency_keys";
    assert_eq!(c.value::<String>(kept), "(released,1,,,,)");
    // The number is kept for a ttl from the release on: 48 hours for a retry window of 24.
    let left = "SELECT expires_at - clock_timestamp() BETWEEN '47 h 59 min' AND '48 h' FROM idempotency_keys";
    assert!(c.value::<bool>(left));
    // Its own number is refused as a claim that is not there.
    for function in ["idem_checkpoint", "idem_complete", "idem_fail"] {
        let refused = Failure::of(call(&mut c, function, "k", Some(1)));
        assert_eq!(refused.sqlstate, "ID001", "{refused:?}");
        assert!(refused.detail.contains("Attempt 1 was released"), "{refused:?}");
    }
    // A first request whatever its body, expired or not.
    c.batch_execute(
        "UPDATE idempotency_keys SET created_at = now() - interval '9 days', expires_at = now() - interval '1 day'",
    )
    .unwrap();
    assert_eq!(granted(&mut c, CHARGE, "k", b"another body"), 2);
    assert!(release(&mut c, "k", 2).unwrap());
    // Fencing holds until the tombstone is swept.
    c.batch_execute("UPDATE idempotency_keys SET expires_at = now() - interval '1 day'").unwrap();
    assert_eq!(c.value::<i32>("SELECT idem_sweep()"), 1);
    assert_eq!(granted(&mut c, CHARGE, "k", BODY), 1);
}

#[test]
fn a_claim_that_was_never_committed_leaves_no_number_behind() {
    let db = shop();
    let mut c = db.admin();
    let mut t = c.transaction().unwrap();
    assert_eq!(t.claim("t", CHARGE, "k", BODY).unwrap().attempt, Some(1));
    assert!(t.release("t", CHARGE, "k").unwrap());
    assert!(!t.release("t", CHARGE, "k").unwrap());
    assert_eq!(t.claim("t", CHARGE, "k", BODY).unwrap().attempt, Some(1));
    t.commit().unwrap();
    assert!(release(&mut c, "k", 1).unwrap());
    // Over a tombstone it turns back into that, with its number; also under a savepoint that is kept.
    let mut t = c.transaction().unwrap();
    assert_eq!(t.claim("t", CHARGE, "k", b"two").unwrap().attempt, Some(2));
    t.batch_execute("SAVEPOINT s").unwrap();
    assert!(t.release("t", CHARGE, "k").unwrap(), "no attempt means that of the own claim");
    t.batch_execute("RELEASE SAVEPOINT s").unwrap();
    t.commit().unwrap();
    assert_eq!(c.value::<String>("SELECT (status, attempt)::text FROM idempotency_keys"), "(released,1)");
    // A rolled back release leaves the claim, whose number is then taken.
    let mut t = c.transaction().unwrap();
    assert_eq!(t.claim("t", CHARGE, "k", BODY).unwrap().attempt, Some(2));
    t.batch_execute("SAVEPOINT s").unwrap();
    assert!(t.release("t", CHARGE, "k").unwrap());
    t.batch_execute("ROLLBACK TO s").unwrap();
    t.commit().unwrap();
    assert!(release(&mut c, "k", 2).unwrap());
    assert_eq!(granted(&mut c, CHARGE, "k", BODY), 3);
}

// CASES 41
#[test]
fn a_release_that_would_leave_an_effect_without_its_result_is_refused() {
    let db = shop();
    let mut c = db.admin();
    for savepoints in [false, true] {
        let mut t = c.transaction().unwrap();
        if savepoints {
            t.batch_execute("SAVEPOINT a").unwrap();
        }
        t.claim("t", "POST /pay", "k", BODY).unwrap();
        t.batch_execute("INSERT INTO effects VALUES ('k')").unwrap();
        if savepoints {
            t.batch_execute("RELEASE SAVEPOINT a; SAVEPOINT b").unwrap();
        }
        for attempt in ["", ", attempt => 1"] {
            let mut nested = t.transaction().unwrap();
            let sql = format!("SELECT idem_release('t', 'POST /pay', 'k'{attempt})");
            let refused = Failure::of(nested.execute(&sql, &[]));
            assert_eq!(refused.sqlstate, "ID004", "{refused:?}");
            assert!(refused.hint.contains("ROLLBACK"), "{refused:?}");
        }
        let refused = Failure::of(t.commit());
        assert_eq!(refused.sqlstate, "ID004");
        assert_eq!(c.value::<i64>("SELECT count(*) FROM effects"), 0);
    }
    // What the refusal advises.
    let mut t = c.transaction().unwrap();
    t.batch_execute("SAVEPOINT a").unwrap();
    t.claim("t", "POST /pay", "k", BODY).unwrap();
    t.batch_execute("INSERT INTO effects VALUES ('k'); ROLLBACK TO a").unwrap();
    t.commit().unwrap();
    assert_eq!(c.value::<i64>("SELECT (SELECT count(*) FROM effects) + (SELECT count(*) FROM idempotency_keys)"), 0);
}

#[test]
fn no_attempt_means_the_transactions_own_claim_and_else_the_first() {
    let db = shop();
    let (mut c, mut other) = (db.admin(), db.admin());
    granted(&mut c, CHARGE, "k", BODY);
    release(&mut c, "k", 1).unwrap();
    let mut t = c.transaction().unwrap();
    assert_eq!(t.claim("t", CHARGE, "k", BODY).unwrap().attempt, Some(2));
    assert!(t.rows("SELECT idem_checkpoint('t', 'POST /charges', 'k', 'p')", &[]).unwrap()[0].get::<_, bool>(0));
    let complete = "SELECT idem_complete('t', 'POST /charges', 'k', 201, ''::bytea)";
    assert!(t.rows(complete, &[]).unwrap()[0].get::<_, bool>(0), "stored now");
    assert!(
        !t.rows(complete, &[]).unwrap()[0].get::<_, bool>(0),
        "finished by this transaction: the same result again"
    );
    t.commit().unwrap();
    // Another transaction has no claim of its own.
    assert_eq!(Failure::of(other.execute(complete, &[])).sqlstate, "ID003");
    let another = call(&mut other, "idem_complete", "k", Some(2)).expect_err("another body");
    assert_eq!(sqlstate(&another), "ID002", "its number is right");
    // Being handed a claim is not making one.
    granted(&mut c, CHARGE, "handed", BODY);
    let mut t = c.transaction().unwrap();
    assert_eq!(t.rows("SELECT attempt FROM idem_reconcile()", &[]).unwrap()[0].get::<_, i32>(0), 2);
    let error = t.rows("SELECT idem_release('t', 'POST /charges', 'handed')", &[]).unwrap_err();
    assert_eq!(sqlstate(&error), "ID003");
}
