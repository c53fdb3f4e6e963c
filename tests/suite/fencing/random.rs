//! Sessions that claim, release, take over and complete at random: no number is given out twice, and nobody finishes with
//! one that is no longer the latest.

use super::{shop, CHARGE};
use harness::{at_once, sqlstate, Calls};
use postgres::Client;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::HashMap;

const SESSIONS: usize = 6;
const STEPS: usize = 150;
const KEYS: usize = 4;

/// What one session was given and has done.
#[derive(Default)]
struct Log {
    granted: Vec<(String, i32)>,
    finished: Vec<(String, i32)>,
}

#[test]
fn no_number_is_given_out_twice_and_only_the_latest_finishes() {
    let db = shop();
    let mut clients: Vec<Client> = (0..SESSIONS).map(|_| db.admin()).collect();
    let logs = at_once(&mut clients, |n, client| session(client, StdRng::seed_from_u64(n as u64)));
    let mut granted: HashMap<String, Vec<i32>> = HashMap::new();
    let mut finished: HashMap<String, Vec<i32>> = HashMap::new();
    for log in logs {
        log.granted.into_iter().for_each(|(key, attempt)| granted.entry(key).or_default().push(attempt));
        log.finished.into_iter().for_each(|(key, attempt)| finished.entry(key).or_default().push(attempt));
    }
    assert!(granted.values().map(Vec::len).sum::<usize>() > KEYS * 10, "something has happened");
    let rows = db.admin().query("SELECT key, status, attempt FROM idempotency_keys", &[]).unwrap();
    assert_eq!(rows.len(), granted.len());
    for row in rows {
        let (key, status, attempt): (String, String, i32) = (row.get(0), row.get(1), row.get(2));
        let mut numbers = granted.remove(&key).expect("a row without a grant");
        numbers.sort_unstable();
        let count = numbers.len();
        numbers.dedup();
        assert_eq!(numbers.len(), count, "{key}: a number was given out twice");
        assert_eq!(numbers.last(), Some(&attempt), "{key}: {status}");
        let winners = finished.remove(&key).unwrap_or_default();
        match status.as_str() {
            "succeeded" => assert_eq!(winners, [attempt], "{key}"),
            _ => assert!(winners.is_empty(), "{key} is {status}, and {winners:?} have finished it"),
        }
    }
}

fn session(c: &mut Client, mut random: StdRng) -> Log {
    let mut log = Log::default();
    let mut held: Vec<(String, i32)> = Vec::new();
    for step in 0..STEPS {
        let key = format!("k{}", random.random_range(0..KEYS));
        match random.random_range(0..10) {
            0..=4 => {
                let body = [b'a', random.random_range(b'a'..b'c')];
                let arrival = c.claim("t", CHARGE, &key, &body).unwrap();
                if arrival.outcome == "execute" {
                    held.push((key, arrival.attempt.unwrap()));
                    log.granted.extend(held.last().cloned());
                }
            }
            5 => {
                let sql = "SELECT key, attempt FROM idem_reconcile(max_claims => 1, lease => '1 millisecond')";
                for row in c.query(sql, &[]).unwrap() {
                    held.push((row.get(0), row.get(1)));
                    log.granted.extend(held.last().cloned());
                }
            }
            // A claim that is taken back before its commit, or rolled back, has given nothing out.
            6 => {
                let mut t = c.transaction().unwrap();
                if t.claim("t", CHARGE, &key, b"a").unwrap().outcome == "execute" && random.random_bool(0.5) {
                    assert!(t.release("t", CHARGE, &key).unwrap());
                    t.commit().unwrap();
                }
            }
            // Completing is for the end, or all keys would be finished soon.
            7 if step > STEPS * 3 / 4 => {
                let sql = "SELECT idem_complete('t', $1, $2, 201, ''::bytea, attempt => $3)";
                if let Some((key, attempt)) = pick(&held, &mut random) {
                    if answer(c.query_one(sql, &[&CHARGE, &key, &attempt])) == Some(true) {
                        log.finished.push((key, attempt));
                    }
                }
            }
            _ => {
                let sql = "SELECT idem_release('t', $1, $2, attempt => $3)";
                if let Some((key, attempt)) = pick(&held, &mut random) {
                    answer(c.query_one(sql, &[&CHARGE, &key, &attempt]));
                }
            }
        }
    }
    log
}

/// One of all that were ever held, also long ago: an owner that wakes up.
fn pick(held: &[(String, i32)], random: &mut StdRng) -> Option<(String, i32)> {
    (!held.is_empty()).then(|| held[random.random_range(0..held.len())].clone())
}

fn answer(result: Result<postgres::Row, postgres::Error>) -> Option<bool> {
    match result {
        Ok(row) => Some(row.get(0)),
        Err(error) => {
            assert!(["ID001", "ID002", "ID003"].contains(&sqlstate(&error)), "{error:?}");
            None
        }
    }
}
