//! A flood of stuck claims of one endpoint does not keep another's waiting.

use harness::{Calls, Cluster};
use postgres::Client;

fn hand_out(c: &mut Client, most: i32) -> Vec<(String, String)> {
    let rows = c.query("SELECT endpoint, key FROM idem_reconcile($1)", &[&most]).unwrap();
    rows.into_iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// Rows as claims leave them, made in one statement: `n` of an endpoint, the first one the oldest.
fn flood(c: &mut Client, endpoint: &str, n: i32, minutes_old: i32) {
    let sql = "INSERT INTO idempotency_keys (tenant_id, endpoint, key, request_hash, open_since)
               SELECT 't', $1, 'k' || g, sha256('b'), now() - make_interval(mins => $3, secs => - g / 100.0)
                 FROM generate_series(1, $2) g";
    c.execute(sql, &[&endpoint, &n, &minutes_old]).unwrap();
}

// CASES 50
#[test]
fn endpoints_take_turns_whatever_their_number_of_stuck_claims() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    c.batch_execute("SELECT idem_protect('POST /junk', 'external'), idem_protect('POST /charges', 'external')")
        .unwrap();
    flood(&mut c, "POST /junk", 20_000, 600);
    // Invented names of an endpoint that was never registered count as one.
    for n in 0..30 {
        flood(&mut c, &format!("POST /invented/{n}"), 10, 700);
    }
    flood(&mut c, "POST /charges", 3, 2);
    let handed = hand_out(&mut c, 9);
    let charges: Vec<_> = handed.iter().filter(|(endpoint, _)| endpoint == "POST /charges").collect();
    assert_eq!(charges.len(), 3, "{handed:?}");
    let junk: Vec<&str> = handed.iter().filter(|(e, _)| e == "POST /junk").map(|(_, key)| key.as_str()).collect();
    assert_eq!(junk, ["k1", "k2", "k3"], "each has its turn, the oldest first");
    // Operators end many at once.
    let ended = "SELECT count(*) FILTER (WHERE released) FROM (
                   SELECT idem_release(tenant_id, endpoint, key, attempt) AS released
                     FROM idem_stuck WHERE endpoint = 'POST /junk') r";
    assert_eq!(c.value::<i64>(ended), 20_000);
}

#[test]
fn claims_that_cannot_be_settled_do_not_come_first_again() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    c.batch_execute("SELECT idem_protect('POST /charges', 'external')").unwrap();
    flood(&mut c, "POST /charges", 4, 60);
    let keys = |c: &mut Client| hand_out(c, 2).into_iter().map(|(_, key)| key).collect::<Vec<_>>();
    assert_eq!(keys(&mut c), ["k1", "k2"]);
    c.batch_execute("UPDATE idempotency_keys SET lease_until = lease_until - interval '1 hour'").unwrap();
    assert_eq!(keys(&mut c), ["k3", "k4"], "those that were never handed out");
    c.batch_execute("UPDATE idempotency_keys SET lease_until = lease_until - interval '1 hour'").unwrap();
    assert_eq!(keys(&mut c), ["k1", "k2"], "then those whose lease ran out longest ago");
}
