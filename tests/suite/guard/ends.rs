//! The guard at the other ends of a transaction: two-phase commit, deferred triggers, procedures, pools.

use super::*;
use harness::Background;
use postgres::SimpleQueryMessage;

/// Prepared transactions are known by names that are unique in the cluster.
fn name(db: &Database) -> String {
    format!("payment of {}", db.name())
}

#[test]
fn prepare_transaction_is_refused_like_commit() {
    let db = shop(Cluster::shared());
    let mut client = db.admin();
    run(&mut client, "BEGIN");
    expect(&mut client, PAY, "k", "execute");
    charge(&mut client, "k");
    refused(&mut client, &format!("PREPARE TRANSACTION '{}'", name(&db)), PAY, "k");
    nothing_is_left(&db, "k");
    run(&mut client, "BEGIN; SELECT 1; COMMIT");
}

#[test]
fn a_prepared_payment_holds_the_key_until_it_is_committed_or_rolled_back() {
    let db = shop(Cluster::shared());
    let (mut client, mut other) = (db.admin(), db.admin());
    for (end, outcome, effects) in [("ROLLBACK PREPARED", "execute", 0), ("COMMIT PREPARED", "replay", 1)] {
        // A temporary table of an earlier transaction does not stand in the way of PREPARE.
        run(&mut client, "CREATE TEMP TABLE IF NOT EXISTS scratch (n int)");
        run(&mut client, "BEGIN");
        expect(&mut client, PAY, "k", "execute");
        work(&mut client, PAY, "k");
        run(&mut client, &format!("PREPARE TRANSACTION '{}'", name(&db)));
        // The session is free again: neither the claim nor its gate belongs to it.
        expect(&mut client, PAY, "k", "in_progress");
        expect(&mut other, PAY, "k", "in_progress");
        let waited = client.claim_waiting(TENANT, PAY, "k", BODY, "20 ms").unwrap();
        assert_eq!(waited.outcome, "in_progress");
        run(&mut client, "BEGIN; INSERT INTO ledger VALUES ('other'); COMMIT");
        run(&mut other, &format!("{end} '{}'", name(&db)));
        assert_eq!(charges(&mut other, "k"), effects);
        run(&mut other, "BEGIN");
        expect(&mut other, PAY, "k", outcome);
        run(&mut other, "ROLLBACK");
    }
}

#[test]
fn an_external_claim_may_be_prepared_open() {
    let db = shop(Cluster::shared());
    let mut client = db.admin();
    run(&mut client, "BEGIN");
    expect(&mut client, CHARGE, "k", "execute");
    run(&mut client, &format!("PREPARE TRANSACTION '{}'", name(&db)));
    run(&mut client, &format!("COMMIT PREPARED '{}'", name(&db)));
    expect(&mut client, CHARGE, "k", "in_progress");
    complete(&mut client, CHARGE, "k");
    expect(&mut client, CHARGE, "k", "replay");
}

/// The claim belongs to the prepared transaction, no longer to the session: there it is one to wait for.
#[test]
fn a_session_waits_for_what_it_has_prepared_like_any_other() {
    let db = shop(Cluster::shared());
    let name = name(&db);
    let prepare = format!("PREPARE TRANSACTION '{name}'");
    // Plain statements only, so that no other transaction comes between the PREPARE and the claim.
    let claim = format!("SELECT outcome FROM idem_claim('{TENANT}', '{CHARGE}', 'k', 'body'::text, wait => '1 hour')");
    let waiting = Background::run(db.admin(), move |client| {
        for statement in ["BEGIN", &claim, &prepare] {
            run(client, statement);
        }
        let told = client.simple_query(&claim).expect("idem_claim");
        told.iter().find_map(|m| match m {
            SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        })
    });
    waiting.until_waiting_for("Extension", &mut db.admin());
    run(&mut db.admin(), &format!("ROLLBACK PREPARED '{name}'"));
    assert_eq!(waiting.join().0.as_deref(), Some("execute"));
}

/// Nor does it take for its own what an earlier transaction of the session has claimed.
#[test]
fn a_session_waits_for_what_it_has_committed_open_like_any_other() {
    let db = shop(Cluster::shared());
    let mut client = db.admin();
    expect(&mut client, CHARGE, "k", "execute");
    let waiting =
        Background::run(client, |client| client.claim_waiting(TENANT, CHARGE, "k", BODY, "1 hour").unwrap().outcome);
    waiting.until_waiting_for("Extension", &mut db.admin());
    complete(&mut db.admin(), CHARGE, "k");
    assert_eq!(waiting.join().0, "replay");
}

#[test]
fn a_deferred_trigger_may_still_finish_the_claim_or_open_another() {
    let db = shop(Cluster::shared());
    let mut client = db.admin();
    run(
        &mut client,
        &format!(
            "CREATE FUNCTION finish() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
               IF NEW.key LIKE 'open %' THEN
                 PERFORM idem_claim('{TENANT}', '{PAY}', NEW.key, 'body'::text);
               ELSE
                 PERFORM idem_complete('{TENANT}', '{PAY}', NEW.key, 201, 'from the trigger'::text);
               END IF;
               RETURN NULL;
             END $$;
             CREATE CONSTRAINT TRIGGER finish AFTER INSERT ON ledger DEFERRABLE INITIALLY DEFERRED
               FOR EACH ROW EXECUTE FUNCTION finish()"
        ),
    );
    run(&mut client, "BEGIN");
    expect(&mut client, PAY, "k", "execute");
    charge(&mut client, "k");
    run(&mut client, "COMMIT");
    let told = expect(&mut client, PAY, "k", "replay");
    assert_eq!(told.response_body.as_deref(), Some(&b"from the trigger"[..]));
    refused(&mut client, "INSERT INTO ledger VALUES ('open k')", PAY, "open k");
    nothing_is_left(&db, "open k");
}

#[test]
fn each_transaction_of_a_procedure_is_guarded() {
    let db = shop(Cluster::shared());
    let mut client = db.admin();
    run(
        &mut client,
        &format!(
            "CREATE PROCEDURE pay(key text, finishes boolean) LANGUAGE plpgsql AS $$ BEGIN
               PERFORM idem_claim('{TENANT}', '{PAY}', key || ' 1', 'body'::text);
               PERFORM idem_complete('{TENANT}', '{PAY}', key || ' 1', 201, 'done'::text);
               COMMIT;
               PERFORM idem_claim('{TENANT}', '{PAY}', key || ' 2', 'body'::text);
               ROLLBACK;
               PERFORM idem_claim('{TENANT}', '{PAY}', key || ' 3', 'body'::text);
               INSERT INTO ledger VALUES (key || ' 3');
               IF finishes THEN
                 PERFORM idem_complete('{TENANT}', '{PAY}', key || ' 3', 201, 'done'::text);
               END IF;
               COMMIT;
               INSERT INTO ledger VALUES (key || ' after');
             END $$"
        ),
    );
    refused(&mut client, "CALL pay('a', false)", PAY, "a 3");
    assert_eq!((stored(&mut client, "a 1"), charges(&mut client, "a after")), (1, 0));
    nothing_is_left(&db, "a 2");
    nothing_is_left(&db, "a 3");
    run(&mut client, "CALL pay('b', true)");
    assert_eq!((stored(&mut client, "b 1"), stored(&mut client, "b 2"), stored(&mut client, "b 3")), (1, 0, 1));
    assert_eq!(charges(&mut client, "b after"), 1);
}

#[test]
fn a_chained_transaction_starts_with_nothing_open() {
    let db = shop(Cluster::shared());
    let mut client = db.admin();
    run(&mut client, "BEGIN");
    expect(&mut client, PAY, "k", "execute");
    run(&mut client, "ROLLBACK AND CHAIN");
    charge(&mut client, "other");
    run(&mut client, "COMMIT AND CHAIN");
    expect(&mut client, PAY, "k", "execute");
    refused(&mut client, "COMMIT AND CHAIN", PAY, "k");
    nothing_is_left(&db, "k");
    assert_eq!(charges(&mut client, "other"), 1);
}

/// As a transaction pool does between two clients of one connection.
#[test]
fn nothing_is_carried_over_discard_all() {
    let db = shop(Cluster::shared());
    let mut client = db.admin();
    run(&mut client, "BEGIN");
    expect(&mut client, PAY, "k", "execute");
    assert!(client.execute("SELECT 1/0", &[]).is_err());
    assert!(client.batch_execute("COMMIT").is_ok(), "a rollback: the transaction had failed");
    // DISCARD ALL drops the prepared statements that the driver keeps, too: plain statements only from here.
    let claim = format!("SELECT idem_claim('{TENANT}', '{PAY}', 'k', 'body'::text)");
    let complete = format!("SELECT idem_complete('{TENANT}', '{PAY}', 'k', 200, 'done'::text)");
    run(&mut client, "DISCARD ALL");
    refused(&mut client, &claim, PAY, "k");
    run(&mut client, "DISCARD ALL");
    nothing_is_left(&db, "k");
    run(&mut client, "BEGIN");
    run(&mut client, &claim);
    run(
        &mut client,
        "DISCARD PLANS; DISCARD TEMP; RESET ALL; CLOSE ALL; DEALLOCATE ALL; SELECT pg_advisory_unlock_all()",
    );
    run(&mut client, &complete);
    run(&mut client, "COMMIT");
    run(&mut client, "DISCARD ALL");
    assert_eq!(db.admin().claim(TENANT, PAY, "k", b"body").unwrap().outcome, "replay");
}
