//! The sweep: bounded batches, a commit after each, beside everything else that goes on.

use super::*;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread;

#[test]
fn batches_are_committed_one_by_one_and_reported_while_the_process_goes_on() {
    let cluster = cluster(&["idempotency_enforcer.sweep_batch_size = 10"]);
    let db = cluster.database();
    let (mut c, mut gate, mut holder) = (db.admin(), db.admin(), db.admin());
    hold_sweep_at(&mut c, &mut gate, "k25");
    let mut tx = c.transaction().unwrap();
    tx.batch_execute(
        "INSERT INTO idempotency_keys (tenant_id, endpoint, key, request_hash, status, response_code, completed_at, expires_at)
         SELECT 't', 'POST /x', 'k' || i, sha256('{}'), 'succeeded', 201, now(), now() - interval '1 h' + i * interval '1 s'
           FROM generate_series(1, 36) i;
         INSERT INTO idempotency_keys (tenant_id, endpoint, key, request_hash, open_since, expires_at)
         VALUES ('t', 'POST /x', 'open', sha256('{}'), now(), now() - interval '2 h');
         INSERT INTO idempotency_keys (tenant_id, endpoint, key, request_hash, status, response_code, completed_at, expires_at)
         VALUES ('t', 'POST /x', 'alive', sha256('{}'), 'failed', 402, now(), now() + interval '1 h')",
    )
    .unwrap();
    holder.batch_execute("BEGIN").unwrap();
    tx.commit().unwrap();
    // The sweep does not get to this row before the gate opens.
    let locked = holder.execute("SELECT FROM idempotency_keys WHERE key = 'k35' FOR UPDATE", &[]).unwrap();
    assert_eq!(locked, 1);
    wait_until_held(&mut c);
    assert_eq!(rows_left(&mut c), 38 - 20, "two batches are gone, the third is under way");
    let deleted = "SELECT n_tup_del FROM pg_stat_user_tables WHERE relname = 'idempotency_keys'";
    assert_eq!(c.value::<i64>(deleted), 20, "autovacuum is told at once");

    let sql = "SELECT application_name, state, query, xact_start IS NULL AND backend_xmin IS NULL
                 FROM pg_stat_activity WHERE backend_type = $1";
    let row = c.query_one(sql, &[&"idempotency_enforcer worker"]).unwrap();
    assert_eq!(row.get::<_, &str>(0), "idempotency_enforcer worker");
    assert_eq!((row.get::<_, &str>(1), row.get::<_, &str>(2)), ("active", "sweeping expired keys"));
    let row = c.query_one(sql, &[&"idempotency_enforcer launcher"]).unwrap();
    assert_eq!(row.get::<_, &str>(0), "idempotency_enforcer launcher");
    assert_eq!(row.get::<_, &str>(2), format!("waiting for the visit of database {:?}", db.name()));
    assert!(row.get::<_, bool>(3), "the launcher holds no snapshot that would keep dead rows in place");

    gate.batch_execute("COMMIT").unwrap();
    wait_until("the sweep", || rows_left(&mut c) == 3);
    wait_for_a_round(&mut c);
    let swept = lines_with(&cluster, "swept");
    assert_eq!(swept.len(), 1, "one line a round, none where nothing was deleted: {swept:?}");
    assert!(swept[0]
        .contains(&format!("LOG:  idempotency_enforcer: swept 35 expired keys of database {:?} in ", db.name())));
    assert!(swept[0].ends_with(" s, 1 remain"), "{}", swept[0]);

    holder.batch_execute("COMMIT").unwrap();
    wait_until("the sweep", || rows_left(&mut c) == 2);
    wait_until("its line", || lines_with(&cluster, "swept 1 expired keys").len() == 1);
    assert!(lines_with(&cluster, "swept 1 ")[0].ends_with("none remain"));
    let kept: String = c.value("SELECT string_agg(key, ',' ORDER BY key) FROM idempotency_keys");
    assert_eq!(kept, "alive,open", "never one in progress");
    assert_eq!(lines(&cluster).len(), 2, "{:?}", lines(&cluster));
}

#[test]
fn a_backlog_is_worked_off_while_clients_claim_and_complete() {
    const BACKLOG: i32 = 200_000;
    let cluster = cluster(&["idempotency_enforcer.sweep_interval = 0", "idempotency_enforcer.sweep_batch_size = 1000"]);
    let db = cluster.database();
    let mut c = db.admin();
    c.batch_execute("SELECT idem_protect('POST /x')").unwrap();
    add_expired(&mut c, "POST /x", BACKLOG);
    let (gone, claims) = (AtomicBool::new(false), AtomicI64::new(0));
    let mut executed = 0;
    thread::scope(|scope| {
        // Two clients of each kind: on keys of the backlog, newest first, and on new ones. The two compete.
        let clients: Vec<_> = (0..4)
            .map(|n| {
                let (db, gone, claims) = (&db, &gone, &claims);
                scope.spawn(move || {
                    let mut c = db.admin();
                    let mut executed = 0;
                    for i in (1..=BACKLOG).rev() {
                        if gone.load(Ordering::SeqCst) {
                            break;
                        }
                        let key = if n < 2 { format!("k{i}") } else { format!("new {i}") };
                        let mut tx = c.transaction().unwrap();
                        let outcome = tx.claim("t", "POST /x", &key, b"{}").expect("a claim beside the sweep").outcome;
                        match outcome.as_str() {
                            "execute" => {
                                tx.complete("t", "POST /x", &key, 200, b"fresh")
                                    .expect("a completion beside the sweep");
                                executed += 1;
                            }
                            outcome => assert!(["in_progress", "replay"].contains(&outcome), "{outcome}"),
                        }
                        tx.commit().expect("a commit beside the sweep");
                        claims.fetch_add(1, Ordering::SeqCst);
                    }
                    executed
                })
            })
            .collect();
        wait_until("the clients", || claims.load(Ordering::SeqCst) > 100);
        cluster.reload(&["idempotency_enforcer.sweep_interval = 1"]);
        let before = claims.load(Ordering::SeqCst);
        let expired = "SELECT count(*) FROM (SELECT FROM idempotency_keys WHERE expires_at <= now() LIMIT 1) due";
        wait_until("the backlog to be gone", || c.value::<i64>(expired) == 0);
        let during = claims.load(Ordering::SeqCst) - before;
        gone.store(true, Ordering::SeqCst);
        assert!(during > 100, "claims go on: {during}");
        executed = clients.into_iter().map(|client| client.join().expect("a client")).sum::<i64>();
    });
    // One owner: whoever was told to execute has its row, and nobody else has one.
    let stored: i64 =
        c.value("SELECT count(*) FROM idempotency_keys WHERE response_body = 'fresh' AND expires_at > now()");
    assert_eq!((stored, rows_left(&mut c)), (executed, executed));
    assert!(!cluster.log().contains("deadlock detected"), "{}", cluster.log());
}

#[test]
fn a_batch_reads_its_rows_and_not_the_table() {
    let cluster = cluster(&[
        "idempotency_enforcer.sweep_interval = 0",
        "idempotency_enforcer.sweep_batch_size = 100",
        "autovacuum = off",
    ]);
    let db = cluster.database();
    let (mut c, mut old) = (db.admin(), db.admin());
    c.batch_execute(
        "INSERT INTO idempotency_keys
                (tenant_id, endpoint, key, request_hash, status, response_code, completed_at, expires_at)
         SELECT 't', 'POST /x', 'live' || i, sha256('{}'), 'succeeded', 201, now(), now() + interval '1 day'
           FROM generate_series(1, 50000) i",
    )
    .unwrap();
    add_expired(&mut c, "POST /x", 5_000);
    c.batch_execute("ANALYZE; SELECT pg_stat_reset()").unwrap();
    // A snapshot, as of a backup, that keeps the deleted rows in the index.
    old.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM pg_class").unwrap();
    cluster.reload(&["idempotency_enforcer.sweep_interval = 1h"]);
    wait_until("the round", || rounds(&mut c) == 1);
    wait_until("the worker to leave", || pids(&mut c, "worker").is_empty());
    let read = |c: &mut Client, index: &str| -> i64 {
        c.value(&format!(
            "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'idempotency_keys_{index}'"
        ))
    };
    assert_eq!(c.value::<i64>("SELECT n_tup_del FROM pg_stat_user_tables WHERE relname = 'idempotency_keys'"), 5_000);
    // Once each to find them, once more for what remains.
    let (expiry, key) = (read(&mut c, "expires_at_idx"), read(&mut c, "pkey"));
    assert!(expiry < 3 * 5_000, "{expiry} entries of the expiry index read");
    assert!(key < 2 * 5_000, "{key} entries of the primary key read");
    old.batch_execute("COMMIT").unwrap();
}
