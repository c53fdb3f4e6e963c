//! Headers are an ordered list: two of a name are two, and a comma splits nothing.

use super::E;
use harness::{Calls, Cluster, Failure};
use serde_json::{json, Value};

/// Stores these headers for a new key and returns them as they are replayed.
fn replayed(c: &mut postgres::Client, headers: &Value) -> Option<Value> {
    c.batch_execute("DELETE FROM idempotency_keys").unwrap();
    c.claim("t", E, "k", b"").unwrap();
    c.execute("SELECT idem_complete('t', 'POST /x', 'k', 200, ''::text, $1)", &[headers]).unwrap();
    c.claim("t", E, "k", b"").unwrap().response_headers
}

#[test]
fn repeated_names_and_commas_come_back_unsplit_and_in_order() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    for headers in [
        json!([
            ["Set-Cookie", "a=1; Expires=Wed, 09 Jun 2027 10:18:14 GMT"],
            ["Content-Disposition", "attachment; filename=\"a,b.txt\""],
            ["set-cookie", "b=2; Expires=Thu, 10 Jun 2027 10:18:14 GMT"],
            ["A", ""],
            ["Set-Cookie", "a=1; Expires=Wed, 09 Jun 2027 10:18:14 GMT"]
        ]),
        json!([["x", "é \\ \" ' \t 😀"]]),
        json!([]),
    ] {
        assert_eq!(replayed(&mut c, &headers), Some(headers));
    }
}

#[test]
fn an_object_is_stored_as_pairs() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    let headers = json!({"content-type": "application/json", "x": "a, b"});
    assert_eq!(replayed(&mut c, &headers), Some(json!([["content-type", "application/json"], ["x", "a, b"]])));
    let headers = json!({"x-list": ["a, b", "c"], "x-none": [], "x-number": 10.5});
    assert_eq!(replayed(&mut c, &headers), Some(json!([["x-list", "a, b"], ["x-list", "c"], ["x-number", "10.5"]])));
    assert_eq!(replayed(&mut c, &json!({})), Some(json!([])));
    assert!(c.value::<bool>("SELECT response_headers = '[]' FROM idempotency_keys"));
}

#[test]
fn no_headers_are_replayed_as_null() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    c.claim("t", E, "k", b"").unwrap();
    c.complete("t", E, "k", 200, b"").unwrap();
    assert_eq!(c.claim("t", E, "k", b"").unwrap().response_headers, None);
    assert_eq!(replayed(&mut c, &Value::Null), None, "null is none");
    assert!(c.value::<bool>("SELECT response_headers IS NULL FROM idempotency_keys"));
}

#[test]
fn malformed_headers_are_refused_and_the_claim_stays_open() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    c.claim("t", E, "k", b"").unwrap();
    for headers in [
        "\"SECRET\"",
        "7",
        "true",
        r#"["a", "SECRET"]"#,
        r#"[["a"]]"#,
        r#"[["a", "SECRET", "c"]]"#,
        r#"[["a", 1]]"#,
        r#"[["a", null]]"#,
        r#"[[null, "SECRET"]]"#,
        r#"[["a", ["SECRET"]]]"#,
        r#"[{"a": "SECRET"}]"#,
        r#"[["ok", "ok"], "SECRET"]"#,
        r#"{"a": true}"#,
        r#"{"a": null}"#,
        r#"{"a": {"b": "SECRET"}}"#,
        r#"{"a": ["SECRET", 1]}"#,
        r#"{"a": [["SECRET"]]}"#,
        r#"{"a": ["SECRET\n"]}"#,
        r#"[["content-length", "SECRET\r\n"]]"#,
        r#"{"": "SECRET"}"#,
        r#"[["a b", "SECRET"]]"#,
        r#"[["a:", "SECRET"]]"#,
        r#"[["a", "SECRET\r\nSet-Cookie: b"]]"#,
        r#"[["a\n", "SECRET"]]"#,
    ] {
        for function in ["idem_complete", "idem_fail"] {
            let sql = format!("SELECT {function}('t', 'POST /x', 'k', 200, 'SECRET'::text, $1::text::jsonb)");
            let refused = Failure::of(c.query(&sql, &[&headers]));
            assert_eq!(refused.sqlstate, "22023", "{headers}");
            assert!(!refused.detail.is_empty() && !refused.hint.is_empty(), "{refused:?}");
            assert!(!refused.text().contains("SECRET"), "{refused:?}");
        }
    }
    assert_eq!(c.claim("t", E, "k", b"").unwrap().outcome, "in_progress");
}

/// What a JSON parser gives up on is refused like any other document that is no headers.
#[test]
fn deeply_nested_and_huge_documents_are_refused_too() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    c.claim("t", E, "k", b"").unwrap();
    let mut otherwise = Vec::new();
    for headers in [
        format!("{}{}", "[".repeat(1000), "]".repeat(1000)),
        r#"[["a", 1e400]]"#.into(),
        r#"{"a": [1e400]}"#.into(),
        r#"{"a": 1e70000}"#.into(),
        json!([["a", "x".repeat(10_000_000)]]).to_string(),
        format!("[{}1]", "1, ".repeat(100_000)),
    ] {
        let refused = Failure::of(
            c.query("SELECT idem_complete('t', 'POST /x', 'k', 200, ''::text, $1::text::jsonb)", &[&headers]),
        );
        if refused.sqlstate != "22023" {
            otherwise.push(refused);
        }
    }
    assert!(otherwise.is_empty(), "{otherwise:?}");
}
