//! What a request is answered: each outcome of `idem_claim`, and the results it replays.

mod provider;
mod retention;

use harness::{Arrival, Calls, Cluster};
use serde_json::{json, Value};

const E: &str = "POST /x";
const COLUMNS: &str = "outcome, response_code, response_headers, response_body, resource_ref, attempt, provider_key,
                       expires_at::text";

/// `idem_claim` with these arguments, in SQL.
fn claim_sql(c: &mut impl Calls, arguments: &str) -> Arrival {
    let mut rows = c.rows(&format!("SELECT {COLUMNS} FROM idem_claim({arguments})"), &[]).unwrap();
    assert_eq!(rows.len(), 1, "idem_claim returns exactly one row: {arguments}");
    rows.remove(0).into()
}

/// Every stored row, with the system columns that tell whether it was written or locked.
fn rows_as_stored(c: &mut impl Calls) -> String {
    c.value("SELECT coalesce(string_agg(concat_ws('|', ctid, xmin, xmax, k), E'\\n'), '') FROM idempotency_keys k")
}

#[test]
fn first_executes_and_second_replays() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    let first = c.claim("t", E, "k", b"{}").unwrap();
    assert!(first.expires_at.is_some());
    let expires_at = first.expires_at.clone();
    assert_eq!(first, Arrival { attempt: Some(1), expires_at: expires_at.clone(), ..Arrival::bare("execute") });
    c.complete("t", E, "k", 201, b"\0\xff\r\n").unwrap();
    let second = c.claim("t", E, "k", b"{}").unwrap();
    let replay = Arrival {
        response_code: Some(201),
        response_body: Some(b"\0\xff\r\n".to_vec()),
        attempt: Some(1),
        expires_at: second.expires_at.clone(),
        ..Arrival::bare("replay")
    };
    assert_eq!(second, replay);
}

/// An adapter sends code, headers and body as they are: they must be complete, and nothing else be in the row.
#[test]
fn every_refusal_is_a_ready_problem_document() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    c.batch_execute("SELECT idem_protect('POST /strict')").unwrap();
    c.claim("t", E, "open", b"{}").unwrap();
    for (arguments, outcome, status) in [
        ("'t', 'POST /x', NULL, '{}'::text", "key_missing", 400),
        ("'t', 'POST /x', '', '{}'::text", "key_missing", 400),
        ("'t', 'POST /strict', NULL, '{}'::text", "key_missing", 400),
        ("'t', 'POST /x', repeat('k', 256), '{}'::text", "key_invalid", 400),
        ("'t', 'POST /x', E'a\\tb', '{}'::text", "key_invalid", 400),
        ("'t', 'POST /x', E'\\u007f', '{}'::text", "key_invalid", 400),
        ("'t', 'POST /x', 'open', '{}'::text", "in_progress", 409),
        ("'t', 'POST /x', 'open', '[]'::text", "key_reused", 422),
    ] {
        let answer = claim_sql(&mut c, arguments);
        let body = answer.response_body.clone().expect("a body");
        let document: Value = serde_json::from_slice(&body).expect("a JSON body");
        assert_eq!(document["type"], "about:blank", "{arguments}");
        assert_eq!(document["status"], status, "{arguments}");
        for member in ["title", "detail"] {
            assert!(document[member].as_str().is_some_and(|text| !text.is_empty()), "{arguments}: {document}");
        }
        let mut headers = vec![json!(["content-type", "application/problem+json"])];
        if status == 409 {
            headers.push(json!(["retry-after", "2"]));
        }
        let expected = Arrival {
            response_code: Some(status),
            response_headers: Some(headers.into()),
            response_body: Some(body),
            ..Arrival::bare(outcome)
        };
        assert_eq!(answer, expected, "{arguments}");
    }
    assert_eq!(c.value::<i64>("SELECT count(*) FROM idempotency_keys"), 1);
}

#[test]
fn docs_url_and_retry_after_are_in_the_answer() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    c.claim("t", E, "k", b"{}").unwrap();
    c.batch_execute(
        "SET idempotency_enforcer.docs_url = 'https://api.example/docs?a=\"b\"';
         SET idempotency_enforcer.retry_after = '1 min'",
    )
    .unwrap();
    let answer = c.claim("t", E, "k", b"{}").unwrap();
    let document: Value = serde_json::from_slice(&answer.response_body.unwrap()).unwrap();
    assert_eq!(document["type"], "https://api.example/docs?a=\"b\"");
    assert_eq!(answer.response_headers.unwrap()[1], json!(["retry-after", "60"]));
}

/// NULL is a value that a driver sends for a missing header: it must not turn the row into nothing.
#[test]
fn an_endpoint_that_requires_no_key_runs_unprotected_without_one() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    c.batch_execute("SELECT idem_protect('POST /soft', key_required => false)").unwrap();
    for key in ["NULL", "''"] {
        let answer = claim_sql(&mut c, &format!("'t', 'POST /soft', {key}, '{{}}'::text, NULL, NULL, NULL, NULL"));
        assert_eq!(answer, Arrival::bare("unprotected"));
    }
    assert_eq!(c.value::<i64>("SELECT count(*) FROM idempotency_keys"), 0);
    assert_eq!(claim_sql(&mut c, "'t', 'POST /soft', repeat('k', 256), ''::text").outcome, "key_invalid");
    let mut transaction = c.transaction().unwrap();
    assert_eq!(transaction.claim("t", "POST /soft", "k", b"{}").unwrap().outcome, "execute");
    assert_eq!(transaction.claim("t", "POST /soft", "k", b"{}").unwrap().outcome, "in_progress");
}

#[test]
fn a_hash_stands_in_for_the_body_and_is_its_sha256() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    let by_hash = claim_sql(&mut c, "'t', 'POST /x', 'k', NULL::bytea, NULL, sha256('body')");
    assert_eq!(by_hash.outcome, "execute");
    assert_eq!(c.claim("t", E, "k", b"body").unwrap().outcome, "in_progress");
    assert_eq!(c.claim("t", E, "k2", b"body").unwrap().outcome, "execute");
    let by_null_text = claim_sql(&mut c, "'t', 'POST /x', 'k2', NULL::text, request_hash => sha256('body')");
    assert_eq!(by_null_text.outcome, "in_progress");
    assert!(c.value::<bool>("SELECT bool_and(request_hash = sha256('body')) FROM idempotency_keys"));
    let other = claim_sql(&mut c, "'t', 'POST /x', 'k', NULL::bytea, request_hash => sha256('other')");
    assert_eq!(other.outcome, "key_reused");
}

/// The raw hash is that of the bytes: the same JSON in other clothes is another request.
#[test]
fn other_spacing_or_member_order_is_another_body() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    c.claim("t", E, "k", br#"{"a":1,"b":2}"#).unwrap();
    c.complete("t", E, "k", 200, b"ok").unwrap();
    for body in [r#"{"a": 1, "b": 2}"#, r#"{"b":2,"a":1}"#, "{\"a\":1,\"b\":2}\n", ""] {
        assert_eq!(c.claim("t", E, "k", body.as_bytes()).unwrap().outcome, "key_reused", "{body:?}");
    }
}

#[test]
fn tenants_and_endpoints_and_the_case_of_keys_are_kept_apart() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    let scopes = [
        ("t", E, "k"),
        ("u", E, "k"),
        ("t", "POST /y", "k"),
        ("t", E, "K"),
        ("", E, "k"),
        ("t", E, " k"),
        ("T", E, "k"),
    ];
    for (tenant, endpoint, key) in scopes {
        assert_eq!(c.claim(tenant, endpoint, key, b"{}").unwrap().outcome, "execute", "{tenant} {endpoint} {key}");
    }
    for (i, (tenant, endpoint, key)) in scopes.into_iter().enumerate() {
        c.complete(tenant, endpoint, key, 200, &[i as u8]).unwrap();
    }
    for (i, (tenant, endpoint, key)) in scopes.into_iter().enumerate() {
        let replay = c.claim(tenant, endpoint, key, b"{}").unwrap();
        assert_eq!((replay.outcome.as_str(), replay.response_body), ("replay", Some(vec![i as u8])));
    }
}

#[test]
fn a_later_arrival_changes_nothing_in_the_row() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    c.claim("t", E, "k", b"{}").unwrap();
    for outcomes in [["in_progress", "key_reused"], ["replay", "key_reused"]] {
        let before = rows_as_stored(&mut c);
        let mut other = db.admin();
        let arrivals = [
            claim_sql(&mut other, "'t', 'POST /x', 'k', '{}'::text, ttl => '9 days'"),
            claim_sql(&mut other, "'t', 'POST /x', 'k', 'wrong'::text, ttl => '9 days'"),
        ];
        assert_eq!(arrivals.map(|a| a.outcome), outcomes);
        assert_eq!(rows_as_stored(&mut c), before);
        if outcomes[0] == "in_progress" {
            c.complete("t", E, "k", 200, b"done").unwrap();
        }
    }
}

/// Whoever sends a wrong body learns that the key is used, and not even whether its request is finished.
#[test]
fn a_wrong_body_learns_nothing_of_what_is_stored() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    c.batch_execute("SELECT idem_protect('POST /pay', 'external')").unwrap();
    c.claim("t", "POST /pay", "k", b"right").unwrap();
    let while_open = c.claim("t", "POST /pay", "k", b"wrong").unwrap();
    c.batch_execute(
        r#"SELECT idem_complete('t', 'POST /pay', 'k', 299, 'SECRET'::text, '[["x-secret", "SECRET"]]', 'SECRET')"#,
    )
    .unwrap();
    let when_finished = c.claim("t", "POST /pay", "k", b"wrong").unwrap();
    assert_eq!(while_open.outcome, "key_reused");
    assert_eq!(while_open, when_finished);
    assert!(!format!("{when_finished:?}").contains("SECRET"));
    assert!(!String::from_utf8(when_finished.response_body.unwrap()).unwrap().contains("SECRET"));
}

#[test]
fn a_replay_writes_nothing_and_takes_no_lock() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    c.batch_execute("SELECT idem_protect('POST /tx')").unwrap();
    c.batch_execute(
        "BEGIN; SELECT idem_claim('t', 'POST /tx', 'k', '{}'::text); SELECT idem_complete('t', 'POST /tx', 'k', 200, ''::text);
         COMMIT",
    )
    .unwrap();
    c.claim("t", E, "open", b"{}").unwrap();
    let before = rows_as_stored(&mut c);
    for read_only in [false, true] {
        let mut t = c.build_transaction().read_only(read_only).start().unwrap();
        assert_eq!(t.claim("t", "POST /tx", "k", b"{}").unwrap().outcome, "replay");
        assert_eq!(t.claim("t", "POST /tx", "k", b"[]").unwrap().outcome, "key_reused");
        assert_eq!(t.claim("t", E, "open", b"{}").unwrap().outcome, "in_progress");
        assert_eq!(t.claim("t", E, "", b"{}").unwrap().outcome, "key_missing");
        assert!(t.value::<bool>("SELECT pg_current_xact_id_if_assigned() IS NULL"));
        let locks = "SELECT coalesce(string_agg(concat_ws(' ', locktype, mode, relation::regclass), ', '), '')
                       FROM pg_locks
                      WHERE pid = pg_backend_pid() AND mode <> 'AccessShareLock' AND locktype <> 'virtualxid'";
        assert_eq!(t.value::<String>(locks), "");
        t.commit().unwrap();
    }
    assert_eq!(rows_as_stored(&mut c), before);
}

#[test]
fn a_duplicate_leaves_the_transaction_usable() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    c.batch_execute("CREATE TABLE work (n int)").unwrap();
    c.claim("t", E, "done", b"{}").unwrap();
    c.complete("t", E, "done", 200, b"").unwrap();
    c.claim("t", E, "open", b"{}").unwrap();
    let mut t = c.transaction().unwrap();
    for (key, body, outcome) in [
        ("done", "{}", "replay"),
        ("done", "x", "key_reused"),
        ("open", "{}", "in_progress"),
        ("", "{}", "key_missing"),
        ("a\nb", "{}", "key_invalid"),
    ] {
        assert_eq!(t.claim("t", E, key, body.as_bytes()).unwrap().outcome, outcome);
        t.execute("INSERT INTO work VALUES (1)", &[]).unwrap();
    }
    t.commit().unwrap();
    assert_eq!(c.value::<i64>("SELECT count(*) FROM work"), 5);
}

/// The snapshot of a statement cannot see the row that it collides with: that must not make the answer empty.
#[test]
fn a_key_that_was_committed_a_moment_before_is_replayed() {
    let db = Cluster::shared().lenient_database();
    let (mut a, mut b) = (db.admin(), db.admin());
    let mut late = b.transaction().unwrap();
    late.value::<i64>("SELECT count(*) FROM idempotency_keys");
    a.claim("t", E, "k", b"{}").unwrap();
    a.complete("t", E, "k", 200, b"first").unwrap();
    let answer = late.claim("t", E, "k", b"{}").unwrap();
    assert_eq!((answer.outcome.as_str(), answer.response_body.as_deref()), ("replay", Some(&b"first"[..])));
}

#[test]
fn a_claim_repeated_in_its_own_transaction_is_in_progress_and_then_replayed() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    c.batch_execute("SELECT idem_protect('POST /tx')").unwrap();
    for endpoint in [E, "POST /tx"] {
        let mut t = c.transaction().unwrap();
        assert_eq!(t.claim("t", endpoint, "k", b"{}").unwrap().outcome, "execute");
        // Waiting for oneself would never end.
        assert_eq!(t.claim_waiting("t", endpoint, "k", b"{}", "1 hour").unwrap().outcome, "in_progress");
        assert_eq!(t.claim("t", endpoint, "k", b"wrong").unwrap().outcome, "key_reused");
        t.complete("t", endpoint, "k", 200, b"ok").unwrap();
        assert_eq!(t.claim("t", endpoint, "k", b"{}").unwrap().outcome, "replay");
        t.commit().unwrap();
    }
}

#[test]
fn the_longest_key_tenant_and_endpoint_fit_together() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    // Different characters: a repeated one would be compressed in the index.
    let key: String = (0..255).filter_map(|i| char::from_u32(0x1F300 + i * 7)).collect();
    assert_eq!((key.chars().count(), key.len()), (255, 1020));
    let name: String = (0..255u8).map(|i| char::from(b'A' + i.wrapping_mul(37) % 26)).collect();
    let longest = c.claim(&name, &name, &key, b"{}").unwrap();
    assert_eq!(longest.outcome, "execute");
    c.complete(&name, &name, &key, 200, b"ok").unwrap();
    assert_eq!(c.claim(&name, &name, &key, b"{}").unwrap().outcome, "replay");
    assert_eq!(c.claim(&name, &name, &(key + "x"), b"{}").unwrap().outcome, "key_invalid");
}
