//! Nothing that a caller sets changes what the functions do, and nothing that they set stays.

use super::{application, sqlstate, whole_round};
use harness::{wait_until, Calls, Cluster};
use postgres::error::SqlState;
use postgres::{Client, NoTls};
use std::collections::BTreeSet;

/// Settings that any role may change and that a statement of ours might react to.
fn hostile_settings(major: u32) -> Vec<&'static str> {
    let mut settings = vec![
        "enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_bitmapscan = off; SET enable_seqscan = on",
        "enable_nestloop = off; SET enable_mergejoin = off; SET enable_hashjoin = off; SET enable_material = off",
        "plan_cache_mode = force_custom_plan",
        "plan_cache_mode = force_generic_plan",
        "row_security = off",
        "default_transaction_isolation = 'serializable'; SET default_transaction_deferrable = on",
        "default_transaction_isolation = 'repeatable read'",
        "DateStyle = 'German'; SET IntervalStyle = 'sql_standard'; SET TimeZone = 'Pacific/Chatham'",
        "bytea_output = 'escape'; SET extra_float_digits = -15",
        "standard_conforming_strings = off; SET backslash_quote = on; SET escape_string_warning = off",
        "client_encoding = 'UTF8'; SET array_nulls = off; SET transform_null_equals = on",
        "quote_all_identifiers = on",
        "from_collapse_limit = 1; SET join_collapse_limit = 1; SET geqo_threshold = 2",
        "jit = on; SET jit_above_cost = 0; SET jit_inline_above_cost = 0; SET jit_optimize_above_cost = 0",
        "parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0; \
         SET max_parallel_workers_per_gather = 8",
        "constraint_exclusion = on; SET cursor_tuple_fraction = 1; SET random_page_cost = 1000000",
        "work_mem = 64; SET temp_buffers = 100; SET default_statistics_target = 10000",
        "synchronous_commit = off; SET commit_siblings = 0; SET lock_timeout = 1000; SET client_min_messages = debug5",
    ];
    settings.push(if major < 16 { "force_parallel_mode = on" } else { "debug_parallel_query = on" });
    settings
}

#[test]
fn hostile_settings_change_no_outcome() {
    let cluster = Cluster::shared();
    let db = cluster.lenient_database();
    let role = application(&db);
    for setting in hostile_settings(cluster.installation().major()) {
        let mut c = db.connect_as(&role);
        c.batch_execute(&format!("SET {setting}")).unwrap_or_else(|e| panic!("{setting}: {e}"));
        whole_round(&mut c, "public", setting);
        // The other way round: plans made before.
        let mut c = db.connect_as(&role);
        whole_round(&mut c, "public", &format!("before {setting}"));
        c.batch_execute(&format!("SET {setting}")).unwrap();
        whole_round(&mut c, "public", &format!("after {setting}"));
    }
}

#[test]
fn the_client_encoding_is_no_part_of_a_body() {
    let db = Cluster::shared().lenient_database();
    let mut utf8 = db.connect_as(&application(&db));
    utf8.batch_execute(
        "SELECT idem_claim('t', 'POST /x', 'é', 'ü'::text); SELECT idem_complete('t', 'POST /x', 'é', 200, 'ß'::text)",
    )
    .unwrap();
    // The server converts what such a client sends before anybody sees it; the same text is the same request.
    let mut latin1 = db.admin();
    latin1.batch_execute("SET client_encoding = 'LATIN1'; SET standard_conforming_strings = off").unwrap();
    let same = "SELECT outcome || ' ' || (response_body = '\\\\xc39f'::bytea) FROM idem_claim('t', 'POST /x', chr(233), chr(252))";
    assert_eq!(latin1.value::<String>(same), "replay true");
}

#[test]
fn a_read_only_transaction_replays_and_refuses_to_execute() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.connect_as(&application(&db));
    whole_round(&mut c, "public", "written");
    c.batch_execute("SET default_transaction_read_only = on").unwrap();
    assert_eq!(c.claim("t", "POST /round", "written a", b"body").unwrap().outcome, "replay");
    assert_eq!(c.claim("t", "POST /round", "written a", b"other").unwrap().outcome, "key_reused");
    assert_eq!(sqlstate(c.claim("t", "POST /round", "new", b"")), "25006");
    assert_eq!(sqlstate(c.complete("t", "POST /round", "written a", 500, b"")), "25006");
}

#[test]
fn row_level_security_on_the_tables_changes_nothing_for_the_functions() {
    let db = Cluster::shared().lenient_database();
    let role = application(&db);
    let owner = db.role("owner");
    let mut early = db.connect_as(&role);
    whole_round(&mut early, "public", "early");
    let mut admin = db.admin();
    admin.batch_execute(&format!("GRANT EXECUTE ON FUNCTION idem_row_is_well_formed TO {owner}")).unwrap();
    for table in ["idempotency_keys", "idempotency_endpoints"] {
        admin
            .batch_execute(&format!(
                "ALTER TABLE {table} OWNER TO {owner}; ALTER TABLE {table} ENABLE ROW LEVEL SECURITY;
                 ALTER TABLE {table} FORCE ROW LEVEL SECURITY; CREATE POLICY nothing ON {table} USING (false)"
            ))
            .unwrap();
    }
    admin.execute("SELECT idem_protect('POST /round', 'external')", &[]).unwrap();
    whole_round(&mut early, "public", "kept plans");
    let mut late = db.connect_as(&role);
    late.batch_execute("SET row_security = off").unwrap();
    whole_round(&mut late, "public", "new session");
    // The registration is seen as well: an external claim has a provider key.
    let external = late.claim("t", "POST /round", "external", b"").unwrap();
    assert!(external.provider_key.is_some(), "{external:?}");
}

/// Who the session is and every setting it has, but for those of a language that is loaded when it is first used.
fn environment(c: &mut Client) -> BTreeSet<String> {
    let sql = "SELECT current_user::text || ' ' || session_user || ' ' || current_schemas(true)::text
               UNION ALL SELECT name || '=' || setting || ' ' || source FROM pg_settings WHERE name NOT LIKE 'plpgsql.%'";
    c.query(sql, &[]).unwrap().iter().map(|row| row.get(0)).collect()
}

fn assert_unchanged(c: &mut Client, before: &BTreeSet<String>, when: &str) {
    let changed: Vec<String> = environment(c).symmetric_difference(before).cloned().collect();
    assert!(changed.is_empty(), "after {when}: {changed:?}");
}

#[test]
fn the_callers_role_and_settings_are_as_before_after_every_ending() {
    let db = Cluster::shared().lenient_database();
    let role = application(&db);
    db.admin().execute("SELECT idem_protect('POST /guarded')", &[]).unwrap();
    let mut c = db.connect_as(&role);
    c.claim("t", "POST /round", "loads the library", b"").unwrap();
    c.batch_execute("CREATE TEMP TABLE there_is_a_temporary_schema (); SET search_path = pg_temp, public; SET enable_seqscan = on; SET work_mem = '5MB'")
        .unwrap();
    let before = environment(&mut c);

    whole_round(&mut c, "public", "plain");
    assert_unchanged(&mut c, &before, "outcomes and an error outside of a transaction");

    let mut tx = c.transaction().unwrap();
    tx.batch_execute("SET LOCAL enable_seqscan = off; SET LOCAL search_path = public, pg_catalog").unwrap();
    let inside = "SELECT current_user || current_setting('search_path') || current_setting('enable_seqscan')";
    let expected = format!("{role}public, pg_catalogoff");
    tx.claim("t", "POST /x", "k", b"").unwrap();
    assert_eq!(tx.value::<String>(inside), expected);
    for wrong in [
        "SELECT idem_complete('t', 'POST /x', 'k', 99, ''::text)",
        "SELECT idem_complete('t', 'POST /x', 'k', 200, ''::text, attempt => 7)",
        "SELECT idem_complete('t', 'POST /x', 'nobody', 200, ''::text)",
        "SELECT idem_complete('t', 'POST /x', 'k', 200, repeat('x', 70000))",
        "SELECT idem_complete('t', 'POST /x', 'k', 200, ''::text, '[1]')",
        "SELECT idem_claim('t', 'POST /x', 'k', ''::text, ttl => '1 s')",
    ] {
        let mut savepoint = tx.savepoint("s").unwrap();
        assert_ne!(sqlstate(savepoint.batch_execute(wrong)), "00000", "{wrong}");
        savepoint.rollback().unwrap();
        assert_eq!(tx.value::<String>(inside), expected, "{wrong}");
    }
    tx.batch_execute("DO $$ BEGIN PERFORM idem_complete('t', 'POST /x', 'no', 200, ''::text); EXCEPTION WHEN OTHERS THEN NULL; END $$")
        .unwrap();
    assert_eq!(tx.value::<String>(inside), expected, "after an exception block");
    tx.commit().unwrap();
    assert_unchanged(&mut c, &before, "COMMIT");

    let left_open = c.batch_execute("BEGIN; SELECT idem_claim('t', 'POST /guarded', 'k', ''::text); COMMIT");
    assert_eq!(sqlstate(left_open), "ID004");
    assert_unchanged(&mut c, &before, "the guard's refusal");
}

#[test]
fn a_wait_that_is_cancelled_gives_the_role_back() {
    let db = Cluster::shared().lenient_database();
    let role = application(&db);
    let mut holder = db.connect_as(&role);
    let mut held = holder.transaction().unwrap();
    held.claim("t", "POST /x", "k", b"").unwrap();
    let mut waiter = db.connect_as(&role);
    let (cancel, pid) = (waiter.cancel_token(), waiter.value::<i32>("SELECT pg_backend_pid()"));
    let mut admin = db.admin();
    let canceller = std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            let mut tx = waiter.transaction().unwrap();
            let mut savepoint = tx.savepoint("s").unwrap();
            let error = savepoint.claim_waiting("t", "POST /x", "k", b"", "50 s").unwrap_err();
            savepoint.rollback().unwrap();
            (error.code().cloned(), tx.value::<String>("SELECT current_user::text"))
        });
        let waiting =
            format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {pid} AND wait_event_type = 'Extension'");
        wait_until("the waiting claim", || admin.value::<i64>(&waiting) == 1);
        cancel.cancel_query(NoTls).unwrap();
        thread.join().unwrap()
    });
    assert_eq!(canceller, (Some(SqlState::QUERY_CANCELED), role));
}

/// A library that is not preloaded defines its settings at the first call; before it, any name can be set.
#[test]
fn a_session_cannot_preset_what_is_for_the_administrator() {
    let db = Cluster::shared().database();
    let role = application(&db);
    db.admin().batch_execute("SELECT idem_protect('POST /x', 'external')").unwrap();
    db.admin()
        .batch_execute(&format!("ALTER DATABASE {} SET idempotency_enforcer.tenant_setting = 'app.tenant'", db.name()))
        .unwrap();
    let mut c = db.connect_as(&role);
    c.batch_execute(
        "SET idempotency_enforcer.tenant_setting = ''; SET idempotency_enforcer.max_body_bytes = '100MB';
         SET idempotency_enforcer.require_registration = off; SET app.tenant = 'mine'",
    )
    .unwrap();
    assert_eq!(sqlstate(c.claim("theirs", "POST /x", "k", b"")), "42501");
    assert_eq!(c.claim("mine", "POST /x", "k", b"").unwrap().outcome, "execute");
    assert_eq!(sqlstate(c.complete("mine", "POST /x", "k", 200, &[b'x'; 65_537])), "ID005");
    assert_eq!(c.value::<String>("SHOW idempotency_enforcer.require_registration"), "on");
    for setting in ["tenant_setting = ''", "max_body_bytes = 1", "require_registration = off"] {
        assert_eq!(sqlstate(c.batch_execute(&format!("SET idempotency_enforcer.{setting}"))), "42501");
    }
    assert_eq!(sqlstate(c.batch_execute("SET session_replication_role = replica")), "42501");
}

/// Every setting, with a value that is not its default.
const OURS: &[(&str, &str)] = &[
    ("databases", "shop, \"a, b\""),
    ("docs_url", "https://example.com/keys"),
    ("max_body_bytes", "1000"),
    ("max_tracked_endpoints", "7"),
    ("require_registration", "off"),
    ("retry_after", "3"),
    ("stuck_log_limit", "5"),
    ("sweep_batch_size", "100000"),
    ("sweep_interval", "30"),
    ("tenant_setting", "app.tenant"),
];

/// A server whose administrator has set all of them in postgresql.conf, where the library is not preloaded.
fn all_set() -> Cluster {
    let lines: Vec<String> =
        OURS.iter().map(|(name, value)| format!("idempotency_enforcer.{name} = '{value}'")).collect();
    Cluster::start(&lines.iter().map(String::as_str).collect::<Vec<_>>())
}

// CASES 65
#[test]
fn settings_of_a_library_that_is_not_preloaded_are_no_strangers_to_any_session() {
    let cluster = all_set();
    let db = cluster.database();
    let (mut c, notices) = db.admin_with_notices();
    c.batch_execute("LOAD 'idempotency_enforcer'").unwrap();
    c.batch_execute("SET app.tenant = 't'").unwrap();
    assert_eq!(c.claim("t", "POST /x", "k", b"").unwrap().outcome, "execute");
    let sql =
        "SELECT substr(name, 22), setting FROM pg_settings WHERE name LIKE 'idempotency\\_enforcer.%' ORDER BY name";
    let rows = c.query(sql, &[]).unwrap();
    let found: Vec<(&str, &str)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(found, OURS);
    // Also not when the file is read again, and by a role that has no rights.
    cluster.reload(&["idempotency_enforcer.max_tracked_endpoints = 8", "idempotency_enforcer.max_body_bytes = 2000"]);
    wait_until("the reload", || c.value::<String>("SHOW idempotency_enforcer.max_body_bytes") == "2000B");
    let mut plain = db.connect_as(&application(&db));
    plain.batch_execute("SET app.tenant = 't'").unwrap();
    assert_eq!(plain.claim("t", "POST /x", "k", b"").unwrap().outcome, "in_progress");
    assert_eq!(notices.try_iter().map(|n| n.message().to_owned()).collect::<Vec<_>>(), Vec::<String>::new());
    assert!(!cluster.log().contains("WARNING"), "{}", cluster.log());
}

// CASES 65
#[test]
fn a_connection_that_brings_its_own_limits_is_refused_by_every_function() {
    let cluster = all_set();
    let db = cluster.database();
    let role = application(&db);
    let connect = |role: &str, options: &str| cluster.config(db.name(), role).options(options).connect(NoTls).unwrap();
    for (name, value) in [
        ("max_body_bytes", "100MB"),
        ("max_body_bytes", "1"),
        ("require_registration", "off"),
        ("require_registration", "on"),
        ("tenant_setting", ""),
    ] {
        let mut c = connect(&role, &format!("-c idempotency_enforcer.{name}={value} -c app.tenant=t"));
        for call in [
            "idem_claim('t', 'POST /x', 'k', ''::text)",
            "idem_complete('t', 'POST /x', 'k', 200, ''::text)",
            "idem_fail('t', 'POST /x', 'k', 500, ''::text)",
            "idem_release('t', 'POST /x', 'k')",
            "idem_checkpoint('t', 'POST /x', 'k', 'p')",
        ] {
            let error = c.batch_execute(&format!("SELECT {call}")).unwrap_err();
            let error = error.as_db_error().expect("an error of the server");
            assert_eq!(error.code().code(), "42501", "{name}: {call}: {error}");
            assert!(error.message().contains(&format!("idempotency_enforcer.{name}")), "{call}: {error}");
        }
    }
    // What the administrator does himself stands, as does what is anybody's.
    let mut admin = connect("postgres", "-c idempotency_enforcer.max_body_bytes=2 -c app.tenant=t");
    assert_eq!(admin.claim("t", "POST /x", "k", b"").unwrap().outcome, "execute");
    assert_eq!(sqlstate(admin.complete("t", "POST /x", "k", 200, b"123")), "ID005");
    let mut plain = connect(&role, "-c idempotency_enforcer.retry_after=9 -c app.tenant=t");
    assert_eq!(plain.claim("t", "POST /x", "k", b"").unwrap().outcome, "in_progress");
}

#[test]
fn the_worker_and_sql_read_one_list_of_databases() {
    let cluster = Cluster::start(&[
        "shared_preload_libraries = 'idempotency_enforcer'",
        "idempotency_enforcer.databases = ' shop,\"a, b\" , \"say \"\"hi\"\"\"'",
    ]);
    let db = cluster.database();
    let mut c = db.admin();
    let sql = "SELECT _idem_visits($1)";
    for (name, expected) in [("shop", true), ("a, b", true), ("say \"hi\"", true), ("Shop", false), ("a", false)] {
        assert_eq!(c.query_one(sql, &[&name]).unwrap().get::<_, Option<bool>>(0), Some(expected), "{name}");
    }
    assert_eq!(c.value::<Option<bool>>("SELECT _idem_visits(current_database())"), Some(false));
    assert_eq!(c.value::<Option<bool>>("SELECT _idem_visits(NULL)"), None);
    cluster.reload(&["idempotency_enforcer.databases = ''"]);
    wait_until("all databases", || c.value("SELECT _idem_visits(current_database())"));
    let elsewhere = Cluster::shared().database();
    assert_eq!(elsewhere.admin().value::<Option<bool>>("SELECT _idem_visits('postgres')"), None);
}
