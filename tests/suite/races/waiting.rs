//! `wait`: how a claim that waits for another ends.

use crate::payments::*;
use harness::{sqlstate, wait_for, wait_until, Arrival, Background, Calls, Cluster, Database, Shutdown};
use postgres::Client;

/// Longer than any test: a claim that waits this long returns because of what happened, not of the time.
const LONG: &str = "1 hour";

/// A claim that waits, in a transaction that it leaves open.
fn waiting(db: &Database, endpoint: &'static str, wait: &'static str) -> Background<Result<Arrival, postgres::Error>> {
    let waiting = Background::run(db.admin(), move |client| {
        run(client, "BEGIN");
        client.claim_waiting(TENANT, endpoint, "k", BODY, wait)
    });
    waiting.until_waiting_for("Extension", &mut db.admin());
    waiting
}

/// A first claim in a transaction that stays open.
fn first(db: &Database, endpoint: &str) -> Client {
    let mut client = db.admin();
    run(&mut client, "BEGIN");
    expect(&mut client, endpoint, "k", "execute");
    client
}

#[test]
fn the_first_commits_and_the_waiting_one_replays_its_bytes() {
    let db = shop(Cluster::shared());
    let mut first = first(&db, PAY);
    let waiting = waiting(&db, PAY, LONG);
    let sent = work(&mut first, PAY, "k");
    run(&mut first, "COMMIT");
    let told = waiting.join().0.unwrap();
    assert_eq!((told.outcome.as_str(), told.response_code), ("replay", Some(201)));
    assert_eq!(told.response_body, Some(sent));
    assert_eq!(charges(&mut first, "k"), 1);
}

#[test]
fn a_waiting_one_with_another_body_learns_that_the_key_is_used() {
    let db = shop(Cluster::shared());
    let mut first = first(&db, PAY);
    let waiting = Background::run(db.admin(), |c| c.claim_waiting(TENANT, PAY, "k", b"another", LONG));
    waiting.until_waiting_for("Extension", &mut db.admin());
    work(&mut first, PAY, "k");
    run(&mut first, "COMMIT");
    let told = waiting.join().0.unwrap();
    assert_eq!((told.outcome.as_str(), told.response_code), ("key_reused", Some(422)));
}

#[test]
fn the_first_rolls_back_and_one_of_two_waiting_executes_while_the_other_waits_on() {
    let db = shop(Cluster::shared());
    let mut first = first(&db, PAY);
    charge(&mut first, "k");
    let mut two = vec![waiting(&db, PAY, LONG), waiting(&db, PAY, LONG)];
    run(&mut first, "ROLLBACK");
    let lucky = wait_for("one of the two to return", || two.iter().position(Background::is_finished));
    let (told, mut client) = two.remove(lucky).join();
    assert_eq!(told.unwrap().outcome, "execute");
    let other = two.remove(0);
    other.until_waiting_for("Extension", &mut first);
    let sent = work(&mut client, PAY, "k");
    run(&mut client, "COMMIT");
    let told = other.join().0.unwrap();
    assert_eq!((told.outcome.as_str(), told.response_body), ("replay", Some(sent)));
    assert_eq!(charges(&mut first, "k"), 1);
}

#[test]
fn the_first_rolls_back_and_whoever_waits_no_longer_is_told_in_progress() {
    let db = shop(Cluster::shared());
    let first = first(&db, PAY);
    let lucky = waiting(&db, PAY, LONG);
    drop(first); // as good as a rollback
    let (told, _open) = lucky.join();
    assert_eq!(told.unwrap().outcome, "execute");
    let told = db.admin().claim_waiting(TENANT, PAY, "k", BODY, "30 ms").unwrap();
    assert_eq!((told.outcome.as_str(), told.response_code), ("in_progress", Some(409)));
}

#[test]
fn a_rollback_to_a_savepoint_lets_a_waiting_one_in() {
    let db = shop(Cluster::shared());
    let mut first = db.admin();
    run(&mut first, "BEGIN; SAVEPOINT s");
    expect(&mut first, PAY, "k", "execute");
    let waiting = waiting(&db, PAY, LONG);
    run(&mut first, "ROLLBACK TO s");
    let (told, mut second) = waiting.join();
    assert_eq!(told.unwrap().outcome, "execute");
    expect(&mut first, PAY, "k", "in_progress");
    work(&mut second, PAY, "k");
    run(&mut second, "COMMIT");
    expect(&mut first, PAY, "k", "replay");
}

#[test]
fn a_wait_that_runs_out_ends_in_progress_and_leaves_the_transaction_usable() {
    let db = shop(Cluster::shared());
    let mut first = first(&db, PAY);
    let (told, mut second) = waiting(&db, PAY, "400 ms").join();
    assert_eq!(told.unwrap().outcome, "in_progress");
    charge(&mut second, "other");
    run(&mut second, "COMMIT");
    // Of an open claim that is committed, too.
    run(&mut first, "ROLLBACK");
    expect(&mut first, CHARGE, "k", "execute");
    assert_eq!(waiting(&db, CHARGE, "400 ms").join().0.unwrap().outcome, "in_progress");
}

#[test]
fn waiting_for_a_committed_open_claim_ends_when_another_finishes_or_releases_it() {
    let db = shop(Cluster::shared());
    let mut other = db.admin();
    for endpoint in [CHARGE, ORDER] {
        expect(&mut db.admin(), endpoint, "k", "execute");
        let for_release = waiting(&db, endpoint, LONG);
        assert!(other.release(TENANT, endpoint, "k").unwrap());
        let (told, mut client) = for_release.join();
        let told = told.unwrap();
        assert_eq!((told.outcome.as_str(), told.attempt), ("execute", Some(2)), "{endpoint}");
        run(&mut client, "COMMIT");

        let for_completion = waiting(&db, endpoint, LONG);
        assert!(other.complete(TENANT, endpoint, "k", 201, b"").is_err(), "the attempt is the second");
        let sent = b"paid".to_vec();
        let complete = format!("SELECT idem_complete('{TENANT}', '{endpoint}', 'k', 201, 'paid'::text, attempt => 2)");
        assert!(other.value::<bool>(&complete));
        let told = for_completion.join().0.unwrap();
        assert_eq!((told.outcome.as_str(), told.response_body), ("replay", Some(sent)), "{endpoint}");

        expire(&mut other, "k");
        expect(&mut other, endpoint, "k", "execute");
        let for_failure = waiting(&db, endpoint, LONG);
        other.fail(TENANT, endpoint, "k", 402, b"no money").unwrap();
        let told = for_failure.join().0.unwrap();
        assert_eq!((told.outcome.as_str(), told.response_code), ("replay", Some(402)), "{endpoint}");
        other.execute("DELETE FROM idempotency_keys", &[]).unwrap();
    }
}

#[test]
fn a_claim_repeated_in_its_own_transaction_never_waits_for_itself() {
    let db = shop(Cluster::shared());
    for endpoint in [PAY, CHARGE, ORDER] {
        let mut client = first(&db, endpoint);
        run(&mut client, "SET LOCAL statement_timeout = '30 s'");
        let again = |client: &mut Client| client.claim_waiting(TENANT, endpoint, "k", BODY, LONG).unwrap().outcome;
        assert_eq!(again(&mut client), "in_progress");
        run(&mut client, "SAVEPOINT s");
        assert_eq!(again(&mut client), "in_progress");
        complete(&mut client, endpoint, "k");
        assert_eq!(again(&mut client), "replay");
        run(&mut client, "ROLLBACK TO s");
        assert_eq!(again(&mut client), "in_progress");
        if endpoint != PAY {
            assert!(client.release(TENANT, endpoint, "k").unwrap());
            assert_eq!(again(&mut client), "execute");
        }
        run(&mut client, "ROLLBACK");
    }
}

#[test]
fn two_that_hold_what_the_other_wants_do_not_deadlock() {
    let db = shop(Cluster::shared());
    let mut first = first(&db, PAY);
    let crossing = Background::run(db.admin(), |client| {
        run(client, "BEGIN");
        expect(client, PAY, "k2", "execute");
        let told = client.claim_waiting(TENANT, PAY, "k", BODY, LONG).unwrap();
        complete(client, PAY, "k2");
        run(client, "COMMIT");
        told.outcome
    });
    crossing.until_waiting_for("Extension", &mut db.admin());
    let told = first.claim_waiting(TENANT, PAY, "k2", BODY, "1500 ms").unwrap();
    assert_eq!(told.outcome, "in_progress", "and not 40P01");
    complete(&mut first, PAY, "k");
    run(&mut first, "COMMIT");
    assert_eq!(crossing.join().0, "replay");
    expect(&mut first, PAY, "k2", "replay");
}

#[test]
fn a_waiting_session_can_be_cancelled_and_terminated() {
    let db = shop(Cluster::shared());
    let mut first = first(&db, PAY);
    let mut admin = db.admin();

    let cancelled = waiting(&db, PAY, LONG);
    admin.query("SELECT pg_cancel_backend($1)", &[&cancelled.pid()]).unwrap();
    let (told, mut client) = cancelled.join();
    assert_eq!(sqlstate(&told.unwrap_err()), "57014");
    run(&mut client, "ROLLBACK");
    expect(&mut client, PAY, "k", "in_progress");

    let timed_out = Background::run(db.admin(), |client| {
        run(client, "SET statement_timeout = '300 ms'");
        client.claim_waiting(TENANT, PAY, "k", BODY, LONG)
    });
    assert_eq!(sqlstate(&timed_out.join().0.unwrap_err()), "57014");

    let terminated = waiting(&db, PAY, LONG);
    let pid = terminated.pid();
    admin.query("SELECT pg_terminate_backend($1)", &[&pid]).unwrap();
    assert!(terminated.join().0.is_err());
    wait_until("the terminated backend to be gone", || {
        admin.query("SELECT FROM pg_stat_activity WHERE pid = $1", &[&pid]).unwrap().is_empty()
    });

    let sent = work(&mut first, PAY, "k");
    run(&mut first, "COMMIT");
    assert_eq!(expect(&mut client, PAY, "k", "replay").response_body, Some(sent));
}

#[test]
fn a_fast_shutdown_is_not_held_up_by_waiting_sessions() {
    let cluster = Cluster::start(&[]);
    let db = shop(&cluster);
    let _first = first(&db, PAY);
    let waiting = waiting(&db, PAY, LONG);
    cluster.stop(Shutdown::Fast); // fails when it takes over a minute
    assert!(waiting.join().0.is_err());
    cluster.start_again();
    expect(&mut db.admin(), ORDER, "k", "execute");
}
