//! Client languages, tools and pooling: what docs/drivers.md and docs/tools.md say of Python, Node.js, Rust and PgBouncer.

mod pooling;
mod tools;

use harness::{Calls, Cluster, Database, Relay};
use postgres::types::Type;
use postgres::NoTls;
use serde_json::{json, Value};
use std::path::Path;
use std::process::Command;

const TEXT: &str = "C:\\new\\x41 \\\\ \"quoted\" 'single' %s $1 é世😀\r\n\t{\"b\":1,\"a\":1.0}";

fn headers() -> Value {
    json!([["Set-Cookie", "a=\"1\\\"; b"], ["Set-Cookie", "c, d"], ["X-Empty", ""]])
}

/// Each endpoint is used by one case of a client program; the driver's own way of sending parameters is the case.
fn run_client(command: Command, program: &str) {
    let db = Cluster::shared().lenient_database();
    let role = crate::security::application(&db);
    check_client(command, program, &db, &role, db.cluster().port());
}

/// Runs a program that prints what failed. `port` is that of the server or of a pooler in front of it.
fn check_client(mut command: Command, program: &str, db: &Database, role: &str, port: u16) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients").join(program);
    let output = command
        .arg(path)
        .envs([("PGHOST", "127.0.0.1"), ("PGDATABASE", db.name()), ("PGUSER", role)])
        .env("PGPORT", port.to_string())
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{errors}\n`make test` installs what this needs", output.status);
    let verdict: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{command:?}: {e}\n{errors}"));
    assert_eq!(verdict["failed"], json!({}), "{}", verdict["driver"]);
    assert!(verdict["passed"].as_u64() > Some(3), "{verdict}");
}

fn from_environment(name: &str) -> String {
    std::env::var(name).ok().filter(|v| !v.is_empty()).unwrap_or_else(|| {
        panic!("{name} is not set: `make test` installs the client's driver and sets it (see the Makefile to do it by hand)")
    })
}

fn python() -> Command {
    Command::new(from_environment("CLIENT_PYTHON"))
}

fn node() -> Command {
    let mut node = Command::new("node");
    node.env("NODE_PATH", from_environment("CLIENT_NODE_MODULES"));
    node
}

// CASES 22, 58, 74
#[test]
fn python_psycopg() {
    run_client(python(), "python/client.py");
}

// CASES 58
#[test]
fn python_psycopg2() {
    run_client(python(), "python/psycopg2_client.py");
}

// CASES 22, 58, 74
#[test]
fn node_pg() {
    run_client(node(), "node/client.js");
}

/// One round with the body as a parameter of this type; `body` is what it must be stored as.
fn rust_round<P: postgres::types::ToSql + Sync>(db: &Database, sql_type: &str, endpoint: &str, sent: P, body: &[u8]) {
    let mut c = db.admin();
    let claim = c
        .prepare(&format!(
            "SELECT outcome, response_code, response_headers, response_body
        FROM idem_claim($1, $2, $3, $4::{sql_type})"
        ))
        .unwrap();
    let complete = c.prepare(&format!("SELECT idem_complete($1, $2, $3, $4, $5::{sql_type}, $6)")).unwrap();
    let scope = ("tenant", endpoint, "key");
    let mut tx = c.transaction().unwrap();
    assert_eq!(tx.query_one(&claim, &[&scope.0, &scope.1, &scope.2, &sent]).unwrap().get::<_, String>(0), "execute");
    tx.execute(&complete, &[&scope.0, &scope.1, &scope.2, &201, &sent, &headers()]).unwrap();
    tx.commit().unwrap();
    let replay = c.query_one(&claim, &[&scope.0, &scope.1, &scope.2, &sent]).unwrap();
    assert_eq!(
        (replay.get::<_, &str>(0), replay.get::<_, i32>(1), replay.get::<_, Value>(2)),
        ("replay", 201, headers())
    );
    assert_eq!(replay.get::<_, &[u8]>(3), body);
    // The other overload takes the same bytes for the same request.
    assert_eq!(c.claim(scope.0, scope.1, scope.2, body).unwrap().outcome, "replay");
}

#[test]
fn rust_postgres() {
    let db = Cluster::shared().lenient_database();
    let every_byte: Vec<u8> = (0..=255).collect();
    rust_round(&db, "text", "POST /text", TEXT, TEXT.as_bytes());
    rust_round(&db, "bytea", "POST /bytes", &every_byte[..], &every_byte);
    rust_round(&db, "bytea", "POST /text as bytes", TEXT.as_bytes(), TEXT.as_bytes());
    rust_round(&db, "bytea", "POST /empty", &b""[..], b"");
    // Without a type in the statement, the type that the driver sends decides.
    let mut c = db.admin();
    let sql = "SELECT outcome FROM idem_claim($1, $2, $3, $4)";
    let claim = |c: &mut postgres::Client, body: (&(dyn postgres::types::ToSql + Sync), Type)| {
        let names = [(&"tenant" as _, Type::TEXT), (&"POST /typed" as _, Type::TEXT), (&"k" as _, Type::TEXT), body];
        c.query_typed(sql, &names).unwrap()[0].get::<_, String>(0)
    };
    assert_eq!(claim(&mut c, (&TEXT, Type::TEXT)), "execute");
    assert_eq!(claim(&mut c, (&TEXT.as_bytes(), Type::BYTEA)), "in_progress");
    assert_eq!(claim(&mut c, (&TEXT, Type::VARCHAR)), "in_progress");
}

/// Read wrongly as bytea escapes, these are other bytes, or none at all: what the text overloads are there for.
#[test]
fn a_text_with_backslashes_is_stored_and_hashed_as_it_is() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    for (i, text) in [r"\x4", r"\x41g", r" \x41", r"\X41", r"\101", r"a\\b", r"\", r#"{"path":"C:\\temp","q":"\""}"#]
        .into_iter()
        .enumerate()
    {
        let key = format!("k{i}");
        let claim = "SELECT outcome, response_body FROM idem_claim('t', 'POST /x', $1, $2::text)";
        c.query_one(claim, &[&key, &text]).unwrap();
        c.execute("SELECT idem_complete('t', 'POST /x', $1, 200, $2::text)", &[&key, &text]).unwrap();
        assert_eq!(c.query_one(claim, &[&key, &text]).unwrap().get::<_, &[u8]>(1), text.as_bytes());
        // A literal without a type is text as well.
        let literal = format!("SELECT outcome FROM idem_claim('t', 'POST /x', '{key}', '{text}')");
        assert_eq!(c.value::<String>(&literal), "replay");
        let hash = "SELECT request_hash = sha256($2) FROM idempotency_keys WHERE key = $1";
        assert!(c.query_one(hash, &[&key, &text.as_bytes()]).unwrap().get::<_, bool>(0));
    }
}

#[test]
fn a_retry_after_a_commit_whose_acknowledgement_was_lost_replays() {
    let db = Cluster::shared().database();
    let role = crate::security::application(&db);
    db.admin()
        .batch_execute(
            "SELECT idem_protect('POST /x'); CREATE TABLE ledger (amount int); GRANT ALL ON ledger TO PUBLIC",
        )
        .unwrap();
    let relay = Relay::to(db.cluster().port());
    let config = db.cluster().config(db.name(), &role);
    let mut c = postgres::Config::new();
    c.host("127.0.0.1").port(relay.port()).dbname(db.name()).user(config.get_user().unwrap());
    let mut lost = c.connect(NoTls).unwrap();
    let mut tx = lost.transaction().unwrap();
    assert_eq!(tx.claim("t", "POST /x", "k", b"{}").unwrap().outcome, "execute");
    tx.execute("INSERT INTO ledger VALUES (10)", &[]).unwrap();
    tx.complete("t", "POST /x", "k", 201, b"paid").unwrap();
    tx.simple_query("").unwrap(); // the driver closes statements in the background: their answers are not the lost one
    relay.lose_answers();
    let error = tx.commit().unwrap_err();
    assert!(error.as_db_error().is_none(), "the client cannot know: {error}");
    let mut retry = config.connect(NoTls).unwrap();
    let replay = retry.claim("t", "POST /x", "k", b"{}").unwrap();
    assert_eq!((replay.outcome.as_str(), replay.response_body.as_deref()), ("replay", Some(&b"paid"[..])));
    assert_eq!(retry.value::<i64>("SELECT sum(amount) FROM ledger"), 10);
}
