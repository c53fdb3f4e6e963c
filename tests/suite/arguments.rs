//! What bad input gets: a SQLSTATE, a message, a DETAIL and a HINT, and nothing lost.

use harness::{Calls, Cluster, Failure};

/// In every body and header value below: no error may show it.
const SECRET: &str = "S3CRET";

/// What an application would send, with one argument replaced.
fn claim(replaced: &str, by: &str) -> String {
    call("idem_claim", &[("request_body", "'S3CRET'::text")], replaced, by)
}

fn finish(function: &str, replaced: &str, by: &str) -> String {
    call(function, &[("response_code", "200"), ("response_body", "'S3CRET'::text")], replaced, by)
}

fn checkpoint(replaced: &str, by: &str) -> String {
    call("idem_checkpoint", &[("recovery_point", "'called'")], replaced, by)
}

fn call(function: &str, more: &[(&str, &str)], replaced: &str, by: &str) -> String {
    let mut arguments = vec![("tenant_id", "'t'"), ("endpoint", "'POST /x'"), ("key", "'k'")];
    arguments.extend(more);
    arguments.retain(|(name, _)| *name != replaced);
    arguments.push((replaced, by));
    let arguments: Vec<_> = arguments.iter().map(|(name, value)| format!("{name} => {value}")).collect();
    format!("SELECT {function}({})", arguments.join(", "))
}

/// Arguments that do not leave the endpoint and the key unknown.
const BAD_CLAIMS: &[(&str, &str)] = &[
    ("request_body", "NULL::text"),
    ("request_body", "NULL::bytea"),
    ("request_hash", "sha256('S3CRET')"),
    ("request_body", r"NULL::bytea, request_hash => '\x00'"),
    ("request_body", "NULL::bytea, request_hash => ''"),
    ("request_body", "NULL::bytea, request_hash => sha512('')"),
    ("request_body", "NULL::text, request_hash => encode(sha256(''), 'hex')::bytea"),
    ("request_target", "repeat('/', 8193)"),
    ("request_target", "repeat('é', 4097)"),
    ("wait", "'-1 microsecond'"),
    ("wait", "'-178000000 years'"),
    ("wait", "'1 hour 1 microsecond'"),
    ("wait", "'178000000 years'"),
    ("ttl", "'0'"),
    ("ttl", "'-30 days'"),
    ("ttl", "'23:59:59.999999'"),
    ("ttl", "'36500 days 1 microsecond'"),
    ("ttl", "'178000000 years'"),
    ("ttl", "'-178000000 years'"),
];

const BAD_RESULTS: &[(&str, &str)] = &[
    ("response_code", "NULL"),
    ("response_code", "0"),
    ("response_code", "99"),
    ("response_code", "600"),
    ("response_code", "-200"),
    ("response_code", "2147483647"),
    ("response_code", "-2147483648"),
    ("response_headers", "'\"S3CRET\"'"),
    ("response_headers", r#"'[["S3CRET"]]'"#),
    ("response_headers", r#"'{"a": {"b": "S3CRET"}}'"#),
    ("response_headers", "jsonb_build_array(jsonb_build_array('a', repeat('S3CRET', 11000)))"),
    ("response_headers", "jsonb_build_object('a', repeat('S3CRET', 1000000))"),
    ("resource_ref", "repeat('S3CRET', 400)"),
    ("response_headers", r#"'[["a", "S3CRET\n"]]'"#),
];

const BAD_STEPS: &[(&str, &str)] = &[
    ("recovery_point", "NULL"),
    ("recovery_point", "''"),
    ("recovery_point", "repeat('S3CRET', 43)"),
    ("recovery_state", "jsonb_build_object('a', repeat('S3CRET', 11000))"),
    ("recovery_state", "jsonb_build_object('a', repeat('S3CRET', 1000000))"),
];

/// Arguments that leave the endpoint or the tenant unknown, for every function.
const BAD_NAMES: &[(&str, &str)] = &[
    ("tenant_id", "NULL"),
    ("tenant_id", "repeat('t', 256)"),
    ("tenant_id", "repeat('é', 128)"),
    ("tenant_id", "repeat('t', 1000000)"),
    ("endpoint", "NULL"),
    ("endpoint", "''"),
    ("endpoint", "repeat('e', 256)"),
    ("endpoint", "repeat('😀', 64)"),
];

fn bad_calls() -> Vec<String> {
    let mut calls = Vec::new();
    calls.extend(BAD_CLAIMS.iter().map(|(name, value)| claim(name, value)));
    for function in ["idem_complete", "idem_fail"] {
        calls.extend(BAD_RESULTS.iter().map(|(name, value)| finish(function, name, value)));
    }
    calls.extend(BAD_STEPS.iter().map(|(name, value)| checkpoint(name, value)));
    calls
}

fn bad_names() -> Vec<String> {
    let mut calls = Vec::new();
    for (name, value) in BAD_NAMES {
        calls.push(claim(name, value));
        calls.extend(["idem_complete", "idem_fail"].map(|function| finish(function, name, value)));
        calls.push(checkpoint(name, value));
        calls.push(call("idem_release", &[], name, value));
    }
    calls
}

#[test]
fn every_bad_argument_is_refused_with_a_reason_and_a_way_out_and_the_transaction_goes_on() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    let mut t = c.transaction().unwrap();
    for sql in bad_calls().into_iter().chain(bad_names()) {
        let mut savepoint = t.savepoint("before").unwrap();
        let refused = Failure::of(savepoint.query(&sql, &[]));
        savepoint.rollback().unwrap();
        assert_eq!(refused.sqlstate, "22023", "{sql}");
        for text in [&refused.message, &refused.detail, &refused.hint] {
            assert!(!text.is_empty(), "{sql}: {refused:?}");
        }
        assert!(!refused.text().contains(SECRET), "{sql}: {refused:?}");
        assert!(refused.text().len() < 2_000, "{sql}: an over-long value is not repeated");
        assert_eq!(t.value::<i64>("SELECT count(*) FROM idempotency_keys"), 0, "{sql}");
    }
    assert_eq!(t.claim("t", "POST /x", "k", SECRET.as_bytes()).unwrap().outcome, "execute");
    t.complete("t", "POST /x", "k", 200, b"").unwrap();
    t.commit().unwrap();
    assert_eq!(c.claim("t", "POST /x", "k", SECRET.as_bytes()).unwrap().outcome, "replay");
}

#[test]
fn an_error_names_the_endpoint_and_the_key() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    let unnamed: Vec<String> = bad_calls()
        .into_iter()
        .filter(|sql| {
            let refused = Failure::of(c.query(sql, &[]));
            !(refused.message.contains("\"k\"") && refused.message.contains("\"POST /x\""))
        })
        .collect();
    assert!(unnamed.is_empty(), "not named by:\n{}", unnamed.join("\n"));
}

#[test]
fn the_largest_and_smallest_good_arguments_are_taken() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    for (i, (name, value)) in [
        ("tenant_id", "''"),
        ("tenant_id", "repeat('é', 127)"),
        ("endpoint", "'e'"),
        ("endpoint", "repeat('e', 255)"),
        ("key", "repeat('é', 255)"),
        ("request_target", "''"),
        ("request_target", "repeat('é', 4096)"),
        ("wait", "'1 hour'"),
        ("wait", "'0'"),
        ("wait", "NULL"),
        ("wait", "'1 microsecond'"),
        ("ttl", "NULL"),
        ("ttl", "'24 hours'"),
        ("ttl", "'1 day'"),
        ("ttl", "'36500 days'"),
    ]
    .into_iter()
    .enumerate()
    {
        c.batch_execute("DELETE FROM idempotency_keys").unwrap();
        c.batch_execute(&claim(name, value)).unwrap_or_else(|e| panic!("{i} {name} => {value}: {e:?}"));
        assert_eq!(c.value::<i64>("SELECT count(*) FROM idempotency_keys"), 1);
    }
    c.batch_execute("DELETE FROM idempotency_keys").unwrap();
    c.batch_execute(&claim("request_target", "NULL")).unwrap();
    for (name, value) in [
        ("recovery_point", "repeat('é', 127)"),
        ("recovery_state", "to_jsonb(repeat('x', 65534))"),
        ("recovery_state", "'null'"),
    ] {
        assert!(c.value::<bool>(&checkpoint(name, value)), "{name} => {value}");
    }
    let headers = "jsonb_build_array(jsonb_build_array('a', repeat('x', 65525)))";
    assert_eq!(c.value::<i32>(&format!("SELECT octet_length({headers}::text)")), 65_536);
    assert!(c.value::<bool>(&finish("idem_complete", "response_headers", headers)));
    assert!(!c.value::<bool>(&finish("idem_complete", "response_headers", headers)));
    let reference = "repeat('é', 1024)";
    c.batch_execute(&claim("key", "'l'")).unwrap();
    let sql = finish("idem_complete", "resource_ref", reference).replace("'k'", "'l'");
    assert!(c.value::<bool>(&sql));
}

/// PostgreSQL 17 has infinite intervals: kept for ever by accident is the failure to be avoided.
#[test]
fn infinite_times_are_refused() {
    let db = Cluster::shared().database();
    if Cluster::shared().installation().major() < 17 {
        return;
    }
    let mut c = db.admin();
    for infinity in ["'infinity'", "'-infinity'"] {
        for sql in [
            claim("wait", infinity),
            claim("ttl", infinity),
            format!("SELECT idem_protect('POST /x', retry_window => {infinity})"),
            format!("SELECT idem_protect('POST /x', ttl => {infinity})"),
            format!("SELECT idem_protect('POST /x', stuck_after => {infinity})"),
        ] {
            assert_eq!(Failure::of(c.query(&sql, &[])).sqlstate, "22023", "{sql}");
        }
    }
}

/// A name is printed quoted and escaped: it can neither end the quotes nor begin a line of the log.
#[test]
fn names_in_messages_are_quoted_and_escaped() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    let sql = "SELECT idem_complete($1, $2, $3, 200, ''::text)";
    let names = ["t\n\u{1}", "POST\r\n/x\" \u{1b}[31m", "k\"\\ \u{202e}'"];
    let refused = Failure::of(c.query(sql, &[&names[0], &names[1], &names[2]]));
    assert_eq!(refused.sqlstate, "ID001");
    assert!(refused.message.contains(r#""POST\r\n/x\" \u{1b}[31m""#), "{refused:?}");
    assert!(refused.message.contains(r#""k\"\\ "#), "{refused:?}");
    assert!(refused.detail.contains(r#""t\n\u{1}""#), "{refused:?}");
    assert!(!refused.text().chars().any(|ch| ch == '\u{202e}' || (ch.is_control() && ch != '\n')), "{refused:?}");
    let control_in_key = Failure::of(c.query(sql, &[&"t", &"e", &"k\r\nLOG:  forged"]));
    assert!(!control_in_key.message.contains(['\r', '\n']), "{control_in_key:?}");
}

/// Nothing is STRICT: NULL everywhere is refused by name, or by an outcome, and never swallowed.
#[test]
fn null_everywhere_is_answered() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    for sql in [
        "SELECT idem_claim(NULL, NULL, NULL, NULL::bytea, NULL, NULL, NULL, NULL)",
        "SELECT idem_claim(NULL, NULL, NULL, NULL::text, NULL, NULL, NULL, NULL)",
        "SELECT idem_complete(NULL, NULL, NULL, NULL, NULL::bytea, NULL, NULL, NULL)",
        "SELECT idem_fail(NULL, NULL, NULL, NULL, NULL::text, NULL, NULL, NULL)",
        "SELECT idem_release(NULL, NULL, NULL, NULL)",
        "SELECT idem_checkpoint(NULL, NULL, NULL, NULL, NULL, NULL)",
        "SELECT idem_forget(NULL, NULL, NULL)",
        "SELECT idem_erase(NULL, NULL, NULL)",
        "SELECT idem_sweep(NULL)",
        "SELECT idem_protect(NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
    ] {
        let refused = Failure::of(c.query(sql, &[]));
        assert_eq!(refused.sqlstate, "22023", "{sql}");
    }
}

/// The bodies of refused calls are no matter for the server's log either; only statements that fail are shown there,
/// and parameters are not part of them.
#[test]
fn a_refused_call_with_parameters_leaves_no_body_in_the_log() {
    let cluster = Cluster::start(&["log_min_messages = info"]);
    let db = cluster.lenient_database();
    let mut c = db.admin();
    c.claim("t", "POST /x", "k", SECRET.as_bytes()).unwrap();
    c.claim("t", "POST /x", "k", b"S3CRET2").unwrap();
    c.complete("t", "POST /x", "k", 200, SECRET.as_bytes()).unwrap();
    for refused in [
        c.complete("t", "POST /x", "k", 201, SECRET.as_bytes()),
        c.fail("t", "POST /x", "k", 201, SECRET.as_bytes()),
        c.complete("t", "POST /x", "other", 201, SECRET.as_bytes()),
        c.complete("t", "POST /x", "k", 2, SECRET.as_bytes()),
    ] {
        Failure::of(refused);
    }
    let log = cluster.log();
    assert!(log.contains("is already finished"), "{log}");
    assert!(!log.contains(SECRET) && !log.contains("533343524554"), "{log}");
}
