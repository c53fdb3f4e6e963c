//! A standby, and its promotion.

use super::*;
use postgres::NoTls;

#[test]
fn a_standby_has_no_worker_until_it_is_promoted() {
    let primary = cluster(&["idempotency_enforcer.sweep_interval = 0"]);
    let db = primary.database();
    let mut c = db.admin();
    c.batch_execute("SELECT idem_protect('POST /pay'); CREATE TABLE ledger (key text)").unwrap();
    let standby = primary.standby();
    let pay = |c: &mut Client, key: &str| {
        let mut tx = c.transaction().unwrap();
        let arrival = tx.claim("t", "POST /pay", key, b"{}").unwrap();
        if arrival.outcome == "execute" {
            tx.execute("INSERT INTO ledger VALUES ($1)", &[&key]).unwrap();
            tx.complete("t", "POST /pay", key, 201, b"paid").unwrap();
        }
        tx.commit().unwrap();
        arrival
    };
    for key in ["a", "b", "c"] {
        assert_eq!(pay(&mut c, key).outcome, "execute");
    }
    add_expired(&mut c, "POST /old", 5);
    let lsn: String = c.value("SELECT pg_current_wal_lsn()::text");
    let mut s = standby.config(db.name(), "postgres").connect(NoTls).unwrap();
    wait_until("the standby to have it all", || {
        s.value(&format!("SELECT coalesce(pg_last_wal_replay_lsn() >= '{lsn}'::pg_lsn, false)"))
    });

    // Rounds are on there: it is recovery that keeps the worker away.
    standby.reload(&["idempotency_enforcer.sweep_interval = 1"]);
    wait_until("the reload", || s.value::<String>("SHOW idempotency_enforcer.sweep_interval") == "1s");
    let replay = s.claim("t", "POST /pay", "a", b"{}").unwrap();
    assert_eq!((replay.outcome.as_str(), replay.response_body.as_deref()), ("replay", Some(&b"paid"[..])));
    assert_eq!(s.claim("t", "POST /pay", "new", b"{}").unwrap_err().code().unwrap().code(), "25006");
    let processes = "SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'idempotency_enforcer%'";
    assert_eq!(s.value::<i64>(processes), 0);
    assert_eq!(lines(&standby), [] as [String; 0]);

    // The primary is lost with a transaction that had not committed.
    let mut tx = c.transaction().unwrap();
    tx.claim("t", "POST /pay", "lost", b"{}").unwrap();
    tx.execute("INSERT INTO ledger VALUES ('lost')", &[]).unwrap();
    primary.stop(harness::Shutdown::Immediate);
    drop(tx);
    standby.promote();
    let mut s = standby.config(db.name(), "postgres").connect(NoTls).unwrap();
    let expired = "SELECT count(*) FROM idempotency_keys WHERE endpoint = 'POST /old'";
    wait_until("the worker to sweep", || s.value::<i64>(expired) == 0);
    assert_eq!(pids(&mut s, "launcher").len(), 1);
    let again = pay(&mut s, "a");
    assert_eq!((again.outcome.as_str(), again.response_body.as_deref()), ("replay", Some(&b"paid"[..])));
    assert_eq!(pay(&mut s, "lost").outcome, "execute");
    let agree = "SELECT (SELECT array_agg(key ORDER BY key) FROM ledger) =
                        (SELECT array_agg(key::text ORDER BY key) FROM idempotency_keys WHERE status = 'succeeded')";
    assert!(s.value::<bool>(agree), "keys and effects agree");
    assert_eq!(s.value::<i64>("SELECT count(*) FROM ledger"), 4);
}
