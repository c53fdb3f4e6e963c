//! Many clients doing everything at random, and what must be true afterwards whatever they did.
//!
//! Each run has a seed, which a failing one prints; IDEMPOTENCY_SEED repeats it (up to the server's timing). The
//! clients keep books, in the ledger `results` as part of their transactions and in memory of what they were told.

mod client;

use crate::payments::*;
use client::{Client, Told};
use harness::{at_once, Calls, Cluster, Database};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::HashMap;

const CLIENTS: usize = 12;
const STEPS: usize = 120;
const KEYS: u32 = 14;
/// Keys below this are never expired: they have one result for good.
const LASTING_KEYS: u32 = 7;
const ENDPOINTS: [&str; 3] = [PAY, CHARGE, ORDER];

#[test]
fn every_key_has_one_effect_a_retention_and_every_replay_is_the_first_answer() {
    let seed: u64 = std::env::var("IDEMPOTENCY_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(rand::random);
    println!("IDEMPOTENCY_SEED={seed}");
    let db = shop(Cluster::shared());
    run(
        &mut db.admin(),
        "CREATE TABLE results (endpoint text, key text, body bytea, code int, answer bytea UNIQUE);
         CREATE TABLE expiries (endpoint text, key text)",
    );
    let mut connections: Vec<_> = (0..CLIENTS + 2).map(|_| db.admin()).collect();
    let told: Told = at_once(&mut connections, |n, connection| {
        let mut rng = StdRng::seed_from_u64(seed.wrapping_add(n as u64));
        match n {
            0 => expire_at_random(connection, &mut rng),
            1 => sweep_at_random(connection, &mut rng),
            _ => return Client::new(connection, rng).act(STEPS),
        }
        vec![]
    })
    .concat();
    nobody_was_told_what_is_not_so(&mut db.admin(), &told);
    results_and_retentions_agree(&mut db.admin(), &told);
    nothing_is_stuck(&db, &told);
}

/// Ends the retention of finished rows, and keeps account of it.
fn expire_at_random(connection: &mut postgres::Client, rng: &mut StdRng) {
    for _ in 0..STEPS * 2 {
        let key = rng.random_range(LASTING_KEYS..KEYS).to_string();
        let endpoint = ENDPOINTS[rng.random_range(0..ENDPOINTS.len())];
        let sql = "WITH expired AS (
                     UPDATE idempotency_keys SET expires_at = now() - interval '1 second'
                      WHERE endpoint = $1 AND key = $2 AND status IN ('succeeded', 'failed') AND expires_at > now()
                     RETURNING endpoint, key)
                   INSERT INTO expiries SELECT * FROM expired";
        connection.execute(sql, &[&endpoint, &key]).expect("expiring");
    }
}

/// Sweeps in small batches, some of which are rolled back.
fn sweep_at_random(connection: &mut postgres::Client, rng: &mut StdRng) {
    for _ in 0..STEPS * 2 {
        run(connection, "BEGIN");
        let _: i32 = connection.value("SELECT idem_sweep(3)");
        run(connection, if rng.random_bool(0.3) { "ROLLBACK" } else { "COMMIT" });
    }
}

/// The results of a scope as they were committed: body of the request, code and answer.
type Results = HashMap<(String, String), Vec<(Vec<u8>, i32, Vec<u8>)>>;

fn results(admin: &mut postgres::Client) -> Results {
    let mut results = Results::new();
    for row in admin.query("SELECT endpoint, key, body, code, answer FROM results", &[]).unwrap() {
        results.entry((row.get(0), row.get(1))).or_default().push((row.get(2), row.get(3), row.get(4)));
    }
    results
}

fn nobody_was_told_what_is_not_so(admin: &mut postgres::Client, told: &[client::Telling]) {
    let results = results(admin);
    let mut replays = 0;
    for t in told {
        let scope = (t.endpoint.to_owned(), t.key.clone());
        let of_scope = results.get(&scope).map_or(&[][..], Vec::as_slice);
        match t.outcome.as_str() {
            "finished" | "replay" => {
                let result = (t.body.clone(), t.code.unwrap(), t.answer.clone().unwrap());
                assert!(of_scope.contains(&result), "told {t:?}, but the results are {of_scope:?}");
                replays += usize::from(t.outcome == "replay");
            }
            "key_reused" => {
                let other_body = |o: &&client::Telling| {
                    (o.endpoint, &o.key) == (t.endpoint, &t.key) && o.body != t.body && o.holds_the_key()
                };
                assert!(told.iter().any(|o| other_body(&o)), "{t:?}, but nobody used it with another body");
            }
            "in_progress" | "open" | "released" => {}
            other => panic!("{other}: {t:?}"),
        }
    }
    assert!(replays > STEPS, "only {replays} replays: the run proves little");
}

fn results_and_retentions_agree(admin: &mut postgres::Client, told: &[client::Telling]) {
    let sql = "SELECT s.endpoint, s.key,
                      (SELECT count(*) FROM results r WHERE (r.endpoint, r.key) = (s.endpoint, s.key)),
                      (SELECT count(*) FROM expiries x WHERE (x.endpoint, x.key) = (s.endpoint, s.key)),
                      (SELECT count(*) FROM idempotency_keys k WHERE (k.endpoint, k.key) = (s.endpoint, s.key)
                          AND k.status IN ('succeeded', 'failed') AND k.expires_at > now()),
                      (SELECT count(*) FROM ledger l WHERE l.key = s.endpoint || ' ' || s.key),
                      (SELECT count(*) FROM results r WHERE (r.endpoint, r.key) = (s.endpoint, s.key) AND code = 201)
                 FROM (SELECT DISTINCT endpoint, key FROM results) s";
    for row in admin.query(sql, &[]).unwrap() {
        let scope: (String, String) = (row.get(0), row.get(1));
        let n = |i: usize| row.get::<_, i64>(i);
        let (results, ended, live, effects, successes) = (n(2), n(3), n(4), n(5), n(6));
        assert_eq!(results, ended + live, "one result a retention: {scope:?}");
        assert_eq!(effects, successes, "an effect for each success and for no failure: {scope:?}");
        if scope.1.parse::<u32>().unwrap() < LASTING_KEYS {
            assert_eq!((results, live), (1, 1), "{scope:?}");
        }
        let finished = told.iter().filter(|t| (t.endpoint, t.key.as_str()) == (&scope.0, &scope.1));
        assert_eq!(finished.filter(|t| t.outcome == "finished").count() as i64, results, "{scope:?}");
    }
}

/// What is open was left so by a client, on an endpoint that allows it; everything else can be claimed or is replayed.
fn nothing_is_stuck(db: &Database, told: &[client::Telling]) {
    let mut admin = db.admin();
    let mut open: Vec<(String, String)> = admin
        .query("SELECT endpoint, key FROM idempotency_keys WHERE status = 'in_progress'", &[])
        .unwrap()
        .iter()
        .map(|row| (row.get(0), row.get(1)))
        .collect();
    let mut abandoned: Vec<_> =
        told.iter().filter(|t| t.outcome == "open").map(|t| (t.endpoint.to_owned(), t.key.clone())).collect();
    open.sort();
    abandoned.sort();
    assert_eq!(open, abandoned);
    for key in 0..KEYS {
        run(&mut admin, "BEGIN");
        let told = claim(&mut admin, PAY, &key.to_string());
        assert!(["execute", "replay", "key_reused"].contains(&told.outcome.as_str()), "{told:?}");
        run(&mut admin, "ROLLBACK");
    }
}
