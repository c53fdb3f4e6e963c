//! Bodies and headers, byte for byte, in every encoding.

mod encodings;
mod forms;
mod headers;

use harness::{Calls, Cluster};
use rand::RngCore;

const E: &str = "POST /x";

/// Bodies that a text column, a C string or a JSON column would spoil.
fn difficult_bodies() -> Vec<Vec<u8>> {
    let mut random = vec![0; 64 * 1024];
    rand::rng().fill_bytes(&mut random);
    let every_byte: Vec<u8> = (0..=255).collect();
    let backwards: Vec<u8> = (0..=255).rev().collect();
    let mut bodies: Vec<Vec<u8>> = [
        &b""[..],
        b"\0",
        b"a\0b",
        b"\xff",
        b"line\r\nline\r\n\r\n",
        b"\xed\xa0\x80",
        b"\xc3",
        b"\xef\xbb\xbf{}",
        b"\\x00ff",
        b"\\000",
        b" {\"b\":1,\"a\":1.0, \"a\":2} ",
        b"caf\xc3\xa9 cafe\xcc\x81",
    ]
    .map(<[u8]>::to_vec)
    .into();
    bodies.extend([every_byte, backwards, random, vec![0; 64 * 1024]]);
    bodies
}

#[test]
fn every_body_is_hashed_and_replayed_as_it_was() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    for (i, body) in difficult_bodies().into_iter().enumerate() {
        let key = format!("k{i}");
        assert_eq!(c.claim("t", E, &key, &body).unwrap().outcome, "execute");
        let hashed = "SELECT request_hash = sha256($2::bytea) FROM idempotency_keys WHERE key = $1";
        assert!(c.query_one(hashed, &[&key, &body]).unwrap().get::<_, bool>(0), "body {i}");
        if i % 2 == 0 {
            c.complete("t", E, &key, 200, &body).unwrap();
        } else {
            c.fail("t", E, &key, 500, &body).unwrap();
        }
        let replay = c.claim("t", E, &key, &body).unwrap();
        assert_eq!(replay.outcome, "replay");
        assert!(replay.response_body.as_deref() == Some(&body[..]), "body {i} was replayed as another");
    }
}

/// A driver that sends a string must get what the string says: no escape is read, nothing is normalized.
#[test]
fn text_and_bytea_are_the_same_bytes() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    let claim = "SELECT outcome, response_body FROM idem_claim('t', 'POST /x', $1, $2::text)";
    let complete = "SELECT idem_complete('t', 'POST /x', $1, 200, $2::text)";
    for (i, text) in [
        "",
        r#"{"path":"C:\\temp\\new","quote":"\"","unicode":"\u0000\ud800"}"#,
        r"\x00ff ",
        r"\000 \\ \' '' ''' $1 $$",
        "tab\tline\r\nend",
        "é e\u{301} 😀 \u{feff}\u{202e}\u{10ffff}",
        r#"{"b":1,"a":1.0}"#,
    ]
    .into_iter()
    .enumerate()
    {
        let key = format!("k{i}");
        let first = c.query_one(claim, &[&key, &text]).unwrap();
        assert_eq!(first.get::<_, &str>(0), "execute");
        assert_eq!(c.claim("t", E, &key, text.as_bytes()).unwrap().outcome, "in_progress", "{text:?}");
        c.execute(complete, &[&key, &text]).unwrap();
        // The same bytes are the same result.
        c.complete("t", E, &key, 200, text.as_bytes()).unwrap();
        let replay = c.query_one(claim, &[&key, &text]).unwrap();
        assert_eq!(replay.get::<_, &str>(0), "replay");
        assert_eq!(replay.get::<_, &[u8]>(1), text.as_bytes());
    }
    // idem_fail has the overload too.
    c.claim("t", E, "f", b"").unwrap();
    c.execute("SELECT idem_fail('t', 'POST /x', 'f', 400, $1::text)", &[&r"\000"]).unwrap();
    assert_eq!(c.claim("t", E, "f", b"").unwrap().response_body.as_deref(), Some(&br"\000"[..]));
}

/// Large values are compressed and moved out of line: what is hashed and replayed is the value.
#[test]
fn a_stored_value_passed_on_from_a_table_is_read_whole() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    c.batch_execute(
        "CREATE TABLE documents (b bytea, t text, h jsonb, r text);
         ALTER TABLE documents ALTER b SET STORAGE external, ALTER r SET STORAGE external;
         INSERT INTO documents VALUES (repeat('long', 10000)::bytea, repeat('long', 10000),
                                       jsonb_build_array(jsonb_build_array('a', repeat('long', 10000))),
                                       repeat('long', 512))",
    )
    .unwrap();
    c.batch_execute(
        "SELECT idem_claim('t', 'POST /x', 'b', b) FROM documents;
         SELECT idem_claim('t', 'POST /x', 't', t) FROM documents;
         SELECT idem_complete('t', 'POST /x', 'b', 200, b, h, r) FROM documents;
         SELECT idem_complete('t', 'POST /x', 't', 200, t, h, r) FROM documents",
    )
    .unwrap();
    let long = "long".repeat(10_000);
    for key in ["b", "t"] {
        let replay = c.claim("t", E, key, long.as_bytes()).unwrap();
        assert_eq!(replay.outcome, "replay");
        assert!(replay.response_body.as_deref() == Some(long.as_bytes()));
        assert!(replay.resource_ref == Some("long".repeat(512)));
        assert!(replay.response_headers == Some(serde_json::json!([["a", long]])));
    }
}
