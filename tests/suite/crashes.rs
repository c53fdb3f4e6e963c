//! Crashes and lost connections between the claim, the work, the completion and the acknowledgement.

use crate::payments::*;
use harness::{wait_for, wait_until, Background, Calls, Cluster, Database, Relay, Shutdown};
use postgres::{Client, Config, NoTls};

/// A payment that has done everything but commit.
fn half_way(db: &Database) -> Client {
    let mut client = db.admin();
    run(&mut client, "BEGIN");
    expect(&mut client, PAY, "k", "execute");
    charge(&mut client, "k");
    // What is lost must have reached the disk, or nothing would be proved.
    run(&mut db.admin(), "CHECKPOINT");
    client
}

/// After a crash: nothing of the payment is there, and the next arrival executes at once.
fn nothing_remains_and_the_next_executes(db: &Database) {
    let mut client =
        wait_for("the server to take connections", || db.cluster().config(db.name(), "postgres").connect(NoTls).ok());
    assert_eq!((charges(&mut client, "k"), stored(&mut client, "k")), (0, 0));
    assert_eq!(client.value::<i64>("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"), 0);
    run(&mut client, "BEGIN");
    expect(&mut client, PAY, "k", "execute");
    let sent = work(&mut client, PAY, "k");
    run(&mut client, "COMMIT");
    assert_eq!(expect(&mut client, PAY, "k", "replay").response_body, Some(sent));
    assert_eq!(charges(&mut client, "k"), 1);
}

#[test]
fn a_killed_backend_leaves_neither_claim_nor_effect() {
    let cluster = Cluster::start(&[]);
    let db = shop(&cluster);
    for completed in [false, true] {
        let mut client = half_way(&db);
        if completed {
            complete(&mut client, PAY, "k");
        }
        let pid = client.value("SELECT pg_backend_pid()");
        let mut bystander = db.admin();
        cluster.kill(pid);
        wait_until("every session to be cut off by the restart", || bystander.execute("SELECT 1", &[]).is_err());
        assert!(client.batch_execute("COMMIT").is_err());
        nothing_remains_and_the_next_executes(&db);
        let mut admin = db.admin();
        run(&mut admin, "DELETE FROM idempotency_keys");
        run(&mut admin, "DELETE FROM ledger");
    }
}

#[test]
fn an_immediate_shutdown_leaves_neither_claim_nor_effect() {
    let cluster = Cluster::start(&[]);
    let db = shop(&cluster);
    let mut client = half_way(&db);
    complete(&mut client, PAY, "k");
    cluster.stop(Shutdown::Immediate);
    cluster.start_again();
    nothing_remains_and_the_next_executes(&db);
}

#[test]
fn what_was_committed_survives_a_crash_and_replays() {
    let cluster = Cluster::start(&[]);
    let db = shop(&cluster);
    let mut client = half_way(&db);
    let sent = complete(&mut client, PAY, "k");
    run(&mut client, "COMMIT");
    expect(&mut client, CHARGE, "open", "execute");
    let before = expect(&mut client, CHARGE, "open", "in_progress");
    cluster.stop(Shutdown::Immediate);
    cluster.start_again();
    let mut client = db.admin();
    assert_eq!(expect(&mut client, PAY, "k", "replay").response_body, Some(sent));
    // A committed open claim is neither forgotten nor run again by itself.
    assert_eq!(expect(&mut client, CHARGE, "open", "in_progress"), before);
    complete(&mut client, CHARGE, "open");
    expect(&mut client, CHARGE, "open", "replay");
    assert_eq!(charges(&mut client, "k"), 1);
}

#[test]
fn a_prepared_payment_holds_its_key_over_a_crash_and_then_ends_as_decided() {
    let cluster = Cluster::start(&[]);
    let db = shop(&cluster);
    let prepare = |key: &str| {
        let mut client = db.admin();
        run(&mut client, "BEGIN");
        expect(&mut client, PAY, key, "execute");
        let sent = work(&mut client, PAY, key);
        run(&mut client, &format!("PREPARE TRANSACTION '{key}'"));
        sent
    };
    let committed = prepare("committed before");
    let kept = prepare("committed after");
    prepare("rolled back after");
    run(&mut db.admin(), "COMMIT PREPARED 'committed before'");
    for _ in 0..2 {
        let mut client = db.admin();
        assert_eq!(expect(&mut client, PAY, "committed before", "replay").response_body.as_ref(), Some(&committed));
        for key in ["committed after", "rolled back after"] {
            expect(&mut client, PAY, key, "in_progress");
            let waited = client.claim_waiting(TENANT, PAY, key, BODY, "20 ms").unwrap();
            assert_eq!(waited.outcome, "in_progress", "and it has not waited on the index");
        }
        cluster.stop(Shutdown::Immediate);
        cluster.start_again();
    }
    let mut client = db.admin();
    run(&mut client, "COMMIT PREPARED 'committed after'");
    run(&mut client, "ROLLBACK PREPARED 'rolled back after'");
    assert_eq!(expect(&mut client, PAY, "committed after", "replay").response_body, Some(kept));
    run(&mut client, "BEGIN");
    expect(&mut client, PAY, "rolled back after", "execute");
    run(&mut client, "ROLLBACK");
    let effects = ["committed before", "committed after", "rolled back after"].map(|key| charges(&mut client, key));
    assert_eq!(effects, [1, 1, 0]);
}

fn through(relay: &Relay, db: &Database) -> Client {
    let mut config = Config::new();
    config.host("127.0.0.1").port(relay.port()).dbname(db.name()).user("postgres");
    config.connect(NoTls).expect("a connection through the relay")
}

#[test]
fn a_commit_whose_acknowledgement_is_lost_is_replayed_to_the_retry() {
    let db = shop(Cluster::shared());
    let relay = Relay::to(db.cluster().port());
    let mut client = through(&relay, &db);
    run(&mut client, "BEGIN");
    expect(&mut client, PAY, "k", "execute");
    let pid: i32 = client.value("SELECT pg_backend_pid()");
    let sent = work(&mut client, PAY, "k");
    // The client closes its prepared statements without waiting for the answers: those must not be what is lost.
    run(&mut client, "SELECT");
    relay.lose_answers();
    assert!(client.batch_execute("COMMIT").is_err(), "the client cannot know");
    let mut retry = db.admin();
    // The server has read the COMMIT: the answer to it is what was lost.
    wait_until("the backend to be gone", || {
        retry.query("SELECT FROM pg_stat_activity WHERE pid = $1", &[&pid]).unwrap().is_empty()
    });
    let told = expect(&mut retry, PAY, "k", "replay");
    assert_eq!((told.response_code, told.response_body), (Some(201), Some(sent)));
    assert_eq!(charges(&mut retry, "k"), 1);
}

#[test]
fn a_client_that_goes_away_before_completion_leaves_nothing_and_the_next_executes() {
    let db = shop(Cluster::shared());
    let relay = Relay::to(db.cluster().port());
    let mut client = through(&relay, &db);
    run(&mut client, "BEGIN");
    expect(&mut client, PAY, "k", "execute");
    charge(&mut client, "k");
    let waiting = Background::run(db.admin(), |client| {
        run(client, "BEGIN");
        let told = client.claim_waiting(TENANT, PAY, "k", BODY, "1 hour").unwrap();
        work(client, PAY, "k");
        run(client, "COMMIT");
        told.outcome
    });
    waiting.until_waiting_for("Extension", &mut db.admin());
    client.simple_query("").unwrap(); // the driver closes statements in the background: their answers are not the lost one
    relay.lose_answers();
    assert!(client.execute("SELECT 1", &[]).is_err(), "the connection is gone without a goodbye");
    assert_eq!(waiting.join().0, "execute");
    let mut admin = db.admin();
    assert_eq!((charges(&mut admin, "k"), stored(&mut admin, "k")), (1, 1));
}

/// What happens outside of the database after it must not be forgotten, whatever the session has chosen.
#[test]
fn a_claim_that_was_committed_open_survives_a_crash_even_without_synchronous_commit() {
    // The WAL writer would write it in time by itself.
    let cluster = Cluster::start(&["wal_writer_delay = '10 s'", "fsync = on"]);
    let db = cluster.lenient_database();
    let mut client = db.admin();
    run(&mut client, "SET synchronous_commit = off");
    for key in ["a", "b", "c"] {
        assert_eq!(client.claim(TENANT, "POST /outside", key, BODY).unwrap().outcome, "execute");
        cluster.stop(Shutdown::Immediate);
        cluster.start_again();
        client = db.admin();
        run(&mut client, "SET synchronous_commit = off");
        assert_eq!(client.claim(TENANT, "POST /outside", key, BODY).unwrap().outcome, "in_progress", "{key}");
    }
}
