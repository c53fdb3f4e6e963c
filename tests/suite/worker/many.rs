//! A server with many databases.

use super::*;
use postgres::NoTls;
use std::collections::HashSet;

/// More than a fixed table of a hundred or so has room for; each costs the disk 8 MB.
const DATABASES: usize = 140;

/// The databases of which the worker has written that it swept them.
fn swept(cluster: &Cluster) -> HashSet<String> {
    let log = cluster.log();
    let after = |line: &str| line.split("swept 1 expired keys of database \"").nth(1).map(str::to_owned);
    log.lines().filter_map(after).filter_map(|rest| rest.split('"').next().map(str::to_owned)).collect()
}

fn create(c: &mut Client, template: &str) -> Vec<String> {
    let names: Vec<String> = (0..DATABASES).map(|i| format!("shop_{i}")).collect();
    for name in &names {
        c.batch_execute(&format!("CREATE DATABASE {name} TEMPLATE {template}")).unwrap();
    }
    names
}

// CASES 83
#[test]
fn every_one_of_many_databases_is_visited_and_none_is_taken_for_overdue() {
    let cluster = cluster(&["idempotency_enforcer.sweep_interval = 0", "wal_level = minimal", "max_wal_senders = 0"]);
    let template = cluster.database();
    template
        .admin()
        .batch_execute(
            "SELECT idem_protect('POST /pay');
             INSERT INTO idempotency_keys
                    (tenant_id, endpoint, key, request_hash, status, response_code, completed_at, expires_at)
             VALUES ('t', 'POST /pay', 'k', sha256(''), 'succeeded', 201, now(), now() - interval '1 h')",
        )
        .unwrap();
    let mut c = cluster.connect();
    let names = create(&mut c, template.name());
    cluster.reload(&["idempotency_enforcer.sweep_interval = 10"]);
    wait_until("a visit to each", || names.iter().all(|name| swept(&cluster).contains(name)));
    let launcher = "SELECT count(*) FROM pg_stat_activity
                     WHERE backend_type = 'idempotency_enforcer launcher' AND state = 'idle'";
    wait_until("the end of the round", || c.value::<i64>(launcher) == 1);
    for name in &names {
        let mut c = cluster.config(name, "postgres").connect(NoTls).unwrap();
        let wrong = "SELECT coalesce(string_agg(severity || ': ' || finding, E'\\n'), '') FROM idem_health()
                      WHERE severity = 'critical' OR finding ~ 'round|not been in this database'";
        assert_eq!(c.value::<String>(wrong), "", "{name}");
        assert_eq!(c.value::<i64>("SELECT count(*) FROM idempotency_keys"), 0, "{name}");
    }
}
