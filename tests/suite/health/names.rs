//! Names that would be something else than names. CASES 52 and 61: each remedy is one statement on one line, and works.

use super::*;
use harness::Calls;

const HOSTILE: &[&str] = &[
    "POST /a\n'; DROP TABLE idempotency_keys; --",
    "POST /b'; DROP TABLE idempotency_keys; --",
    "POST /c\\'; DROP TABLE idempotency_keys; --\r\n\\! exit",
    "POST /d\u{2028}\u{202e}\"\u{7f}\t",
    "POST /e $$ :name ${x} %s %1$s é",
];

#[test]
fn a_remedy_holds_a_name_as_a_literal_whatever_is_in_it() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    c.batch_execute("ALTER TABLE idempotency_endpoints DROP CONSTRAINT ttl_above_retry_window").unwrap();
    mend(&db, &the(health(&mut c), "critical", "Table \"public.idempotency_endpoints\" has lost its rule").remedy);
    for endpoint in HOSTILE {
        // Registered with too short a ttl, and used without being registered.
        c.execute("SELECT idem_protect($1, 'external')", &[endpoint]).unwrap();
        c.query("SELECT idem_claim('t', $1, 'k', ''::bytea, '/target')", &[endpoint]).unwrap();
        c.batch_execute(
            "ALTER TABLE idempotency_endpoints DROP CONSTRAINT ttl_above_retry_window;
             UPDATE idempotency_endpoints SET ttl = '25 hours', retry_window = '30 hours'",
        )
        .unwrap();
        let printed = serde_json::to_string(endpoint).unwrap();
        let found = the(health(&mut c), "critical", "The ttl of endpoint");
        assert!(found.finding.contains(&printed) || endpoint.contains('\u{7f}'), "{found:?}");
        mend(&db, &found.remedy);
        mend(&db, &the(health(&mut c), "critical", "Table \"public.idempotency_endpoints\" has lost its rule").remedy);
        assert!(about_tables(&mut c).is_empty(), "{:#?}", about_tables(&mut c));
        c.batch_execute("DELETE FROM idempotency_endpoints").unwrap();
        mend(&db, &the(health(&mut c), "info", "Endpoint ").remedy);
        assert!(about_tables(&mut c).is_empty(), "{:#?}", about_tables(&mut c));
        assert_eq!(c.value::<String>("SELECT endpoint FROM idempotency_endpoints"), *endpoint);
        c.batch_execute("DELETE FROM idempotency_endpoints; DELETE FROM idempotency_keys").unwrap();
    }
}

/// A remedy that could not work would be no remedy. CASES 49 and 61.
#[test]
fn no_statement_is_proposed_for_a_name_that_cannot_be_registered() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    c.claim("t", "(other endpoints)", "k", b"").unwrap();
    let found = the(health(&mut c), "info", "Endpoint \"(other endpoints)\" is in use and not registered");
    assert!(found.remedy.starts_with("-- This name is reserved"), "{found:?}");
    mend(&db, &found.remedy);
}

#[test]
fn literals_and_identifiers_are_read_as_what_they_were_made_of() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    for name in HOSTILE.iter().copied().chain(["", "plain", "\"", "select", "a\"b\nc", "\\", "\u{1}\\\u{9f}"]) {
        let row = c.query_one("SELECT _idem_literal($1), _idem_identifier($1)", &[&name]).unwrap();
        let (literal, identifier): (String, String) = (row.get(0), row.get(1));
        assert!(!literal.contains(['\n', '\r', '\u{2028}', '\u{202e}']), "{literal:?}");
        assert!(!identifier.contains(['\n', '\r', '\u{2028}', '\u{202e}']), "{identifier:?}");
        assert_eq!(c.value::<String>(&format!("SELECT {literal}")), name);
        if !name.is_empty() {
            let rows = c.query(&format!("SELECT 1 AS {identifier}"), &[]).unwrap();
            assert_eq!(rows[0].columns()[0].name(), name);
        }
    }
}

#[test]
fn the_names_in_a_list_are_those_that_postgresql_reads() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    for (list, names) in
        [("", vec![]), ("a", vec!["a"]), (" a , \"b, c\",\"say \"\"hi\"\"\" ", vec!["a", "b, c", "say \"hi\""])]
    {
        let found: Vec<String> = c
            .query("SELECT name FROM _idem_names_in($1) ORDER BY n", &[&list])
            .unwrap()
            .iter()
            .map(|r| r.get(0))
            .collect();
        assert_eq!(found, names, "{list:?}");
    }
}

// CASES 61
#[test]
fn a_database_that_is_left_out_is_taken_in_whatever_its_name_and_the_list() {
    let cluster = Cluster::start(&[
        "shared_preload_libraries = 'idempotency_enforcer'",
        "idempotency_enforcer.databases = ' \"a, b\" , say ''hi'''",
    ]);
    let db = cluster.database();
    let mut c = db.admin();
    mend(&db, &the(health(&mut c), "warning", "The worker does not visit this database").remedy);
    harness::wait_until("the reload", || c.value("SELECT _idem_visits(current_database())"));
    assert!(c.value::<bool>("SELECT _idem_visits('a, b') AND _idem_visits('say ''hi''') AND NOT _idem_visits('a')"));
}
