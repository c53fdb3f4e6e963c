//! The forms in which frameworks hand over headers and bodies.

use harness::{Calls, Cluster, Failure};
use postgres::Client;
use serde_json::{json, Value};

const E: &str = "POST /forms";

fn stored(c: &mut Client, headers: &Value) -> Option<Value> {
    c.batch_execute("DELETE FROM idempotency_keys").unwrap();
    c.claim("t", E, "k", b"").unwrap();
    c.execute("SELECT idem_complete('t', 'POST /forms', 'k', 200, ''::text, $1)", &[headers]).unwrap();
    c.claim("t", E, "k", b"").unwrap().response_headers
}

// CASES 59
#[test]
fn headers_as_frameworks_have_them() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    assert_eq!(stored(&mut c, &Value::Null), None);
    assert_eq!(stored(&mut c, &json!({"x": 1})), Some(json!([["x", "1"]])));
    let of_node = json!({"set-cookie": ["a=1, b", "c=2"], "content-type": "text/plain", "x-count": 2});
    let pairs =
        json!([["content-type", "text/plain"], ["set-cookie", "a=1, b"], ["set-cookie", "c=2"], ["x-count", "2"]]);
    let mut replayed = stored(&mut c, &of_node).unwrap().as_array().unwrap().clone();
    replayed.sort_by_key(|pair| pair[0].to_string());
    assert_eq!(Value::Array(replayed), pairs);
}

// CASES 73
#[test]
fn headers_that_frame_a_message_are_not_stored() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    let wrong =
        json!([["Content-Length", "99"], ["x", "y"], ["transfer-encoding", "chunked"], ["Connection", "close"]]);
    assert_eq!(stored(&mut c, &wrong), Some(json!([["x", "y"]])));
    assert_eq!(stored(&mut c, &json!({"content-length": 2})), Some(json!([])));
    // With or without them it is the same result.
    let again = "SELECT idem_complete('t', 'POST /forms', 'k', 200, ''::text, '[]')";
    assert!(!c.value::<bool>(again));
}

// CASES 74
#[test]
fn bytes_that_were_cast_to_text_are_not_stored_as_their_digits() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    for function in ["idem_complete", "idem_fail"] {
        c.claim("t", E, function, b"").unwrap();
        for cast in ["'{\"id\": 1}'::bytea::text", "'\\x7b7D'::text", "'\\x'::text"] {
            let refused =
                Failure::of(c.execute(&format!("SELECT {function}('t', '{E}', '{function}', 200, {cast})"), &[]));
            assert_eq!(refused.sqlstate, "22023", "{cast}: {refused:?}");
            assert!(refused.hint.contains("::bytea") && !refused.text().contains("7b"), "{refused:?}");
        }
        // Text that only begins like it is text, and the bytes of such text are bytes.
        for body in ["'\\x7b7'::text", "'\\x7b7d '::text", "'\\x7bzz'::text", "convert_to('\\x7b7d', 'UTF8')"] {
            let sql = format!("SELECT {function}('t', '{E}', '{function}', 200, {body})");
            assert!(c.value::<bool>(&sql), "{body}");
            c.batch_execute("DELETE FROM idempotency_keys").unwrap();
            c.claim("t", E, function, b"").unwrap();
        }
    }
    // What is only hashed is only compared: the same every time.
    let claim = "SELECT outcome FROM idem_claim('t', 'POST /forms', 'hex', '\\x7b7d'::text)";
    assert_eq!((c.value::<String>(claim), c.value::<String>(claim)), ("execute".into(), "in_progress".into()));
}
