//! The counters of `idem_stats`.

use super::*;
use std::thread;

/// The counters of an endpoint, in the order of the view.
fn counters(c: &mut Client, endpoint: &str) -> Vec<(String, i64)> {
    let sql = "SELECT to_jsonb(s) - 'endpoint' - 'rounds' - 'last_round_at' - 'last_round_took' FROM idem_stats s WHERE endpoint = $1";
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
    c.batch_execute("SELECT idem_protect('POST /guarded'), idem_protect('POST /loose', key_required => false)")
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
    assert_eq!(counters(&mut elsewhere, "POST /x"), []);
    elsewhere.claim("t", "POST /x", "1", b"{}").unwrap();
    c.batch_execute("SELECT idem_stats_reset()").unwrap();
    assert_eq!(counters(&mut c, "POST /x"), []);
    assert_eq!(counters(&mut elsewhere, "POST /x"), counted([("executed", 1)]));
    c.claim("t", "POST /x", "1", b"{}").unwrap();
    assert_eq!(counters(&mut c, "POST /x"), counted([("replayed", 1)]));
}

#[test]
fn endpoints_over_the_limit_share_a_name_and_dropped_databases_make_room() {
    let cluster = cluster(&["idempotency_enforcer.max_tracked_endpoints = 2"]);
    let db = cluster.database();
    let mut c = db.admin();
    for endpoint in ["POST /1", "POST /2", "POST /3", "POST /4"] {
        c.claim("t", endpoint, "k", b"{}").unwrap();
    }
    assert_eq!(counters(&mut c, "POST /2"), counted([("executed", 1)]));
    assert_eq!(counters(&mut c, "(other endpoints)"), counted([("executed", 2)]));
    wait_for_a_round(&mut c); // counted apart from the endpoints, however many there are
    drop(c);
    drop(db);
    let db = cluster.database();
    let mut c = db.admin();
    wait_for_a_round(&mut c);
    c.claim("t", "POST /5", "k", b"{}").unwrap();
    assert_eq!(counters(&mut c, "POST /5"), counted([("executed", 1)]));
    assert_eq!(counters(&mut c, "(other endpoints)"), counted([("executed", 2)]), "shared by all databases");
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
