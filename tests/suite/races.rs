//! Simultaneous arrivals: the gate, waiting, and one execution.

mod finishing;
mod locks;
mod sweeping;
mod waiting;

use crate::payments::*;
use harness::{at_once, Calls, Cluster};
use postgres::NoTls;
use std::sync::mpsc::channel;

/// Pays once: claims, and works if told to. The outcome and what the client is sent.
fn pay(client: &mut postgres::Client, key: &str) -> (String, Option<Vec<u8>>) {
    run(client, "BEGIN");
    let arrival = claim(client, PAY, key);
    let body = if arrival.outcome == "execute" { Some(work(client, PAY, key)) } else { arrival.response_body };
    run(client, "COMMIT");
    (arrival.outcome, body)
}

#[test]
fn dozens_of_simultaneous_identical_payments_charge_once() {
    let db = shop(Cluster::shared());
    let mut clients: Vec<_> = (0..32).map(|_| db.admin()).collect();
    let mut admin = db.admin();
    for round in 0..12 {
        let key = format!("round {round}");
        let answers = at_once(&mut clients, |_, client| pay(client, &key));
        let executed: Vec<_> = answers.iter().filter(|(outcome, _)| outcome == "execute").collect();
        assert_eq!(executed.len(), 1, "{answers:?}");
        let sent = &executed[0].1;
        for (outcome, body) in &answers {
            match outcome.as_str() {
                "execute" | "replay" => assert_eq!(body, sent),
                other => assert_eq!(other, "in_progress"),
            }
        }
        assert_eq!(charges(&mut admin, &key), 1);
        let retry = expect(&mut admin, PAY, &key, "replay");
        assert_eq!((retry.response_code, &retry.response_body), (Some(201), sent));
    }
}

#[test]
fn whoever_comes_while_the_first_is_open_is_answered_at_once() {
    let db = shop(Cluster::shared());
    let (mut first, mut second) = (db.admin(), db.admin());
    run(&mut first, "BEGIN");
    expect(&mut first, PAY, "k", "execute");
    // The first transaction stays open until the second has its answer, whether it repeats itself or not.
    for _ in 0..3 {
        let told = expect(&mut second, PAY, "k", "in_progress");
        assert_eq!(told.response_code, Some(409));
        assert!(told.response_headers.expect("headers").to_string().contains("retry-after"));
        assert!(told.response_body.is_some());
    }
    run(&mut second, "BEGIN");
    expect(&mut second, PAY, "k", "in_progress");
    assert_eq!(second.value::<i32>("SELECT 1"), 1, "the transaction goes on");
    charge(&mut second, "something else");
    let sent = work(&mut first, PAY, "k");
    run(&mut first, "COMMIT");
    let told = expect(&mut second, PAY, "k", "replay");
    assert_eq!(told.response_body, Some(sent));
    charge(&mut second, "something else");
    run(&mut second, "COMMIT");
    assert_eq!((charges(&mut first, "k"), charges(&mut first, "something else")), (1, 2));
}

/// Duplicates are everyday: they must not fill the log or trouble the client's own handling of warnings.
#[test]
fn no_outcome_comes_with_a_warning() {
    let db = shop(Cluster::shared());
    let mut holder = db.admin();
    run(&mut holder, "BEGIN");
    expect(&mut holder, PAY, "k", "execute");
    let (notices, seen) = channel();
    let mut config = db.cluster().config(db.name(), "postgres");
    config.notice_callback(move |notice| notices.send(notice.to_string()).expect("the test listens"));
    let mut client = config.connect(NoTls).expect("a connection");
    expect(&mut client, PAY, "k", "in_progress");
    assert_eq!(client.claim_waiting(TENANT, PAY, "k", BODY, "20 ms").unwrap().outcome, "in_progress");
    work(&mut holder, PAY, "k");
    run(&mut holder, "COMMIT");
    pay(&mut client, "k");
    pay(&mut client, "new");
    assert_eq!(client.claim(TENANT, PAY, "k", b"another").unwrap().outcome, "key_reused");
    expire(&mut holder, "k");
    run(&mut holder, "BEGIN; SELECT idem_sweep()");
    expect(&mut client, PAY, "k", "in_progress");
    assert_eq!(seen.try_iter().collect::<Vec<_>>(), Vec::<String>::new());
}

#[test]
fn a_second_claim_changes_nothing_of_an_open_one() {
    let db = shop(Cluster::shared());
    let mut client = db.admin();
    for endpoint in [CHARGE, ORDER] {
        expect(&mut client, endpoint, "k", "execute");
        let row = format!("SELECT concat(xmin, ctid, xmax, k) FROM idempotency_keys k WHERE endpoint = '{endpoint}'");
        let before: String = client.value(&row);
        expect(&mut client, endpoint, "k", "in_progress");
        let other_body = client.claim(TENANT, endpoint, "k", b"another").unwrap();
        assert_eq!(other_body.outcome, "key_reused");
        client.claim_waiting(TENANT, endpoint, "k", BODY, "10 ms").unwrap();
        assert_eq!(client.value::<String>(&row), before);
    }
}

#[test]
fn a_replay_takes_no_lock_on_the_key_and_no_transaction_id() {
    let db = shop(Cluster::shared());
    let mut client = db.admin();
    pay(&mut client, "k");
    run(&mut client, "BEGIN");
    expect(&mut client, PAY, "k", "replay");
    let locks: i64 = client.value(
        "SELECT count(*) FROM pg_locks
          WHERE pid = pg_backend_pid() AND (locktype IN ('advisory', 'tuple', 'transactionid')
             OR mode NOT IN ('AccessShareLock', 'ExclusiveLock'))",
    );
    assert_eq!(locks, 0);
    assert_eq!(client.value::<Option<String>>("SELECT pg_current_xact_id_if_assigned()::text"), None);
    run(&mut client, "COMMIT");
}

#[test]
fn other_tenants_endpoints_and_keys_are_neither_held_up_nor_told() {
    let db = shop(Cluster::shared());
    let (mut holder, mut other) = (db.admin(), db.admin());
    run(&mut holder, "BEGIN");
    assert_eq!(holder.claim("ab", "POST /x", "cd", BODY).unwrap().outcome, "execute");
    holder.complete("ab", "POST /x", "cd", 200, b"for ab only").unwrap();
    let scopes = [
        ("AB", "POST /x", "cd"),
        ("ab ", "POST /x", "cd"),
        ("ab", "POST /y", "cd"),
        ("ab", "POST /x", "ce"),
        ("a", "bPOST /x", "cd"),
        ("ab", "POST /xc", "d"),
        ("", "POST /x", "cd"),
    ];
    for (tenant, endpoint, key) in scopes {
        let answer = other.claim(tenant, endpoint, key, BODY).unwrap();
        assert_eq!(answer.outcome, "execute", "{tenant:?} {endpoint:?} {key:?}");
        other.complete(tenant, endpoint, key, 200, key.as_bytes()).unwrap();
    }
    run(&mut holder, "COMMIT");
    assert_eq!(other.claim("ab", "POST /x", "cd", BODY).unwrap().response_body.as_deref(), Some(&b"for ab only"[..]));
    for (tenant, endpoint, key) in scopes {
        let answer = holder.claim(tenant, endpoint, key, BODY).unwrap();
        assert_eq!(answer.response_body.as_deref(), Some(key.as_bytes()), "{tenant:?} {endpoint:?} {key:?}");
    }
}
