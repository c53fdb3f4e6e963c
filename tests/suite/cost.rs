//! What an operation costs: WAL, HOT updates, plans, locks.

use harness::{wait_until, Calls, Cluster, Database};
use postgres::{Client, Statement};
use serde_json::{json, Value};

/// A server on which WAL and statistics are this test's alone.
fn quiet_cluster(settings: &[&str]) -> Cluster {
    let mut all = vec![
        "autovacuum = off",
        "full_page_writes = off",
        "wal_level = minimal",
        "max_wal_senders = 0",
        "checkpoint_timeout = 1d",
        "max_wal_size = 10GB",
        "synchronous_commit = off",
    ];
    all.extend(settings);
    Cluster::start(&all)
}

fn protected(cluster: &Cluster) -> Database<'_> {
    let db = cluster.lenient_database();
    db.admin().execute("SELECT idem_protect('POST /pay'), idem_protect('POST /out', 'external')", &[]).unwrap();
    db
}

/// The statements of an application, prepared once.
struct Application {
    client: Client,
    claim: Statement,
    complete: Statement,
}

const TENANT: &str = "tenant 1";
const ENDPOINT: &str = "POST /pay";

fn headers() -> Value {
    json!([["content-type", "application/json"]])
}

impl Application {
    fn new(mut client: Client) -> Self {
        let claim = "SELECT outcome, response_body FROM idem_claim($1, $2, $3, $4::bytea)";
        let claim = client.prepare(claim).unwrap();
        let complete = client.prepare("SELECT idem_complete($1, $2, $3, 201, $4::bytea, $5)").unwrap();
        Application { client, claim, complete }
    }

    fn claim(&mut self, key: &str) -> String {
        self.client.query_one(&self.claim, &[&TENANT, &ENDPOINT, &key, &&b"request"[..]]).unwrap().get(0)
    }

    /// Claims and completes in one transaction, as an application does for its own effect.
    fn execute(&mut self, key: &str, body: &[u8]) {
        let mut tx = self.client.transaction().unwrap();
        let row = tx.query_one(&self.claim, &[&TENANT, &ENDPOINT, &key, &&b"request"[..]]).unwrap();
        assert_eq!(row.get::<_, &str>(0), "execute");
        tx.execute(&self.complete, &[&TENANT, &ENDPOINT, &key, &body, &headers()]).unwrap();
        tx.commit().unwrap();
    }
}

#[test]
fn completing_in_the_claims_own_transaction_is_a_hot_update() {
    let cluster = quiet_cluster(&[]);
    let db = protected(&cluster);
    let mut app = Application::new(db.admin());
    for i in 0..2_000 {
        let body = vec![b'x'; if i % 10 == 0 { 1_024 } else { 300 }];
        app.execute(&format!("01890a5d-ac96-774b-bcce-b302099a{i:04}"), &body);
    }
    drop(app); // a session that ends hands its counters in
    let mut admin = db.admin();
    let updates = "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'idempotency_keys'";
    wait_until("the counters", || admin.value::<i64>(updates) == 2_000);
    let hot: i64 = admin.value("SELECT n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'idempotency_keys'");
    assert!(hot >= 1_960, "{hot} of 2000");
}

fn wal_position(c: &mut Client) -> i64 {
    c.value("SELECT (pg_current_wal_insert_lsn() - '0/0')::int8")
}

/// Bytes of WAL that `work` writes, from a client that is not measured.
fn wal_of(admin: &mut Client, work: impl FnOnce()) -> i64 {
    let before = wal_position(admin);
    work();
    wal_position(admin) - before
}

#[test]
fn claim_and_completion_write_hardly_more_than_the_two_rows_by_hand() {
    const KEYS: usize = 500;
    let cluster = quiet_cluster(&[]);
    let db = protected(&cluster);
    let mut admin = db.admin();
    let body = vec![b'x'; 300];
    let key = |who: &str, round: usize, i: usize| format!("01890a5d-ac96-774b-{who}-{round:04}{i:08}");
    let mut app = Application::new(db.admin());

    let mut by_hand = db.admin();
    let insert = by_hand
        .prepare(
            "INSERT INTO idempotency_keys (tenant_id, endpoint, key, request_hash, expires_at)
             VALUES ($1, $2, $3, sha256($4), now() + '48 h')",
        )
        .unwrap();
    let update = by_hand
        .prepare(
            "UPDATE idempotency_keys
                SET status = 'succeeded', response_code = 201, response_body = $4, response_headers = $5,
                    completed_at = clock_timestamp()
              WHERE tenant_id = $1 AND endpoint = $2 AND key = $3",
        )
        .unwrap();
    let mut write_by_hand = |key: &str| {
        let mut tx = by_hand.transaction().unwrap();
        tx.execute(&insert, &[&TENANT, &ENDPOINT, &key, &&b"request"[..]]).unwrap();
        tx.execute(&update, &[&TENANT, &ENDPOINT, &key, &body, &headers()]).unwrap();
        tx.commit().unwrap();
    };

    // In turns: both meet the same index pages. The first round warms the catalogs up.
    let (mut ours, mut hand) = (0, 0);
    for round in 0..4 {
        let n = wal_of(&mut admin, || (0..KEYS).for_each(|i| app.execute(&key("ours", round, i), &body)));
        let m = wal_of(&mut admin, || (0..KEYS).for_each(|i| write_by_hand(&key("hand", round, i))));
        if round > 0 {
            (ours, hand) = (ours + n, hand + m);
        }
    }
    let ratio = ours as f64 / hand as f64;
    assert!(ratio <= 1.15, "{ratio:.3}: {ours} and {hand} bytes");
    assert!(hand as usize / (3 * KEYS) > 500, "the measure measures");
}

#[test]
fn answers_that_are_no_first_execution_write_no_wal_and_take_no_transaction_id() {
    let cluster = quiet_cluster(&[]);
    let db = protected(&cluster);
    let mut app = Application::new(db.admin());
    let mut admin = db.admin();
    (0..50).for_each(|i| app.execute(&format!("k{i}"), b"answer"));
    // The first reader of a full page may clean it up, which is not the replay's own doing.
    admin.batch_execute("VACUUM idempotency_keys").unwrap();
    let mut other = db.admin();
    let mut open = other.transaction().unwrap();
    open.claim(TENANT, ENDPOINT, "open", b"request").unwrap();
    let written = wal_of(&mut admin, || {
        for i in 0..50 {
            assert_eq!(app.claim(&format!("k{i}")), "replay");
        }
        assert_eq!(app.client.claim(TENANT, ENDPOINT, "k1", b"another").unwrap().outcome, "key_reused");
        assert_eq!(app.client.claim(TENANT, ENDPOINT, "", b"request").unwrap().outcome, "key_missing");
        assert_eq!(app.claim("open"), "in_progress");
    });
    assert_eq!(written, 0);
    open.rollback().unwrap();

    let mut tx = app.client.transaction().unwrap();
    assert_eq!(tx.claim(TENANT, ENDPOINT, "k1", b"request").unwrap().outcome, "replay");
    assert!(tx.value::<bool>("SELECT pg_current_xact_id_if_assigned() IS NULL"));
    let locks = "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid()
                  AND (locktype IN ('advisory', 'transactionid', 'tuple') OR mode NOT IN ('AccessShareLock', 'ExclusiveLock'))";
    assert_eq!(tx.value::<i64>(locks), 0, "a replay takes no lock of its own");
}

/// `log_planner_stats` writes a line for each planning of any statement, nested ones included.
#[test]
fn statements_are_planned_once_a_backend() {
    let cluster = quiet_cluster(&["log_planner_stats = on"]);
    let db = protected(&cluster);
    let plannings = || cluster.log().matches("PLANNER STATISTICS").count();
    let mut app = Application::new(db.admin());
    let round = |app: &mut Application, from: usize| {
        for i in from..from + 30 {
            let key = format!("k{i}");
            app.execute(&key, b"answer");
            assert_eq!(app.claim(&key), "replay");
            app.client.batch_execute("BEGIN; ROLLBACK").unwrap();
        }
    };
    // The client's own statements are planned some times, too, until their plans are kept.
    round(&mut app, 0);
    let warm = plannings();
    assert!(warm > 4, "the measure measures: {warm}");
    round(&mut app, 30);
    assert_eq!(plannings(), warm);
    // Neither another search_path nor another role makes them plan again: only the client's statements are.
    app.client.batch_execute("SET search_path = pg_temp, public").unwrap();
    app.claim("k1");
    let nested = plannings() - warm;
    assert!(nested <= 2, "{nested}");
}

/// A setting that is common behind poolers, for the sake of the application's own statements.
#[test]
fn a_session_that_forces_custom_plans_does_not_plan_ours_anew() {
    const CALLS: usize = 20;
    let cluster = quiet_cluster(&["log_planner_stats = on"]);
    let db = protected(&cluster);
    let plannings = || cluster.log().matches("PLANNER STATISTICS").count();
    let mut app = Application::new(db.admin());
    app.client.batch_execute("SET plan_cache_mode = force_custom_plan").unwrap();
    app.execute("k", b"answer");
    app.claim("k");
    let before = plannings();
    (0..CALLS).for_each(|_| assert_eq!(app.claim("k"), "replay"));
    assert_eq!(plannings() - before, CALLS, "the client's own statement, each time, and nothing else");
}

/// The scans of the tables that this transaction has made so far.
fn scans(tx: &mut postgres::Transaction) -> (i64, i64) {
    let sql = "SELECT sum(seq_scan)::int8, sum(idx_scan)::int8 FROM pg_stat_xact_user_tables WHERE relname LIKE 'idempotency\\_%'";
    let row = tx.query_one(sql, &[]).unwrap();
    (row.get(0), row.get(1))
}

/// Claims that `everything` finds committed.
fn committed(c: &mut Client, tag: &str) {
    for n in ["open", "done"] {
        c.claim("t", "POST /out", &format!("{tag} {n}"), b"").unwrap();
    }
    c.complete("t", "POST /out", &format!("{tag} done"), 200, b"").unwrap();
}

/// Everything an application, an operator and the sweep do with single keys, each statement at least once.
fn everything(tx: &mut postgres::Transaction, tag: &str) {
    let key = |n: &str| format!("{tag} {n}");
    tx.batch_execute(&format!(
        "INSERT INTO idempotency_keys (tenant_id, endpoint, key, request_hash, status, response_code, completed_at, expires_at)
         SELECT 't', 'POST /pay', '{tag} expired ' || n, sha256(''), 'succeeded', 200, now(), now() - interval '1 hour'
           FROM generate_series(1, 2) n"
    ))
    .unwrap();
    for (n, finish) in [("a", "idem_complete"), ("b", "idem_fail"), ("expired 1", "idem_complete")] {
        assert_eq!(tx.claim("t", ENDPOINT, &key(n), b"").unwrap().outcome, "execute");
        tx.execute(&format!("SELECT {finish}('t', 'POST /pay', $1, 200, 'x'::text)"), &[&key(n)]).unwrap();
        tx.execute(&format!("SELECT {finish}('t', 'POST /pay', $1, 200, 'x'::text)"), &[&key(n)]).unwrap();
        assert_eq!(tx.claim("t", ENDPOINT, &key(n), b"").unwrap().outcome, "replay");
    }
    assert_eq!(tx.claim("t", "POST /out", &key("c"), b"").unwrap().outcome, "execute");
    tx.execute("SELECT idem_checkpoint('t', 'POST /out', $1, 'called')", &[&key("c")]).unwrap();
    assert!(tx.release("t", "POST /out", &key("c")).unwrap());
    assert!(!tx.release("t", "POST /out", &key("c")).unwrap());
    // What another transaction has committed open leaves a tombstone, and so does a result that is forgotten.
    assert!(tx.release("t", "POST /out", &key("open")).unwrap());
    let erase = "SELECT idem_erase('t', 'POST /out', $1)";
    assert_eq!(tx.query_one(erase, &[&key("done")]).unwrap().get::<_, i64>(0), 1);
    let forget = "SELECT idem_forget('t', 'POST /out', $1)";
    assert!(tx.query_one(forget, &[&key("done")]).unwrap().get::<_, bool>(0));
    for key in [key("open"), key("done")] {
        assert_eq!(tx.claim("t", "POST /out", &key, b"").unwrap().attempt, Some(2));
        assert!(tx.release("t", "POST /out", &key).unwrap());
    }
    assert_eq!(tx.value::<i32>("SELECT idem_sweep(1)"), 1);
}

/// Makes the plans of a session that has these settings on a table that is known to be tiny, then uses them on one
/// that is not.
fn assert_no_sequential_scan(settings: &str) {
    let cluster = quiet_cluster(&[]);
    let db = protected(&cluster);
    let (mut c, mut admin) = (db.admin(), db.admin());
    admin.claim("t", "POST /other", "k", b"").unwrap();
    for tag in ["tiny", "full"] {
        committed(&mut admin, tag);
    }
    for table in ["idempotency_keys", "idempotency_endpoints"] {
        admin.batch_execute(&format!("VACUUM ANALYZE {table}")).unwrap();
    }
    c.batch_execute(settings).unwrap();
    let mut tx = c.transaction().unwrap();
    everything(&mut tx, "tiny");
    tx.commit().unwrap();
    admin
        .batch_execute(
            "INSERT INTO idempotency_keys
                    (tenant_id, endpoint, key, request_hash, status, response_code, completed_at, expires_at)
             SELECT 't', 'POST /pay', n::text, sha256(''), 'succeeded', 200, now(), now() + interval '1 hour'
               FROM generate_series(1, 100000) n",
        )
        .unwrap();
    let mut tx = c.transaction().unwrap();
    let before = scans(&mut tx);
    everything(&mut tx, "full");
    let after = scans(&mut tx);
    assert_eq!(after.0 - before.0, 0, "sequential scans");
    assert!(after.1 - before.1 > 20, "the measure measures: {before:?} {after:?}");
}

#[test]
fn plans_made_for_a_tiny_table_use_the_indexes_of_a_full_one() {
    assert_no_sequential_scan("RESET ALL");
}

/// A backend outlives the client that made its plans: behind a pooler, others would go on with them.
#[test]
fn plans_made_under_a_sessions_own_settings_use_the_indexes_as_well() {
    assert_no_sequential_scan(
        "SET enable_indexscan = off; SET enable_bitmapscan = off; SET enable_indexonlyscan = off",
    );
}
