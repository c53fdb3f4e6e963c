//! Bodies, header values and request hashes stay where they belong.

use super::{application, database_with_schema};
use harness::{Calls, Cluster};
use postgres::error::DbError;
use postgres::Client;
use serde_json::json;

const REQUEST: &str = "request-S3CR3T-body";
const RESPONSE: &str = "response-S3CR3T-body";
const HEADER: &str = "header-S3CR3T-value";
const OTHERS: &str = "guess-S3CR3T-body";

/// How a secret could show: as it is, or in hexadecimal digits.
fn shows_secret(text: &str) -> bool {
    let hex: String = "S3CR3T".bytes().map(|b| format!("{b:02x}")).collect();
    text.contains("S3CR3T") || text.to_lowercase().contains(&hex)
}

fn fields(e: &DbError) -> String {
    let optional = [e.detail(), e.hint(), e.where_(), e.schema(), e.table(), e.column(), e.datatype(), e.constraint()];
    format!("{} {} {optional:?} {:?}", e.code().code(), e.message(), e.position())
}

/// Each error of the contract, with secrets in every argument that may hold one; returns the fields of the errors.
fn make_every_error(c: &mut Client, other: &mut Client) -> Vec<String> {
    let claim = "SELECT idem_claim('t', $1, $2, $3::text)";
    let complete = "SELECT idem_complete('t', $1, $2, $3, $4::text, $5, $6, $7)";
    let headers = json!([["set-cookie", HEADER]]);
    let none: Option<&str> = None;
    let mut errors = Vec::new();
    let mut expect = |code: &str, result: Result<u64, postgres::Error>| {
        let error = result.err().unwrap_or_else(|| panic!("no {code}"));
        let error = error.as_db_error().unwrap_or_else(|| panic!("{error:?}"));
        assert_eq!(error.code().code(), code, "{error:?}");
        errors.push(fields(error));
    };
    let attempt = |n: Option<i32>| n;
    c.execute(claim, &[&"POST /x", &"k", &REQUEST]).unwrap();
    expect("ID001", c.execute(complete, &[&"POST /x", &"none", &200, &RESPONSE, &headers, &none, &attempt(None)]));
    expect("ID003", c.execute(complete, &[&"POST /x", &"k", &200, &RESPONSE, &headers, &none, &attempt(Some(2))]));
    let long = RESPONSE.repeat(5_000);
    expect("ID005", c.execute(complete, &[&"POST /x", &"k", &200, &long, &headers, &none, &attempt(None)]));
    expect("22023", c.execute(complete, &[&"POST /x", &"k", &99, &RESPONSE, &headers, &none, &attempt(None)]));
    for bad in [json!([HEADER]), json!({ "a": { "b": HEADER } }), json!([["a", format!("{HEADER}\n")]]), json!(HEADER)]
    {
        expect("22023", c.execute(complete, &[&"POST /x", &"k", &200, &RESPONSE, &bad, &none, &attempt(None)]));
    }
    c.execute(complete, &[&"POST /x", &"k", &200, &RESPONSE, &headers, &none, &attempt(None)]).unwrap();
    expect("ID002", c.execute(complete, &[&"POST /x", &"k", &200, &OTHERS, &headers, &none, &attempt(None)]));
    expect("ID004", c.execute(claim, &[&"POST /guarded", &"k", &REQUEST]));
    let mut tx = c.transaction().unwrap();
    tx.batch_execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT 1").unwrap();
    other.execute(claim, &[&"POST /x", &"later", &REQUEST]).unwrap();
    expect("40001", tx.execute(complete, &[&"POST /x", &"later", &200, &RESPONSE, &headers, &none, &attempt(None)]));
    tx.rollback().unwrap();
    // Both, none, a bad ttl.
    expect(
        "22023",
        c.execute(
            "SELECT idem_claim('t', 'POST /x', 'k', $1::text, NULL, sha256($2))",
            &[&REQUEST, &REQUEST.as_bytes()],
        ),
    );
    expect("22023", c.execute("SELECT idem_claim('t', 'POST /x', 'k', $1::text, ttl => '1 s')", &[&REQUEST]));
    expect("22023", c.execute("SELECT idem_claim('t', 'POST /x', 'k', NULL::text, NULL, $1)", &[&REQUEST.as_bytes()]));
    errors
}

/// The server logs every statement, not its bound parameters; so a body in the log would be ours.
#[test]
fn no_error_and_no_log_line_has_a_body_or_a_header_value() {
    let cluster = Cluster::start(&[
        "log_statement = all",
        "log_min_messages = debug1",
        "log_min_error_statement = debug1",
        "log_error_verbosity = verbose",
        "log_parameter_max_length = 0",
        "log_min_duration_statement = 0",
        "log_lock_waits = on",
    ]);
    let db = database_with_schema(&cluster, "idem");
    db.admin().execute("SELECT idem_protect('POST /guarded')", &[]).unwrap();
    let role = application(&db);
    let (mut c, mut other) = (db.connect_as(&role), db.connect_as(&role));
    for error in make_every_error(&mut c, &mut other) {
        assert!(!shows_secret(&error), "{error}");
        assert!(error.contains("POST /") || error.starts_with("22023"), "names its endpoint: {error}");
    }
    for (body, outcome) in [(REQUEST, "replay"), (OTHERS, "key_reused")] {
        let sql = "SELECT outcome FROM idem_claim('t', 'POST /x', 'k', $1::text)";
        assert_eq!(c.query_one(sql, &[&body]).unwrap().get::<_, String>(0), outcome);
    }
    let log = cluster.log();
    assert!(log.contains("ID005") && log.contains("idem_complete"), "the log is the one that was written to");
    let leaks: Vec<&str> = log.lines().filter(|line| shows_secret(line)).collect();
    assert!(leaks.is_empty(), "{leaks:#?}");
}

#[test]
fn a_stored_response_is_told_to_nobody_without_the_request() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.connect_as(&application(&db));
    c.claim("t", "POST /x", "k", REQUEST.as_bytes()).unwrap();
    let sql = "SELECT idem_complete('t', 'POST /x', 'k', 200, $1::text, $2, $3)";
    c.execute(sql, &[&RESPONSE, &json!([["x", HEADER]]), &OTHERS]).unwrap();
    for claim in [
        "SELECT c::text FROM idem_claim('t', 'POST /x', 'k', ''::bytea) c",
        "SELECT c::text FROM idem_claim('t', 'POST /x', 'k', 'guess'::text, wait => '10 ms') c",
        "SELECT c::text FROM idem_claim('t', 'POST /x', 'k', NULL::bytea, NULL, sha256('guess')) c",
        "SELECT c::text FROM idem_claim('other', 'POST /x', 'k', 'request-S3CR3T-body'::text) c",
        "SELECT c::text FROM idem_claim('t', 'POST /other', 'k', 'request-S3CR3T-body'::text) c",
    ] {
        let row: String = c.value(claim);
        assert!(!shows_secret(&row), "{claim}: {row}");
    }
    // Nor does a guess at the response tell more than that it is wrong.
    let wrong = "SELECT idem_complete('t', 'POST /x', 'k', 200, 'response'::text)";
    let error = c.batch_execute(wrong).unwrap_err();
    assert!(!shows_secret(&fields(error.as_db_error().unwrap())), "{error:?}");
}

/// What the views show is for operators; even they see no body, header or hash.
#[test]
fn no_view_has_bodies_headers_or_hashes() {
    let db = Cluster::shared().lenient_database();
    let role = db.role("operator");
    let mut admin = db.admin();
    admin.execute("SELECT idem_grant($1::text::name, 'operator')", &[&role]).unwrap();
    let mut c = db.connect_as(&role);
    c.claim("t", "POST /x", "k", REQUEST.as_bytes()).unwrap();
    let sql = "SELECT idem_complete('t', 'POST /x', 'k', 200, $1::text, $2)";
    c.execute(sql, &[&RESPONSE, &json!([["x", HEADER]])]).unwrap();
    c.claim("t", "POST /x", "open", REQUEST.as_bytes()).unwrap();
    admin
        .batch_execute("UPDATE idempotency_keys SET open_since = now() - interval '1 day' WHERE key = 'open'")
        .unwrap();
    let hash: String = admin.value("SELECT encode(request_hash, 'hex') FROM idempotency_keys WHERE key = 'k'");
    for view in ["idem_keys", "idem_stuck", "idem_endpoint_summary"] {
        let rows = c.query(&format!("SELECT v::text FROM {view} v"), &[]).unwrap();
        assert!(!rows.is_empty(), "{view}");
        for row in rows {
            let row: String = row.get(0);
            assert!(!shows_secret(&row) && !row.contains(&hash), "{view}: {row}");
        }
    }
}

/// Monitoring may see stuck claims and counts. A function of its own in a condition is not shown the other rows.
#[test]
fn a_monitors_own_function_learns_nothing_of_what_its_views_leave_out() {
    let db = Cluster::shared().lenient_database();
    let role = db.role("monitor");
    db.admin()
        .batch_execute(&format!("GRANT pg_monitor TO {role}; GRANT USAGE, CREATE ON SCHEMA public TO {role}"))
        .unwrap();
    db.admin().claim("t", "POST /x", "S3CR3T", b"").unwrap();
    let mut c = db.connect_as(&role);
    c.batch_execute(
        "CREATE FUNCTION leak(text) RETURNS bool COST 0.0000001 LANGUAGE plpgsql
         AS $$ BEGIN RAISE EXCEPTION 'leaked %', $1; END $$",
    )
    .unwrap();
    assert_eq!(c.value::<i64>("SELECT count(*) FROM idem_stuck WHERE leak(key)"), 0);
    assert_eq!(c.value::<i64>("SELECT count(*) FROM idem_stuck WHERE key <> '' AND leak(tenant_id)"), 0);
}

/// A violated constraint would print the row. In a database without an encoding, a character has up to four bytes.
#[test]
fn no_constraint_prints_a_row_with_its_request_hash() {
    let db = Cluster::shared().empty_database("ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0");
    let mut c = db.admin();
    c.batch_execute("CREATE EXTENSION idempotency_enforcer; SELECT idem_protect('POST /x', 'external')").unwrap();
    let key = "\u{1f600}".repeat(255);
    match c.claim("t", "POST /x", &key, REQUEST.as_bytes()) {
        Ok(arrival) => assert_eq!(arrival.outcome, "execute"),
        Err(error) => panic!("{}", fields(error.as_db_error().unwrap())),
    }
}
