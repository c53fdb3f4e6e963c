//! Nothing goes round for ever, and waiting takes no more memory with time.

use super::open_claim;
use harness::{wait_for, wait_until, Background, Calls, Cluster, Failure};
use postgres::Client;

#[test]
fn a_trigger_that_swallows_what_is_written_is_an_error_and_no_endless_loop() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    open_claim(&mut c);
    c.batch_execute(
        "SELECT idem_claim('t', 'POST /x', 'done', ''::bytea), idem_complete('t', 'POST /x', 'done', 200, ''::bytea);
         CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
         CREATE TRIGGER swallow BEFORE INSERT OR UPDATE OR DELETE ON idempotency_keys
           FOR EACH ROW EXECUTE FUNCTION swallow();
         SET statement_timeout = '20 s'",
    )
    .unwrap();
    for call in [
        "idem_claim('t', 'POST /x', 'new', ''::bytea)",
        "idem_complete('t', 'POST /x', 'k', 200, ''::bytea)",
        "idem_fail('t', 'POST /x', 'k', 200, ''::bytea)",
        "idem_release('t', 'POST /x', 'k')",
        "idem_checkpoint('t', 'POST /x', 'k', 'p')",
        "idem_forget('t', 'POST /x', 'done')",
    ] {
        let refused = Failure::of(c.query(&format!("SELECT {call}"), &[]));
        assert_eq!(refused.sqlstate, "55000", "{call}: {refused:?}");
        assert!(refused.detail.contains("trigger"), "{call}: {refused:?}");
    }
    let kept = "SELECT string_agg(key || ' ' || status, ', ' ORDER BY key) FROM idempotency_keys";
    assert_eq!(c.value::<String>(kept), "done succeeded, k in_progress");
}

/// What a backend has allocated, as it logs it when asked.
fn memory(cluster: &Cluster, observer: &mut Client, pid: i32) -> u64 {
    let since = cluster.log().len();
    assert!(observer.query_one("SELECT pg_log_backend_memory_contexts($1)", &[&pid]).unwrap().get::<_, bool>(0));
    wait_for("the memory to be logged", || {
        let log = cluster.log_since(since);
        let total = log.lines().find(|line| line.contains("Grand total:") && line.contains(&format!("[{pid}]")))?;
        total.split("Grand total: ").nth(1)?.split(' ').next()?.parse().ok()
    })
}

/// How often the rows were looked up, by all sessions of the database together.
fn look_ups(observer: &mut Client) -> i64 {
    observer.value(
        "SELECT coalesce(sum(idx_scan), 0)::bigint FROM pg_stat_user_indexes WHERE indexrelname = 'idempotency_keys_pkey'",
    )
}

// CASES 43
#[test]
fn a_session_that_waits_takes_no_more_memory_with_time() {
    let cluster = Cluster::start(&[]);
    let db = cluster.database();
    let mut observer = db.admin();
    observer.batch_execute("SELECT idem_protect('POST /pay')").unwrap();
    let mut first = db.admin();
    first.batch_execute("BEGIN; SELECT idem_claim('t', 'POST /pay', 'k', ''::bytea)").unwrap();
    let waiting = Background::run(db.admin(), |c| c.claim_waiting("t", "POST /pay", "k", b"", "1 hour"));
    waiting.until_waiting_for("Extension", &mut observer);
    // A waiting session reports its statistics when it is idle; so let others tell the time: each of their claims looks up
    // once, while the waiting one looks again after at most a tenth of a second.
    let mut clock = db.admin();
    let pass = |clock: &mut Client, observer: &mut Client| {
        let before = look_ups(observer);
        wait_until("the time of many looks", || {
            assert_eq!(clock.claim_waiting("t", "POST /pay", "k", b"", "100 ms").unwrap().outcome, "in_progress");
            observer.batch_execute("SELECT pg_stat_clear_snapshot()").unwrap();
            look_ups(observer) >= before + 60
        });
    };
    pass(&mut clock, &mut observer);
    let early = memory(&cluster, &mut observer, waiting.pid());
    for _ in 0..3 {
        pass(&mut clock, &mut observer);
    }
    let late = memory(&cluster, &mut observer, waiting.pid());
    assert!(late <= early, "{early} bytes, then {late}");
    first.batch_execute("ROLLBACK").unwrap();
    // It takes the key and is refused at its own commit, which only shows that it was still there.
    assert!(waiting.join().0.is_err());
}
