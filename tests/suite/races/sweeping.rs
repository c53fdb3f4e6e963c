//! A claim and the sweep at the same row.

use crate::payments::*;
use harness::{at_once, Background, Calls, Cluster, Database};

/// A shop with a payment whose retention has ended.
fn shop_with_expired_payment() -> Database<'static> {
    let db = shop(Cluster::shared());
    let mut client = db.admin();
    run(&mut client, "BEGIN");
    expect(&mut client, PAY, "k", "execute");
    work(&mut client, PAY, "k");
    run(&mut client, "COMMIT");
    expire(&mut client, "k");
    db
}

fn sweep(client: &mut postgres::Client) -> i32 {
    client.value("SELECT idem_sweep()")
}

#[test]
fn a_row_that_is_being_swept_is_in_progress_and_then_executes_however_the_sweep_ends() {
    for end_of_sweep in ["COMMIT", "ROLLBACK"] {
        let db = shop_with_expired_payment();
        let mut sweeper = db.admin();
        run(&mut sweeper, "BEGIN");
        assert_eq!(sweep(&mut sweeper), 1);
        expect(&mut db.admin(), PAY, "k", "in_progress");
        let waiting = Background::run(db.admin(), |client| {
            run(client, "BEGIN");
            let told = client.claim_waiting(TENANT, PAY, "k", BODY, "1 hour").unwrap();
            (told, work(client, PAY, "k"))
        });
        waiting.until_waiting_for("Extension", &mut db.admin());
        run(&mut sweeper, end_of_sweep);
        let ((told, sent), mut client) = waiting.join();
        assert_eq!((told.outcome.as_str(), told.attempt), ("execute", Some(1)), "{end_of_sweep}");
        expect(&mut sweeper, PAY, "k", "in_progress");
        assert_eq!(sweep(&mut sweeper), 0);
        run(&mut client, "COMMIT");
        assert_eq!(expect(&mut sweeper, PAY, "k", "replay").response_body, Some(sent));
        assert_eq!((charges(&mut sweeper, "k"), stored(&mut sweeper, "k")), (2, 1), "once a retention");
    }
}

#[test]
fn a_row_that_is_being_taken_over_is_not_swept() {
    let db = shop_with_expired_payment();
    let (mut client, mut sweeper) = (db.admin(), db.admin());
    run(&mut client, "BEGIN");
    expect(&mut client, PAY, "k", "execute");
    assert_eq!(sweep(&mut sweeper), 0, "skipped, not waited for");
    expect(&mut sweeper, PAY, "k", "in_progress");
    run(&mut client, "ROLLBACK; BEGIN");
    expect(&mut client, PAY, "k", "execute");
    let sent = work(&mut client, PAY, "k");
    run(&mut client, "COMMIT");
    assert_eq!(sweep(&mut sweeper), 0);
    assert_eq!(expect(&mut sweeper, PAY, "k", "replay").response_body, Some(sent));
}

/// Whoever loses the race for a row is no longer in its way, however long his transaction stays open.
#[test]
fn a_claim_that_found_the_row_locked_holds_no_gate() {
    let db = shop_with_expired_payment();
    let (mut sweeper, mut loser, mut next) = (db.admin(), db.admin(), db.admin());
    run(&mut sweeper, "BEGIN");
    assert_eq!(sweep(&mut sweeper), 1);
    run(&mut loser, "BEGIN");
    expect(&mut loser, PAY, "k", "in_progress");
    let held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()";
    assert_eq!(loser.value::<i64>(held), 0);
    run(&mut sweeper, "COMMIT");
    run(&mut next, "BEGIN");
    expect(&mut next, PAY, "k", "execute");
}

/// Whether the row is swept, taken over or found missing, one of the clients owns it, and it is really there.
#[test]
fn of_clients_and_sweepers_at_the_same_expired_row_one_client_owns_it() {
    const SWEEPERS: usize = 2;
    let db = shop_with_expired_payment();
    let mut admin = db.admin();
    let mut clients: Vec<_> = (0..8).map(|_| db.admin()).collect();
    for round in 1..=60 {
        let outcomes = at_once(&mut clients, |n, client| {
            if n < SWEEPERS {
                sweep(client);
                return "swept".to_owned();
            }
            run(client, "BEGIN");
            // Half of them wait, so that somebody is there when the sweep has ended.
            let wait = if n % 2 == 0 { "1 minute" } else { "0" };
            let told = client.claim_waiting(TENANT, PAY, "k", BODY, wait).unwrap();
            if told.outcome == "execute" {
                work(client, PAY, "k");
            }
            run(client, "COMMIT");
            told.outcome
        });
        let told = |outcome: &str| outcomes.iter().filter(|o| *o == outcome).count();
        assert_eq!(told("execute"), 1, "{outcomes:?}");
        assert_eq!(told("in_progress") + told("replay") + SWEEPERS + 1, outcomes.len(), "{outcomes:?}");
        assert_eq!((charges(&mut admin, "k"), stored(&mut admin, "k")), (round + 1, 1), "once a retention");
        expire(&mut admin, "k");
    }
}
