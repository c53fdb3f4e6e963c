//! The commit guard: no transaction commits a claim of its own that it has left open.

mod ends;
mod foreign;
mod savepoints;

use crate::payments::*;
use harness::{sqlstate, Calls, Cluster, Database};
use postgres::Client;

/// Runs `end`, which the guard must refuse for the claim of `key`.
#[track_caller]
fn refused(client: &mut Client, end: &str, endpoint: &str, key: &str) {
    let error = client.batch_execute(end).expect_err("the guard refuses");
    assert_eq!(sqlstate(&error), "ID004", "{error}");
    let db_error = error.as_db_error().unwrap();
    let message = db_error.message();
    assert!(message.contains(endpoint) && message.contains(&format!("{key:?}")), "{message}");
    assert!(db_error.detail().is_some() && db_error.hint().is_some_and(|h| h.contains("idem_complete")));
}

#[track_caller]
fn nothing_is_left(db: &Database, key: &str) {
    let mut admin = db.admin();
    assert_eq!((charges(&mut admin, key), stored(&mut admin, key)), (0, 0));
    assert_eq!(admin.value::<i64>("SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()"), 0);
}

#[test]
fn a_commit_with_an_open_claim_is_refused_and_leaves_nothing() {
    let db = shop(Cluster::shared());
    let mut client = db.admin();
    run(&mut client, "BEGIN");
    expect(&mut client, PAY, "k", "execute");
    charge(&mut client, "k");
    refused(&mut client, "COMMIT", PAY, "k");
    nothing_is_left(&db, "k");
    // The connection goes on as if nothing had been, and nobody is told of a claim.
    run(&mut client, "BEGIN");
    charge(&mut client, "unrelated");
    run(&mut client, "COMMIT");
    assert_eq!(charges(&mut client, "unrelated"), 1);
    expect(&mut db.admin(), ORDER, "k", "execute");
    run(&mut client, "BEGIN");
    expect(&mut client, PAY, "k", "execute");
    work(&mut client, PAY, "k");
    run(&mut client, "COMMIT");
    assert_eq!(charges(&mut client, "k"), 1);
}

#[test]
fn autocommit_is_refused() {
    let db = shop(Cluster::shared());
    let mut client = db.admin();
    let claim = format!("SELECT idem_claim('{TENANT}', '{PAY}', 'k', 'body'::text)");
    refused(&mut client, &claim, PAY, "k");
    nothing_is_left(&db, "k");
    let error = client.claim(TENANT, PAY, "k", BODY).unwrap_err();
    assert_eq!(sqlstate(&error), "ID004", "with the extended protocol, too");
    nothing_is_left(&db, "k");
    // Several statements of one message are one transaction.
    refused(&mut client, &format!("INSERT INTO ledger VALUES ('k'); {claim}"), PAY, "k");
    nothing_is_left(&db, "k");
    run(&mut client, &format!("{claim}; SELECT idem_complete('{TENANT}', '{PAY}', 'k', 200, 'done'::text)"));
    assert_eq!(client.claim(TENANT, PAY, "k", b"body").unwrap().outcome, "replay");
}

#[test]
fn of_several_claims_the_first_open_one_is_named() {
    let db = shop(Cluster::shared());
    let mut client = db.admin();
    run(&mut client, "BEGIN");
    for key in ["z", "m", "a", "b"] {
        expect(&mut client, PAY, key, "execute");
    }
    expect(&mut client, CHARGE, "0", "execute");
    complete(&mut client, PAY, "z");
    refused(&mut client, "COMMIT", PAY, "m");
    for key in ["z", "m", "a", "b", "0"] {
        nothing_is_left(&db, key);
    }
    run(&mut client, "BEGIN");
    expect(&mut client, PAY, "a \"quoted\"\\", "execute");
    refused(&mut client, "COMMIT", PAY, "a \"quoted\"\\");
}

#[test]
fn each_way_of_finishing_satisfies_it() {
    let db = shop(Cluster::shared());
    let mut client = db.admin();
    run(&mut client, "BEGIN");
    for key in ["completed", "failed", "released", "claimed again"] {
        expect(&mut client, PAY, key, "execute");
    }
    complete(&mut client, PAY, "completed");
    client.fail(TENANT, PAY, "failed", 402, b"no").unwrap();
    assert!(client.release(TENANT, PAY, "released").unwrap());
    assert!(client.release(TENANT, PAY, "claimed again").unwrap());
    expect(&mut client, PAY, "claimed again", "execute");
    complete(&mut client, PAY, "claimed again");
    run(&mut client, "COMMIT");
    for key in ["completed", "failed", "claimed again"] {
        expect(&mut client, PAY, key, "replay");
    }
    assert_eq!(stored(&mut client, "released"), 0);
}

#[test]
fn released_and_claimed_again_it_is_open_again() {
    let db = shop(Cluster::shared());
    let mut client = db.admin();
    run(&mut client, "BEGIN");
    expect(&mut client, PAY, "k", "execute");
    assert!(client.release(TENANT, PAY, "k").unwrap());
    expect(&mut client, PAY, "k", "execute");
    refused(&mut client, "COMMIT", PAY, "k");
    nothing_is_left(&db, "k");
}

#[test]
fn a_claim_in_the_place_of_an_expired_row_is_guarded_and_the_old_row_stays() {
    let db = shop(Cluster::shared());
    let mut client = db.admin();
    run(&mut client, "BEGIN");
    expect(&mut client, PAY, "k", "execute");
    work(&mut client, PAY, "k");
    run(&mut client, "COMMIT");
    expire(&mut client, "k");
    let row = "SELECT k::text FROM idempotency_keys k";
    let before: String = client.value(row);
    run(&mut client, "BEGIN");
    expect(&mut client, PAY, "k", "execute");
    refused(&mut client, "COMMIT", PAY, "k");
    assert_eq!(client.value::<String>(row), before);
}

#[test]
fn external_and_unregistered_endpoints_may_be_committed_open() {
    let db = shop(Cluster::shared());
    let mut client = db.admin();
    for endpoint in [CHARGE, ORDER] {
        let first = expect(&mut client, endpoint, "k", "execute");
        assert_eq!(first.provider_key.is_some(), endpoint == CHARGE);
        let open: bool = client.value(&format!(
            "SELECT open_since IS NOT NULL AND status = 'in_progress' FROM idempotency_keys
              WHERE endpoint = '{endpoint}'"
        ));
        assert!(open);
        expect(&mut db.admin(), endpoint, "k", "in_progress");
        complete(&mut db.admin(), endpoint, "k");
        expect(&mut client, endpoint, "k", "replay");
    }
}

#[test]
fn duplicates_and_other_peoples_claims_are_none_of_its_business() {
    let db = shop(Cluster::shared());
    let (mut holder, mut other) = (db.admin(), db.admin());
    run(&mut holder, "BEGIN");
    expect(&mut holder, PAY, "k", "execute");
    run(&mut other, "BEGIN");
    expect(&mut other, PAY, "k", "in_progress");
    charge(&mut other, "other");
    run(&mut other, "COMMIT");
    refused(&mut holder, "COMMIT", PAY, "k");
    assert_eq!(charges(&mut other, "other"), 1);
}

#[test]
fn it_holds_for_a_role_without_rights_on_the_tables() {
    let db = shop(Cluster::shared());
    let role = db.role("app");
    let mut admin = db.admin();
    run(&mut admin, &format!("SELECT idem_grant('{role}'); GRANT SELECT, INSERT ON ledger TO {role}"));
    let mut client = db.connect_as(&role);
    let error = client.query("SELECT FROM idempotency_keys", &[]).unwrap_err();
    assert_eq!(sqlstate(&error), "42501");
    // Neither its own objects nor its settings get in between.
    run(
        &mut client,
        "CREATE TEMP TABLE idempotency_keys (tenant_id text, endpoint text, key text, status text, open_since text);
         SET search_path = pg_temp, public; SET default_transaction_read_only = off; BEGIN",
    );
    assert_eq!(client.claim(TENANT, PAY, "k", BODY).unwrap().outcome, "execute");
    charge(&mut client, "k");
    refused(&mut client, "COMMIT", PAY, "k");
    nothing_is_left(&db, "k");
    run(&mut client, "BEGIN");
    assert_eq!(client.claim(TENANT, PAY, "k", BODY).unwrap().outcome, "execute");
    work(&mut client, PAY, "k");
    run(&mut client, "COMMIT");
    assert_eq!((charges(&mut admin, "k"), stored(&mut admin, "k")), (1, 1));
}

#[test]
fn a_row_that_went_by_other_means_is_not_missed() {
    let db = shop(Cluster::shared());
    let mut client = db.admin();
    let means = [
        "DELETE FROM idempotency_keys",
        "TRUNCATE idempotency_keys",
        "UPDATE idempotency_keys SET status = 'succeeded', response_code = 200, completed_at = now()",
        "DROP EXTENSION idempotency_enforcer; CREATE EXTENSION idempotency_enforcer",
        "DROP EXTENSION idempotency_enforcer; CREATE SCHEMA s; CREATE EXTENSION idempotency_enforcer SCHEMA s",
        "DROP EXTENSION idempotency_enforcer",
    ];
    for by in means {
        run(&mut client, "BEGIN");
        expect(&mut client, PAY, "k", "execute");
        charge(&mut client, by);
        run(&mut client, by);
        client.batch_execute("COMMIT").unwrap_or_else(|e| panic!("{by}: {e}"));
        assert_eq!(charges(&mut client, by), 1);
        run(
            &mut client,
            &format!(
                "DROP EXTENSION IF EXISTS idempotency_enforcer; DROP SCHEMA IF EXISTS s;
                 CREATE EXTENSION idempotency_enforcer; SELECT idem_protect('{PAY}')"
            ),
        );
    }
}
