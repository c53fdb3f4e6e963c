//! Endpoints whose effect is outside the database: provider keys, claims that are committed open, checkpoints, and what
//! duplicates are told meanwhile.

use harness::{at_once, sqlstate, Calls, Cluster, Database};
use postgres::Client;
use serde_json::{json, Value};
use std::process::Stdio;
use uuid::Uuid;

const CHARGE: &str = "POST /charges";
const BODY: &[u8] = b"{}";

/// A database with an endpoint registered as external, that lets others through.
fn shop(cluster: &Cluster) -> Database<'_> {
    let db = cluster.lenient_database();
    db.admin().batch_execute(&format!("SELECT idem_protect('{CHARGE}', 'external')")).unwrap();
    db
}

/// Claims for the first time and returns the provider key.
#[track_caller]
fn execute(c: &mut Client, tenant: &str, endpoint: &str, key: &str, body: &[u8]) -> Option<Uuid> {
    let arrival = c.claim(tenant, endpoint, key, body).unwrap();
    assert_eq!((arrival.outcome.as_str(), arrival.attempt), ("execute", Some(1)));
    arrival.provider_key
}

/// The row of a charge as it is stored.
pub fn stored(c: &mut Client, key: &str) -> Value {
    let sql = "SELECT to_jsonb(k) FROM idempotency_keys k WHERE endpoint = 'POST /charges' AND key = $1";
    c.query_opt(sql, &[&key]).unwrap().map_or(Value::Null, |row| row.get(0))
}

/// `idem_checkpoint` as an application calls it.
fn checkpoint(
    c: &mut impl Calls,
    key: &str,
    point: &str,
    state: Option<Value>,
    attempt: Option<i32>,
) -> Result<(), postgres::Error> {
    let sql = "SELECT idem_checkpoint('t', 'POST /charges', $1, $2, $3, $4)";
    c.rows(sql, &[&key, &point, &state, &attempt]).map(drop)
}

#[test]
fn provider_key_is_derived_from_the_scope_and_the_request_hash() {
    let db = shop(Cluster::shared());
    let mut c = db.admin();
    c.batch_execute("SELECT idem_protect('POST /refunds', 'external'), idem_protect('POST /inside')").unwrap();
    let first = execute(&mut c, "t", CHARGE, "k", BODY).unwrap();
    // Providers remember these keys: another value for the same request is a second charge.
    assert_eq!(first.to_string(), "9bb5ae2d-2ba3-877c-bae9-a824fa65fb8c");
    let mut all = vec![
        first,
        execute(&mut c, "u", CHARGE, "k", BODY).unwrap(),
        execute(&mut c, "t", "POST /refunds", "k", BODY).unwrap(),
        execute(&mut c, "t", CHARGE, "l", BODY).unwrap(),
        execute(&mut c, "t", CHARGE, "m", b"{ }").unwrap(),
        // Where one part ends and the next begins is part of it.
        execute(&mut c, "tP", CHARGE, "k", BODY).unwrap(),
        execute(&mut c, "", CHARGE, "tk", BODY).unwrap(),
    ];
    for key in &all {
        assert_eq!((key.get_version_num(), key.get_variant()), (8, uuid::Variant::RFC4122), "{key}");
    }
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 7);

    assert_eq!(execute(&mut c, "t", "POST /unregistered", "k", BODY), None);
    let mut tx = c.transaction().unwrap();
    assert_eq!(tx.claim("t", "POST /inside", "k", BODY).unwrap().provider_key, None);
}

#[test]
fn provider_key_is_the_same_after_release_loss_expiry_takeover_and_with_a_hash_for_a_body() {
    let db = shop(Cluster::shared());
    let mut c = db.admin();
    let first = execute(&mut c, "t", CHARGE, "k", BODY);
    c.batch_execute("UPDATE idempotency_keys SET open_since = open_since - interval '1 year'").unwrap();
    let reconciled = c.query_one("SELECT attempt, provider_key FROM idem_reconcile()", &[]).unwrap();
    assert_eq!((reconciled.get(0), reconciled.get(1)), (2, first));

    c.batch_execute("SELECT idem_release('t', 'POST /charges', 'k', 2)").unwrap();
    let released = c.claim("t", CHARGE, "k", BODY).unwrap();
    assert_eq!((released.attempt, released.provider_key), (Some(3), first), "after a release");
    c.batch_execute("DELETE FROM idempotency_keys").unwrap();
    let hashed = "SELECT provider_key FROM idem_claim('t', 'POST /charges', 'k', NULL::bytea, NULL, sha256('{}'))";
    assert_eq!(c.value::<Option<Uuid>>(hashed), first, "after a loss, by the hash");

    c.complete("t", CHARGE, "k", 201, b"done").unwrap();
    assert_eq!(c.claim("t", CHARGE, "k", BODY).unwrap().provider_key, first, "replayed");
    c.batch_execute("UPDATE idempotency_keys SET expires_at = now()").unwrap();
    assert_eq!(execute(&mut c, "t", CHARGE, "k", BODY), first, "in place of an expired row");
    c.batch_execute(
        "DELETE FROM idempotency_keys; SELECT idem_unprotect('POST /charges');
         SELECT idem_protect('POST /charges', 'external', stuck_after => '1 hour')",
    )
    .unwrap();
    assert_eq!(execute(&mut c, "t", CHARGE, "k", BODY), first, "after another registration");
}

#[test]
fn an_open_claim_and_its_provider_key_survive_pg_dump() {
    let cluster = Cluster::shared();
    let (db, restored) = (shop(cluster), cluster.empty_database(""));
    let mut c = db.admin();
    let first = execute(&mut c, "t", CHARGE, "k", BODY);
    checkpoint(&mut c, "k", "called", Some(json!({"order": 7})), None).unwrap();
    let client = |program: &str, database: &Database| {
        let mut command = cluster.installation().client(program);
        command.args(["-h", "127.0.0.1", "-U", "postgres", "-p", &cluster.port().to_string(), "-d", database.name()]);
        command
    };
    let mut dump = client("pg_dump", &db).stdout(Stdio::piped()).spawn().unwrap();
    let psql = client("psql", &restored)
        .args(["-X", "-q", "-v", "ON_ERROR_STOP=1"])
        .stdin(dump.stdout.take().unwrap())
        .output()
        .unwrap();
    assert!(dump.wait().unwrap().success() && psql.status.success(), "{}", String::from_utf8_lossy(&psql.stderr));

    let mut after = restored.admin();
    assert_eq!(stored(&mut after, "k"), stored(&mut c, "k"));
    assert_eq!(after.claim("t", CHARGE, "k", BODY).unwrap().outcome, "in_progress");
    // A backup from before the claim: the client's retry derives the same key.
    after.batch_execute("DELETE FROM idempotency_keys").unwrap();
    assert_eq!(execute(&mut after, "t", CHARGE, "k", BODY), first);
}

#[test]
fn the_commit_guard_does_not_hold_for_external_endpoints() {
    let db = shop(Cluster::shared());
    let mut c = db.admin();
    execute(&mut c, "t", CHARGE, "autocommit", BODY);
    let mut tx = c.transaction().unwrap();
    assert_eq!(tx.claim("t", CHARGE, "committed", BODY).unwrap().outcome, "execute");
    assert_eq!(tx.claim("t", "POST /unregistered", "committed", BODY).unwrap().outcome, "execute");
    tx.commit().unwrap();
    c.batch_execute("BEGIN; SELECT idem_claim('t', 'POST /charges', 'prepared', '{}'::bytea)").unwrap();
    let prepared = format!("'{}_external'", db.name());
    c.batch_execute(&format!("PREPARE TRANSACTION {prepared}")).unwrap();
    c.batch_execute(&format!("COMMIT PREPARED {prepared}")).unwrap();

    // The result is stored by another transaction, on another connection.
    let mut other = db.admin();
    for key in ["autocommit", "committed", "prepared"] {
        assert_eq!(other.claim("t", CHARGE, key, BODY).unwrap().outcome, "in_progress", "{key}");
        other.complete("t", CHARGE, key, 201, key.as_bytes()).unwrap();
        let replay = c.claim("t", CHARGE, key, BODY).unwrap();
        assert_eq!((replay.outcome.as_str(), replay.response_body.as_deref()), ("replay", Some(key.as_bytes())));
    }
    // Finished claims are no longer open; the unregistered one still is.
    assert_eq!(c.value::<i64>("SELECT count(*) FROM idempotency_keys WHERE open_since IS NOT NULL"), 1);
}

#[test]
fn a_checkpoint_commits_or_vanishes_with_the_local_step_that_it_belongs_to() {
    let db = shop(Cluster::shared());
    let mut c = db.admin();
    c.batch_execute("CREATE TABLE steps (name text)").unwrap();
    execute(&mut c, "t", CHARGE, "k", BODY);
    let step = |tx: &mut postgres::Transaction, name: &str| {
        tx.execute("INSERT INTO steps VALUES ($1)", &[&name]).unwrap();
        checkpoint(tx, "k", name, Some(json!({ "step": name })), None).unwrap();
    };
    let reached = |c: &mut Client| -> (String, Value, Value) {
        let row = stored(c, "k");
        (
            c.value("SELECT coalesce(string_agg(name, ','), '') FROM steps"),
            row["recovery_point"].clone(),
            row["recovery_state"].clone(),
        )
    };

    let mut tx = c.transaction().unwrap();
    step(&mut tx, "lost");
    tx.rollback().unwrap();
    assert_eq!(reached(&mut c), ("".into(), Value::Null, Value::Null));

    let mut tx = c.transaction().unwrap();
    step(&mut tx, "booked");
    let mut inner = tx.savepoint("s").unwrap();
    step(&mut inner, "undone");
    inner.rollback().unwrap();
    tx.commit().unwrap();
    assert_eq!(reached(&mut c), ("booked".into(), json!("booked"), json!({"step": "booked"})));

    // A later step replaces the state, also with none; the view shows how far the work came.
    checkpoint(&mut c, "k", "called", None, Some(1)).unwrap();
    assert_eq!(reached(&mut c), ("booked".into(), json!("called"), Value::Null));
    c.batch_execute("UPDATE idempotency_keys SET open_since = open_since - interval '1 year'").unwrap();
    assert_eq!(c.value::<String>("SELECT reached FROM idem_stuck"), "called");

    // In the claim's own transaction too, and what is finished keeps it for the record.
    let mut tx = c.transaction().unwrap();
    tx.claim("t", CHARGE, "l", BODY).unwrap();
    checkpoint(&mut tx, "l", "claimed", None, None).unwrap();
    tx.commit().unwrap();
    c.complete("t", CHARGE, "l", 201, b"").unwrap();
    assert_eq!(stored(&mut c, "l")["recovery_point"], "claimed");
}

#[test]
fn a_checkpoint_without_an_open_claim_of_this_attempt_is_refused_and_changes_nothing() {
    let db = shop(Cluster::shared());
    let mut c = db.admin();
    execute(&mut c, "t", CHARGE, "open", BODY);
    execute(&mut c, "t", CHARGE, "finished", BODY);
    c.complete("t", CHARGE, "finished", 201, b"").unwrap();
    let before = (stored(&mut c, "open"), stored(&mut c, "finished"));
    for (key, point, attempt, code) in [
        ("none", "p", None, "ID001"),
        ("", "p", None, "ID001"),
        ("finished", "p", None, "ID002"),
        ("open", "p", Some(2), "ID003"),
        ("open", "p", Some(0), "ID003"),
        ("finished", "p", Some(2), "ID003"),
        ("open", "", None, "22023"),
    ] {
        let error = checkpoint(&mut c, key, point, None, attempt).expect_err(key);
        assert_eq!(sqlstate(&error), code, "{key} {point} {attempt:?}: {error}");
        let error = error.as_db_error().unwrap();
        assert!(error.message().contains("\"POST /charges\""), "{error:?}");
        assert!(error.detail().is_some() && error.hint().is_some(), "{error:?}");
    }
    let null = c.batch_execute("SELECT idem_checkpoint('t', 'POST /charges', 'open', NULL)").unwrap_err();
    assert_eq!(sqlstate(&null), "22023");
    assert_eq!((stored(&mut c, "open"), stored(&mut c, "finished")), before);
}

#[test]
fn duplicates_of_an_open_claim_get_409_and_when_to_retry_whatever_its_age() {
    let db = shop(Cluster::shared());
    let mut c = db.admin();
    for endpoint in [CHARGE, "POST /unregistered"] {
        execute(&mut c, "t", endpoint, "k", BODY);
    }
    c.batch_execute(
        "UPDATE idempotency_keys
            SET open_since = open_since - interval '1 year', created_at = created_at - interval '1 year',
                expires_at = expires_at - interval '1 year'",
    )
    .unwrap();
    assert_eq!(c.value::<i32>("SELECT idem_sweep()"), 0, "an open claim is never swept");
    let before = stored(&mut c, "k");

    let mut clients: Vec<Client> = (0..12).map(|_| db.admin()).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        let level = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"][n % 3];
        client.batch_execute(&format!("SET default_transaction_isolation = '{level}'")).unwrap();
    }
    for endpoint in [CHARGE, "POST /unregistered"] {
        for arrival in at_once(&mut clients, |_, c| c.claim("t", endpoint, "k", BODY).unwrap()) {
            assert_eq!((arrival.outcome.as_str(), arrival.response_code), ("in_progress", Some(409)));
            let headers = json!([["content-type", "application/problem+json"], ["retry-after", "2"]]);
            assert_eq!(arrival.response_headers, Some(headers));
            assert_eq!((arrival.attempt, arrival.provider_key), (None, None), "nothing to act on");
        }
        assert_eq!(c.claim("t", endpoint, "k", b"another").unwrap().outcome, "key_reused");
    }
    assert_eq!(stored(&mut c, "k"), before);
}

#[test]
fn a_failure_long_after_the_claim_is_replayable_for_the_full_ttl() {
    let db = shop(Cluster::shared());
    let mut c = db.admin();
    execute(&mut c, "t", CHARGE, "k", BODY);
    c.batch_execute(
        "UPDATE idempotency_keys
            SET open_since = open_since - interval '1 year', created_at = created_at - interval '1 year',
                expires_at = expires_at - interval '1 year'",
    )
    .unwrap();
    c.fail("t", CHARGE, "k", 402, b"declined").unwrap();
    assert_eq!(c.value::<i32>("SELECT idem_sweep()"), 0);
    let replay = c.claim("t", CHARGE, "k", BODY).unwrap();
    assert_eq!((replay.outcome.as_str(), replay.response_code), ("replay", Some(402)));
    let left =
        "SELECT expires_at - clock_timestamp() BETWEEN '47 hours 59 minutes' AND '48 hours' FROM idempotency_keys";
    assert!(c.value::<bool>(left));
}
