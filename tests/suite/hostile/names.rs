//! Names in hints and errors: statements that somebody will run as they are, messages that must survive every encoding.

use crate::security::ODD_SCHEMA;
use harness::{Calls, Cluster, Database, Failure};

/// What an endpoint may be called by somebody who knows where its name will be shown.
const HOSTILE: &[&str] = &[
    "POST /x\n'; DROP TABLE idempotency_keys; --",
    "POST /\\'; SELECT 1; --\\",
    "POST /\"\u{1}\t\r\n\u{7f}",
    "POST /$$ ''' \\\\' E'\\n",
    "POST /\u{85}é",
];
/// What Latin-1 does not have: a line separator, a change of direction, characters of two units of UTF-16.
const HOSTILE_BEYOND_LATIN1: &[&str] = &["POST /\u{2028}\u{202e}\\", "POST /😀\n\u{e0001}"];

fn databases() -> impl Iterator<Item = (Database<'static>, &'static str, bool)> {
    [
        ("", ODD_SCHEMA, true),
        ("TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'", "plain", true),
        ("TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'", ODD_SCHEMA, false),
    ]
    .into_iter()
    .map(|(options, schema, all)| {
        let db = Cluster::shared().empty_database(options);
        let create = format!("CREATE SCHEMA \"{schema}\"; CREATE EXTENSION idempotency_enforcer SCHEMA \"{schema}\"");
        db.admin().batch_execute(&create).unwrap();
        (db, schema, all)
    })
}

// CASES 52
#[test]
fn the_hint_for_an_unknown_endpoint_is_one_statement_on_one_line_that_registers_it() {
    for (db, schema, all) in databases() {
        let mut c = db.admin();
        for endpoint in HOSTILE.iter().chain(HOSTILE_BEYOND_LATIN1.iter().filter(|_| all)) {
            let claim = format!("SELECT outcome FROM \"{schema}\".idem_claim('t', $1, 'k', ''::text, '')");
            let refused = Failure::of(c.query(&claim, &[endpoint]));
            assert_eq!(refused.sqlstate, "ID006", "{endpoint:?}: {refused:?}");
            let from = refused.hint.find("SELECT ").expect("a statement");
            let to = refused.hint.rfind(");").expect("its end") + 2;
            let statement = &refused.hint[from..to];
            let is_shown = |c: char| !c.is_control() && !"\u{2028}\u{202e}\u{e0001}".contains(c);
            assert!(refused.hint.chars().all(is_shown), "{endpoint:?}: {:?}", refused.hint);
            for strings in ["on", "off"] {
                let mut tx = c.transaction().unwrap();
                tx.batch_execute(&format!("SET LOCAL standard_conforming_strings = {strings}; {statement}"))
                    .unwrap_or_else(|e| panic!("{statement}: {e:?}"));
                let registered = format!("SELECT string_agg(endpoint, ',') FROM \"{schema}\".idempotency_endpoints");
                assert_eq!(tx.value::<String>(&registered), **endpoint, "{statement}");
            }
        }
    }
}

/// A message that cannot be converted would be another error than the one that it tells of.
#[test]
fn names_beyond_ascii_are_shown_in_every_encoding() {
    for (db, schema, _) in databases() {
        let mut admin = db.admin();
        let role = db.role("mallory");
        admin
            .batch_execute(&format!(
                "SET search_path = \"{schema}\"; SELECT idem_protect('POST /x', 'external');
                 CREATE FUNCTION spy() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$;
                 ALTER FUNCTION spy() OWNER TO {role};
                 CREATE TRIGGER \"Spión\" AFTER INSERT ON idempotency_keys EXECUTE FUNCTION spy()"
            ))
            .unwrap();
        let refused = Failure::of(admin.claim("t", "POST /x", "k", b""));
        assert_eq!(refused.sqlstate, "55000", "{refused:?}");
        assert!(refused.message.contains("Spión"), "{refused:?}");
    }
}
