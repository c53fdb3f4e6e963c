//! REPEATABLE READ and SERIALIZABLE: a right outcome, or 40001 that a retry of the transaction cures.

mod changed;
mod hammer;

use crate::payments::*;
use harness::{sqlstate, Arrival, Background, Calls, Cluster, Database};
use postgres::Client;

const LEVELS: [&str; 2] = ["REPEATABLE READ", "SERIALIZABLE"];
const WAITS: [&str; 2] = ["0", "1 hour"];

/// A transaction whose snapshot is taken now.
fn with_snapshot(db: &Database, level: &str) -> Client {
    let mut client = db.admin();
    run(&mut client, &format!("BEGIN ISOLATION LEVEL {level}; SELECT 1 FROM ledger"));
    client
}

/// Pays in a transaction of its own and returns what the client was sent.
fn pay(client: &mut Client, endpoint: &str) -> Vec<u8> {
    run(client, "BEGIN");
    expect(client, endpoint, "k", "execute");
    let sent = work(client, endpoint, "k");
    run(client, "COMMIT");
    sent
}

/// The retry that the error asked for: the same call in a new transaction of the same level.
fn retried(client: &mut Client, level: &str) -> Arrival {
    run(client, &format!("ROLLBACK; BEGIN ISOLATION LEVEL {level}"));
    let arrival = claim(client, PAY, "k");
    run(client, "COMMIT");
    arrival
}

fn refused(error: postgres::Error, context: &str) {
    assert_eq!(sqlstate(&error), "40001", "{context}: {error:?}");
}

#[test]
fn what_was_there_before_the_snapshot_is_answered_as_ever() {
    let db = shop(Cluster::shared());
    for level in LEVELS {
        let sent = pay(&mut db.admin(), PAY);
        let mut client = with_snapshot(&db, level);
        assert_eq!(expect(&mut client, PAY, "k", "replay").response_body.as_ref(), Some(&sent));
        assert_eq!(client.claim(TENANT, PAY, "k", b"another").unwrap().outcome, "key_reused");
        expect(&mut client, PAY, "new", "execute");
        expect(&mut client, PAY, "new", "in_progress");
        complete(&mut client, PAY, "new");
        expect(&mut client, PAY, "new", "replay");
        run(&mut client, "COMMIT; DELETE FROM idempotency_keys");
    }
}

#[test]
fn a_duplicate_that_committed_after_the_snapshot_is_40001_and_its_retry_replays() {
    for level in LEVELS {
        for wait in WAITS {
            let db = shop(Cluster::shared());
            let mut late = with_snapshot(&db, level);
            let sent = pay(&mut db.admin(), PAY);
            let error = late.claim_waiting(TENANT, PAY, "k", BODY, wait).unwrap_err();
            refused(error, &format!("{level}, wait {wait}"));
            let told = retried(&mut late, level);
            assert_eq!((told.outcome.as_str(), told.response_body), ("replay", Some(sent)));
            assert_eq!(charges(&mut late, "k"), 1);
        }
    }
}

#[test]
fn a_duplicate_that_took_over_an_expired_row_after_the_snapshot_is_40001_and_its_retry_replays() {
    for level in LEVELS {
        for wait in WAITS {
            let db = shop(Cluster::shared());
            let mut other = db.admin();
            pay(&mut other, PAY);
            expire(&mut other, "k");
            let mut late = with_snapshot(&db, level);
            let sent = pay(&mut other, PAY);
            let error = late.claim_waiting(TENANT, PAY, "k", BODY, wait).unwrap_err();
            refused(error, &format!("{level}, wait {wait}"));
            let told = retried(&mut late, level);
            assert_eq!((told.outcome.as_str(), told.response_body), ("replay", Some(sent)));
            assert_eq!(charges(&mut late, "k"), 2, "once a retention");
        }
    }
}

#[test]
fn an_expired_row_that_was_swept_after_the_snapshot_is_40001_and_its_retry_executes() {
    for level in LEVELS {
        for wait in WAITS {
            let db = shop(Cluster::shared());
            let mut other = db.admin();
            pay(&mut other, PAY);
            expire(&mut other, "k");
            let mut late = with_snapshot(&db, level);
            assert_eq!(other.value::<i32>("SELECT idem_sweep()"), 1);
            let error = late.claim_waiting(TENANT, PAY, "k", BODY, wait).unwrap_err();
            refused(error, &format!("{level}, wait {wait}"));
            run(&mut late, &format!("ROLLBACK; BEGIN ISOLATION LEVEL {level}"));
            expect(&mut late, PAY, "k", "execute");
            work(&mut late, PAY, "k");
            run(&mut late, "COMMIT");
            assert_eq!((charges(&mut late, "k"), stored(&mut late, "k")), (2, 1));
        }
    }
}

#[test]
fn an_open_transaction_is_in_progress_at_once_at_every_level() {
    for level in LEVELS {
        let db = shop(Cluster::shared());
        let mut late = with_snapshot(&db, level);
        let mut first = db.admin();
        run(&mut first, "BEGIN");
        expect(&mut first, PAY, "k", "execute");
        expect(&mut late, PAY, "k", "in_progress");
        charge(&mut late, "other");
        run(&mut late, "COMMIT");
    }
}

#[test]
fn waiting_for_an_open_transaction_ends_in_40001_when_it_commits_and_executes_when_it_does_not() {
    for level in LEVELS {
        for end in ["COMMIT", "ROLLBACK"] {
            let db = shop(Cluster::shared());
            let mut first = db.admin();
            run(&mut first, "BEGIN");
            expect(&mut first, PAY, "k", "execute");
            let waiting = Background::run(with_snapshot(&db, level), |client| {
                client.claim_waiting(TENANT, PAY, "k", BODY, "1 hour")
            });
            waiting.until_waiting_for("Extension", &mut db.admin());
            let sent = work(&mut first, PAY, "k");
            run(&mut first, end);
            let (told, mut late) = waiting.join();
            if end == "COMMIT" {
                refused(told.unwrap_err(), level);
                assert_eq!(retried(&mut late, level).response_body, Some(sent));
            } else {
                assert_eq!(told.unwrap().outcome, "execute");
                work(&mut late, PAY, "k");
                run(&mut late, "COMMIT");
            }
            assert_eq!(charges(&mut late, "k"), 1, "{level}, {end}");
        }
    }
}

/// What another does to an open claim while a transaction with an older snapshot waits for it.
#[test]
fn waiting_for_a_committed_open_claim_ends_in_40001_when_it_is_finished_or_released() {
    for level in LEVELS {
        for release in [false, true] {
            let db = shop(Cluster::shared());
            let mut other = db.admin();
            expect(&mut other, CHARGE, "k", "execute");
            let waiting = Background::run(with_snapshot(&db, level), |client| {
                client.claim_waiting(TENANT, CHARGE, "k", BODY, "1 hour")
            });
            waiting.until_waiting_for("Extension", &mut db.admin());
            if release {
                assert!(other.release(TENANT, CHARGE, "k").unwrap());
            } else {
                complete(&mut other, CHARGE, "k");
            }
            let (told, mut late) = waiting.join();
            refused(told.unwrap_err(), level);
            run(&mut late, "ROLLBACK");
            expect(&mut late, CHARGE, "k", if release { "execute" } else { "replay" });
        }
    }
}

/// A row that the snapshot does not show and that another is deleting: the answer does not wait for that transaction.
#[test]
fn a_row_younger_than_the_snapshot_that_is_being_deleted_holds_nobody_up() {
    for level in LEVELS {
        for by in ["release", "sweep"] {
            let db = shop(Cluster::shared());
            let mut late = with_snapshot(&db, level);
            let mut other = db.admin();
            expect(&mut other, CHARGE, "k", "execute");
            if by == "sweep" {
                complete(&mut other, CHARGE, "k");
                expire(&mut other, "k");
            }
            run(&mut other, "BEGIN");
            match by {
                "sweep" => assert_eq!(other.value::<i32>("SELECT idem_sweep()"), 1),
                _ => assert!(other.release(TENANT, CHARGE, "k").unwrap()),
            }
            // A lock that is waited for becomes an error, so that the test ends.
            run(&mut late, "SET LOCAL lock_timeout = '3 s'");
            match late.claim(TENANT, CHARGE, "k", BODY) {
                Ok(told) => assert_eq!(told.outcome, "in_progress", "{level}, {by}"),
                Err(error) => refused(error, &format!("{level}, {by}")),
            }
        }
    }
}

/// A tombstone that the snapshot shows was taken over since.
#[test]
fn a_released_key_that_was_claimed_again_after_the_snapshot_is_40001() {
    for level in LEVELS {
        for wait in WAITS {
            let db = shop(Cluster::shared());
            let mut other = db.admin();
            expect(&mut other, CHARGE, "k", "execute");
            assert!(other.release(TENANT, CHARGE, "k").unwrap());
            let mut late = with_snapshot(&db, level);
            expect(&mut other, CHARGE, "k", "execute");
            refused(late.claim_waiting(TENANT, CHARGE, "k", BODY, wait).unwrap_err(), level);
            run(&mut late, "ROLLBACK");
            expect(&mut late, CHARGE, "k", "in_progress");
        }
    }
}

type Finish = fn(&mut Client) -> Result<bool, postgres::Error>;

const FINISHES: [(&str, Finish); 3] = [
    ("complete", |c| c.complete(TENANT, CHARGE, "k", 201, b"paid")),
    ("fail", |c| c.fail(TENANT, CHARGE, "k", 402, b"no money")),
    ("release", |c| c.release(TENANT, CHARGE, "k")),
];

#[test]
fn finishing_a_claim_that_committed_after_the_snapshot_is_40001_and_its_retry_works() {
    for level in LEVELS {
        for (name, finish) in FINISHES {
            let db = shop(Cluster::shared());
            let mut late = with_snapshot(&db, level);
            expect(&mut db.admin(), CHARGE, "k", "execute");
            refused(finish(&mut late).unwrap_err(), &format!("{level}, {name}"));
            run(&mut late, &format!("ROLLBACK; BEGIN ISOLATION LEVEL {level}"));
            assert!(finish(&mut late).unwrap());
            run(&mut late, "COMMIT");
            expect(&mut late, CHARGE, "k", if name == "release" { "execute" } else { "replay" });
        }
    }
}

#[test]
fn finishing_a_claim_that_another_finished_after_the_snapshot_is_40001_and_its_retry_says_how_it_is() {
    for level in LEVELS {
        for (name, finish) in FINISHES {
            let db = shop(Cluster::shared());
            let mut other = db.admin();
            expect(&mut other, CHARGE, "k", "execute");
            let mut late = with_snapshot(&db, level);
            complete(&mut other, CHARGE, "k");
            refused(finish(&mut late).unwrap_err(), &format!("{level}, {name}"));
            run(&mut late, &format!("ROLLBACK; BEGIN ISOLATION LEVEL {level}"));
            assert_eq!(sqlstate(&finish(&mut late).unwrap_err()), "ID002", "{level}, {name}");
        }
    }
}

#[test]
fn finishing_a_claim_that_another_released_after_the_snapshot_is_40001() {
    for level in LEVELS {
        for (name, finish) in FINISHES {
            let db = shop(Cluster::shared());
            let mut other = db.admin();
            expect(&mut other, CHARGE, "k", "execute");
            let mut late = with_snapshot(&db, level);
            assert!(other.release(TENANT, CHARGE, "k").unwrap());
            refused(finish(&mut late).unwrap_err(), &format!("{level}, {name}"));
        }
    }
}

/// The snapshot shows an expired result; by now another has claimed the key anew, and that claim is the one meant.
#[test]
fn finishing_a_claim_made_after_the_snapshot_in_the_place_of_an_expired_row_is_40001() {
    for level in LEVELS {
        for (name, finish) in FINISHES {
            let db = shop(Cluster::shared());
            let mut other = db.admin();
            expect(&mut other, CHARGE, "k", "execute");
            other.complete(TENANT, CHARGE, "k", 201, b"paid").unwrap();
            expire(&mut other, "k");
            let mut late = with_snapshot(&db, level);
            expect(&mut other, CHARGE, "k", "execute");
            let error = finish(&mut late).expect_err("not silently nothing");
            refused(error, &format!("{level}, {name}"));
        }
    }
}
