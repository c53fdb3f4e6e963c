//! The guard under savepoints and PL/pgSQL's exception blocks, which are subtransactions too.

use super::*;

#[test]
fn rollback_over_a_claim_forgets_it() {
    let db = shop(Cluster::shared());
    let mut client = db.admin();
    run(&mut client, "BEGIN; SAVEPOINT s");
    expect(&mut client, PAY, "k", "execute");
    charge(&mut client, "k");
    run(&mut client, "ROLLBACK TO s");
    charge(&mut client, "other");
    run(&mut client, "COMMIT");
    nothing_is_left(&db, "k");
    assert_eq!(charges(&mut client, "other"), 1);
}

#[test]
fn rollback_over_a_completion_reopens_the_claim() {
    let db = shop(Cluster::shared());
    let mut client = db.admin();
    run(&mut client, "BEGIN");
    expect(&mut client, PAY, "k", "execute");
    run(&mut client, "SAVEPOINT s");
    work(&mut client, PAY, "k");
    run(&mut client, "ROLLBACK TO s; RELEASE s");
    refused(&mut client, "COMMIT", PAY, "k");
    nothing_is_left(&db, "k");
}

/// The work fails, its writes are rolled back, and the failure is what is stored.
#[test]
fn a_failure_after_a_rollback_to_a_savepoint_is_stored_and_replayed() {
    let db = shop(Cluster::shared());
    let mut client = db.admin();
    run(&mut client, "BEGIN");
    expect(&mut client, PAY, "k", "execute");
    run(&mut client, "SAVEPOINT work");
    charge(&mut client, "k");
    assert!(client.execute("SELECT 1/0", &[]).is_err());
    run(&mut client, "ROLLBACK TO work");
    client.fail(TENANT, PAY, "k", 402, b"no money").unwrap();
    run(&mut client, "COMMIT");
    let told = expect(&mut client, PAY, "k", "replay");
    assert_eq!((told.response_code, told.response_body.as_deref()), (Some(402), Some(&b"no money"[..])));
    assert_eq!(charges(&mut client, "k"), 0);
}

#[test]
fn a_released_savepoint_hands_its_claims_on() {
    let db = shop(Cluster::shared());
    let mut client = db.admin();
    run(&mut client, "BEGIN; SAVEPOINT a; SAVEPOINT b");
    expect(&mut client, PAY, "k", "execute");
    run(&mut client, "RELEASE b; RELEASE a");
    refused(&mut client, "COMMIT", PAY, "k");
    nothing_is_left(&db, "k");

    run(&mut client, "BEGIN; SAVEPOINT a; SAVEPOINT b");
    expect(&mut client, PAY, "k", "execute");
    run(&mut client, "RELEASE b; ROLLBACK TO a; COMMIT");
    nothing_is_left(&db, "k");

    run(&mut client, "BEGIN");
    expect(&mut client, PAY, "k", "execute");
    run(&mut client, "SAVEPOINT a; SAVEPOINT b");
    work(&mut client, PAY, "k");
    run(&mut client, "RELEASE b; ROLLBACK TO a");
    refused(&mut client, "COMMIT", PAY, "k");
    nothing_is_left(&db, "k");
}

#[test]
fn savepoints_left_open_are_committed_with_the_transaction() {
    let db = shop(Cluster::shared());
    let mut client = db.admin();
    run(&mut client, "BEGIN; SAVEPOINT a");
    expect(&mut client, PAY, "k", "execute");
    run(&mut client, "SAVEPOINT b");
    refused(&mut client, "COMMIT", PAY, "k");
    run(&mut client, "BEGIN; SAVEPOINT a");
    expect(&mut client, PAY, "k", "execute");
    run(&mut client, "SAVEPOINT b");
    work(&mut client, PAY, "k");
    run(&mut client, "SAVEPOINT b; COMMIT");
    assert_eq!((charges(&mut client, "k"), stored(&mut client, "k")), (1, 1));
}

#[test]
fn claimed_and_rolled_back_over_and_over_it_ends_as_the_last_time() {
    let db = shop(Cluster::shared());
    let mut client = db.admin();
    run(&mut client, "BEGIN; SAVEPOINT s");
    for _ in 0..3 {
        expect(&mut client, PAY, "k", "execute");
        charge(&mut client, "k");
        run(&mut client, "ROLLBACK TO s");
    }
    expect(&mut client, PAY, "k", "execute");
    work(&mut client, PAY, "k");
    run(&mut client, "SAVEPOINT t");
    expect(&mut client, PAY, "k", "replay");
    run(&mut client, "ROLLBACK TO t; COMMIT");
    assert_eq!((charges(&mut client, "k"), stored(&mut client, "k")), (1, 1));
}

#[test]
fn exception_blocks_of_plpgsql() {
    let db = shop(Cluster::shared());
    let mut client = db.admin();
    let calls = |key: &str| {
        (
            format!("PERFORM idem_claim('{TENANT}', '{PAY}', '{key}', 'body'::text)"),
            format!("PERFORM idem_complete('{TENANT}', '{PAY}', '{key}', 200, 'done'::text)"),
        )
    };
    let (claim, complete) = calls("k");
    let (claim_inner, complete_inner) = calls("inner");
    // The block fails: its claim is forgotten, its completion undone.
    let fails = |block: &str| format!("BEGIN {block}; RAISE division_by_zero; EXCEPTION WHEN OTHERS THEN NULL; END");
    let passes = |block: &str| format!("BEGIN {block}; EXCEPTION WHEN OTHERS THEN RAISE; END");
    let body = |statements: &[&str]| format!("DO $$ BEGIN {}; END $$", statements.join("; "));

    run(&mut client, &body(&[&fails(&claim)]));
    nothing_is_left(&db, "k");
    refused(&mut client, &body(&[&claim, &fails(&complete)]), PAY, "k");
    refused(&mut client, &body(&[&passes(&claim)]), PAY, "k");
    refused(&mut client, &body(&[&passes(&fails(&complete_inner)), &passes(&passes(&claim))]), PAY, "k");
    nothing_is_left(&db, "k");
    run(&mut client, &body(&[&passes(&claim), &fails(&format!("{claim_inner}; {complete}")), &passes(&complete)]));
    assert_eq!((stored(&mut client, "k"), stored(&mut client, "inner")), (1, 0));
    // The error of a finish is an error like any other: the block around it decides.
    run(&mut client, &body(&[&format!("BEGIN {complete_inner}; EXCEPTION WHEN SQLSTATE 'ID001' THEN NULL; END")]));
}

#[test]
fn an_error_in_a_claim_itself_undoes_only_its_block() {
    let db = shop(Cluster::shared());
    let mut client = db.admin();
    run(&mut client, "BEGIN");
    expect(&mut client, PAY, "k", "execute");
    run(&mut client, "SAVEPOINT s");
    assert!(client.claim_waiting(TENANT, PAY, "other", BODY, "-1 s").is_err());
    run(&mut client, "ROLLBACK TO s");
    work(&mut client, PAY, "k");
    run(&mut client, "COMMIT");
    assert_eq!((charges(&mut client, "k"), stored(&mut client, "other")), (1, 0));
}

/// The row goes by other means, is claimed anew, and comes back with the rollback: it is as open as before.
#[test]
fn a_claim_that_comes_back_with_a_rollback_is_guarded() {
    let db = shop(Cluster::shared());
    let mut client = db.admin();
    run(&mut client, "BEGIN");
    expect(&mut client, PAY, "k", "execute");
    run(&mut client, "SAVEPOINT s; DELETE FROM idempotency_keys");
    expect(&mut client, PAY, "k", "execute");
    run(&mut client, "ROLLBACK TO s");
    refused(&mut client, "COMMIT", PAY, "k");
    nothing_is_left(&db, "k");
}
