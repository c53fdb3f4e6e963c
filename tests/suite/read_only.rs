//! Where nothing can be written: a standby, a read-only transaction.

use harness::{wait_until, Calls, Cluster, Failure};
use postgres::Client;

const PAY: &str = "POST /pay";

fn paid(c: &mut Client, key: &str) {
    let mut t = c.transaction().unwrap();
    assert_eq!(t.claim("t", PAY, key, b"body").unwrap().outcome, "execute");
    t.complete("t", PAY, key, 201, b"paid").unwrap();
    t.commit().unwrap();
}

/// Replays are answered, everything that would have to be written is refused with a way out.
fn only_replays(c: &mut Client) {
    assert_eq!(c.claim("t", PAY, "paid", b"body").unwrap().outcome, "replay");
    assert_eq!(c.claim("t", PAY, "paid", b"another").unwrap().response_code, Some(422));
    assert_eq!(c.claim("t", PAY, "", b"body").unwrap().response_code, Some(400));
    assert_eq!(c.claim("t", "POST /charges", "open", b"body").unwrap().response_code, Some(409));
    for first in [
        c.claim("t", PAY, "new", b"body").map(|_| ()),
        // Not registered: that is for the primary to say.
        c.claim("t", "POST /unknown", "new", b"body").map(|_| ()),
        c.complete("t", PAY, "paid", 201, b"other").map(|_| ()),
        c.release("t", "POST /charges", "open").map(|_| ()),
    ] {
        let refused = Failure::of(first);
        assert_eq!(refused.sqlstate, "25006", "{refused:?}");
        assert!(refused.detail.contains("standby") && refused.hint.contains("primary"), "{refused:?}");
    }
}

// CASES 60
#[test]
fn a_read_only_transaction_only_replays() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    c.batch_execute("SELECT idem_protect('POST /pay'), idem_protect('POST /charges', 'external')").unwrap();
    paid(&mut c, "paid");
    c.claim("t", "POST /charges", "open", b"body").unwrap();
    c.batch_execute("SET default_transaction_read_only = on").unwrap();
    only_replays(&mut c);
    for call in ["idem_sweep()", "idem_forget('t', 'POST /pay', 'paid')", "idem_erase('t')", "idem_protect('POST /x')"]
    {
        assert_eq!(Failure::of(c.execute(&format!("SELECT {call}"), &[])).sqlstate, "25006", "{call}");
    }
}

// CASES 60, 84
#[test]
fn a_standby_replays_and_sends_first_arrivals_to_the_primary() {
    let cluster = Cluster::start(&["wal_level = replica"]);
    let db = cluster.database();
    let mut c = db.admin();
    c.batch_execute("SELECT idem_protect('POST /pay'), idem_protect('POST /charges', 'external')").unwrap();
    paid(&mut c, "paid");
    c.claim("t", "POST /charges", "open", b"body").unwrap();
    // In flight on the primary, and so absent on the standby.
    let mut first = db.admin();
    first.batch_execute("BEGIN").unwrap();
    first.claim("t", PAY, "new", b"body").unwrap();
    let standby = cluster.standby();
    let mut there = standby.config(db.name(), "postgres").connect(postgres::NoTls).unwrap();
    wait_until("the standby to have the rows", || there.value::<i64>("SELECT count(*) FROM idempotency_keys") == 2);
    only_replays(&mut there);
    first.complete("t", PAY, "new", 201, b"paid").unwrap();
    first.batch_execute("COMMIT").unwrap();
    wait_until("the result to be replayed on the standby", || {
        there.claim("t", PAY, "new", b"body").is_ok_and(|arrival| arrival.outcome == "replay")
    });
}
