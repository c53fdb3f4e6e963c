//! Databases of other encodings: text is hashed and stored as UTF-8 all the same, so that a key store that is
//! restored into another database still knows its requests.

use super::E;
use harness::{Calls, Cluster, Database, Failure};
use serde_json::json;

const LATIN1: &str = "TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'";
const SQL_ASCII: &str = "TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'";

fn database(options: &str) -> Database<'static> {
    let db = Cluster::shared().empty_database(options);
    db.admin().batch_execute("CREATE EXTENSION idempotency_enforcer").unwrap();
    db.let_unregistered_through();
    db
}

#[test]
fn text_is_hashed_and_stored_as_utf8_in_every_encoding() {
    for options in [LATIN1, SQL_ASCII] {
        let db = database(options);
        let mut c = db.admin();
        let (tenant, endpoint, key) = ("ténant", "POST /é", "clé");
        let claim = "SELECT outcome, response_body, resource_ref FROM idem_claim($1, $2, $3, $4::text)";
        c.query_one(claim, &[&tenant, &endpoint, &key, &"demandé"]).unwrap();
        let hash: Vec<u8> = c.value("SELECT request_hash FROM idempotency_keys");
        let expected: Vec<u8> = Cluster::shared().connect().value("SELECT sha256(convert_to('demandé', 'UTF8'))");
        assert_eq!(hash, expected, "{options}");
        // The bytea overload gets the same bytes.
        assert_eq!(c.claim(tenant, endpoint, key, "demandé".as_bytes()).unwrap().outcome, "in_progress");
        let complete = "SELECT idem_complete($1, $2, $3, 200, $4::text, NULL, $5)";
        c.execute(complete, &[&tenant, &endpoint, &key, &"réponse", &"réf"]).unwrap();
        let replay = c.query_one(claim, &[&tenant, &endpoint, &key, &"demandé"]).unwrap();
        assert_eq!(replay.get::<_, &str>(0), "replay");
        assert_eq!(replay.get::<_, &[u8]>(1), "réponse".as_bytes());
        assert_eq!(replay.get::<_, &str>(2), "réf");
    }
}

#[test]
fn the_provider_key_does_not_depend_on_the_encoding() {
    let keys = [LATIN1, SQL_ASCII, "TEMPLATE template0 ENCODING 'UTF8'"].map(|options| {
        let db = database(options);
        let mut c = db.admin();
        c.batch_execute("SELECT idem_protect('POST /é', 'external')").unwrap();
        c.claim("ténant", "POST /é", "clé", b"{}").unwrap().provider_key.expect("a provider key")
    });
    assert_eq!([keys[1], keys[2]], [keys[0]; 2]);
}

/// 255 characters are 255 in every encoding, however many bytes they take.
#[test]
fn keys_are_measured_in_characters_in_every_encoding() {
    for (options, character) in [(LATIN1, "é"), (SQL_ASCII, "é"), (SQL_ASCII, "😀")] {
        let db = database(options);
        let mut c = db.admin();
        let longest = c.claim("t", E, &character.repeat(255), b"{}").unwrap();
        assert_eq!(longest.outcome, "execute", "{options}");
        assert_eq!(c.claim("t", E, &character.repeat(256), b"{}").unwrap().outcome, "key_invalid", "{options}");
        // U+0085 is a control character, in LATIN1 a single byte.
        assert_eq!(c.claim("t", E, "\u{85}", b"{}").unwrap().outcome, "key_invalid", "{options}");
    }
}

#[test]
fn headers_beyond_ascii_are_replayed_in_every_encoding() {
    for options in [LATIN1, SQL_ASCII] {
        let db = database(options);
        let mut c = db.admin();
        for (key, headers) in [("pairs", json!([["x", "naïve"]])), ("object", json!({"x": "naïve"}))] {
            c.claim("t", E, key, b"{}").unwrap();
            c.execute("SELECT idem_complete('t', 'POST /x', $1, 200, ''::text, $2)", &[&key, &headers])
                .unwrap_or_else(|e| panic!("{options} {key}: {e:?}"));
            let replay = c.claim("t", E, key, b"{}").unwrap();
            assert_eq!(replay.response_headers, Some(json!([["x", "naïve"]])), "{options} {key}");
        }
    }
}

#[test]
fn errors_show_names_beyond_ascii_in_every_encoding() {
    for options in [LATIN1, SQL_ASCII] {
        let db = database(options);
        let mut c = db.admin();
        let refused = Failure::of(c.complete("ténant", "POST /é", "clé", 200, b""));
        assert_eq!(refused.sqlstate, "ID001");
        assert!(refused.message.contains("\"POST /é\"") && refused.message.contains("\"clé\""), "{refused:?}");
        assert!(refused.detail.contains("\"ténant\""), "{refused:?}");
    }
}

/// Such a database passes any bytes as text. Bodies are taken as they are; a name must be text everywhere.
#[test]
fn sql_ascii_takes_any_bytes_as_body_and_refuses_them_as_names() {
    let db = database(SQL_ASCII);
    let mut c = db.admin();
    c.batch_execute(r"SELECT idem_claim('t', 'POST /x', 'k', E'\xff\xfe'::text)").unwrap();
    assert_eq!(c.claim("t", E, "k", b"\xff\xfe").unwrap().outcome, "in_progress");
    c.batch_execute(r"SELECT idem_complete('t', 'POST /x', 'k', 200, E'\xfe\xff'::text)").unwrap();
    assert_eq!(c.claim("t", E, "k", b"\xff\xfe").unwrap().response_body.as_deref(), Some(&b"\xfe\xff"[..]));
    for names in [r"E't\xff', 'e', 'k'", r"'t', E'e\xff', 'k'"] {
        for rest in ["idem_claim({}, ''::text)", "idem_complete({}, 200, ''::text)", "idem_release({})"] {
            let refused = Failure::of(c.query(&format!("SELECT {}", rest.replace("{}", names)), &[]));
            assert_eq!(refused.sqlstate, "22021", "{names}");
            assert!(!refused.detail.is_empty() && !refused.hint.is_empty());
        }
    }
    // CASES 75: a key is the client's, and so is its fault.
    let key = r"'t', 'e', E'k\xff'";
    assert_eq!(c.value::<String>(&format!("SELECT outcome FROM idem_claim({key}, ''::text)")), "key_invalid");
    let refused = Failure::of(c.query(&format!("SELECT idem_complete({key}, 200, ''::text)"), &[]));
    assert_eq!(refused.sqlstate, "ID001");
    assert!(!c.value::<bool>(&format!("SELECT idem_release({key})")));
}
