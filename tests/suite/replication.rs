//! Logical replication of the tables, as for an upgrade: the publisher sweeps, the subscriber keeps what it is sent.

use harness::{wait_until, Calls, Cluster, Database};
use postgres::Client;

const ENDPOINT: &str = "POST /pay";

fn server(settings: &[&str]) -> Cluster {
    let base = [
        "shared_preload_libraries = 'idempotency_enforcer'",
        "idempotency_enforcer.sweep_interval = 1",
        "wal_level = logical",
    ];
    Cluster::start(&[&base, settings].concat())
}

/// An application's database, with its effects in a table of its own.
fn shop(cluster: &Cluster) -> Database<'_> {
    let db = cluster.database();
    db.admin().batch_execute("CREATE TABLE ledger (id text PRIMARY KEY)").unwrap();
    db
}

/// Pays in one transaction, as a retry does too; returns the outcome.
fn pay(c: &mut Client, key: &str, effect: &str) -> String {
    let mut tx = c.transaction().unwrap();
    let arrival = tx.claim("t", ENDPOINT, key, b"{}").unwrap();
    if arrival.outcome == "execute" {
        tx.execute("INSERT INTO ledger VALUES ($1)", &[&effect]).unwrap();
        tx.complete("t", ENDPOINT, key, 201, effect.as_bytes()).unwrap();
    }
    tx.commit().unwrap();
    arrival.outcome
}

fn expire(c: &mut Client, key: &str) {
    let sql = "UPDATE idempotency_keys SET expires_at = now() - interval '1 minute' WHERE key = $1";
    assert_eq!(c.execute(sql, &[&key]).unwrap(), 1);
}

fn keys(c: &mut Client) -> String {
    c.value("SELECT coalesce(string_agg(key, ' ' ORDER BY key), '') FROM idempotency_keys")
}

fn effects(c: &mut Client) -> String {
    c.value("SELECT coalesce(string_agg(id, ' ' ORDER BY id), '') FROM ledger")
}

/// Rounds of the worker in the database of the connection: with the key store subscribed to, they go on and do nothing.
fn wait_for_two_rounds(c: &mut Client) {
    let rounds = "SELECT coalesce(sum(rounds), 0)::bigint FROM idem_stats WHERE endpoint IS NULL";
    let before = c.value::<i64>(rounds);
    wait_until("two rounds", || c.value::<i64>(rounds) >= before + 2);
}

fn subscribe(publisher: &Database, subscriber: &Database) {
    publisher
        .admin()
        .batch_execute("CREATE PUBLICATION upgrade FOR TABLE idempotency_keys, idempotency_endpoints, ledger")
        .unwrap();
    let from = format!("host=127.0.0.1 port={} dbname={} user=postgres", publisher.cluster().port(), publisher.name());
    let mut s = subscriber.admin();
    s.batch_execute(&format!("CREATE SUBSCRIPTION upgrade CONNECTION '{from}' PUBLICATION upgrade")).unwrap();
    wait_until("the copies", || s.value("SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel"));
}

/// Returns once the subscriber has all that the publisher has committed.
fn wait_for_replication(p: &mut Client) {
    let now: String = p.value("SELECT pg_current_wal_lsn()::text");
    let caught_up =
        format!("SELECT bool_and(replay_lsn >= '{now}') FROM pg_stat_replication WHERE application_name = 'upgrade'");
    wait_until("the subscriber", || p.query_one(&caught_up, &[]).unwrap().get::<_, Option<bool>>(0) == Some(true));
}

/// Lines about sweeping and troubles in the log of a server.
fn lines(cluster: &Cluster) -> Vec<String> {
    cluster.log().lines().filter(|line| line.contains("idempotency_enforcer: ")).map(str::to_owned).collect()
}

// CASES 55
#[test]
fn the_publisher_sweeps_and_the_subscriber_does_not() {
    let (old, new) = (server(&["idempotency_enforcer.sweep_interval = 0"]), server(&[]));
    let (publisher, subscriber) = (shop(&old), shop(&new));
    let (mut p, mut s) = (publisher.admin(), subscriber.admin());
    p.batch_execute("SELECT idem_protect('POST /pay')").unwrap();
    for key in ["a", "b", "c"] {
        assert_eq!(pay(&mut p, key, key), "execute");
    }
    expire(&mut p, "a");
    subscribe(&publisher, &subscriber);
    let (mut told, notices) = subscriber.admin_with_notices();
    wait_for_two_rounds(&mut s);
    assert_eq!(keys(&mut s), "a b c", "copied, expired, and not the subscriber's to delete");
    assert_eq!(told.value::<i32>("SELECT idem_sweep()"), 0);
    let notice = notices.try_recv().expect("a notice");
    assert!(notice.severity() == "NOTICE" && notice.message().contains("subscription"), "{notice:?}");

    // What expires while it is replicated, and while the subscription is switched off.
    expire(&mut p, "b");
    wait_for_replication(&mut p);
    s.batch_execute("ALTER SUBSCRIPTION upgrade DISABLE").unwrap();
    wait_for_two_rounds(&mut s);
    assert_eq!(told.value::<i32>("SELECT idem_sweep()"), 0);
    assert_eq!(keys(&mut s), "a b c");
    s.batch_execute("ALTER SUBSCRIPTION upgrade ENABLE").unwrap();

    // The publisher's own sweep arrives.
    assert_eq!(p.value::<i32>("SELECT idem_sweep()"), 2);
    wait_until("the deletion", || keys(&mut s) == "c");
    assert_eq!(pay(&mut p, "d", "d"), "execute");
    expire(&mut p, "c");
    wait_for_replication(&mut p);

    // The switch-over: every effect has its key here, and from now on the keys are this server's.
    s.batch_execute("DROP SUBSCRIPTION upgrade").unwrap();
    wait_until("the sweep here", || keys(&mut s) == "d");
    assert_eq!(effects(&mut s), "a b c d");
    assert_eq!(pay(&mut s, "d", "twice"), "replay");
    assert_eq!(pay(&mut s, "e", "e"), "execute");
    expire(&mut s, "e");
    wait_until("the sweep here", || keys(&mut s) == "d");
    assert!(lines(&new).iter().all(|line| line.contains("swept 1 expired keys")), "{:?}", lines(&new));
}

// CASES 79
#[test]
fn a_take_over_reaches_a_subscriber_that_no_longer_has_the_row() {
    let (old, new) = (server(&["idempotency_enforcer.sweep_interval = 0"]), server(&[]));
    let (publisher, subscriber) = (shop(&old), shop(&new));
    let (mut p, mut s) = (publisher.admin(), subscriber.admin());
    p.batch_execute("SELECT idem_protect('POST /pay')").unwrap();
    assert_eq!(pay(&mut p, "here", "here 1"), "execute");
    assert_eq!(pay(&mut p, "gone", "gone 1"), "execute");
    subscribe(&publisher, &subscriber);
    for key in ["here", "gone"] {
        expire(&mut p, key);
    }
    wait_for_replication(&mut p);
    assert_eq!(s.execute("DELETE FROM idempotency_keys WHERE key = 'gone'", &[]).unwrap(), 1);
    assert_eq!(pay(&mut p, "here", "here 2"), "execute");
    assert_eq!(pay(&mut p, "gone", "gone 2"), "execute");
    wait_for_replication(&mut p);

    s.batch_execute("DROP SUBSCRIPTION upgrade").unwrap();
    assert_eq!(effects(&mut s), "gone 1 gone 2 here 1 here 2");
    for (key, last) in [("here", "here 2"), ("gone", "gone 2")] {
        let mut tx = s.transaction().unwrap(); // rolled back: what would execute is not left open
        let again = tx.claim("t", ENDPOINT, key, b"{}").unwrap();
        assert_eq!(
            (again.outcome.as_str(), again.response_body.as_deref()),
            ("replay", Some(last.as_bytes())),
            "{key}"
        );
    }
}

#[test]
fn a_subscription_of_another_table_changes_nothing() {
    let (old, new) = (server(&[]), server(&[]));
    let (publisher, subscriber) = (shop(&old), shop(&new));
    let mut s = subscriber.admin();
    publisher.admin().batch_execute("CREATE PUBLICATION upgrade FOR TABLE ledger").unwrap();
    let from = format!("host=127.0.0.1 port={} dbname={} user=postgres", old.port(), publisher.name());
    s.batch_execute(&format!("CREATE SUBSCRIPTION upgrade CONNECTION '{from}' PUBLICATION upgrade")).unwrap();
    s.batch_execute("SELECT idem_protect('POST /pay')").unwrap();
    assert_eq!(pay(&mut s, "a", "a"), "execute");
    expire(&mut s, "a");
    wait_until("the sweep", || keys(&mut s).is_empty());
    s.batch_execute("DROP SUBSCRIPTION upgrade").unwrap();
}

/// Partitions are subscribed to one by one. What the server checks when it makes such rows is not at issue here.
#[test]
fn a_subscribed_partition_makes_all_keys_the_publishers() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    c.batch_execute("SELECT idem_protect('POST /pay'); CREATE TABLE ledger (id text PRIMARY KEY)").unwrap();
    assert_eq!(pay(&mut c, "a", "a"), "execute");
    expire(&mut c, "a");
    c.batch_execute(
        "CREATE TABLE part () INHERITS (idempotency_keys); SET allow_system_table_mods = on;
         INSERT INTO pg_subscription_rel VALUES (1, 'ledger'::regclass, 'r'), (1, 'part'::regclass, 'r')",
    )
    .unwrap();
    assert_eq!((c.value::<i32>("SELECT idem_sweep()"), keys(&mut c).as_str()), (0, "a"));
    c.batch_execute("DELETE FROM pg_subscription_rel WHERE srrelid = 'part'::regclass; DROP TABLE part").unwrap();
    assert_eq!(c.value::<i32>("SELECT idem_sweep()"), 1);
}
