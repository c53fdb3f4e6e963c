//! No two reconcilers hold the same claim.

use super::{end_leases, finish, reconcile, stuck_claims};
use harness::{at_once, sqlstate, Calls, Cluster};
use postgres::Client;

#[test]
fn locked_claims_are_skipped_without_waiting() {
    let db = stuck_claims(Cluster::shared(), 3);
    let (mut owner, mut other, mut c) = (db.admin(), db.admin(), db.admin());
    c.batch_execute("SET lock_timeout = '20 s'").unwrap();
    // An owner that is about to commit its result after all, and a reconciler that has not committed yet.
    let mut completing = owner.transaction().unwrap();
    finish(&mut completing, "complete", "k1", None).unwrap();
    let mut taking = other.transaction().unwrap();
    assert_eq!(reconcile(&mut taking, 1).unwrap(), [("k2".to_string(), 2)]);
    assert_eq!(reconcile(&mut c, 10).unwrap(), [("k3".to_string(), 2)]);
    assert_eq!(reconcile(&mut c, 10).unwrap(), []);
    completing.commit().unwrap();
    taking.rollback().unwrap();
    assert_eq!(reconcile(&mut c, 10).unwrap(), [("k2".to_string(), 2)]);
}

#[test]
fn a_lease_that_has_run_out_is_handed_out_again_and_no_other() {
    let db = stuck_claims(Cluster::shared(), 2);
    let mut c = db.admin();
    c.batch_execute("SELECT idem_reconcile(1, '1 hour'); SELECT idem_reconcile(1, '1 microsecond')").unwrap();
    // The second lease is over by now, by the clock and not by being set back.
    assert_eq!(reconcile(&mut c, 10).unwrap(), [("k2".to_string(), 3)]);
    end_leases(&mut c);
    assert_eq!(reconcile(&mut c, 10).unwrap(), [("k1".to_string(), 3), ("k2".to_string(), 4)]);
    assert_eq!(reconcile(&mut c, 10).unwrap(), []);
}

/// All at once, again and again until nothing is left: each claim goes to one of them.
fn share(reconcilers: usize, claims: i32, level: &str) {
    let db = stuck_claims(Cluster::shared(), claims);
    let mut clients: Vec<Client> = (0..reconcilers).map(|_| db.admin()).collect();
    for client in &mut clients {
        client.batch_execute(&format!("SET default_transaction_isolation = '{level}'")).unwrap();
    }
    let shares = at_once(&mut clients, |_, c| {
        let mut mine = Vec::new();
        loop {
            match reconcile(c, 3) {
                Ok(batch) if batch.is_empty() => return mine,
                Ok(batch) => mine.extend(batch),
                Err(error) => assert_eq!(sqlstate(&error), "40001", "{level}: {error}"),
            }
        }
    });
    let mut all: Vec<(String, i32)> = shares.into_iter().flatten().collect();
    all.extend(reconcile(&mut clients[0], claims).unwrap()); // skipped by all, each time somebody else had it locked
    all.sort();
    let mut expected: Vec<(String, i32)> = (1..=claims).map(|n| (format!("k{n}"), 2)).collect();
    expected.sort();
    assert_eq!(all, expected, "{reconcilers} reconcilers, {level}");
    assert_eq!(clients[0].value::<i64>("SELECT count(*) FROM idem_stuck WHERE leased"), i64::from(claims));
}

#[test]
fn two_reconcilers_never_get_the_same_claim() {
    share(2, 100, "READ COMMITTED");
}

#[test]
fn twenty_reconcilers_never_get_the_same_claim() {
    share(20, 200, "READ COMMITTED");
}

#[test]
fn reconcilers_with_fixed_snapshots_never_get_the_same_claim() {
    share(6, 60, "REPEATABLE READ");
    share(6, 60, "SERIALIZABLE");
}

/// Two reconcilers want the one claim whose lease has just run out.
#[test]
fn an_expired_lease_goes_to_one() {
    let db = stuck_claims(Cluster::shared(), 1);
    let mut clients: Vec<Client> = (0..4).map(|_| db.admin()).collect();
    for attempt in 2..20 {
        let winners: Vec<_> = at_once(&mut clients, |_, c| reconcile(c, 1).unwrap()).into_iter().flatten().collect();
        assert_eq!(winners, [("k1".to_string(), attempt)]);
        end_leases(&mut clients[0]);
    }
}
