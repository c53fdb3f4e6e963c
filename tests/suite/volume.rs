//! Many keys: in flight, finished, and in one transaction.

use crate::payments::*;
use harness::{sqlstate, Calls, Cluster, Database};

/// Claims `n` keys in one transaction and returns how many got each outcome.
fn claim_many(client: &mut postgres::Client, endpoint: &str, n: i32) -> Result<Vec<(String, i64)>, postgres::Error> {
    let sql = format!(
        "SELECT c.outcome, count(*) FROM generate_series(1, {n}) i,
                LATERAL idem_claim('{TENANT}', '{endpoint}', 'key ' || i, 'body'::text) c GROUP BY 1 ORDER BY 1"
    );
    Ok(client.query(&sql, &[])?.iter().map(|row| (row.get(0), row.get(1))).collect())
}

fn complete_many(client: &mut postgres::Client, endpoint: &str, n: i32) {
    run(
        client,
        &format!(
            "SELECT count(idem_complete('{TENANT}', '{endpoint}', 'key ' || i, 200, ('answer ' || i)::text))
               FROM generate_series(1, {n}) i"
        ),
    );
}

fn all(outcome: &str, n: i32) -> Vec<(String, i64)> {
    vec![(outcome.to_owned(), n.into())]
}

/// Small lock tables: 64 locks for each of some 30 backends and prepared transactions, and some slack.
fn small_cluster(settings: &[&str]) -> Cluster {
    Cluster::start(&[&["max_connections = 10", "max_prepared_transactions = 2"], settings].concat())
}

#[test]
fn no_key_of_many_is_taken_for_another() {
    const N: i32 = 100_000;
    let cluster = Cluster::start(&["max_locks_per_transaction = 4096"]);
    let db = shop(&cluster);
    let (mut client, mut other) = (db.admin(), db.admin());
    run(&mut client, "BEGIN");
    assert_eq!(claim_many(&mut client, PAY, N).unwrap(), all("execute", N));
    let gates: i64 = other.value("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'");
    assert_eq!(gates, i64::from(N), "no two keys share a gate");
    // All in flight: the same keys of another endpoint are not held up, and these are.
    run(&mut other, "BEGIN");
    assert_eq!(claim_many(&mut other, CHARGE, 10_000).unwrap(), all("execute", 10_000));
    run(&mut other, "ROLLBACK");
    assert_eq!(claim_many(&mut other, PAY, 10_000).unwrap(), all("in_progress", 10_000));
    complete_many(&mut client, PAY, N);
    run(&mut client, "COMMIT");
    assert_eq!(claim_many(&mut other, PAY, N).unwrap(), all("replay", N));
    let exact: i64 = other.value(&format!(
        "SELECT count(*) FROM generate_series(1, {N}) i,
                LATERAL idem_claim('{TENANT}', '{PAY}', 'key ' || i, 'body'::text) c
          WHERE c.response_body = convert_to('answer ' || i, 'UTF8')"
    ));
    assert_eq!(exact, i64::from(N), "each its own answer");
}

/// Every claim of a transaction takes one lock. What PostgreSQL sets aside for them may be too little.
#[test]
fn where_the_lock_table_is_full_the_error_says_so_and_nothing_is_lost() {
    const N: i32 = 20_000;
    let cluster = small_cluster(&[]);
    let db = shop(&cluster);
    let (mut client, mut other) = (db.admin(), db.admin());
    run(&mut other, "BEGIN");
    expect(&mut other, PAY, "before", "execute");
    run(&mut client, "BEGIN; INSERT INTO ledger VALUES ('key 1')");
    let error = claim_many(&mut client, PAY, N).unwrap_err();
    assert_eq!(sqlstate(&error), "53200", "{error:?}");
    assert!(format!("{error:?}").contains("max_locks_per_transaction"), "{error:?}");
    run(&mut client, "ROLLBACK");
    // Sessions that were at work, this one and new ones go on.
    work(&mut other, PAY, "before");
    run(&mut other, "COMMIT");
    works_as_ever(&db);
    assert_eq!((charges(&mut other, "key 1"), stored(&mut other, "key 1")), (0, 0));
    for _ in 0..3 {
        run(&mut client, "BEGIN");
        assert_eq!(claim_many(&mut client, PAY, 500).unwrap(), all("execute", 500));
        run(&mut client, "ROLLBACK");
    }
}

/// The error may be caught: what was claimed before the savepoint is kept and can be completed.
#[test]
fn a_full_lock_table_undoes_no_more_than_its_savepoint() {
    let cluster = small_cluster(&[]);
    let db = shop(&cluster);
    let mut client = db.admin();
    run(&mut client, "BEGIN");
    expect(&mut client, PAY, "kept", "execute");
    run(&mut client, "SAVEPOINT s");
    assert_eq!(sqlstate(&claim_many(&mut client, PAY, 20_000).unwrap_err()), "53200");
    run(&mut client, "ROLLBACK TO s");
    work(&mut client, PAY, "kept");
    run(&mut client, "COMMIT");
    assert_eq!(client.value::<i64>("SELECT count(*) FROM idempotency_keys"), 1);
    works_as_ever(&db);
}

#[test]
fn with_a_larger_lock_table_twenty_thousand_claims_fit_into_one_transaction() {
    const N: i32 = 20_000;
    let cluster = small_cluster(&["max_locks_per_transaction = 2048"]);
    let db = shop(&cluster);
    let mut client = db.admin();
    run(&mut client, "BEGIN");
    assert_eq!(claim_many(&mut client, PAY, N).unwrap(), all("execute", N));
    complete_many(&mut client, PAY, N - 1);
    run(&mut client, "SAVEPOINT s");
    complete_many(&mut client, PAY, N);
    run(&mut client, "ROLLBACK TO s");
    let error = client.batch_execute("COMMIT").unwrap_err();
    assert_eq!(sqlstate(&error), "ID004");
    assert!(error.as_db_error().unwrap().message().contains(&format!("\"key {N}\"")), "{error:?}");
    run(&mut client, "BEGIN");
    assert_eq!(claim_many(&mut client, PAY, N).unwrap(), all("execute", N));
    complete_many(&mut client, PAY, N);
    run(&mut client, "COMMIT");
    assert_eq!(claim_many(&mut db.admin(), PAY, N).unwrap(), all("replay", N));
    works_as_ever(&db);
}

/// A batch that gives each item an exception block of its own. Were the journal searched for each of them, this
/// would take hours.
#[test]
fn twenty_thousand_claims_each_in_a_subtransaction_of_its_own() {
    const N: i32 = 20_000;
    let cluster = small_cluster(&["max_locks_per_transaction = 2048"]);
    let db = shop(&cluster);
    let mut client = db.admin();
    run(
        &mut client,
        &format!(
            "DO $$
             DECLARE
               told text;
             BEGIN
               FOR i IN 1..{N} LOOP
                 BEGIN
                   SELECT outcome INTO told FROM idem_claim('{TENANT}', '{PAY}', 'key ' || i, 'body'::text);
                   ASSERT told = 'execute';
                   IF i % 10 = 0 THEN
                     RAISE 'declined';
                   END IF;
                   PERFORM idem_complete('{TENANT}', '{PAY}', 'key ' || i, 200, ('answer ' || i)::text);
                 EXCEPTION WHEN raise_exception THEN NULL;
                 END;
               END LOOP;
             END $$"
        ),
    );
    assert_eq!(client.value::<i64>("SELECT count(*) FROM idempotency_keys WHERE status = 'succeeded'"), 18_000);
    assert_eq!(client.value::<i64>("SELECT count(*) FROM idempotency_keys"), 18_000);
    works_as_ever(&db);
}

fn works_as_ever(db: &Database) {
    let mut client = db.admin();
    run(&mut client, "BEGIN");
    expect(&mut client, PAY, "after", "execute");
    work(&mut client, PAY, "after");
    run(&mut client, "COMMIT");
    expect(&mut db.admin(), PAY, "after", "replay");
    assert_eq!(client.value::<i64>("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"), 0);
}
