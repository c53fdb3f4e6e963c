//! The fingerprint covers the request: two that differ in their path only are told apart.

use harness::{Calls, Cluster, Failure};
use postgres::Client;
use sha2::{Digest, Sha256};

const REFUND: &str = "POST /orders/{id}/refund";

fn claim(c: &mut Client, endpoint: &str, target: Option<&str>) -> Result<(String, Option<Vec<u8>>), postgres::Error> {
    let sql = "SELECT outcome, response_body FROM idem_claim('t', $1, 'k', ''::bytea, $2)";
    c.query_one(sql, &[&endpoint, &target]).map(|row| (row.get(0), row.get(1)))
}

// CASES 37
#[test]
fn one_key_for_two_orders_never_gets_the_first_ones_answer() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    c.batch_execute(&format!("SELECT idem_protect('{REFUND}')")).unwrap();
    c.batch_execute("BEGIN").unwrap();
    assert_eq!(claim(&mut c, REFUND, Some("/orders/1/refund")).unwrap().0, "execute");
    c.complete("t", REFUND, "k", 200, b"refunded 1").unwrap();
    c.batch_execute("COMMIT").unwrap();
    assert_eq!(claim(&mut c, REFUND, Some("/orders/2/refund")).unwrap().0, "key_reused");
    assert_eq!(claim(&mut c, REFUND, Some("")).unwrap().0, "key_reused");
    let replay = claim(&mut c, REFUND, Some("/orders/1/refund")).unwrap();
    assert_eq!(replay, ("replay".into(), Some(b"refunded 1".to_vec())));
    let refused = Failure::of(claim(&mut c, REFUND, None));
    assert_eq!(refused.sqlstate, "22023", "{refused:?}");
    assert!(refused.message.contains("request_target") && refused.message.contains(REFUND), "{refused:?}");
    assert!(refused.hint.contains("path and query"), "{refused:?}");
}

#[test]
fn a_template_is_recognized_before_anything_else_is_looked_at() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    // Not registered, and no key: the missing target comes first.
    for endpoint in ["POST /o/{id}", "POST /o/:id", "POST /o/*", "POST /o/<id>", "POST /o/[id]"] {
        let sql = "SELECT outcome FROM idem_claim('t', $1, NULL, ''::bytea)";
        assert_eq!(Failure::of(c.query_one(sql, &[&endpoint])).sqlstate, "22023", "{endpoint}");
    }
    // Where the target is optional it counts all the same.
    c.batch_execute("SELECT idem_protect('POST /pay')").unwrap();
    c.batch_execute("BEGIN").unwrap();
    assert_eq!(claim(&mut c, "POST /pay", None).unwrap().0, "execute");
    c.complete("t", "POST /pay", "k", 200, b"").unwrap();
    c.batch_execute("COMMIT").unwrap();
    assert_eq!(claim(&mut c, "POST /pay", Some("")).unwrap().0, "key_reused");
    assert_eq!(claim(&mut c, "POST /pay", None).unwrap().0, "replay");
}

#[test]
fn the_stored_fingerprint_is_the_documented_formula() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    let sha = |bytes: &[u8]| Sha256::digest(bytes).to_vec();
    let body = "{\"amount\": 5, \"note\": \"é\"}";
    for (key, target) in [("plain", None), ("empty", Some("")), ("path", Some("/orders/1?x=é"))] {
        let expected = match target {
            None => sha(body.as_bytes()),
            Some(target) => sha(&[sha(target.as_bytes()), sha(body.as_bytes())].concat()),
        };
        for call in [
            "$2::text, $3",
            "convert_to($2::text, 'UTF8'), $3",
            "NULL::bytea, $3, sha256(convert_to($2::text, 'UTF8'))",
        ] {
            let sql = format!("SELECT outcome FROM idem_claim('t', 'POST /x', $1, {call})");
            c.query_one(&sql, &[&format!("{key} {call}"), &body, &target]).unwrap();
        }
        let stored = c
            .query("SELECT request_hash FROM idempotency_keys WHERE starts_with(key, $1)", &[&format!("{key} ")])
            .unwrap();
        assert_eq!(stored.len(), 3);
        assert!(stored.iter().all(|row| row.get::<_, Vec<u8>>(0) == expected), "{key}");
    }
}
