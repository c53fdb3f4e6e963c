//! pg_upgrade: nothing of ours changes anything while it runs.

use harness::{wait_until, Calls, Cluster, Shutdown};
use postgres::Client;
use std::process::{Command, Stdio};

const PRELOADED: &str = "shared_preload_libraries = 'idempotency_enforcer'";

fn keys(c: &mut Client) -> String {
    c.value("SELECT coalesce(string_agg(key, ' ' ORDER BY key), '') FROM idempotency_keys")
}

// CASES 71
#[test]
fn pg_upgrade_finds_all_rows_and_the_sweep_comes_after_it() {
    let old = Cluster::start(&[PRELOADED, "idempotency_enforcer.sweep_interval = 0"]);
    let new = Cluster::start(&[PRELOADED, "idempotency_enforcer.sweep_interval = 0"]);
    let installation = old.installation();
    if !installation.bindir().join("pg_upgrade").exists() {
        return; // some packages of PostgreSQL come without
    }
    // Transaction ids that the new cluster would take for the future's.
    old.connect()
        .batch_execute("DO 'BEGIN FOR i IN 1..5000 LOOP PERFORM txid_current(); COMMIT; END LOOP; END'")
        .unwrap();
    let db = old.database();
    let mut c = db.admin();
    c.batch_execute("SELECT idem_protect('POST /pay'), idem_protect('POST /mail', 'external')").unwrap();
    for key in ["expired 1", "expired 2", "alive"] {
        let mut tx = c.transaction().unwrap();
        assert_eq!(tx.claim("t", "POST /pay", key, b"{}").unwrap().outcome, "execute");
        tx.complete("t", "POST /pay", key, 201, key.as_bytes()).unwrap();
        tx.commit().unwrap();
    }
    assert_eq!(c.claim("t", "POST /mail", "open", b"{}").unwrap().outcome, "execute");
    c.batch_execute("UPDATE idempotency_keys SET expires_at = now() - interval '1 h' WHERE key ~ 'expired'").unwrap();
    drop(c);
    for cluster in [&old, &new] {
        cluster.stop(Shutdown::Fast);
        // A round at once, and often, wherever the worker runs.
        cluster.configure(&["idempotency_enforcer.sweep_interval = 1"]);
    }
    upgrade(&old, &new);
    let log = old.log() + &new.log();
    assert!(!log.contains("idempotency_enforcer: swept"), "{log}");

    new.configure(&["idempotency_enforcer.sweep_interval = 0"]);
    new.start_again();
    let mut c = new.config(db.name(), "postgres").connect(postgres::NoTls).unwrap();
    assert_eq!(keys(&mut c), "alive expired 1 expired 2 open");
    let again = c.claim("t", "POST /pay", "alive", b"{}").unwrap();
    assert_eq!((again.outcome.as_str(), again.response_body.as_deref()), ("replay", Some(&b"alive"[..])));
    assert_eq!(c.claim("t", "POST /mail", "open", b"{}").unwrap().outcome, "in_progress");
    new.reload(&["idempotency_enforcer.sweep_interval = 1"]);
    wait_until("the sweep", || keys(&mut c) == "alive open");
}

fn upgrade(old: &Cluster, new: &Cluster) {
    let bindir = old.installation().bindir();
    let mut command: Command = old.installation().server("pg_upgrade");
    command.args(["-U", "postgres", "-b"]).arg(bindir).arg("-B").arg(bindir).arg("-d").arg(old.data());
    command.arg("-D").arg(new.data()).args(["-p", &old.port().to_string(), "-P", &new.port().to_string()]);
    command.current_dir(new.root()).arg("-s").arg(new.root());
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

fn start_in_upgrade_mode(cluster: &Cluster) {
    let mut command = cluster.installation().server("pg_ctl");
    command.args(["start", "-w", "-o", "-b", "-D"]).arg(cluster.data()).arg("-l").arg(cluster.root().join("log"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    assert!(command.status().unwrap().success(), "{}", cluster.log());
}

/// The same without pg_upgrade: a server in its mode has no process of ours, and idem_sweep does nothing.
#[test]
fn a_server_in_the_mode_of_pg_upgrade_sweeps_nothing() {
    let cluster = Cluster::start(&[PRELOADED, "idempotency_enforcer.sweep_interval = 0"]);
    let db = cluster.database();
    let mut c = db.admin();
    c.batch_execute(
        "SELECT idem_protect('POST /pay');
         INSERT INTO idempotency_keys
                (tenant_id, endpoint, key, request_hash, status, response_code, completed_at, expires_at)
         VALUES ('t', 'POST /pay', 'k', sha256(''), 'succeeded', 201, now(), now() - interval '1 h')",
    )
    .unwrap();
    cluster.stop(Shutdown::Fast);
    cluster.configure(&["idempotency_enforcer.sweep_interval = 1"]);
    start_in_upgrade_mode(&cluster);
    let mut c = db.admin();
    let log = cluster.log().len();
    c.batch_execute("SELECT pg_reload_conf()").unwrap();
    wait_until("the postmaster", || cluster.log_since(log).contains("reloading configuration files"));
    let ours = "SELECT count(*) FROM pg_stat_activity WHERE backend_type ~ 'idempotency_enforcer'";
    assert_eq!((c.value::<i64>(ours), c.value::<i32>("SELECT idem_sweep()"), keys(&mut c).as_str()), (0, 0, "k"));
    assert!(!cluster.log().contains("idempotency_enforcer: swept"));
    cluster.restart();
    let mut c = db.admin();
    wait_until("the sweep", || keys(&mut c).is_empty());
}
