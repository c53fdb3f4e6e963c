//! `idem_design_doc`: the design document is complete, true, and readable whatever the names in it.

mod markdown;
mod names;
mod server;
mod sessions;

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
fn findings_are_those_of_idem_health_in_its_order() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    c.batch_execute(
        "SELECT idem_protect('POST /a');
         ALTER TABLE idempotency_endpoints DROP CONSTRAINT ttl_at_least_a_day, DROP CONSTRAINT ttl_above_retry_window;
         UPDATE idempotency_endpoints SET ttl = '12:30:00';
         ALTER INDEX idempotency_keys_pkey RENAME TO odd; ALTER TABLE idempotency_keys SET UNLOGGED",
    )
    .unwrap();
    let rows = c.query("SELECT severity, finding FROM idem_health()", &[]).unwrap();
    let expected: Vec<[String; 2]> = rows.iter().map(|r| [r.get(0), r.get(1)]).collect();
    // With intervals as they are there.
    assert!(expected.iter().any(|[_, finding]| finding.contains("is 12:30:00, with a retry window of 24:00:00")));
    let doc = document(&mut c);
    let shown: Vec<[String; 2]> =
        doc.rows("Open findings").iter().map(|r| [r[0].to_owned(), r[1].to_owned()]).collect();
    assert_eq!(shown, expected);
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
