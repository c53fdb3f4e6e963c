//! A shop whose payments are rows of a ledger: the effect that must not happen twice.

use harness::{Arrival, Calls, Cluster, Database};
use postgres::Client;

/// An endpoint registered as `transaction`.
pub const PAY: &str = "POST /payments";
/// An endpoint registered as `external`: its claims may be committed open.
pub const CHARGE: &str = "POST /charges";
/// An endpoint that is not registered: the database lets it through.
pub const ORDER: &str = "POST /orders";

pub const TENANT: &str = "acme";
pub const BODY: &[u8] = b"{\"amount\":100}";

/// A database with a ledger and the endpoints above.
pub fn shop(cluster: &Cluster) -> Database<'_> {
    let db = cluster.lenient_database();
    db.admin()
        .batch_execute(&format!(
            "CREATE TABLE ledger (key text NOT NULL);
             SELECT idem_protect('{PAY}'), idem_protect('{CHARGE}', 'external')"
        ))
        .expect("the shop");
    db
}

/// Claims a payment.
pub fn claim(client: &mut Client, endpoint: &str, key: &str) -> Arrival {
    client.claim(TENANT, endpoint, key, BODY).expect("idem_claim")
}

/// Claims and asserts the outcome.
#[track_caller]
pub fn expect(client: &mut Client, endpoint: &str, key: &str, outcome: &str) -> Arrival {
    let arrival = claim(client, endpoint, key);
    assert_eq!(arrival.outcome, outcome, "{endpoint} {key}");
    arrival
}

/// The effect: a row of the ledger.
pub fn charge(client: &mut Client, key: &str) {
    client.execute("INSERT INTO ledger VALUES ($1)", &[&key]).expect("the effect");
}

/// Completes with a response that no other completion has: the transaction's own claim, or a first one.
pub fn complete(client: &mut Client, endpoint: &str, key: &str) -> Vec<u8> {
    let body: Vec<u8> = [b"\0\xff\r\n".as_slice(), uuid::Uuid::from_u128(rand::random()).as_bytes()].concat();
    assert!(client.complete(TENANT, endpoint, key, 201, &body).expect("idem_complete"), "it was completed before");
    body
}

/// The whole payment in the transaction that is open: effect and result.
pub fn work(client: &mut Client, endpoint: &str, key: &str) -> Vec<u8> {
    charge(client, key);
    complete(client, endpoint, key)
}

/// How often the effect has happened.
pub fn charges(client: &mut Client, key: &str) -> i64 {
    client.query_one("SELECT count(*) FROM ledger WHERE key = $1", &[&key]).expect("the ledger").get(0)
}

/// How many rows are stored for a key, in all tenants and endpoints.
pub fn stored(client: &mut Client, key: &str) -> i64 {
    client.query_one("SELECT count(*) FROM idempotency_keys WHERE key = $1", &[&key]).expect("the key store").get(0)
}

/// Ends the retention of a finished row.
pub fn expire(client: &mut Client, key: &str) {
    let sql = "UPDATE idempotency_keys SET expires_at = now() - interval '1 second'
                WHERE key = $1 AND status <> 'in_progress'";
    assert_eq!(client.execute(sql, &[&key]).expect("the key store"), 1, "one finished row of {key}");
}

pub fn run(client: &mut Client, sql: &str) {
    client.batch_execute(sql).unwrap_or_else(|e| panic!("{sql}: {e}"));
}
