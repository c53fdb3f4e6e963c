//! The background worker: rounds, sweeping, stuck claims, and staying out of everybody's way.

mod databases;
mod kills;
mod many;
mod rounds;
mod standby;
mod stats;
mod stuck;
mod sweeping;
mod trouble;

use harness::{wait_for, wait_until, Calls, Cluster};
use postgres::Client;

/// A server with the worker, a round a second.
fn cluster(settings: &[&str]) -> Cluster {
    let base = ["shared_preload_libraries = 'idempotency_enforcer'", "idempotency_enforcer.sweep_interval = 1"];
    Cluster::start(&[&base, settings].concat())
}

/// Stores `n` results whose retention has ended, with the keys k1, k2, ... in expiry order.
fn add_expired(c: &mut Client, endpoint: &str, n: i32) {
    let sql = "INSERT INTO idempotency_keys
                      (tenant_id, endpoint, key, request_hash, status, response_code, completed_at, expires_at)
               SELECT 't', $1, 'k' || i, sha256('{}'), 'succeeded', 201, now(), now() - interval '1 hour' + i * interval '1 ms'
                 FROM generate_series(1, $2) i";
    c.execute(sql, &[&endpoint, &n]).expect("expired rows");
}

fn rows_left(c: &mut Client) -> i64 {
    c.value("SELECT count(*) FROM idempotency_keys")
}

/// Rounds of the worker in the database of the connection.
fn rounds(c: &mut Client) -> i64 {
    c.value("SELECT coalesce(sum(rounds), 0)::bigint FROM idem_stats WHERE endpoint IS NULL")
}

/// Waits until a whole round has begun and ended in the database of the connection.
fn wait_for_a_round(c: &mut Client) {
    let before = rounds(c);
    wait_until("a round", || rounds(c) >= before + 2);
}

/// Waits until the launcher has looked at its clock a second time after this call, so at least a second later.
fn wait_for_the_launcher(c: &mut Client) {
    let since: String = c.value("SELECT clock_timestamp()::text");
    wait_until("the launcher to be idle a second later", || {
        c.value(&format!(
            "SELECT coalesce(bool_or(state = 'idle' AND state_change > '{since}'::timestamptz + interval '1.1 s'), false)
               FROM pg_stat_activity WHERE backend_type = 'idempotency_enforcer launcher'"
        ))
    });
}

/// Process ids of the launcher or of the workers.
fn pids(c: &mut Client, kind: &str) -> Vec<i32> {
    let sql = format!("SELECT pid FROM pg_stat_activity WHERE backend_type = 'idempotency_enforcer {kind}'");
    c.query(&sql, &[]).expect("pg_stat_activity").iter().map(|row| row.get(0)).collect()
}

/// Waits for another launcher than this one.
fn wait_for_another_launcher(cluster: &Cluster, old: i32) -> i32 {
    wait_for("a new launcher", || {
        let mut c = cluster.config("postgres", "postgres").connect(postgres::NoTls).ok()?;
        let sql = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'idempotency_enforcer launcher'";
        c.query(sql, &[]).ok()?.iter().map(|row| row.get(0)).find(|pid| *pid != old)
    })
}

/// The lines that the launcher and the workers wrote to the log; the prefix has the kind of process.
fn lines(cluster: &Cluster) -> Vec<String> {
    let of_worker = |line: &&str| {
        line.contains("] idempotency_enforcer launcher ") || line.contains("] idempotency_enforcer worker ")
    };
    cluster.log().lines().filter(of_worker).map(str::to_owned).collect()
}

/// Those of them that contain the text.
fn lines_with(cluster: &Cluster, text: &str) -> Vec<String> {
    lines(cluster).into_iter().filter(|line| line.contains(text)).collect()
}

/// Makes the deletion of the key wait until `gate` ends its transaction; returns once the worker waits there.
fn hold_sweep_at(c: &mut Client, gate: &mut Client, key: &str) {
    gate.batch_execute("BEGIN; SELECT pg_advisory_xact_lock(1)").expect("the gate");
    c.batch_execute(&format!(
        "CREATE FUNCTION wait_at_gate() RETURNS trigger LANGUAGE plpgsql AS
           $$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN old; END $$;
         CREATE TRIGGER gate BEFORE DELETE ON idempotency_keys FOR EACH ROW
           WHEN (old.key = '{key}') EXECUTE FUNCTION wait_at_gate()"
    ))
    .expect("the trigger");
}

fn wait_until_held(c: &mut Client) -> i32 {
    wait_for("the worker at the gate", || {
        let sql = "SELECT pid FROM pg_stat_activity
                    WHERE backend_type = 'idempotency_enforcer worker' AND wait_event = 'advisory'";
        c.query(sql, &[]).expect("pg_stat_activity").first().map(|row| row.get(0))
    })
}
