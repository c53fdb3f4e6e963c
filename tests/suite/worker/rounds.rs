//! When rounds take place, where, and with what rights.

use super::*;
use harness::Installation;

#[test]
fn a_reload_changes_interval_batches_and_databases_without_a_restart() {
    let cluster = cluster(&[]);
    let (a, b) = (cluster.database(), cluster.database());
    let (mut a, mut b) = (a.admin(), b.admin());
    wait_for_a_round(&mut a);
    wait_for_a_round(&mut b);
    let launcher = pids(&mut a, "launcher");

    cluster.reload(&["idempotency_enforcer.sweep_interval = 0"]);
    wait_for_the_launcher(&mut a);
    let before = rounds(&mut a);
    wait_for_the_launcher(&mut a);
    wait_for_the_launcher(&mut a);
    assert_eq!(rounds(&mut a), before, "0 turns the rounds off");

    cluster.reload(&["idempotency_enforcer.sweep_interval = 1h", "idempotency_enforcer.sweep_batch_size = 10"]);
    wait_until("a round at once", || rounds(&mut b) > 0 && rounds(&mut a) > before);
    wait_for_the_launcher(&mut a);
    wait_for_the_launcher(&mut a);
    assert_eq!(rounds(&mut a), before + 1, "the next one is in an hour");

    let name: String = b.value("SELECT current_database()::text");
    cluster.reload(&[
        "idempotency_enforcer.sweep_interval = 1",
        &format!("idempotency_enforcer.databases = 'nowhere, \"{name}\"'"),
    ]);
    wait_for_a_round(&mut b);
    let before = rounds(&mut a);
    wait_for_a_round(&mut b);
    assert_eq!(rounds(&mut a), before, "only the databases that are named");

    a.batch_execute(
        "CREATE TABLE batches (xid bigint, rows bigint);
         CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
           $$ BEGIN INSERT INTO public.batches SELECT txid_current(), count(*) FROM gone; RETURN NULL; END $$;
         CREATE TRIGGER note AFTER DELETE ON idempotency_keys REFERENCING OLD TABLE AS gone
           FOR EACH STATEMENT EXECUTE FUNCTION note()",
    )
    .unwrap();
    add_expired(&mut a, "POST /x", 25);
    cluster.reload(&["idempotency_enforcer.databases = ''"]);
    wait_until("the sweep", || rows_left(&mut a) == 0);
    let batches: Vec<i64> =
        a.value("SELECT array_agg(sum ORDER BY xid) FROM (SELECT xid, sum(rows)::bigint FROM batches GROUP BY xid) b");
    assert_eq!(batches, [10, 10, 5], "a transaction a batch, of the new size");
    assert_eq!(pids(&mut a, "launcher"), launcher, "all of it in the same process");
}

#[test]
fn where_there_is_nothing_to_do_nothing_is_logged_and_no_statement_is_counted() {
    // A PostgreSQL without its contrib modules shows the log only.
    let counts = Installation::find().has_module("pg_stat_statements");
    let libraries = if counts { "idempotency_enforcer, pg_stat_statements" } else { "idempotency_enforcer" };
    let cluster = Cluster::start(&[
        &format!("shared_preload_libraries = '{libraries}'"),
        "idempotency_enforcer.sweep_interval = 1",
        "pg_stat_statements.track = all",
    ]);
    let (db, other) = (cluster.database(), cluster.database());
    let (template, refusing) = (cluster.database(), cluster.database());
    let (_without, latin) = (cluster.empty_database(""), cluster.empty_database("ENCODING LATIN1 TEMPLATE template0"));
    for closed in [&template, &refusing] {
        add_expired(&mut closed.admin(), "POST /x", 3);
    }
    let (mut c, mut postgres) = (db.admin(), cluster.connect());
    if counts {
        c.batch_execute("CREATE EXTENSION pg_stat_statements").unwrap();
    }
    postgres.batch_execute(&format!("ALTER DATABASE {} IS_TEMPLATE true", template.name())).unwrap();
    postgres.batch_execute(&format!("ALTER DATABASE {} ALLOW_CONNECTIONS false", refusing.name())).unwrap();
    // Its name is in an encoding that the launcher cannot know.
    latin.admin().batch_execute("CREATE DATABASE \"caf\u{e9}\"").unwrap();
    wait_for_a_round(&mut c);
    let since = lines(&cluster).len(); // rows may have been swept before the databases were closed
    if counts {
        c.batch_execute("SELECT pg_stat_statements_reset()").unwrap();
    }
    let before = rounds(&mut c);
    // Whenever it comes to the database, it must not be refused.
    wait_until("four rounds", || {
        for allow in [true, false] {
            let sql = format!("ALTER DATABASE {} ALLOW_CONNECTIONS {allow}", other.name());
            postgres.batch_execute(&sql).unwrap();
        }
        rounds(&mut c) >= before + 4
    });
    assert_eq!(lines(&cluster)[since..], [] as [String; 0]);
    let counted = |c: &mut Client| -> i64 {
        c.value(
            "SELECT count(*) FROM pg_stat_statements
              WHERE query ~ 'idempotency_keys|FROM pg_catalog.pg_extension' AND query !~ 'pg_stat_statements|INSERT'",
        )
    };
    if counts {
        assert_eq!(counted(&mut c), 0);
    }

    // The same eyes see a round that has something to do.
    add_expired(&mut c, "POST /x", 1);
    wait_until("the sweep", || rows_left(&mut c) == 0);
    wait_until("its line", || !lines_with(&cluster, "swept 1 expired keys").is_empty());
    if counts {
        assert!(counted(&mut c) > 1);
    }
    for (closed, opened) in [(template, "IS_TEMPLATE false"), (refusing, "ALLOW_CONNECTIONS true")] {
        postgres.batch_execute(&format!("ALTER DATABASE {} {opened}", closed.name())).unwrap();
    }
}

#[test]
fn neither_the_settings_of_a_database_nor_an_odd_schema_stop_it() {
    let cluster = cluster(&[]);
    let db = cluster.empty_database("");
    let mut c = db.admin();
    c.batch_execute(
        "CREATE SCHEMA \"Odd schema; \u{fc}\";
         CREATE EXTENSION idempotency_enforcer SCHEMA \"Odd schema; \u{fc}\";
         CREATE TABLE idempotency_keys (mine text)",
    )
    .unwrap();
    let mut settings = vec![
        "default_transaction_read_only = on",
        "default_transaction_isolation = serializable",
        "default_transaction_deferrable = on",
        "statement_timeout = 1",
        "lock_timeout = 1",
        "search_path = public",
        "enable_indexscan = off",
        "synchronous_commit = on",
        "role = pg_read_all_stats",
    ];
    if cluster.installation().major() >= 17 {
        settings.push("transaction_timeout = 1");
    }
    for setting in settings {
        c.batch_execute(&format!("ALTER DATABASE {} SET {setting}", db.name())).unwrap();
    }
    c.batch_execute("SET search_path = \"Odd schema; \u{fc}\"").unwrap();
    add_expired(&mut c, "POST /x", 3);
    wait_until("the sweep", || rows_left(&mut c) == 0);
    wait_until("its line", || lines_with(&cluster, "swept").len() == 1);
    assert_eq!(lines(&cluster).len(), 1, "{:?}", lines(&cluster));
}

#[test]
fn it_works_as_the_owner_of_the_tables_and_lends_nobody_more() {
    let cluster = cluster(&[]);
    let db = cluster.database();
    let mut c = db.admin();
    let owner = db.role("owner");
    c.batch_execute(&format!(
        "CREATE TABLE seen (who text, at_commit boolean);
         CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
           $$ BEGIN INSERT INTO public.seen VALUES (current_user, tg_argv[0]::boolean); RETURN NULL; END $$;
         GRANT ALL ON seen TO {owner};
         GRANT CREATE, USAGE ON SCHEMA public TO {owner};
         ALTER TABLE idempotency_keys OWNER TO {owner};
         ALTER TABLE idempotency_endpoints OWNER TO {owner};
         CREATE TRIGGER note AFTER DELETE ON idempotency_keys FOR EACH ROW EXECUTE FUNCTION note(false)"
    ))
    .unwrap();
    add_expired(&mut c, "POST /x", 1);
    wait_until("the sweep", || rows_left(&mut c) == 0);
    assert_eq!(c.value::<String>("SELECT who FROM seen"), owner);

    // A deferred trigger would run at COMMIT, when the process is a superuser again.
    c.batch_execute(
        "CREATE CONSTRAINT TRIGGER late AFTER DELETE ON idempotency_keys
           DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION note(true)",
    )
    .unwrap();
    add_expired(&mut c, "POST /x", 1);
    wait_until("the refusal", || !lines_with(&cluster, "cannot fire deferred trigger").is_empty());
    assert_eq!(c.value::<i64>("SELECT count(*) FROM seen WHERE at_commit"), 0);
    c.batch_execute("DROP TRIGGER late ON idempotency_keys").unwrap();
    wait_until("the sweep", || rows_left(&mut c) == 0);
}
