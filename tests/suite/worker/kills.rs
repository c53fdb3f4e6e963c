//! Whatever ends the launcher or a worker, rounds go on, and the log is not flooded.

use super::*;
use harness::Shutdown;
use std::time::{Duration, Instant};

/// Far above what a shutdown takes, far below what the work would.
const SOON: Duration = Duration::from_secs(15);

#[test]
fn both_processes_can_be_terminated_in_the_middle_of_a_sweep() {
    let cluster = cluster(&[]);
    let db = cluster.database();
    let (mut c, mut gate) = (db.admin(), db.admin());
    hold_sweep_at(&mut c, &mut gate, "k5");
    add_expired(&mut c, "POST /x", 10);

    let worker = wait_until_held(&mut c);
    c.execute("SELECT pg_terminate_backend($1)", &[&worker]).unwrap();
    wait_until("another worker", || wait_until_held(&mut c) != worker);
    assert_eq!(rows_left(&mut c), 10, "the batch was rolled back");
    assert_eq!(lines_with(&cluster, "FATAL").len(), 1);

    let launcher = pids(&mut c, "launcher")[0];
    c.execute("SELECT pg_terminate_backend($1)", &[&launcher]).unwrap();
    wait_for_another_launcher(&cluster, launcher);
    gate.batch_execute("COMMIT").unwrap();
    wait_until("the sweep", || rows_left(&mut c) == 0);
    wait_for_a_round(&mut c);
    let ended = format!("\"idempotency_enforcer launcher\" (PID {launcher}) exited with exit code 1");
    assert_eq!(cluster.log().matches(&ended).count(), 1);
    assert_eq!(cluster.log().matches("\"idempotency_enforcer launcher\" (PID").count(), 1, "no restart loop");

    let launcher = pids(&mut c, "launcher")[0];
    c.execute("SELECT pg_cancel_backend($1)", &[&launcher]).unwrap();
    wait_for_another_launcher(&cluster, launcher);
    wait_for_a_round(&mut c);
}

#[test]
fn both_processes_can_be_killed() {
    let cluster = cluster(&[]);
    let db = cluster.database();
    let (mut c, mut gate) = (db.admin(), db.admin());
    hold_sweep_at(&mut c, &mut gate, "k5");
    add_expired(&mut c, "POST /x", 10);
    let (worker, launcher) = (wait_until_held(&mut c), pids(&mut c, "launcher")[0]);
    cluster.kill(worker);
    let launcher = wait_for_another_launcher(&cluster, launcher);
    let mut c = db.admin();
    wait_until("the sweep", || rows_left(&mut c) == 0);

    cluster.kill(launcher);
    wait_for_another_launcher(&cluster, launcher);
    let mut c = db.admin();
    add_expired(&mut c, "POST /x", 10);
    wait_until("the sweep", || rows_left(&mut c) == 0);
    wait_for_a_round(&mut c);
    assert_eq!(cluster.log().matches("reinitializing").count(), 2, "no restart but those of the two kills");
}

#[test]
fn a_fast_shutdown_does_not_wait_for_a_sweep() {
    let cluster = cluster(&[]);
    let db = cluster.database();
    let mut c = db.admin();
    // A batch that takes minutes, and all of it inside one statement.
    c.batch_execute(
        "CREATE FUNCTION burn() RETURNS trigger LANGUAGE plpgsql AS
           $$ BEGIN PERFORM count(*) FROM generate_series(1, 1000000); RETURN old; END $$;
         CREATE TRIGGER burn BEFORE DELETE ON idempotency_keys FOR EACH ROW EXECUTE FUNCTION burn()",
    )
    .unwrap();
    add_expired(&mut c, "POST /x", 5_000);
    let sweeping = "SELECT count(*) > 0 FROM pg_stat_activity WHERE query = 'sweeping expired keys'";
    wait_until("the sweep to begin", || c.value(sweeping));
    let since = Instant::now();
    cluster.stop(Shutdown::Fast);
    assert!(since.elapsed() < SOON, "{:?}", since.elapsed());
    cluster.configure(&["idempotency_enforcer.sweep_interval = 0"]);
    cluster.start_again();
    let mut c = db.admin();
    c.batch_execute("DROP TRIGGER burn ON idempotency_keys").unwrap();
    cluster.reload(&["idempotency_enforcer.sweep_interval = 1"]);
    wait_until("the sweep", || rows_left(&mut c) == 0);
}

#[test]
fn without_a_free_slot_there_is_one_line_and_it_recovers() {
    let cluster = cluster(&[
        "idempotency_enforcer.sweep_interval = 0",
        "max_worker_processes = 2",
        "max_logical_replication_workers = 0",
    ]);
    let (db, _another) = (cluster.database(), cluster.database());
    let (mut c, mut busy) = (db.admin(), db.admin());
    add_expired(&mut c, "POST /x", 3);
    // A parallel worker takes the only other slot.
    let force = if cluster.installation().major() >= 16 { "debug_parallel_query" } else { "force_parallel_mode" };
    let cancel = busy.cancel_token();
    let holder = std::thread::spawn({
        let set = format!("SET {force} = on");
        move || {
            busy.batch_execute(&set).unwrap();
            busy.execute("SELECT pg_sleep(600)", &[]).expect_err("it is cancelled");
        }
    });
    wait_until("a parallel worker", || {
        c.value("SELECT count(*) > 0 FROM pg_stat_activity WHERE backend_type = 'parallel worker'")
    });
    cluster.reload(&["idempotency_enforcer.sweep_interval = 1"]);
    let line = "no background worker slot is free";
    wait_until("the line", || !lines_with(&cluster, line).is_empty());
    for _ in 0..3 {
        wait_for_the_launcher(&mut c);
    }
    assert_eq!(lines_with(&cluster, line).len(), 1, "one line, not one a round or a database");
    assert_eq!(rows_left(&mut c), 3);
    cancel.cancel_query(postgres::NoTls).unwrap();
    holder.join().unwrap();
    wait_until("the sweep", || rows_left(&mut c) == 0);
    wait_for_a_round(&mut c);
    assert_eq!(lines_with(&cluster, line).len(), 1);
}

/// A visit that hangs in one database is ended, so that the others have their turn.
#[test]
fn a_visit_that_hangs_does_not_keep_the_worker_from_the_other_databases() {
    let cluster = cluster(&[]);
    let (hanging, other) = (cluster.database(), cluster.database());
    let (mut h, mut o) = (hanging.admin(), other.admin());
    h.batch_execute(
        "CREATE FUNCTION hang() RETURNS trigger LANGUAGE plpgsql AS
           'BEGIN PERFORM pg_catalog.pg_advisory_lock(42); RETURN old; END';
         CREATE TRIGGER hang BEFORE DELETE ON idempotency_keys FOR EACH ROW EXECUTE FUNCTION hang();
         SELECT pg_advisory_lock(42)",
    )
    .unwrap();
    add_expired(&mut h, "POST /x", 1);
    wait_until("the visit to be ended", || !lines_with(&cluster, "a visit is ended that hangs").is_empty());
    let before = rounds(&mut o);
    wait_until("a round in the other database", || rounds(&mut o) > before);
    h.batch_execute("SELECT pg_advisory_unlock(42)").unwrap();
    wait_until("the sweep", || rows_left(&mut h) == 0);
}
