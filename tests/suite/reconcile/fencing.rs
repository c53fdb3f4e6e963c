//! The old owner of a claim that was taken over is refused, and whoever took it over ends it.

use super::{age, end_leases, finish, reconcile, stuck_claims, BODY, CHARGE};
use crate::external::stored;
use harness::{at_once, sqlstate, wait_until, Background, Calls, Cluster};
use serde_json::Value;

const CALLS: [&str; 4] = ["complete", "fail", "release", "checkpoint"];

#[test]
fn the_old_owners_late_calls_are_refused_and_change_nothing() {
    let db = stuck_claims(Cluster::shared(), 1);
    let (mut old, mut reconciler) = (db.admin(), db.admin());
    let refuse_all = |old: &mut postgres::Client, attempts: &[Option<i32>]| {
        let before = stored(old, "k1");
        for call in CALLS {
            for attempt in attempts {
                let error = finish(old, call, "k1", *attempt).expect_err(call);
                assert_eq!(sqlstate(&error), "ID003", "{call} {attempt:?}: {error}");
            }
        }
        assert_eq!(stored(old, "k1"), before);
    };
    assert_eq!(reconcile(&mut reconciler, 1).unwrap(), [("k1".to_string(), 2)]);
    refuse_all(&mut old, &[None, Some(1)]);
    // A reconciler whose lease has run out is an old owner as soon as the next one has the claim, not before.
    end_leases(&mut old);
    finish(&mut reconciler, "checkpoint", "k1", Some(2)).unwrap();
    assert_eq!(reconcile(&mut old, 1).unwrap(), [("k1".to_string(), 3)]);
    refuse_all(&mut reconciler, &[None, Some(1), Some(2), Some(4)]);
    // Nor is the very result that was stored accepted from one that does not own the claim.
    finish(&mut old, "complete", "k1", Some(3)).unwrap();
    refuse_all(&mut reconciler, &[None, Some(1), Some(2)]);
    finish(&mut old, "complete", "k1", Some(3)).unwrap();
    let replay = old.claim("t", CHARGE, "k1", BODY).unwrap();
    assert_eq!((replay.outcome.as_str(), replay.response_code, replay.attempt), ("replay", Some(201), Some(3)));
}

#[test]
fn who_took_a_claim_over_completes_fails_or_releases_it_with_its_attempt() {
    let db = stuck_claims(Cluster::shared(), 3);
    let mut c = db.admin();
    let first = c.value::<uuid::Uuid>("SELECT provider_key FROM idempotency_keys WHERE key = 'k3'");
    assert_eq!(reconcile(&mut c, 3).unwrap().len(), 3);
    for (call, key, outcome, code) in [
        ("complete", "k1", "replay", Some(201)),
        ("fail", "k2", "replay", Some(402)),
        ("release", "k3", "execute", None),
    ] {
        let none = finish(&mut c, call, key, None).unwrap_err();
        assert_eq!(sqlstate(&none), "ID003", "no attempt means the first");
        finish(&mut c, call, key, Some(2)).unwrap();
        let arrival = c.claim("t", CHARGE, key, BODY).unwrap();
        assert_eq!((arrival.outcome.as_str(), arrival.response_code), (outcome, code), "{key}");
        if call == "release" {
            assert_eq!((arrival.attempt, arrival.provider_key), (Some(3), Some(first)));
        } else {
            let row = stored(&mut c, key);
            assert_eq!((&row["open_since"], &row["lease_until"]), (&Value::Null, &Value::Null));
        }
    }
    age(&mut c, "1 day");
    assert_eq!(reconcile(&mut c, 10).unwrap(), [("k3".to_string(), 4)], "what was released is a new claim");
}

/// Whichever comes first wins, and the other knows.
#[test]
fn an_owner_that_finishes_while_a_reconciler_takes_over_never_shares_the_claim() {
    let db = stuck_claims(Cluster::shared(), 0);
    let mut clients = [db.admin(), db.admin()];
    for n in 0..60 {
        let (key, call) = (format!("k{n}"), ["complete", "fail", "release"][n % 3]);
        clients[0].claim("t", CHARGE, &key, BODY).unwrap();
        age(&mut clients[0], "1 day");
        let results = at_once(&mut clients, |who, c| match who {
            0 => finish(c, call, &key, Some(1)).map(|()| 0),
            _ => reconcile(c, 1).map(|claims| claims.len()),
        });
        match &results[..] {
            [Ok(_), Ok(0)] => {}
            [Err(error), Ok(1)] => {
                assert_eq!(sqlstate(error), "ID003", "{call}: {error}");
                finish(&mut clients[1], call, &key, Some(2)).unwrap();
            }
            other => panic!("{call}: {other:?}"),
        }
    }
}

#[test]
fn an_owner_that_waits_for_the_reconcilers_transaction_is_told_how_it_ended() {
    let db = stuck_claims(Cluster::shared(), 2);
    let mut observer = db.admin();
    for (key, commits) in [("k1", true), ("k2", false)] {
        let mut reconciler = db.admin();
        let mut tx = reconciler.transaction().unwrap();
        assert_eq!(reconcile(&mut tx, 1).unwrap(), [(key.to_string(), 2)]);
        let owner = Background::run(db.admin(), move |c| finish(c, "complete", key, Some(1)));
        owner.until_waiting_for("Lock", &mut observer);
        if commits {
            tx.commit().unwrap();
            assert_eq!(sqlstate(&owner.join().0.unwrap_err()), "ID003");
        } else {
            tx.rollback().unwrap();
            owner.join().0.unwrap();
            assert_eq!(stored(&mut observer, key)["status"], "succeeded");
        }
    }
}

#[test]
fn a_late_owner_at_a_fixed_snapshot_gets_a_serialization_failure_and_then_is_refused() {
    let db = stuck_claims(Cluster::shared(), 4);
    let mut c = db.admin();
    for (level, claims) in [("REPEATABLE READ", ["k1", "k2"]), ("SERIALIZABLE", ["k3", "k4"])] {
        let mut owner = db.admin();
        owner.batch_execute(&format!("BEGIN ISOLATION LEVEL {level}; SELECT 1 FROM idempotency_keys")).unwrap();
        assert_eq!(reconcile(&mut c, 2).unwrap().len(), 2);
        let error = finish(&mut owner, "complete", claims[0], Some(1)).unwrap_err();
        assert_eq!(sqlstate(&error), "40001", "{error}");
        owner.batch_execute(&format!("ROLLBACK; BEGIN ISOLATION LEVEL {level}")).unwrap();
        let error = finish(&mut owner, "complete", claims[0], Some(1)).unwrap_err();
        assert_eq!(sqlstate(&error), "ID003", "{error}");
        owner.batch_execute("ROLLBACK").unwrap();
    }
}

/// A client that waits gets the reconciler's result.
#[test]
fn a_waiting_duplicate_replays_what_the_reconciler_stores() {
    let db = stuck_claims(Cluster::shared(), 1);
    let mut observer = db.admin();
    let waiting = Background::run(db.admin(), |c| c.claim_waiting("t", CHARGE, "k1", BODY, "50 s").unwrap());
    waiting.until_waiting_for("Extension", &mut observer);
    assert_eq!(reconcile(&mut observer, 1).unwrap().len(), 1);
    finish(&mut observer, "fail", "k1", Some(2)).unwrap();
    wait_until("the answer", || waiting.is_finished());
    let (replay, _) = waiting.join();
    assert_eq!((replay.outcome.as_str(), replay.response_code), ("replay", Some(402)));
}
