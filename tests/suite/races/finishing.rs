//! Two who finish the same open claim, and a row that vanishes between two steps.

use crate::payments::*;
use harness::{sqlstate, Background, Calls, Cluster};
use postgres::Client;

type Finish = fn(&mut Client) -> Result<bool, postgres::Error>;

const COMPLETE: Finish = |c| c.complete(TENANT, CHARGE, "k", 201, b"paid");
const COMPLETE_OTHERWISE: Finish = |c| c.complete(TENANT, CHARGE, "k", 200, b"paid twice");
const FAIL: Finish = |c| c.fail(TENANT, CHARGE, "k", 201, b"paid");
const RELEASE: Finish = |c| c.release(TENANT, CHARGE, "k");

/// What the second is answered when both finish one open claim at once and the first ends its transaction so, and what is
/// stored then.
fn second_of_two(first: Finish, end: &str, second: Finish) -> (String, Option<String>) {
    let db = shop(Cluster::shared());
    let mut client = db.admin();
    expect(&mut client, CHARGE, "k", "execute");
    run(&mut client, "BEGIN");
    assert!(first(&mut client).unwrap());
    let waiting = Background::run(db.admin(), second);
    waiting.until_waiting_for("Lock", &mut db.admin());
    run(&mut client, end);
    let state = match waiting.join().0 {
        Ok(done) => done.to_string(),
        Err(e) => sqlstate(&e).to_owned(),
    };
    let rows = client.query("SELECT status FROM idempotency_keys", &[]).unwrap();
    assert!(rows.len() <= 1);
    (state, rows.first().map(|row| row.get(0)))
}

#[test]
fn of_two_results_at_once_the_first_to_commit_stands() {
    let stands = |state: &str| (state.to_owned(), Some("succeeded".to_owned()));
    assert_eq!(second_of_two(COMPLETE, "COMMIT", COMPLETE), stands("false"), "the same again");
    assert_eq!(second_of_two(COMPLETE, "COMMIT", COMPLETE_OTHERWISE), stands("ID002"));
    assert_eq!(second_of_two(COMPLETE, "COMMIT", FAIL), stands("ID002"));
    assert_eq!(second_of_two(COMPLETE, "COMMIT", RELEASE), stands("ID002"));
    assert_eq!(second_of_two(FAIL, "ROLLBACK", COMPLETE), stands("true"));
}

#[test]
fn a_release_and_a_result_at_once_do_not_both_happen() {
    let is = |answer: &str, status: &str| (answer.to_owned(), Some(status.to_owned()));
    assert_eq!(second_of_two(RELEASE, "COMMIT", COMPLETE), is("ID001", "released"));
    assert_eq!(second_of_two(RELEASE, "COMMIT", RELEASE), is("false", "released"));
    assert_eq!(second_of_two(RELEASE, "ROLLBACK", COMPLETE), is("true", "succeeded"));
    assert_eq!(second_of_two(COMPLETE, "ROLLBACK", RELEASE), is("true", "released"));
}

#[test]
fn a_row_that_is_deleted_between_two_steps_is_not_found_and_executes_anew() {
    let db = shop(Cluster::shared());
    let (mut client, mut admin) = (db.admin(), db.admin());
    for finish in [COMPLETE, FAIL] {
        expect(&mut client, CHARGE, "k", "execute");
        admin.execute("DELETE FROM idempotency_keys", &[]).unwrap();
        assert_eq!(sqlstate(&finish(&mut client).unwrap_err()), "ID001");
        assert!(!client.release(TENANT, CHARGE, "k").unwrap());
    }
    expect(&mut client, CHARGE, "k", "execute");
    complete(&mut client, CHARGE, "k");
    expect(&mut admin, CHARGE, "k", "replay");
}
