//! `idem_metrics`, and the files for the tools that people watch their servers with.

mod exporter;
mod prometheus;

use harness::{sqlstate, wait_until, Calls, Cluster};
use postgres::Client;
use std::collections::BTreeMap;

/// Metrics by name and labels, as `name{label="value",...}`.
type Samples = BTreeMap<String, f64>;

const COUNTED: &[&str] = &[
    "idempotency_arrivals_total",
    "idempotency_results_total",
    "idempotency_guard_refusals_total",
    "idempotency_swept_rows_total",
    "idempotency_worker_",
];

fn read(c: &mut Client) -> Samples {
    let rows = c.query("SELECT name, labels, value FROM idem_metrics", &[]).expect("idem_metrics");
    let n = rows.len();
    let samples: Samples =
        rows.into_iter().map(|r| (sample(&r.get::<_, String>(0), &r.get(1)), r.get::<_, f64>(2))).collect();
    assert_eq!(samples.len(), n, "no two rows have the same name and labels");
    samples
}

fn sample(name: &str, labels: &serde_json::Value) -> String {
    let labels = labels.as_object().expect("labels are an object");
    let labels: Vec<String> =
        labels.iter().map(|(k, v)| format!("{k}=\"{}\"", v.as_str().expect("labels are strings"))).collect();
    if labels.is_empty() {
        name.to_owned()
    } else {
        format!("{name}{{{}}}", labels.join(","))
    }
}

/// One of everything that is counted, on `POST /x`, with names that must not be seen in any metric.
fn one_of_everything(c: &mut Client) {
    c.batch_execute("SELECT idem_protect('POST /x'); SELECT idem_protect('POST /y', 'external')").unwrap();
    for (key, body) in [("secret-1", &b"a"[..]), ("secret-1", b"a"), ("secret-1", b"b"), ("", b"a")] {
        let mut t = c.transaction().unwrap();
        if t.claim("secret-tenant", "POST /x", key, body).unwrap().outcome == "execute" {
            t.complete("secret-tenant", "POST /x", key, 201, b"{}").unwrap();
        }
        t.commit().unwrap();
    }
    let mut t = c.transaction().unwrap();
    t.claim("secret-tenant", "POST /x", "secret-2", b"a").unwrap();
    t.fail("secret-tenant", "POST /x", "secret-2", 422, b"{}").unwrap();
    t.commit().unwrap();
    c.claim("secret-tenant", "POST /y", "secret-3", b"a").unwrap();
    assert!(c.release("secret-tenant", "POST /y", "secret-3").unwrap());
    c.claim("secret-tenant", "POST /x", "secret-4", b"a").expect_err("the guard refuses an open claim");
    // Two open claims, one of them stuck, and a duplicate of it.
    c.claim("secret-tenant", "POST /y", "secret-5", b"a").unwrap();
    c.batch_execute("UPDATE idempotency_keys SET open_since = now() - interval '2 hours' WHERE key = 'secret-5'")
        .unwrap();
    c.claim("secret-tenant", "POST /y", "secret-5", b"a").unwrap();
    c.claim("secret-tenant", "POST /y", "secret-6", b"a").unwrap();
    c.batch_execute("SELECT idem_protect('POST /z', key_required => false)").unwrap();
    c.claim("secret-tenant", "POST /z", "", b"a").unwrap();
    // Two expired rows, one of which is swept.
    c.batch_execute(
        "UPDATE idempotency_keys SET expires_at = now() - interval '1 hour' WHERE endpoint = 'POST /x';
         SELECT idem_sweep(1)",
    )
    .unwrap();
}

/// What [`one_of_everything`] must have left.
const EXPECTED: &[(&str, f64)] = &[
    ("idempotency_arrivals_total{endpoint=\"POST /x\",outcome=\"execute\"}", 3.0),
    ("idempotency_arrivals_total{endpoint=\"POST /x\",outcome=\"replay\"}", 1.0),
    ("idempotency_arrivals_total{endpoint=\"POST /x\",outcome=\"in_progress\"}", 0.0),
    ("idempotency_arrivals_total{endpoint=\"POST /x\",outcome=\"key_reused\"}", 1.0),
    ("idempotency_arrivals_total{endpoint=\"POST /x\",outcome=\"key_rejected\"}", 1.0),
    ("idempotency_arrivals_total{endpoint=\"POST /x\",outcome=\"unprotected\"}", 0.0),
    ("idempotency_arrivals_total{endpoint=\"POST /y\",outcome=\"execute\"}", 3.0),
    ("idempotency_arrivals_total{endpoint=\"POST /y\",outcome=\"in_progress\"}", 1.0),
    ("idempotency_arrivals_total{endpoint=\"POST /z\",outcome=\"unprotected\"}", 1.0),
    ("idempotency_results_total{endpoint=\"POST /x\",result=\"succeeded\"}", 1.0),
    ("idempotency_results_total{endpoint=\"POST /x\",result=\"failed\"}", 1.0),
    ("idempotency_results_total{endpoint=\"POST /x\",result=\"released\"}", 0.0),
    ("idempotency_results_total{endpoint=\"POST /y\",result=\"released\"}", 1.0),
    ("idempotency_guard_refusals_total{endpoint=\"POST /x\"}", 1.0),
    ("idempotency_swept_rows_total{endpoint=\"POST /x\"}", 1.0),
    ("idempotency_open_claims{endpoint=\"POST /x\"}", 0.0),
    ("idempotency_stuck_claims{endpoint=\"POST /x\"}", 0.0),
    ("idempotency_open_claims{endpoint=\"POST /y\"}", 2.0),
    ("idempotency_stuck_claims{endpoint=\"POST /y\"}", 1.0),
    ("idempotency_preloaded", 1.0),
];

#[test]
fn each_metric_says_what_happened() {
    let cluster = Cluster::start(&[
        "shared_preload_libraries = 'idempotency_enforcer'",
        "idempotency_enforcer.sweep_interval = 0",
    ]);
    let db = cluster.database();
    let mut c = db.admin();
    assert_eq!(read(&mut c)["idempotency_sweep_lag_seconds"], 0.0);
    one_of_everything(&mut c);
    let samples = read(&mut c);
    for (name, value) in EXPECTED {
        assert_eq!(samples.get(*name), Some(value), "{name} in {samples:#?}");
    }
    assert!((3600.0..7200.0).contains(&samples["idempotency_sweep_lag_seconds"]), "{samples:#?}");
    assert!(samples["idempotency_table_size_bytes"] >= 8192.0, "{samples:#?}");
    assert!(samples["idempotency_table_index_size_bytes"] >= 3.0 * 8192.0, "{samples:#?}");
    assert_eq!(samples["idempotency_worker_interval_seconds"], 0.0);
    assert_eq!(samples["idempotency_worker_last_round_timestamp_seconds"], 0.0);
    assert!(samples.keys().all(|name| !name.contains("secret")), "{samples:#?}");

    c.batch_execute("ANALYZE idempotency_keys").unwrap();
    assert_eq!(read(&mut c)["idempotency_table_rows"], 4.0);
    c.batch_execute("ALTER SYSTEM SET idempotency_enforcer.sweep_interval = '1min'").unwrap();
    c.batch_execute("SELECT pg_reload_conf()").unwrap();
    wait_until("a round", || read(&mut c)["idempotency_worker_rounds_total"] > 0.0);
    let samples = read(&mut c);
    assert_eq!(samples["idempotency_worker_interval_seconds"], 60.0);
    let now: f64 = c.value("SELECT EXTRACT(epoch FROM clock_timestamp())::double precision");
    assert!((now - samples["idempotency_worker_last_round_timestamp_seconds"]).abs() < 60.0, "{samples:#?}");
    assert!((0.0..60.0).contains(&samples["idempotency_worker_last_round_duration_seconds"]), "{samples:#?}");
    assert_eq!(samples["idempotency_sweep_lag_seconds"], 0.0);
}

#[test]
fn without_preloading_what_the_tables_say_is_there() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    one_of_everything(&mut c);
    let samples = read(&mut c);
    assert_eq!(samples["idempotency_preloaded"], 0.0);
    for (name, value) in EXPECTED.iter().filter(|(name, _)| name.contains("_claims")) {
        assert_eq!(samples.get(*name), Some(value), "{name} in {samples:#?}");
    }
    assert!(samples["idempotency_sweep_lag_seconds"] > 3600.0, "{samples:#?}");
    let counted: Vec<&String> = samples.keys().filter(|n| COUNTED.iter().any(|c| n.starts_with(c))).collect();
    assert!(counted.is_empty(), "{counted:?}");
}

/// Also before the first ANALYZE, when the planner knows nothing of the table.
#[test]
fn metrics_and_health_never_read_the_whole_table() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    c.batch_execute(
        "SELECT idem_protect('POST /x');
         INSERT INTO idempotency_keys (tenant_id, endpoint, key, request_hash, status, response_code, completed_at)
         SELECT 't', 'POST /x', i::text, sha256(''), 'succeeded', 200, now() FROM generate_series(1, 30000) i",
    )
    .unwrap();
    for (what, most_rows) in [("SELECT count(*) FROM idem_metrics", 10), ("SELECT count(*) FROM idem_health()", 1000)] {
        let mut t = c.transaction().unwrap();
        t.batch_execute(what).unwrap();
        let row = t
            .query_one(
                "SELECT pg_stat_get_xact_numscans(c.oid), pg_stat_get_xact_tuples_fetched(c.oid)
                   FROM pg_class c WHERE c.oid = 'idempotency_keys'::regclass",
                &[],
            )
            .unwrap();
        let (scans, fetched): (i64, i64) = (row.get(0), row.get(1));
        assert_eq!(scans, 0, "{what} scans the table");
        assert!(fetched <= most_rows, "{what} fetches {fetched} rows");
    }
}

#[test]
fn endpoints_with_ids_in_them_do_not_flood_the_metrics() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    c.batch_execute(
        "SELECT idem_protect('POST /x', 'external');
         SELECT idem_claim('t', 'POST /payments/' || i, 'k', ''::bytea) FROM generate_series(1, 150) i",
    )
    .unwrap();
    let samples = read(&mut c);
    assert_eq!(samples["idempotency_open_claims{endpoint=\"(other endpoints)\"}"], 50.0);
    assert_eq!(samples["idempotency_open_claims{endpoint=\"POST /x\"}"], 0.0);
    assert_eq!(samples.keys().filter(|n| n.starts_with("idempotency_open_claims")).count(), 102);
}

#[test]
fn monitors_may_read_the_metrics_and_others_may_not() {
    let db = Cluster::shared().database();
    let (monitor, other) = (db.role("monitor"), db.role("other"));
    db.admin().batch_execute(&format!("GRANT pg_monitor TO {monitor}")).unwrap();
    assert!(!read(&mut db.connect_as(&monitor)).is_empty());
    let refused = db.connect_as(&other).query("SELECT * FROM idem_metrics", &[]).unwrap_err();
    assert_eq!(refused.code().map(|c| c.code()), Some("42501"));
}

// CASES 49
#[test]
fn the_name_of_the_rest_of_the_endpoints_is_no_endpoint_and_claims_under_it_are_among_them() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    let refused = c.execute("SELECT idem_protect('(other endpoints)', 'external')", &[]).unwrap_err();
    assert_eq!(sqlstate(&refused), "22023");
    c.batch_execute(
        "SELECT idem_protect('POST /x', 'external');
         INSERT INTO idempotency_keys (tenant_id, endpoint, key, request_hash, open_since)
         SELECT 't', 'POST /invented/' || i, 'k', sha256(''), now() FROM generate_series(1, 600) i;
         SELECT idem_claim('t', e, k, ''::bytea)
           FROM unnest(ARRAY['(other endpoints)', '\"(other endpoints)\"', 'POST /x']) e, unnest(ARRAY['k', 'l']) k",
    )
    .unwrap();
    // Two of the hundred that are told apart have two claims, 98 have one, and 502 are left.
    let row = c.query_one("SELECT open, stuck FROM idem_count_open_claims() WHERE endpoint IS NULL", &[]).unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (502, 0));
    let samples = read(&mut c); // which asserts that no series is there twice
    for (endpoint, open) in [("(other endpoints)", 504.0), ("\"(other endpoints)\"", 2.0), ("POST /x", 2.0)] {
        assert_eq!(samples[&format!("idempotency_open_claims{{endpoint=\"{endpoint}\"}}")], open, "{endpoint}");
    }
}

/// One definition of stuck, wherever it is asked: in a long transaction too, and at the boundary.
#[test]
fn view_metrics_health_and_reconciler_agree_on_what_is_stuck() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    c.batch_execute(
        "SELECT idem_protect('POST /a', 'external', stuck_after => '10 seconds');
         SELECT idem_protect('POST /b', 'external', stuck_after => '1 hour')",
    )
    .unwrap();
    for (endpoint, key, age) in [
        ("POST /a", "young", "5 seconds"),
        ("POST /a", "old", "10001 milliseconds"),
        ("POST /b", "young", "3590 seconds"),
        ("POST /b", "old", "3601 seconds"),
    ] {
        c.claim("t", endpoint, key, b"").unwrap();
        let sql = "UPDATE idempotency_keys SET open_since = clock_timestamp() - $1::text::interval
                    WHERE endpoint = $2 AND key = $3";
        assert_eq!(c.execute(sql, &[&age, &endpoint, &key]).unwrap(), 1);
    }
    let asked = |c: &mut postgres::Transaction| -> Vec<i64> {
        [
            "SELECT count(*) FROM idem_stuck",
            "SELECT sum(value)::bigint FROM idem_metrics WHERE name = 'idempotency_stuck_claims'",
            "SELECT sum(stuck)::bigint FROM idem_count_open_claims()",
            "SELECT coalesce(max((regexp_match(finding, '^Stuck claims: (\\d+)'))[1]::bigint), 0) FROM idem_health()",
        ]
        .map(|sql| c.value::<i64>(sql))
        .into()
    };
    // As seen from one transaction, in which now() stands still while the first young claim grows old.
    let mut t = c.transaction().unwrap();
    assert_eq!(asked(&mut t), [2, 2, 2, 2]);
    wait_until("the third to be stuck", || t.value::<i64>("SELECT count(*) FROM idem_stuck") == 3);
    assert_eq!(asked(&mut t), [3, 3, 3, 3]);
    let handed_out: i64 = t.value("SELECT count(*) FROM idem_reconcile(max_claims => 10)");
    assert_eq!(handed_out, 3);
    t.commit().unwrap();
}
