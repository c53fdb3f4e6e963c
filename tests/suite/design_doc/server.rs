//! What depends on the server: the worker, the counters, the databases that are visited.

use super::*;

/// Claims a key of an endpoint that is not registered any more.
fn claim_unregistered(c: &mut Client, endpoint: &str, key: &str) {
    c.execute("SELECT idem_protect($1, 'external')", &[&endpoint]).unwrap();
    assert_eq!(c.claim("t", endpoint, key, b"").unwrap().outcome, "execute");
    c.execute("SELECT idem_unprotect($1, force => true)", &[&endpoint]).unwrap();
}

#[test]
fn without_preloading_the_sweep_is_for_cron_and_open_claims_still_show_what_is_not_registered() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    c.batch_execute("SELECT idem_protect('POST /a', effect => 'external')").unwrap();
    c.claim("t", "POST /a", "k", b"").unwrap();
    claim_unregistered(&mut c, "POST /b", "k");
    let doc = document(&mut c);
    assert!(doc.row_of("storage", "sweep")[1].starts_with("by cron: SELECT public.idem_sweep();"));
    assert_eq!(doc.rows("not registered"), [["POST /b", "open claims"]]);
    assert!(c.release("t", "POST /b", "k").unwrap());
    for key in ["k", "l"] {
        claim_unregistered(&mut c, "POST /c", key);
    }
    c.complete("t", "POST /c", "k", 200, b"").unwrap();
    assert_eq!(
        document(&mut c).rows("not registered"),
        [["POST /b", "finished claims"], ["POST /c", "finished claims, open claims"]]
    );
}

#[test]
fn when_preloaded_the_worker_sweeps_and_the_counters_show_what_is_not_registered() {
    let cluster = Cluster::start(&[
        "shared_preload_libraries = 'idempotency_enforcer'",
        "idempotency_enforcer.sweep_interval = 90",
        "idempotency_enforcer.sweep_batch_size = 123",
        "idempotency_enforcer.databases = 'other, \"test_0\"'",
        "idempotency_enforcer.tenant_setting = 'app.tenant|id'",
        "idempotency_enforcer.retry_after = 7",
        "idempotency_enforcer.max_body_bytes = 77",
    ]);
    let db = cluster.database();
    assert_eq!(db.name(), "test_0");
    let mut c = db.admin();
    c.batch_execute("SELECT idem_protect('POST /a')").unwrap();
    // Refused for the tenant, but not before the session has loaded the settings.
    c.claim("t", "POST /b", "k", b"").unwrap_err();
    c.batch_execute("SET idempotency_enforcer.tenant_setting = ''").unwrap();
    claim_unregistered(&mut c, "POST /b", "k");
    c.batch_execute("DELETE FROM idempotency_keys").unwrap();
    claim_unregistered(&mut c, "POST /c", "k");
    let doc = document(&mut db.admin());
    assert_eq!(
        doc.row_of("storage", "sweep")[1],
        "by the background worker: every 1 min 30 secs, in batches of 123 rows"
    );
    assert_eq!(doc.rows("not registered"), [["POST /b", "counters"], ["POST /c", "open claims, counters"]]);
    assert!(doc.row_of("storage", "tenant")[1].contains("must equal the session setting app.tenant|id"));
    assert_eq!(doc.row_of("Protected endpoints", "POST /a")[6], "77 (setting)");
    assert!(doc.rows("States").iter().any(|r| r[2].contains("retry-after: 7") && r[3] == "409"));

    let sweep_with = |setting: &str| {
        cluster.configure(&[setting]);
        let mut c = db.admin();
        let sweep = |c: &mut Client| document(c).row_of("storage", "sweep")[1].to_owned();
        let before = sweep(&mut c);
        c.batch_execute("SELECT pg_reload_conf()").unwrap();
        harness::wait_for("the settings to be read", || Some(sweep(&mut c)).filter(|s| *s != before))
    };
    let elsewhere = sweep_with("idempotency_enforcer.databases = 'other'");
    assert!(elsewhere.contains("by cron") && elsewhere.ends_with("does not visit this database: databases is other)"));
    let off = sweep_with("idempotency_enforcer.sweep_interval = 0");
    assert!(off.contains("by cron") && off.contains("sweep_interval is 0"), "{off}");
}

/// CASES 61
#[test]
fn worker_health_and_document_agree_on_the_databases_that_are_visited() {
    let cluster = Cluster::start(&[
        "shared_preload_libraries = 'idempotency_enforcer'",
        "idempotency_enforcer.sweep_interval = 1",
        r#"idempotency_enforcer.databases = ' "a, b" ,say ''hi''," ""q"" ",, two  words , Plain'"#,
    ]);
    const VISITED: [&str; 5] = ["a, b", "say 'hi'", " \"q\" ", "two  words", "Plain"];
    const LEFT_OUT: [&str; 9] = ["a", " b", "a, b ", "\"a, b\"", "say hi", "\"q\"", "two words", "plain", "x\"y, z"];
    let connect = |name: &str| cluster.config(name, "postgres").connect(postgres::NoTls).unwrap();
    for name in VISITED.iter().chain(&LEFT_OUT) {
        cluster.connect().batch_execute(&format!("CREATE DATABASE \"{}\"", name.replace('"', "\"\""))).unwrap();
        connect(name).batch_execute("CREATE EXTENSION idempotency_enforcer").unwrap();
    }
    let rounds = |name: &str| {
        connect(name).value::<i64>("SELECT coalesce(sum(rounds), 0)::bigint FROM idem_stats WHERE kind = 'database'")
    };
    let remedy = |name: &str| -> Option<String> {
        let sql = "SELECT remedy FROM idem_health() WHERE finding ~ '^The worker does not visit this database'";
        connect(name).query_opt(sql, &[]).unwrap().map(|row| row.get(0))
    };
    let swept_by = |name: &str| {
        let doc = document(&mut connect(name));
        doc.row_of("storage", "sweep")[1].split(':').next().unwrap().to_owned()
    };
    // By then whoever is visited has been visited.
    harness::wait_until("two rounds of those that are visited", || VISITED.iter().all(|name| rounds(name) >= 2));
    for name in VISITED {
        assert_eq!((remedy(name), swept_by(name).as_str()), (None, "by the background worker"), "{name:?}");
    }
    for name in LEFT_OUT {
        assert_eq!((rounds(name), swept_by(name).as_str()), (0, "by cron"), "{name:?}");
    }
    // A quote that is left out takes in the rest of the list: as the remedy must find it, and end it.
    connect("postgres")
        .batch_execute(r#"ALTER SYSTEM SET idempotency_enforcer.databases = '"a, b", Plain, "x, y'"#)
        .unwrap();
    connect("postgres").batch_execute("SELECT pg_reload_conf()").unwrap();
    harness::wait_until("the settings to be read", || remedy(VISITED[1]).is_some());
    for name in VISITED.iter().chain(&LEFT_OUT) {
        let Some(remedy) = remedy(name) else { continue };
        connect(name).batch_execute(&remedy).unwrap();
        connect(name).batch_execute("SELECT pg_reload_conf()").unwrap();
        harness::wait_until("the settings to be read", || {
            connect(name).value("SELECT _idem_visits(current_database())")
        });
    }
    harness::wait_until("a round everywhere", || LEFT_OUT.iter().all(|name| rounds(name) >= 1));
    for name in VISITED.iter().chain(&LEFT_OUT) {
        assert_eq!((remedy(name), swept_by(name).as_str()), (None, "by the background worker"), "{name:?}");
    }
}
