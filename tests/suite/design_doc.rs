//! `idem_design_doc`: the design document is complete, true, and readable whatever the names in it.

mod markdown;

use harness::{Calls, Cluster};
use markdown::Document;
use postgres::Client;

const HEADINGS: [&str; 9] = [
    "1. Protected endpoints",
    "In use, but not registered",
    "2. Scope and storage",
    "3. Size of the key store",
    "4. Promises",
    "5. States and replays",
    "6. External effects and reconciliation",
    "7. Roles",
    "8. Open findings",
];

fn markdown_of(c: &mut Client) -> String {
    c.value("SELECT idem_design_doc()")
}

fn document(c: &mut Client) -> Document {
    Document::read(&markdown_of(c))
}

/// Claims a key of an endpoint that is not registered any more.
fn claim_unregistered(c: &mut Client, endpoint: &str, key: &str) {
    c.execute("SELECT idem_protect($1, 'external')", &[&endpoint]).unwrap();
    assert_eq!(c.claim("t", endpoint, key, b"").unwrap().outcome, "execute");
    c.execute("SELECT idem_unprotect($1, force => true)", &[&endpoint]).unwrap();
}

/// Without the lines that say when, and with which versions.
fn without_figures(markdown: &str) -> String {
    let lines = markdown.lines().filter(|l| !l.starts_with("- Generated at") && !l.starts_with("- Extension:"));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn every_registered_endpoint_is_there_with_its_inputs_and_its_guesses() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    c.batch_execute(
        "SELECT idem_protect('POST /orders', retry_window => '36 hours', key_required => false, max_body_bytes => 1000,
                             expected_writes_per_day => 1234567, notes => 'Asked of the shop''s team.');
         SELECT idem_protect('POST /charges', effect => 'external', stuck_after => '90 seconds',
                             guesses => ARRAY['effect', 'retry_window', 'ttl', 'stuck_after', 'key_required',
                                              'max_body_bytes', 'expected_writes_per_day'],
                             expected_writes_per_day => 5)",
    )
    .unwrap();
    let doc = document(&mut c);
    let today: String = c.value("SELECT to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD')");
    assert_eq!(
        doc.rows("Protected endpoints"),
        [
            [
                "POST /charges",
                "external (guess)",
                "1 day (guess)",
                "2 days (guess)",
                "1 min 30 secs (guess)",
                "yes (guess)",
                "65536 (setting) (guess)",
                "5 (guess)",
                today.as_str(),
                "",
            ],
            [
                "POST /orders",
                "transaction",
                "1 day 12 hours",
                "3 days",
                "1 min",
                "no",
                "1000",
                "1,234,567",
                today.as_str(),
                "Asked of the shop's team.",
            ],
        ]
    );
    assert_eq!(
        doc.rows("reconciliation"),
        [[
            "POST /charges",
            "1 min 30 secs (guess)",
            "SELECT * FROM public.idem_reconcile(only_endpoint => 'POST /charges');"
        ]]
    );
    for step in ["ID004", "ID006", "request_target", "provider_key", "idem_stuck", "Never a blind retry", "idem_erase"]
    {
        assert!(doc.text.contains(step), "{step} is not in {}", doc.text);
    }
    assert_eq!(doc.headings[1..], HEADINGS);
}

#[test]
fn the_size_follows_from_volume_ttl_and_row_size_and_unknowns_stay_unknown() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    c.batch_execute("SELECT idem_protect('POST /a', expected_writes_per_day => 20000, guesses => ARRAY['ttl'])")
        .unwrap();
    let doc = document(&mut c);
    assert!(doc.text.contains("1000 bytes in the table and 200 in its indexes, a default"), "{}", doc.text);
    // 40,000 rows of 1200 bytes.
    assert_eq!(
        doc.row_of("Size", "POST /a"),
        ["POST /a", "20,000", "2 days (guess)", "40,000 (guess)", "46 MB (guess)"]
    );
    assert_eq!(doc.row_of("Size", "total"), ["total", "20,000", "", "40,000 (guess)", "46 MB (guess)"]);

    c.batch_execute(
        "SELECT idem_protect('POST /b', expected_writes_per_day => 9223372036854775807, ttl => '36500 days',
                             guesses => ARRAY['expected_writes_per_day']);
         SELECT idem_protect('POST /c');
         INSERT INTO idempotency_keys (tenant_id, endpoint, key, request_hash)
         SELECT '', 'POST /a', n::text, sha256('') FROM generate_series(1, 12000) n;
         ANALYZE idempotency_keys",
    )
    .unwrap();
    let doc = document(&mut c);
    assert!(doc.text.contains("measured over about 12,000 rows"), "{}", doc.text);
    let bytes: f64 = c.value(
        "SELECT (ceil(pg_table_size('idempotency_keys') / 12000.0)
                 + ceil(pg_indexes_size('idempotency_keys') / 12000.0))
                ::double precision",
    );
    let size: String = c.value(&format!("SELECT pg_size_pretty(40000 * {bytes}::numeric)"));
    assert_eq!(doc.row_of("Size", "POST /a")[4], format!("{size} (guess)"));
    assert_eq!(doc.row_of("Size", "POST /b")[3], "336,653,079,345,199,316,955,500 (guess)");
    assert_eq!(doc.row_of("Size", "POST /c"), ["POST /c", "unknown", "2 days", "unknown", "unknown"]);
    assert_eq!(doc.row_of("Size", "total")[1], "at least 9,223,372,036,854,795,807 (guess)");
    assert_eq!(doc.row_of("Size", "total")[3], "at least 336,653,079,345,199,316,995,500 (guess)");
}

#[test]
fn an_empty_registry_makes_a_document_too() {
    let db = Cluster::shared().database();
    let doc = document(&mut db.admin());
    assert_eq!(doc.headings[1..], HEADINGS);
    assert!(doc.rows("Protected endpoints").is_empty() && doc.rows("Size").is_empty());
    assert_eq!(doc.row_of("States", "nothing")[2], "execute");
    assert!(doc.text.contains("No endpoint has an external effect."));
}

/// Each would break a table or become markup if it were put into the document as it is.
const HOSTILE: [&str; 22] = [
    "POST /a|b",
    r"POST /a\|b",
    r"POST /a\\|b\",
    "POST /`x`",
    "``|`",
    r"\`|`\",
    "<script>alert(1)</script>",
    "</td></table><h1>x</h1>",
    "<!-- ",
    "*a* _b_ **c** ~~d~~ __e__",
    "[a](https://x.example) ![b](https://x.example)",
    "<https://x.example>",
    "&lt;b&gt; &#124; &amp;",
    "%s %1$s %",
    "$$x^2$$",
    "# not a title #",
    "1. not a list",
    "--- | ---",
    "it's; DROP TABLE x; --",
    "$idem_design_doc$",
    "POST /\u{fc}n\u{ef}/\u{65e5}\u{672c}",
    " blanks ",
];

#[test]
fn hostile_names_come_out_as_literal_text() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    for name in HOSTILE {
        let sql = "SELECT idem_protect($1, effect => 'external', expected_writes_per_day => 1, notes => $1)";
        c.execute(sql, &[&name]).unwrap();
        claim_unregistered(&mut c, &format!("unregistered {name}"), "k");
    }
    let doc = document(&mut c);
    assert!(doc.foreign.is_empty(), "{:?}", doc.foreign);
    assert_eq!(doc.headings[1..], HEADINGS);
    for name in HOSTILE {
        let inputs = doc.row_of("Protected endpoints", name);
        assert_eq!((inputs[1], inputs[7], inputs[9]), ("external", "1", name.trim()));
        assert_eq!(doc.row_of("not registered", &format!("unregistered {name}"))[1], "open claims");
        assert_eq!(doc.row_of("Size", name)[3], "2");
        let literal: String = c.query_one("SELECT quote_literal($1::text)", &[&name]).unwrap().get(0);
        let statement = format!("SELECT * FROM public.idem_reconcile(only_endpoint => {literal});");
        assert_eq!(doc.row_of("reconciliation", name)[2], statement);
    }
}

#[test]
fn what_cannot_be_seen_in_a_name_is_shown_as_the_log_shows_it() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    let names = ["POST /x\n\n# Title\n| a |", "a\tb\r\"\\\u{1}\u{7f}", "POST /\u{202e}sdnufer", "\u{a0}", "\"quoted\""];
    for name in names {
        c.execute("SELECT idem_protect($1, notes => $1)", &[&name]).unwrap();
    }
    let doc = document(&mut c);
    assert_eq!(doc.headings[1..], HEADINGS);
    for name in names {
        assert_eq!(doc.row_of("Protected endpoints", &format!("{name:?}")).len(), 10);
    }
    assert_eq!(doc.row_of("Protected endpoints", r#""POST /x\n\n# Title\n| a |""#)[9], "POST /x # Title | a |");
    assert_eq!(doc.row_of("Protected endpoints", r#""POST /\u{202e}sdnufer""#)[9], r"POST /\u{202e}sdnufer");
}

#[test]
fn every_session_gets_the_same_text() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    c.batch_execute(
        "SELECT idem_protect('POST /b', effect => 'external', notes => E'a\\\\b', expected_writes_per_day => 1000);
         SELECT idem_protect('POST /a', stuck_after => '1 day 00:01:00')",
    )
    .unwrap();
    let first = without_figures(&markdown_of(&mut c));
    let mut other = db.admin();
    other
        .batch_execute(
            "SET datestyle = 'SQL, DMY'; SET intervalstyle = 'iso_8601'; SET timezone = 'Pacific/Kiritimati';
             SET standard_conforming_strings = off; SET search_path = pg_temp; SET backslash_quote = on;
             SET default_transaction_read_only = on; SET extra_float_digits = 3",
        )
        .unwrap();
    let second: String = other.value("SELECT public.idem_design_doc()");
    assert_eq!(first, without_figures(&second));
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
    c.batch_execute("SELECT idem_release('t', 'POST /b', 'k')").unwrap();
    for key in ["k", "l"] {
        claim_unregistered(&mut c, "POST /c", key);
        c.complete("t", "POST /c", key, 200, b"").unwrap();
    }
    assert_eq!(document(&mut c).rows("not registered"), [["POST /c", "finished claims"]]);
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
    c.batch_execute("SELECT idem_protect('POST /b')").unwrap();
    c.claim("t", "POST /b", "", b"").unwrap();
    c.batch_execute("SELECT idem_unprotect('POST /b')").unwrap();
    let doc = document(&mut db.admin());
    assert_eq!(
        doc.row_of("storage", "sweep")[1],
        "by the background worker: every 1 min 30 secs, in batches of 123 rows"
    );
    assert_eq!(doc.rows("not registered"), [["POST /b", "counters"]]);
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

#[test]
fn roles_are_shown_with_what_they_may_act_as() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    for kind in ["backup", "application", "reconciler", "operator"] {
        let role = db.role(kind);
        c.execute("SELECT idem_grant($1::text::name, $2)", &[&role, &kind]).unwrap();
        assert_eq!(document(&mut c).row_of("Roles", &role)[1], kind);
    }
    let mut operator = db.connect_as(&format!("{}_operator", db.name()));
    assert_eq!(without_figures(&markdown_of(&mut operator)), without_figures(&markdown_of(&mut c)));
    let mut application = db.connect_as(&format!("{}_application", db.name()));
    let refused = application.query("SELECT idem_design_doc()", &[]).unwrap_err();
    assert_eq!(refused.code().unwrap().code(), "42501");
    c.batch_execute("GRANT EXECUTE ON FUNCTION idem_stats_reset() TO PUBLIC").unwrap();
    assert_eq!(document(&mut c).row_of("Roles", "PUBLIC")[1], "single functions");
}

#[test]
fn functions_that_others_put_into_the_schema_are_not_run() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    let planter = db.role("planter");
    c.batch_execute(&format!("GRANT CREATE ON SCHEMA public TO {planter}")).unwrap();
    db.connect_as(&planter)
        .batch_execute(
            "CREATE FUNCTION _idem_markdown(text) RETURNS text LANGUAGE sql AS $$ SELECT 'planted' $$;
             CREATE FUNCTION _idem_markdown(name) RETURNS text LANGUAGE sql AS $$ SELECT 'planted' $$;
             CREATE FUNCTION _idem_markdown(anyelement, anyelement) RETURNS text LANGUAGE sql
             AS $$ SELECT 'planted' $$;
             CREATE FUNCTION _idem_markdown(name, boolean) RETURNS text LANGUAGE sql AS $$ SELECT 'planted' $$;
             CREATE FUNCTION _idem_markdown(varchar, boolean) RETURNS text LANGUAGE sql AS $$ SELECT 'planted' $$;
             CREATE FUNCTION format(text, text) RETURNS text LANGUAGE sql AS $$ SELECT 'planted' $$",
        )
        .unwrap();
    c.batch_execute("SELECT idem_protect('POST /a', effect => 'external', notes => 'a note')").unwrap();
    assert!(!markdown_of(&mut c).contains("planted"));
}

#[test]
fn findings_are_those_of_idem_health_in_its_order() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    c.batch_execute("ALTER INDEX idempotency_keys_pkey RENAME TO odd; ALTER TABLE idempotency_keys SET UNLOGGED")
        .unwrap();
    let rows = c.query("SELECT severity, finding FROM idem_health()", &[]).unwrap();
    let expected: Vec<[String; 2]> = rows.iter().map(|r| [r.get(0), r.get(1)]).collect();
    assert!(!expected.is_empty());
    let doc = document(&mut c);
    let shown: Vec<[String; 2]> =
        doc.rows("Open findings").iter().map(|r| [r[0].to_owned(), r[1].to_owned()]).collect();
    assert_eq!(shown, expected);
}

/// CASES 62
#[test]
fn quoting_of_all_identifiers_changes_nothing() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    c.batch_execute("SELECT idem_protect('POST /a', effect => 'external')").unwrap();
    let plain = without_figures(&markdown_of(&mut c));
    c.batch_execute("SET quote_all_identifiers = on").unwrap();
    assert_eq!(without_figures(&markdown_of(&mut c)), plain);
}

#[test]
fn psql_writes_the_document_as_it_is_from_any_schema() {
    let cluster = Cluster::shared();
    let db = cluster.empty_database("");
    let mut c = db.admin();
    c.batch_execute(r#"CREATE SCHEMA "odd | schema"; CREATE EXTENSION idempotency_enforcer SCHEMA "odd | schema""#)
        .unwrap();
    c.batch_execute(r#"SELECT "odd | schema".idem_protect('POST /a', effect => 'external')"#).unwrap();
    let output = cluster
        .installation()
        .client("psql")
        .args(["-X", "-At", "-h", "127.0.0.1", "-U", "postgres", "-d", db.name(), "-p", &cluster.port().to_string()])
        .args(["-c", r#"SELECT "odd | schema".idem_design_doc()"#])
        .output()
        .unwrap();
    let written = String::from_utf8(output.stdout).unwrap();
    let called: String = c.value(r#"SELECT "odd | schema".idem_design_doc()"#);
    assert_eq!(without_figures(&written), without_figures(&called));
    assert!(written.starts_with("# Idempotency design of database ") && written.contains("\n## 8. Open findings\n"));
    let doc = Document::read(&written);
    let statement = r#"SELECT * FROM "odd | schema".idem_reconcile(only_endpoint => 'POST /a');"#;
    assert_eq!(doc.row_of("reconciliation", "POST /a")[2], statement);
}

/// `docs/example-design.md` is what the registry below gives. With `WRITE_EXAMPLES=1` this test writes it.
#[test]
fn the_example_in_the_documentation_is_what_the_function_returns() {
    let cluster = Cluster::start(&["shared_preload_libraries = 'idempotency_enforcer'"]);
    cluster.connect().batch_execute("CREATE DATABASE shop").unwrap();
    let mut c = cluster.config("shop", "postgres").connect(postgres::NoTls).unwrap();
    c.batch_execute(
        "CREATE ROLE shop_api; CREATE ROLE shop_reconciler; CREATE ROLE shop_oncall; CREATE ROLE shop_backup;
         CREATE SCHEMA idempotency; CREATE EXTENSION idempotency_enforcer SCHEMA idempotency;
         SET search_path = idempotency;
         SELECT idem_grant('shop_api'), idem_grant('shop_reconciler', 'reconciler');
         SELECT idem_grant('shop_oncall', 'operator'), idem_grant('shop_backup', 'backup');
         SELECT idem_protect('POST /orders', expected_writes_per_day => 40000,
                             notes => 'Order and stock, one database.');
         SELECT idem_protect('POST /payments/{order}/charge', effect => 'external', retry_window => '3 days',
                             stuck_after => '2 minutes', expected_writes_per_day => 35000,
                             guesses => ARRAY['retry_window', 'expected_writes_per_day'],
                             notes => 'The provider keeps its keys for 7 days.');
         SELECT idem_protect('POST /newsletter', key_required => false, notes => 'Old app versions send no key.');
         UPDATE idempotency_endpoints SET created_at = '2026-11-02 09:00Z';
         SELECT idem_protect('POST /refunds', 'external');
         SELECT outcome FROM idem_claim('acct_1', 'POST /refunds', 'r-1', '{}'::text);
         SELECT idem_unprotect('POST /refunds', force => true)",
    )
    .unwrap();
    let written: String = c.value("SELECT idem_design_doc()");
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/example-design.md");
    if std::env::var_os("WRITE_EXAMPLES").is_some() {
        std::fs::write(path, format!("{written}\n")).unwrap();
    }
    let example = std::fs::read_to_string(path).unwrap();
    // Findings depend on the server.
    let stable = |text: &str| without_figures(text).split("\n## 8.").next().unwrap().trim_end().to_owned();
    assert_eq!(stable(&example), stable(&written));
}
