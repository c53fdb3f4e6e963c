//! The counters of `idem_stats`.

use super::*;
use harness::{Database, Shutdown};
use std::thread;

/// Where the endpoints are counted that have no counters of their own.
const OTHERS: &str = "(other endpoints)";

/// Registers an endpoint whose claims may be committed open.
fn protect(c: &mut Client, endpoint: &str) {
    c.execute("SELECT idem_protect($1, 'external')", &[&endpoint]).expect("idem_protect");
}

/// Lets claims of endpoints through that are not registered, in sessions that begin from now on.
fn admit_unregistered(db: &Database) {
    let sql = format!("ALTER DATABASE {} SET idempotency_enforcer.require_registration = off", db.name());
    db.admin().batch_execute(&sql).expect("ALTER DATABASE");
}

/// The counters of an endpoint, in the order of the view.
fn counters(c: &mut Client, endpoint: &str) -> Vec<(String, i64)> {
    let sql = "SELECT to_jsonb(s) - '{kind,endpoint,rounds,last_round_at,last_round_took}'::text[] FROM idem_stats s
                WHERE endpoint = $1";
    let Some(row) = c.query_opt(sql, &[&endpoint]).unwrap() else { return Vec::new() };
    let counted: serde_json::Value = row.get(0);
    let counted = counted.as_object().unwrap().iter();
    let mut counted: Vec<_> = counted.map(|(k, v)| (k.clone(), v.as_i64().unwrap())).filter(|(_, n)| *n > 0).collect();
    counted.sort();
    counted
}

fn counted<const N: usize>(expected: [(&str, i64); N]) -> Vec<(String, i64)> {
    expected.map(|(name, n)| (name.to_owned(), n)).to_vec()
}

#[test]
fn everything_is_counted_outlives_its_process_and_is_reset() {
    let cluster = cluster(&["idempotency_enforcer.sweep_interval = 0"]);
    let db = cluster.database();
    let mut c = db.admin();
    c.batch_execute(
        "SELECT idem_protect('POST /guarded'), idem_protect('POST /loose', key_required => false),
                idem_protect('POST /x', 'external'), idem_protect('POST /old')",
    )
    .unwrap();
    let mut other = db.admin();
    for key in ["1", "2", "3", "4"] {
        c.claim("t", "POST /x", key, b"{}").unwrap();
    }
    c.complete("t", "POST /x", "1", 200, b"").unwrap();
    c.complete("t", "POST /x", "2", 200, b"").unwrap();
    c.fail("t", "POST /x", "3", 402, b"").unwrap();
    c.release("t", "POST /x", "4").unwrap();
    for _ in 0..5 {
        other.claim("t", "POST /x", "1", b"{}").unwrap();
    }
    for _ in 0..6 {
        other.claim("t", "POST /x", "1", b"{\"other\":1}").unwrap();
    }
    for key in ["", "", "\n", "\n", "", "", "\n"] {
        other.claim("t", "POST /x", key, b"{}").unwrap();
    }
    c.claim("t", "POST /x", "open", b"{}").unwrap();
    for _ in 0..8 {
        other.claim("t", "POST /x", "open", b"{}").unwrap();
    }
    other.claim("t", "POST /loose", "", b"{}").unwrap();
    c.claim("t", "POST /guarded", "k", b"{}").unwrap_err();
    c.execute("UPDATE idempotency_keys SET open_since = now() - interval '1 h' WHERE key = 'open'", &[]).unwrap();
    add_expired(&mut c, "POST /old", 9);
    drop(other);
    cluster.reload(&["idempotency_enforcer.sweep_interval = 1h"]);
    wait_until("the round", || rounds(&mut c) == 1);
    wait_until("the worker to leave", || pids(&mut c, "worker").is_empty());

    let of_x = counted([
        ("completed", 2),
        ("executed", 5),
        ("failed", 1),
        ("in_progress", 8),
        ("key_rejected", 7),
        ("key_reused", 6),
        ("released", 1),
        ("replayed", 5),
        ("stuck_seen", 1),
    ]);
    assert_eq!(counters(&mut c, "POST /x"), of_x);
    assert_eq!(counters(&mut c, "POST /old"), counted([("swept", 9)]));
    assert_eq!(counters(&mut c, "POST /loose"), counted([("unprotected", 1)]));
    assert_eq!(counters(&mut c, "POST /guarded"), counted([("executed", 1), ("guard_refused", 1)]));
    let round = "SELECT last_round_at BETWEEN now() - interval '1 min' AND now()
                    AND last_round_took BETWEEN '0' AND '1 min' FROM idem_stats WHERE endpoint IS NULL";
    assert!(c.value::<bool>(round));

    // Whoever counted is gone; the launcher goes too.
    let launcher = pids(&mut c, "launcher")[0];
    c.execute("SELECT pg_terminate_backend($1)", &[&launcher]).unwrap();
    wait_for_another_launcher(&cluster, launcher);
    drop(c);
    let another = cluster.database();
    let (mut c, mut elsewhere) = (db.admin(), another.admin());
    assert!(counters(&mut c, "POST /x").starts_with(&of_x[..8]));

    // Each database has its own.
    protect(&mut elsewhere, "POST /x");
    assert_eq!(counters(&mut elsewhere, "POST /x"), []);
    elsewhere.claim("t", "POST /x", "1", b"{}").unwrap();
    c.batch_execute("SELECT idem_stats_reset()").unwrap();
    assert_eq!(counters(&mut c, "POST /x"), []);
    assert_eq!(counters(&mut elsewhere, "POST /x"), counted([("executed", 1)]));
    c.claim("t", "POST /x", "1", b"{}").unwrap();
    assert_eq!(counters(&mut c, "POST /x"), counted([("replayed", 1)]));
}

/// One claim of each of these endpoints.
fn claim_each<'a>(c: &mut Client, endpoints: impl IntoIterator<Item = &'a str>) {
    for endpoint in endpoints {
        c.claim("t", endpoint, "k", b"{}").unwrap();
    }
}

/// The endpoints of the database that have counters of their own.
fn tracked(c: &mut Client) -> Vec<String> {
    let sql = "SELECT endpoint FROM idem_stats WHERE kind = 'endpoint' ORDER BY endpoint";
    c.query(sql, &[]).unwrap().iter().map(|row| row.get(0)).collect()
}

#[test]
fn no_database_takes_the_room_of_another_and_what_finds_none_is_counted_together() {
    let cluster = cluster(&["idempotency_enforcer.max_tracked_endpoints = 4"]);
    let (first, second) = (cluster.database(), cluster.database());
    let (mut c, mut other) = (first.admin(), second.admin());
    for endpoint in ["POST /1", "POST /2", "POST /3", "POST /4"] {
        protect(&mut c, endpoint);
        protect(&mut other, endpoint);
    }
    claim_each(&mut c, ["POST /1", "POST /2", "POST /3", "POST /4", "POST /4"]);
    claim_each(&mut other, ["POST /1", "POST /2"]);
    assert_eq!(
        (tracked(&mut c), tracked(&mut other)),
        (vec!["POST /1".into(), "POST /2".into()], vec!["POST /1".into()])
    );
    assert_eq!(counters(&mut c, OTHERS), counted([("executed", 2), ("in_progress", 1)]));
    assert_eq!(counters(&mut other, OTHERS), counted([("executed", 1)]), "each database has its own");
    // Counted apart from the endpoints, however many there are.
    wait_for_a_round(&mut c);

    // Who has found no room finds some when there is.
    drop(c);
    drop(first);
    wait_for_a_round(&mut other);
    claim_each(&mut other, ["POST /2"]);
    assert_eq!(tracked(&mut other), ["POST /1", "POST /2"]);
}

// CASES 49
#[test]
fn six_hundred_invented_endpoints_take_the_counters_of_nobody() {
    let cluster = cluster(&["idempotency_enforcer.max_tracked_endpoints = 40"]);
    let (noisy, quiet) = (cluster.database(), cluster.database());
    admit_unregistered(&noisy);
    let (mut c, mut elsewhere) = (noisy.admin(), quiet.admin());
    c.batch_execute("SELECT idem_claim('t', 'POST /invented/' || i, 'k', '{}'::bytea) FROM generate_series(1, 600) i")
        .unwrap();
    claim_each(&mut c, [OTHERS]);
    assert!(tracked(&mut c).is_empty());
    assert_eq!(counters(&mut c, OTHERS), counted([("executed", 601)]));
    for (c, most) in [(&mut c, 8), (&mut elsewhere, 5)] {
        for n in 0..most {
            let endpoint = format!("POST /{n}");
            protect(c, &endpoint);
            claim_each(c, [endpoint.as_str(), endpoint.as_str()]);
            assert_eq!(counters(c, &endpoint), counted([("executed", 1), ("in_progress", 1)]));
        }
    }
    assert_eq!(counters(&mut elsewhere, OTHERS), []);
    for c in [&mut c, &mut elsewhere] {
        let twice = "SELECT count(*) FROM (SELECT FROM idem_metrics GROUP BY name, labels HAVING count(*) > 1) d";
        assert_eq!(c.value::<i64>(twice), 0, "a series is there once");
    }
    // The same session counts an endpoint apart from the moment at which it is registered.
    protect(&mut c, "POST /invented/7");
    claim_each(&mut c, ["POST /invented/7"]);
    assert_eq!(counters(&mut c, "POST /invented/7"), counted([("in_progress", 1)]));
    let reserved = c.execute("INSERT INTO idempotency_endpoints (endpoint) VALUES ('(other endpoints)')", &[]);
    let error = reserved.unwrap_err();
    assert_eq!(error.as_db_error().and_then(|e| e.constraint()), Some("endpoint_not_reserved"));
}

#[test]
fn a_reset_makes_room_for_other_endpoints() {
    let cluster = cluster(&["idempotency_enforcer.max_tracked_endpoints = 1"]);
    let db = cluster.database();
    let (mut c, mut late) = (db.admin(), db.admin());
    protect(&mut c, "POST /early");
    protect(&mut c, "POST /late");
    claim_each(&mut c, ["POST /early"]);
    claim_each(&mut late, ["POST /late", "POST /late"]);
    assert_eq!(tracked(&mut c), ["POST /early"]);
    assert_eq!(counters(&mut c, OTHERS), counted([("executed", 1), ("in_progress", 1)]));

    c.batch_execute("SELECT idem_stats_reset()").unwrap();
    assert!(tracked(&mut c).is_empty() && counters(&mut c, OTHERS).is_empty());
    claim_each(&mut late, ["POST /late"]);
    assert_eq!(counters(&mut c, "POST /late"), counted([("in_progress", 1)]));
    // Whoever remembers that the slot was another endpoint's counts nothing there.
    claim_each(&mut c, ["POST /early"]);
    assert_eq!(counters(&mut c, "POST /late"), counted([("in_progress", 1)]));
    assert_eq!(counters(&mut c, OTHERS), counted([("in_progress", 1)]));
}

#[test]
fn after_a_crash_the_counters_start_from_zero() {
    let cluster = cluster(&[]);
    let db = cluster.database();
    let mut c = db.admin();
    protect(&mut c, "POST /x");
    claim_each(&mut c, ["POST /x"]);
    let mut witness = db.admin();
    cluster.kill(c.value("SELECT pg_backend_pid()"));
    wait_until("the restart", || witness.execute("SELECT 1", &[]).is_err());
    cluster.connect();
    let mut c = db.admin();
    assert!(tracked(&mut c).is_empty());
    claim_each(&mut c, ["POST /x"]);
    assert_eq!(counters(&mut c, "POST /x"), counted([("in_progress", 1)]));
    wait_for_a_round(&mut c);
}

// CASES 45
#[test]
fn the_server_starts_with_a_small_stack() {
    let cluster = cluster(&["idempotency_enforcer.max_tracked_endpoints = 100000"]);
    cluster.stop(Shutdown::Fast);
    cluster.start_again_under("-s 2048");
    let db = cluster.database();
    let mut c = db.admin();
    assert_eq!(c.value::<String>("SHOW max_stack_depth"), "1536kB", "which is what PostgreSQL makes of such a stack");
    protect(&mut c, "POST /x");
    claim_each(&mut c, ["POST /x"]);
    assert_eq!(counters(&mut c, "POST /x"), counted([("executed", 1)]));
    wait_for_a_round(&mut c);
}

#[test]
fn without_preloading_the_counters_say_so_and_everything_else_works() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    for sql in ["SELECT * FROM idem_stats", "SELECT idem_stats_reset()"] {
        let error = c.query(sql, &[]).unwrap_err();
        let error = error.as_db_error().expect("an error of the server");
        assert_eq!(error.code().code(), "55000");
        assert!(error.message().contains("shared_preload_libraries") && error.hint().is_some());
    }
    protect(&mut c, "POST /x");
    assert_eq!(c.claim("t", "POST /x", "k", b"{}").unwrap().outcome, "execute");
    c.complete("t", "POST /x", "k", 200, b"").unwrap();
    assert_eq!(c.claim("t", "POST /x", "k", b"{}").unwrap().outcome, "replay");
    add_expired(&mut c, "POST /x", 2);
    assert_eq!(c.value::<i32>("SELECT idem_sweep()"), 2);
    c.batch_execute("SELECT * FROM idem_stuck").unwrap();
}

#[test]
fn twenty_connections_lose_no_count() {
    const EACH: i64 = 100;
    let cluster = cluster(&[]);
    let db = cluster.database();
    for n in 0..EACH / 10 {
        protect(&mut db.admin(), &format!("POST /{n}"));
    }
    thread::scope(|scope| {
        for n in 0..20 {
            let db = &db;
            scope.spawn(move || {
                let mut c = db.admin();
                for i in 0..EACH {
                    // All of them meet at each new endpoint, where its slot is given out.
                    c.claim("t", &format!("POST /{}", i / 10), &format!("{n} {i}"), b"{}").unwrap();
                }
            });
        }
    });
    let mut c = db.admin();
    for endpoint in 0..EACH / 10 {
        assert_eq!(counters(&mut c, &format!("POST /{endpoint}")), counted([("executed", 20 * 10)]));
    }
}
