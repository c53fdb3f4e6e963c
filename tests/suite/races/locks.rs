//! The gate's advisory locks never meet an application's own.

use crate::payments::*;
use harness::{Calls, Cluster};
use postgres::Client;

/// The halves of the gate's number, as `pg_locks` shows them to anybody.
fn numbers_of_gate(client: &mut Client, holder: i32) -> (i64, i64) {
    let row = client
        .query_one(
            "SELECT classid::bigint, objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND pid = $1",
            &[&holder],
        )
        .expect("one gate");
    (row.get(0), row.get(1))
}

/// Every way of SQL to lock those numbers, in either order.
fn every_lock(high: i64, low: i64) -> Vec<String> {
    let signed = |n: i64| n as u32 as i32;
    let mut arguments = vec![];
    for (a, b) in [(high, low), (low, high)] {
        arguments.push(format!("({})", (a << 32) | b));
        arguments.push(format!("({}, {})", signed(a), signed(b)));
    }
    let functions = ["advisory_lock", "advisory_lock_shared", "advisory_xact_lock", "advisory_xact_lock_shared"];
    arguments.iter().flat_map(|args| functions.map(|f| format!("pg_try_{f}{args}"))).collect()
}

#[test]
fn an_application_that_locks_the_same_numbers_neither_blocks_nor_is_blocked() {
    let db = shop(Cluster::shared());
    let (mut holder, mut app) = (db.admin(), db.admin());
    run(&mut holder, "BEGIN");
    expect(&mut holder, PAY, "k", "execute");
    let pid = holder.value("SELECT pg_backend_pid()");
    let (high, low) = numbers_of_gate(&mut app, pid);
    // While the claim is open, the application gets every lock of those numbers.
    run(&mut app, "BEGIN");
    for lock in every_lock(high, low) {
        assert!(app.value::<bool>(&format!("SELECT {lock}")), "{lock}");
    }
    // While the application has them, a claim is not in progress.
    run(&mut holder, "ROLLBACK; BEGIN");
    expect(&mut holder, PAY, "k", "execute");
    complete(&mut holder, PAY, "k");
    run(&mut holder, "COMMIT");
    expect(&mut app, PAY, "k", "replay");
}

/// Lock numbers are the server's; keys are the database's.
#[test]
fn the_same_key_in_another_database_is_another_gate() {
    let (here, there) = (shop(Cluster::shared()), shop(Cluster::shared()));
    let (mut first, mut second) = (here.admin(), there.admin());
    for client in [&mut first, &mut second] {
        run(client, "BEGIN");
        expect(client, PAY, "k", "execute");
    }
}

#[test]
fn an_application_cannot_unlock_a_gate() {
    let db = shop(Cluster::shared());
    let (mut holder, mut other) = (db.admin(), db.admin());
    run(&mut holder, "BEGIN");
    expect(&mut holder, PAY, "k", "execute");
    let pid = holder.value("SELECT pg_backend_pid()");
    let (high, low) = numbers_of_gate(&mut other, pid);
    run(&mut holder, "SELECT pg_advisory_unlock_all()");
    for args in [format!("({})", (high << 32) | low), format!("({}, {})", high as u32 as i32, low as u32 as i32)] {
        for shared in ["", "_shared"] {
            assert!(!holder.value::<bool>(&format!("SELECT pg_advisory_unlock{shared}{args}")));
        }
    }
    expect(&mut other, PAY, "k", "in_progress");
    assert_eq!(numbers_of_gate(&mut other, pid), (high, low));
    run(&mut holder, "ROLLBACK");
    expect(&mut other, ORDER, "k", "execute");
}

#[test]
fn nothing_is_locked_after_the_transaction() {
    let db = shop(Cluster::shared());
    let mut client = db.admin();
    let left = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()";
    expect(&mut client, CHARGE, "k", "execute");
    expect(&mut client, CHARGE, "k", "in_progress");
    assert_eq!(client.value::<i64>(left), 0);
    run(&mut client, "BEGIN");
    expect(&mut client, PAY, "k", "execute");
    assert_eq!(client.value::<i64>(left), 1);
    assert!(client.execute("SELECT 1/0", &[]).is_err());
    run(&mut client, "ROLLBACK");
    assert_eq!(client.value::<i64>(left), 0);
    assert!(client.claim(TENANT, PAY, "k", BODY).is_err(), "left open at autocommit");
    assert_eq!(client.value::<i64>(left), 0);
}

/// A cursor that fails gives up what it has locked, but a claim that it made before belongs to the transaction.
#[test]
fn a_gate_outlasts_the_cursor_that_claimed() {
    let db = shop(Cluster::shared());
    let (mut holder, mut other) = (db.admin(), db.admin());
    run(
        &mut holder,
        &format!(
            "BEGIN;
             DECLARE claims CURSOR FOR SELECT outcome, 1 / (2 - i) FROM generate_series(1, 2) i,
               LATERAL idem_claim('{TENANT}', '{PAY}', 'k ' || i, 'body'::text);
             FETCH 1 FROM claims; SAVEPOINT s"
        ),
    );
    assert!(holder.batch_execute("FETCH 1 FROM claims").is_err());
    run(&mut holder, "ROLLBACK TO s");
    assert_eq!(holder.value::<String>("SELECT key FROM idempotency_keys"), "k 1", "still claimed");
    // A lock that is waited for becomes an error, so that the test ends.
    run(&mut other, "SET lock_timeout = '3 s'");
    assert_eq!(other.claim(TENANT, PAY, "k 1", b"body").unwrap().outcome, "in_progress");
}
