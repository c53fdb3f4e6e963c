//! `idem_health()`: each finding is provoked on a real server, and its remedy, run as it is, makes it vanish.

use harness::{wait_for, wait_until, Calls, Cluster, Database};
use postgres::Client;
use std::io::Write;
use std::process::Stdio;

const PRELOADED: &str = "shared_preload_libraries = 'idempotency_enforcer'";
const NOT_PRELOADED: &str = "The library is not preloaded";
/// Nothing but a test vacuums, so that dead rows stay until then.
const NO_AUTOVACUUM: &str = "autovacuum_naptime = '1d'";

#[derive(Debug)]
struct Finding {
    severity: String,
    finding: String,
    remedy: String,
}

fn health(c: &mut Client) -> Vec<Finding> {
    let rows = c.query("SELECT severity, finding, remedy FROM idem_health()", &[]).expect("idem_health()");
    let read = |r: postgres::Row| Finding { severity: r.get(0), finding: r.get(1), remedy: r.get(2) };
    rows.into_iter().map(read).collect()
}

/// The findings about the tables, for a server that does not preload the library.
fn about_tables(c: &mut Client) -> Vec<Finding> {
    health(c).into_iter().filter(|f| !f.finding.starts_with(NOT_PRELOADED)).collect()
}

/// Runs a remedy as a person would paste it.
fn mend(db: &Database, remedy: &str) {
    let mut psql = db
        .cluster()
        .installation()
        .client("psql")
        .args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-U", "postgres", "-d", db.name()])
        .args(["-p", &db.cluster().port().to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("psql");
    psql.stdin.take().expect("its input").write_all(remedy.as_bytes()).expect("the remedy");
    let output = psql.wait_with_output().expect("psql");
    assert!(output.status.success(), "{remedy}\n{}", String::from_utf8_lossy(&output.stderr));
}

/// The one finding that begins like this.
fn the(found: Vec<Finding>, severity: &str, start: &str) -> Finding {
    let listed = format!("{found:#?}");
    let mut these: Vec<Finding> = found.into_iter().filter(|f| f.finding.starts_with(start)).collect();
    assert_eq!(these.len(), 1, "{start:?} in {listed}");
    let this = these.remove(0);
    assert_eq!(this.severity, severity, "{this:?}");
    this
}

/// Breaks something that is well, expects exactly these findings, mends them in their order, and expects none.
fn break_and_mend(provocation: &str, expected: &[(&str, &str)]) {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    c.batch_execute("SELECT idem_protect('POST /x')").unwrap();
    assert!(about_tables(&mut c).is_empty(), "{:#?}", about_tables(&mut c));
    c.batch_execute(provocation).unwrap();
    let found = about_tables(&mut c);
    let said: Vec<(&str, &str)> = found.iter().map(|f| (f.severity.as_str(), f.finding.as_str())).collect();
    assert_eq!(said, expected, "{found:#?}");
    for finding in found {
        mend(&db, &finding.remedy);
    }
    assert!(about_tables(&mut c).is_empty(), "{:#?}", about_tables(&mut c));
}

#[test]
fn a_missing_index_is_found() {
    break_and_mend(
        "DROP INDEX idempotency_keys_expires_at_idx, idempotency_keys_open_since_idx;
         ALTER TABLE idempotency_keys DROP CONSTRAINT idempotency_keys_pkey",
        &[
            (
                "critical",
                "Index idempotency_keys_pkey of public.idempotency_keys is missing: nothing but it stops two executions.",
            ),
            (
                "critical",
                "Index idempotency_keys_expires_at_idx of public.idempotency_keys is missing: every sweep reads the whole \
                 table.",
            ),
            (
                "critical",
                "Index idempotency_keys_open_since_idx of public.idempotency_keys is missing: looking for stuck claims \
                 reads the whole table.",
            ),
        ],
    );
}

#[test]
fn an_index_under_another_name_is_no_finding() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    c.batch_execute("ALTER INDEX idempotency_keys_expires_at_idx RENAME TO mine").unwrap();
    assert!(about_tables(&mut c).is_empty());
}

#[test]
fn an_invalid_index_is_found() {
    break_and_mend(
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'idempotency_keys_expires_at_idx'::regclass;
         CREATE INDEX idempotency_keys_pkey_ccnew ON idempotency_keys (key);
         UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'idempotency_keys_pkey_ccnew'::regclass",
        &[
            ("critical", "Index public.idempotency_keys_expires_at_idx is invalid."),
            ("critical", "Index public.idempotency_keys_pkey_ccnew is invalid."),
        ],
    );
}

#[test]
fn a_ttl_that_no_rule_covers_any_more_is_found_with_the_lost_rule() {
    break_and_mend(
        "ALTER TABLE idempotency_endpoints DROP CONSTRAINT ttl_above_retry_window;
         UPDATE idempotency_endpoints SET ttl = '25 hours', retry_window = '30 hours'",
        &[
            (
                "critical",
                "The ttl of endpoint \"POST /x\" is 25:00:00, with a retry window of 30:00:00: it must be above it and at \
                 least 24 hours.",
            ),
            ("critical", "Table public.idempotency_endpoints has lost its rule ttl_above_retry_window."),
        ],
    );
}

#[test]
fn a_rule_that_was_never_validated_is_found() {
    break_and_mend(
        "ALTER TABLE idempotency_endpoints DROP CONSTRAINT ttl_at_least_a_day;
         ALTER TABLE idempotency_endpoints ADD CONSTRAINT ttl_at_least_a_day CHECK (ttl >= '24 hours') NOT VALID",
        &[(
            "warning",
            "Rule ttl_at_least_a_day of table public.idempotency_endpoints does not cover the rows that were there before \
             it.",
        )],
    );
}

#[test]
fn autovacuum_off_on_the_table_or_its_toast_table_is_found() {
    break_and_mend(
        "ALTER TABLE idempotency_keys SET (autovacuum_enabled = off, toast.autovacuum_enabled = off)",
        &[
            (
                "warning",
                "autovacuum_enabled is off on table public.idempotency_keys: nothing reclaims the space of swept rows.",
            ),
            (
                "warning",
                "toast.autovacuum_enabled is off on table public.idempotency_keys: nothing reclaims the space of swept rows.",
            ),
        ],
    );
}

#[test]
fn an_endpoint_in_use_that_nobody_registered_is_found_finished_or_open() {
    break_and_mend(
        "SELECT idem_claim('t', 'POST /finished', 'k', ''::bytea);
         SELECT idem_complete('t', 'POST /finished', 'k', 200, ''::bytea);
         SELECT idem_claim('t', 'POST /o''pen', 'k', ''::bytea);
         SELECT idem_claim('t', 'POST /x', 'k', ''::bytea);
         SELECT idem_complete('t', 'POST /x', 'k', 200, ''::bytea)",
        &[
            (
                "info",
                "Endpoint \"POST /finished\" is in use and not registered: no commit guard, and a ttl of 24 hours.",
            ),
            ("info", "Endpoint \"POST /o'pen\" is in use and not registered: no commit guard, and a ttl of 24 hours."),
        ],
    );
}

#[test]
fn an_endpoint_with_open_claims_is_not_proposed_as_one_that_refuses_them() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    c.claim("t", "POST /open", "k", b"").unwrap();
    let found = the(health(&mut c), "info", "Endpoint \"POST /open\"");
    assert!(found.remedy.contains("effect => 'external'"), "{}", found.remedy);
}

/// Nobody may settle a stuck claim without knowing: the remedy shows it, a person settles it.
#[test]
fn stuck_claims_are_found_until_they_are_settled() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    c.batch_execute("SELECT idem_protect('POST /x', 'external')").unwrap();
    c.claim("t", "POST /x", "secret-key", b"").unwrap();
    assert!(about_tables(&mut c).is_empty());
    c.batch_execute("UPDATE idempotency_keys SET open_since = now() - interval '2 hours'").unwrap();
    let found = the(health(&mut c), "warning", "Stuck claims: 1, the oldest open for 02:00:0");
    assert!(!found.finding.contains("secret"), "{}", found.finding);
    mend(&db, &found.remedy);
    c.release("t", "POST /x", "secret-key").unwrap();
    assert!(about_tables(&mut c).is_empty());
}

#[test]
fn monitors_and_operators_may_ask_and_others_may_not() {
    let db = Cluster::shared().database();
    let (monitor, operator, other) = (db.role("monitor"), db.role("operator"), db.role("other"));
    let mut c = db.admin();
    c.batch_execute(&format!("GRANT pg_monitor TO {monitor}; SELECT idem_grant('{operator}', 'operator')")).unwrap();
    // What only some may see of the server is found for all who may ask.
    for role in [monitor, operator] {
        let found = the(health(&mut db.connect_as(&role)), "warning", NOT_PRELOADED);
        assert!(found.remedy.starts_with("ALTER SYSTEM SET shared_preload_libraries"), "{}", found.remedy);
    }
    let refused = db.connect_as(&other).query("SELECT * FROM idem_health()", &[]).unwrap_err();
    assert_eq!(refused.code().map(|c| c.code()), Some("42501"));
}

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
    mend(&db, "ALTER SYSTEM SET idempotency_enforcer.sweep_interval = 0;\nSELECT pg_reload_conf();");
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
    wait_to_find(&mut c, "Dead rows are piling up in public.idempotency_keys: 30000");
    for finding in health(&mut c) {
        assert!(finding.finding.starts_with("Dead rows") || finding.severity == "info", "{finding:?}");
        mend(&db, &finding.remedy);
    }
    wait_until_well(&mut c);

    // The worker is told to visit other databases only.
    mend(&db, "ALTER SYSTEM SET idempotency_enforcer.databases = 'postgres';\nSELECT pg_reload_conf();");
    wait_to_find(&mut c, "The worker does not visit this database");
    mend(&db, &the(health(&mut c), "warning", "The worker does not visit this database").remedy);
    wait_until_well(&mut c);

    // Autovacuum is off for all.
    mend(&db, "ALTER SYSTEM SET autovacuum = off;\nSELECT pg_reload_conf();");
    wait_to_find(&mut c, "autovacuum is off");
    mend(&db, &the(health(&mut c), "warning", "autovacuum is off").remedy);
    wait_until_well(&mut c);

    // The counters know endpoints whose rows are gone.
    c.batch_execute("SELECT idem_protect('POST /gone', 'external')").unwrap();
    c.claim("t", "POST /gone", "k", b"").unwrap();
    c.release("t", "POST /gone", "k").unwrap();
    c.batch_execute("SELECT idem_unprotect('POST /gone')").unwrap();
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
