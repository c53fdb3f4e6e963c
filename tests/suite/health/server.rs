//! The library, its worker and its settings.

use super::*;
use harness::{wait_for, wait_until, Calls};

const PRELOADED: &str = "shared_preload_libraries = 'idempotency_enforcer'";
/// Nothing but a test vacuums, so that dead rows stay until then.
const NO_AUTOVACUUM: &str = "autovacuum_naptime = '1d'";

#[test]
fn what_needs_a_restart_is_found_and_mended_by_its_remedy_and_one() {
    let cluster = Cluster::start(&[
        "shared_preload_libraries = 'plpgsql'",
        "max_worker_processes = 1",
        "idempotency_enforcer.sweep_interval = 1",
        "idempotency_enforcer.max_tracked_endpoints = 2",
    ]);
    let db = cluster.database();
    let slots = |n: u8| format!("All {n} background worker slots (max_worker_processes) are taken");
    let cure = |found: Finding| {
        mend(&db, &found.remedy);
        cluster.restart();
        cluster.connect();
    };

    cure(the(health(&mut db.admin()), "warning", NOT_PRELOADED));
    assert_eq!(db.admin().value::<String>("SHOW shared_preload_libraries"), "plpgsql, idempotency_enforcer");
    // PostgreSQL's own launcher has the only slot; with two, ours has the other and none is left for a visit.
    the(health(&mut db.admin()), "critical", &slots(1));
    db.admin().batch_execute("ALTER SYSTEM SET max_worker_processes = 2").unwrap();
    cluster.restart();
    cluster.connect();
    let mut c = db.admin();
    wait_until("the launcher to have the last slot", || {
        c.value("SELECT count(*) > 0 FROM pg_stat_activity WHERE backend_type = 'idempotency_enforcer launcher'")
    });
    cure(the(health(&mut c), "critical", &slots(2)));
    let mut c = db.admin();
    wait_until("a healthy server", || health(&mut c).is_empty());

    for endpoint in ["POST /a", "POST /b", "POST /c"] {
        c.execute("SELECT idem_protect($1, 'external')", &[&endpoint]).unwrap();
        c.claim("t", endpoint, "k", b"").unwrap();
    }
    cure(the(health(&mut c), "info", "Not all registered endpoints have counters of their own"));
    let mut c = db.admin();
    wait_until("a healthy server", || health(&mut c).is_empty());
}

#[test]
fn a_preloaded_server_is_well_until_its_worker_is_kept_from_its_work() {
    let cluster = Cluster::start(&[PRELOADED, NO_AUTOVACUUM, "idempotency_enforcer.sweep_interval = 1"]);
    let db = cluster.database();
    let mut c = db.admin();
    c.batch_execute("SELECT idem_protect('POST /x')").unwrap();
    wait_until("the first round", || c.value("SELECT count(*) > 0 FROM idem_stats WHERE rounds > 0"));
    assert!(health(&mut c).is_empty(), "{:#?}", health(&mut c));
    let wait_to_find = |c: &mut Client, start: &str| {
        wait_until(start, || health(c).iter().any(|f| f.finding.starts_with(start)));
    };
    let wait_until_well = |c: &mut Client| wait_until("a healthy server", || health(c).is_empty());

    // The launcher ends. It comes back by itself.
    c.batch_execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'idempotency_enforcer launcher'",
    )
    .unwrap();
    wait_to_find(&mut c, "The launcher is not running");
    mend(&db, &the(health(&mut c), "critical", "The launcher is not running").remedy);
    wait_until_well(&mut c);

    // Somebody's lock keeps the worker out.
    let mut locker = db.admin();
    locker.batch_execute("BEGIN; LOCK TABLE idempotency_keys IN SHARE MODE").unwrap();
    wait_to_find(&mut c, "The last round was");
    let found = the(health(&mut c), "critical", "The last round was");
    assert!(found.finding.contains("(ShareLock) that keeps the worker out"), "{}", found.finding);
    mend(&db, &found.remedy);
    assert!(locker.execute("SELECT 1", &[]).is_err(), "the remedy ends the session that holds the lock");
    wait_until_well(&mut c);

    // The rounds are turned off, and expired rows pile up. Swept, they are dead rows until a vacuum.
    mend(&db, "ALTER SYSTEM SET idempotency_enforcer.sweep_interval = 0; -- then SELECT pg_reload_conf();");
    wait_to_find(&mut c, "The worker's rounds are turned off");
    c.batch_execute(
        "INSERT INTO idempotency_keys (tenant_id, endpoint, key, request_hash, status, response_code, completed_at,
                                       expires_at)
         SELECT 't', 'POST /x', i::text, sha256(''), 'succeeded', 200, now(), now() - interval '1 hour'
           FROM generate_series(1, 30000) i",
    )
    .unwrap();
    let found =
        the(health(&mut c), "warning", "The sweep is falling behind: the oldest expired row has been due for 01:00:");
    mend(&db, &found.remedy);
    wait_to_find(&mut c, "Dead rows are piling up in \"public.idempotency_keys\": 30000");
    for finding in health(&mut c) {
        assert!(finding.finding.starts_with("Dead rows") || finding.severity == "info", "{finding:?}");
        mend(&db, &finding.remedy);
    }
    wait_until_well(&mut c);

    // The worker is told to visit other databases only.
    mend(&db, "ALTER SYSTEM SET idempotency_enforcer.databases = 'postgres'; -- then SELECT pg_reload_conf();");
    wait_to_find(&mut c, "The worker does not visit this database");
    mend(&db, &the(health(&mut c), "warning", "The worker does not visit this database").remedy);
    wait_until_well(&mut c);

    // Autovacuum is off for all.
    mend(&db, "ALTER SYSTEM SET autovacuum = off; -- then SELECT pg_reload_conf();");
    wait_to_find(&mut c, "autovacuum is off");
    mend(&db, &the(health(&mut c), "warning", "autovacuum is off").remedy);
    wait_until_well(&mut c);

    // The counters know endpoints whose rows are gone.
    c.batch_execute("SELECT idem_protect('POST /gone', 'external')").unwrap();
    c.claim("t", "POST /gone", "k", b"").unwrap();
    c.batch_execute("DELETE FROM idempotency_keys; SELECT idem_unprotect('POST /gone')").unwrap();
    mend(&db, &the(health(&mut c), "info", "Endpoint \"POST /gone\"").remedy);
    wait_until_well(&mut c);
}

#[test]
fn a_standby_reports_what_concerns_itself_only() {
    let cluster = Cluster::start(&[PRELOADED, "idempotency_enforcer.sweep_interval = 1"]);
    let db = cluster.database();
    let mut c = db.admin();
    c.batch_execute("SELECT idem_protect('POST /x', 'external'); SELECT idem_claim('t', 'POST /x', 'k', ''::bytea)")
        .unwrap();
    c.batch_execute("UPDATE idempotency_keys SET open_since = now() - interval '2 hours'").unwrap();
    the(health(&mut c), "warning", "Stuck claims");
    std::fs::write(cluster.data().join("standby.signal"), "").expect("standby.signal");
    cluster.restart();
    let mut c = wait_for("the standby", || cluster.config(db.name(), "postgres").connect(postgres::NoTls).ok());
    assert!(c.value::<bool>("SELECT pg_is_in_recovery()"));
    assert!(health(&mut c).is_empty(), "{:#?}", health(&mut c));
    let metrics: Vec<String> = c.value("SELECT array_agg(name) FROM idem_metrics");
    assert!(metrics.iter().any(|m| m == "idempotency_stuck_claims"), "{metrics:?}");
    assert!(metrics.iter().all(|m| !m.starts_with("idempotency_worker_")), "{metrics:?}");
    // The database is dropped at the end, which a standby refuses: promote it.
    c.batch_execute("SELECT pg_promote()").unwrap();
    // There was no visit since the server started: said once, and gone with the first round.
    wait_until("the first round", || health(&mut c).iter().all(|f| f.finding.starts_with("Stuck claims")));
}
