//! How a claim ends: `idem_complete`, `idem_fail`, `idem_release`, their errors and what they store.

mod limits;
mod release;

use harness::{Arrival, Calls, Cluster, Failure};
use postgres::Client;
use serde_json::json;

const E: &str = "POST /x";

/// Every stored row, with the system columns that tell whether it was written.
fn rows_as_stored(c: &mut impl Calls) -> String {
    c.value("SELECT coalesce(string_agg(concat_ws('|', ctid, xmin, k), E'\\n'), '') FROM idempotency_keys k")
}

/// Calls a function with these arguments behind tenant, endpoint and key. What it returns: whether it did anything.
fn finish(c: &mut impl Calls, function: &str, rest: &str) -> Result<bool, postgres::Error> {
    Ok(c.rows(&format!("SELECT {function}('t', 'POST /x', 'k', {rest})"), &[])?[0].get(0))
}

fn claim(c: &mut Client) -> Arrival {
    c.claim("t", E, "k", b"{}").unwrap()
}

#[test]
fn a_success_and_a_failure_are_replayed_whole() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    for function in ["idem_complete", "idem_fail"] {
        c.batch_execute("DELETE FROM idempotency_keys").unwrap();
        claim(&mut c);
        finish(&mut c, function, r#"402, '\x00ff'::bytea, '[["b", "2"], ["a", "1"]]', 'charges/7'"#).unwrap();
        let replay = claim(&mut c);
        let expected = Arrival {
            outcome: "replay".into(),
            response_code: Some(402),
            response_headers: Some(json!([["b", "2"], ["a", "1"]])),
            response_body: Some(vec![0, 0xff]),
            resource_ref: Some("charges/7".into()),
            attempt: Some(1),
            provider_key: None,
            expires_at: replay.expires_at.clone(),
        };
        assert_eq!(replay, expected, "{function}");
    }
}

#[test]
fn the_same_result_again_is_false_and_writes_nothing() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    for function in ["idem_complete", "idem_fail"] {
        for result in [
            "204, NULL::bytea",
            "200, ''::bytea",
            "201, 'body'::text",
            r#"201, 'body'::text, '{"b": "2", "a": "1"}'"#,
            r#"201, NULL::text, '[["a", "1"], ["a", "2"]]', 'ref', 1"#,
            "201, repeat('x', 70000)::text, NULL, 'ref'",
        ] {
            c.batch_execute("DELETE FROM idempotency_keys").unwrap();
            claim(&mut c);
            assert!(finish(&mut c, function, result).unwrap(), "{function} {result}");
            let before = rows_as_stored(&mut c);
            assert!(!finish(&mut c, function, result).unwrap(), "{function} {result}");
            assert_eq!(rows_as_stored(&mut c), before, "{function} {result}");
        }
    }
    // An object and its pairs are the same headers.
    c.batch_execute("DELETE FROM idempotency_keys").unwrap();
    claim(&mut c);
    assert!(finish(&mut c, "idem_complete", r#"201, NULL::bytea, '{"a": "1"}'"#).unwrap());
    assert!(!finish(&mut c, "idem_complete", r#"201, NULL::bytea, '[["a", "1"]]'"#).unwrap());
}

/// Whatever differs, the first result stands: an answer that was sent is not taken back.
#[test]
fn another_result_is_refused_and_changes_nothing() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    claim(&mut c);
    finish(&mut c, "idem_complete", r#"200, 'SECRET'::text, '[["a", "SECRET"]]', 'ref'"#).unwrap();
    let before = rows_as_stored(&mut c);
    for (function, result) in [
        ("idem_fail", r#"200, 'SECRET'::text, '[["a", "SECRET"]]', 'ref'"#),
        ("idem_complete", r#"201, 'SECRET'::text, '[["a", "SECRET"]]', 'ref'"#),
        ("idem_complete", r#"200, 'SECRET2'::text, '[["a", "SECRET"]]', 'ref'"#),
        ("idem_complete", r#"200, NULL::text, '[["a", "SECRET"]]', 'ref'"#),
        ("idem_complete", r#"200, 'SECRET'::text, '[["A", "SECRET"]]', 'ref'"#),
        ("idem_complete", r#"200, 'SECRET'::text, NULL, 'ref'"#),
        ("idem_complete", r#"200, 'SECRET'::text, '[["a", "SECRET"]]'"#),
        ("idem_complete", r#"200, 'SECRET'::text, '[["a", "SECRET"]]', 'ref2'"#),
    ] {
        let refused = Failure::of(finish(&mut c, function, result));
        assert_eq!(refused.sqlstate, "ID002", "{function} {result}");
        assert!(refused.message.contains("\"k\"") && refused.message.contains("\"POST /x\""), "{refused:?}");
        assert!(refused.detail.contains("succeeded") && !refused.hint.is_empty(), "{refused:?}");
        assert!(!refused.text().contains("SECRET"), "{refused:?}");
        assert_eq!(rows_as_stored(&mut c), before);
    }
}

/// A 204, an empty 200 and a 202 are three answers, and each of them protects.
#[test]
fn no_body_and_an_empty_body_are_different_results() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    for (result, code, body, other) in [
        ("204, NULL::bytea", 204, None, "204, ''::bytea"),
        ("200, ''::bytea", 200, Some(vec![]), "200, NULL::bytea"),
        ("200, ''::text", 200, Some(vec![]), "200, NULL::text"),
        ("202, NULL::text", 202, None, "202, ''::text"),
        ("100, NULL::text", 100, None, "101, NULL::text"),
        ("599, NULL::text", 599, None, "598, NULL::text"),
    ] {
        c.batch_execute("DELETE FROM idempotency_keys").unwrap();
        claim(&mut c);
        finish(&mut c, "idem_complete", result).unwrap();
        let replay = claim(&mut c);
        assert_eq!((replay.outcome.as_str(), replay.response_code, replay.response_body), ("replay", Some(code), body));
        assert_eq!(Failure::of(finish(&mut c, "idem_complete", other)).sqlstate, "ID002", "{result}");
    }
}

#[test]
fn without_a_claim_there_is_nothing_to_finish() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    claim(&mut c);
    let before = rows_as_stored(&mut c);
    for function in ["idem_complete", "idem_fail"] {
        for scope in ["'t', 'POST /x', 'other'", "'u', 'POST /x', 'k'", "'t', 'POST /y', 'k'"] {
            let refused = Failure::of(c.query(&format!("SELECT {function}({scope}, 200, 'SECRET'::text)"), &[]));
            assert_eq!(refused.sqlstate, "ID001", "{function} {scope}");
            let [_, endpoint, key] = <[&str; 3]>::try_from(scope.split(", ").collect::<Vec<_>>()).unwrap();
            for name in [endpoint, key] {
                assert!(refused.message.contains(&name.replace('\'', "\"")), "{refused:?}");
            }
            assert!(!refused.detail.is_empty() && !refused.hint.is_empty() && !refused.text().contains("SECRET"));
        }
        // No such key can have been claimed.
        for key in ["NULL", "''", "repeat('k', 256)", "E'k\\n'"] {
            let refused =
                Failure::of(c.query(&format!("SELECT {function}('t', 'POST /x', {key}, 200, ''::text)"), &[]));
            assert_eq!(refused.sqlstate, "ID001", "{function} {key}");
            assert!(refused.message.contains("\"POST /x\""), "{refused:?}");
        }
    }
    assert_eq!(rows_as_stored(&mut c), before);
}

/// As after a reconciler has taken the claim over.
#[test]
fn an_owner_whose_claim_changed_hands_is_refused() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    claim(&mut c);
    c.batch_execute("UPDATE idempotency_keys SET attempt = 2").unwrap();
    for finished in [false, true] {
        let before = rows_as_stored(&mut c);
        for (function, rest) in [
            ("idem_complete", "200, 'SECRET'::text"),
            ("idem_complete", "200, 'SECRET'::text, attempt => 1"),
            ("idem_complete", "200, 'SECRET'::text, attempt => 3"),
            ("idem_complete", "200, 'SECRET'::text, attempt => -2147483648"),
            ("idem_fail", "200, 'SECRET'::text, attempt => NULL"),
            ("idem_release", "1"),
            ("idem_release", "NULL"),
            ("idem_release", "2147483647"),
        ] {
            let refused = Failure::of(finish(&mut c, function, rest));
            assert_eq!(refused.sqlstate, "ID003", "{function} {rest}");
            assert!(refused.message.contains("\"k\"") && refused.message.contains("\"POST /x\""), "{refused:?}");
            assert!(refused.detail.contains("attempt 2") && !refused.hint.is_empty(), "{refused:?}");
            assert!(!refused.text().contains("SECRET"), "{refused:?}");
        }
        assert_eq!(rows_as_stored(&mut c), before);
        if !finished {
            finish(&mut c, "idem_complete", "200, 'SECRET'::text, attempt => 2").unwrap();
            assert_eq!(claim(&mut c).attempt, Some(2));
        }
    }
}

/// The work fails after a savepoint: its writes go, its failure stays.
#[test]
fn a_failure_after_rollback_to_a_savepoint_is_stored_without_the_work() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    c.batch_execute("CREATE TABLE work (n int); SELECT idem_protect('POST /x')").unwrap();
    c.batch_execute(
        "BEGIN;
         SELECT idem_claim('t', 'POST /x', 'k', '{}'::text);
         SAVEPOINT work;
         INSERT INTO work VALUES (1);
         SELECT idem_complete('t', 'POST /x', 'k', 201, 'created'::text);
         ROLLBACK TO work;
         SELECT idem_fail('t', 'POST /x', 'k', 402, 'declined'::text);
         COMMIT",
    )
    .unwrap();
    let replay = claim(&mut c);
    assert_eq!((replay.response_code, replay.response_body.as_deref()), (Some(402), Some(&b"declined"[..])));
    assert_eq!(c.value::<i64>("SELECT count(*) FROM work"), 0);
}

#[test]
fn rolling_everything_back_leaves_no_row() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    for register in ["SELECT 1", "SELECT idem_protect('POST /x')", "SELECT idem_protect('POST /x', 'external')"] {
        c.batch_execute(register).unwrap();
        let mut t = c.transaction().unwrap();
        t.claim("t", E, "k", b"first").unwrap();
        t.complete("t", E, "k", 200, b"ok").unwrap();
        t.rollback().unwrap();
        assert_eq!(c.value::<i64>("SELECT count(*) FROM idempotency_keys"), 0);
        let mut t = c.transaction().unwrap();
        assert_eq!(t.claim("t", E, "k", b"second").unwrap().outcome, "execute");
    }
}

#[test]
fn a_rolled_back_completion_leaves_the_claim_open() {
    let db = Cluster::shared().lenient_database();
    let (mut c, mut other) = (db.admin(), db.admin());
    claim(&mut c);
    let mut t = other.transaction().unwrap();
    t.complete("t", E, "k", 200, b"ok").unwrap();
    t.rollback().unwrap();
    assert_eq!(claim(&mut c).outcome, "in_progress");
    // Any session may finish it: nothing depends on the one that claimed.
    other.fail("t", E, "k", 500, b"no").unwrap();
    assert_eq!(claim(&mut c).response_code, Some(500));
}
