//! A snapshot that shows a row as it no longer is: no outcome is taken from it.

use super::LEVELS;
use harness::{sqlstate, Cluster};
use postgres::Client;

const CHARGE: &str = "POST /charges";

/// What others do to the row of key `k` after the snapshot; its request has body `two`.
const CHANGES: [(&str, &str); 8] = [
    ("released", "SELECT idem_release('t', 'POST /charges', 'k')"),
    ("completed", "SELECT idem_complete('t', 'POST /charges', 'k', 200, ''::bytea)"),
    ("failed", "SELECT idem_fail('t', 'POST /charges', 'k', 400, ''::bytea)"),
    (
        "claimed again by another request",
        "SELECT idem_release('t', 'POST /charges', 'k'), idem_claim('t', 'POST /charges', 'k', 'two'::bytea)",
    ),
    (
        "claimed again and finished",
        "SELECT idem_release('t', 'POST /charges', 'k'), idem_claim('t', 'POST /charges', 'k', 'two'::bytea),
                idem_complete('t', 'POST /charges', 'k', 200, ''::bytea, attempt => 2)",
    ),
    ("taken over", "SELECT attempt FROM idem_reconcile(only_endpoint => 'POST /charges')"),
    ("deleted", "DELETE FROM idempotency_keys"),
    ("finished and erased", "SELECT idem_complete('t', 'POST /charges', 'k', 200, ''::bytea), idem_erase('t')"),
];

/// A claim at a snapshot that was taken while the row was as `before` leaves it.
fn claim_after(before: &str, change: &str, level: &str, body: &str) -> Result<String, postgres::Error> {
    let db = Cluster::shared().database();
    let (mut c, mut others) = (db.admin(), db.admin());
    others
        .batch_execute(&format!("SELECT idem_protect('{CHARGE}', 'external', stuck_after => '1 microsecond')"))
        .unwrap();
    others.batch_execute(before).unwrap();
    c.batch_execute(&format!("BEGIN ISOLATION LEVEL {level}; SELECT 1 FROM idempotency_keys")).unwrap();
    others.batch_execute(change).unwrap();
    outcome(&mut c, body)
}

fn outcome(c: &mut Client, body: &str) -> Result<String, postgres::Error> {
    c.query_one("SELECT outcome FROM idem_claim('t', 'POST /charges', 'k', $1::text)", &[&body]).map(|row| row.get(0))
}

// CASES 42
#[test]
fn no_outcome_is_taken_from_a_row_that_has_moved_on() {
    let open = "SELECT idem_claim('t', 'POST /charges', 'k', 'one'::bytea)";
    for level in LEVELS {
        for (what, change) in CHANGES {
            for body in ["one", "two"] {
                let refused = claim_after(open, change, level, body).expect_err(what);
                assert_eq!(sqlstate(&refused), "40001", "{level}, {what}, {body}: {refused:?}");
            }
        }
    }
}

#[test]
fn nor_from_a_result_that_has_moved_on() {
    let finished = "SELECT idem_claim('t', 'POST /charges', 'k', 'one'::bytea),
                           idem_complete('t', 'POST /charges', 'k', 200, 'x'::bytea)";
    for level in LEVELS {
        for change in
            ["SELECT idem_forget('t', 'POST /charges', 'k')", "SELECT idem_erase('t')", "DELETE FROM idempotency_keys"]
        {
            for body in ["one", "two"] {
                let refused = claim_after(finished, change, level, body).expect_err(change);
                assert_eq!(sqlstate(&refused), "40001", "{level}, {change}, {body}: {refused:?}");
            }
        }
    }
}

#[test]
fn a_row_that_nobody_has_touched_is_answered() {
    for level in LEVELS {
        let open = "SELECT idem_claim('t', 'POST /charges', 'k', 'one'::bytea)";
        let other = "SELECT idem_claim('t', 'POST /charges', 'other', 'one'::bytea)";
        assert_eq!(claim_after(open, other, level, "one").unwrap(), "in_progress");
        assert_eq!(claim_after(open, other, level, "two").unwrap(), "key_reused");
    }
}

#[test]
fn operators_calls_are_told_too_that_their_snapshot_is_old() {
    for level in LEVELS {
        let db = Cluster::shared().database();
        let (mut c, mut others) = (db.admin(), db.admin());
        others.batch_execute(&format!("SELECT idem_protect('{CHARGE}', 'external')")).unwrap();
        for call in ["idem_forget('t', 'POST /charges', 'k')", "idem_release('t', 'POST /charges', 'k')"] {
            c.batch_execute(&format!("BEGIN ISOLATION LEVEL {level}; SELECT 1 FROM idempotency_keys")).unwrap();
            others.batch_execute("SELECT idem_claim('t', 'POST /charges', 'k', 'one'::bytea)").unwrap();
            let refused = c.execute(&format!("SELECT {call}"), &[]).expect_err(call);
            assert_eq!(sqlstate(&refused), "40001", "{level}, {call}: {refused:?}");
            c.batch_execute("ROLLBACK").unwrap();
            others.batch_execute("DELETE FROM idempotency_keys").unwrap();
        }
    }
}
