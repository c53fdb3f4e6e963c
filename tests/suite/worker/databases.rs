//! The worker is in nobody's way who wants the database or the extension.

use super::*;
use harness::Database;
use std::time::{Duration, Instant};

/// Far below the time that the sweeps here would take.
const SOON: Duration = Duration::from_secs(10);

fn soon(c: &mut Client, sql: &str) {
    let since = Instant::now();
    c.batch_execute(sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    assert!(since.elapsed() < SOON, "{sql}: {:?}", since.elapsed());
}

fn wait_until_swept(c: &mut Client, database: &str) {
    let sql = format!(
        "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = '{database}' AND query = 'sweeping expired keys'"
    );
    wait_until(&format!("a sweep of {database}"), || c.value(&sql));
}

#[test]
fn databases_and_the_extension_are_dropped_copied_and_renamed_during_a_sweep() {
    let cluster = cluster(&["idempotency_enforcer.sweep_batch_size = 2"]);
    let base = cluster.database();
    let mut c = cluster.connect();
    let mut name = base.name().to_owned();
    for cycle in 0..4 {
        let mut inside = cluster.config(&name, "postgres").connect(postgres::NoTls).unwrap();
        add_expired(&mut inside, &format!("POST /{cycle}"), 50_000);
        drop(inside);

        wait_until_swept(&mut c, &name);
        let new_name = format!("{}_{cycle}", base.name());
        soon(&mut c, &format!("ALTER DATABASE {name} RENAME TO {new_name}"));
        name = new_name;

        wait_until_swept(&mut c, &name);
        soon(&mut c, &format!("CREATE DATABASE copy TEMPLATE {name}"));
        wait_until_swept(&mut c, "copy");
        let mut inside = cluster.config("copy", "postgres").connect(postgres::NoTls).unwrap();
        soon(&mut inside, "DROP EXTENSION idempotency_enforcer");
        drop(inside);
        soon(&mut c, "DROP DATABASE copy");

        wait_until_swept(&mut c, &name);
        soon(&mut c, &format!("CREATE DATABASE copy TEMPLATE {name}"));
        wait_until_swept(&mut c, "copy");
        soon(&mut c, "DROP DATABASE copy");
    }
    soon(&mut c, &format!("DROP DATABASE {name}"));
    wait_for_the_launcher(&mut c);
    let scary: Vec<String> = lines(&cluster).into_iter().filter(|line| !line.contains("LOG:")).collect();
    assert!(scary.is_empty(), "{scary:#?}");
    assert!(!lines_with(&cluster, "interrupted by another session's lock").is_empty(), "the log says why it left");
}

#[test]
fn a_locked_table_is_left_alone_and_holds_up_no_other_database() {
    let cluster = cluster(&[]);
    let (locked, other) = (cluster.database(), cluster.database());
    let (mut c, mut other) = (locked.admin(), other.admin());
    add_expired(&mut c, "POST /warm-up", 1);
    wait_until("the sweep", || rows_left(&mut c) == 0);
    for table in ["idempotency_endpoints", "idempotency_keys"] {
        let mut tx = c.transaction().unwrap();
        tx.batch_execute(&format!("LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")).unwrap();
        for _ in 0..2 {
            wait_for_a_round(&mut other);
        }
        tx.commit().unwrap();
        wait_for_a_round(&mut c);
    }
}

#[test]
fn databases_that_vanish_between_two_visits_are_not_missed() {
    let cluster = cluster(&[]);
    let first = cluster.database();
    let (mut c, mut gate, mut admin) = (first.admin(), first.admin(), cluster.connect());
    let others: Vec<Database> = (0..4).map(|_| cluster.database()).collect();
    hold_sweep_at(&mut c, &mut gate, "k1");
    add_expired(&mut c, "POST /x", 1);
    wait_until_held(&mut c);
    let launcher = pids(&mut c, "launcher");
    // All of them are on the launcher's list, and some of them are still to be visited.
    for other in &others {
        soon(&mut admin, &format!("DROP DATABASE {}", other.name()));
    }
    gate.batch_execute("COMMIT").unwrap();
    wait_for_a_round(&mut c);
    assert_eq!(pids(&mut c, "launcher"), launcher);
    let log = lines(&cluster);
    assert!(log.len() == 1 && log[0].contains("swept 1 "), "{log:?}");
}

#[test]
fn a_worker_that_is_terminated_makes_way_at_once() {
    let cluster = cluster(&[]);
    let (db, other) = (cluster.database(), cluster.database());
    let (mut c, mut gate, mut other) = (db.admin(), db.admin(), other.admin());
    hold_sweep_at(&mut c, &mut gate, "k1");
    add_expired(&mut c, "POST /x", 1);
    let (worker, launcher) = (wait_until_held(&mut c), pids(&mut c, "launcher"));
    // A batch that does not end keeps the database until it is ended.
    std::thread::scope(|scope| {
        let mut admin = cluster.connect();
        scope.spawn(move || soon(&mut admin, &format!("DROP DATABASE {} WITH (FORCE)", db.name())));
        wait_until("the drop to wait", || {
            other.value("SELECT count(*) > 0 FROM pg_stat_activity WHERE query ~ '^DROP' AND wait_event_type = 'Lock'")
        });
        other.execute("SELECT pg_terminate_backend($1)", &[&worker]).unwrap();
    });
    wait_for_a_round(&mut other);
    assert_eq!(pids(&mut other, "launcher"), launcher);
    let complaints = lines_with(&cluster, "FATAL").len() + lines_with(&cluster, "ERROR").len();
    assert_eq!(complaints, 1, "only of that worker: {:?}", lines(&cluster));
}
