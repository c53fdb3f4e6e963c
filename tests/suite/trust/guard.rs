//! A guard that cannot look does not let a claim through.

use super::*;

fn claimed() -> (Database<'static>, Client) {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    c.batch_execute("SELECT idem_protect('POST /pay'); CREATE TABLE effects (key text)").unwrap();
    c.batch_execute("BEGIN; SELECT idem_claim('t', 'POST /pay', 'k', ''::bytea); INSERT INTO effects VALUES ('k')")
        .unwrap();
    (db, c)
}

fn refused(db: &Database, c: &mut Client) -> Failure {
    let refused = Failure::of(c.batch_execute("COMMIT"));
    assert_eq!(refused.sqlstate, "ID004", "{refused:?}");
    assert!(refused.message.contains(r#""k""#) && refused.message.contains("POST /pay"), "{refused:?}");
    assert_eq!(db.admin().value::<i64>("SELECT count(*) FROM effects"), 0);
    refused
}

// CASES 72
#[test]
fn whatever_became_of_the_table_an_open_claim_is_not_committed() {
    for (change, said) in [
        ("ALTER TABLE idempotency_keys RENAME TO elsewhere", "not to be looked at"),
        ("ALTER TABLE idempotency_endpoints RENAME TO elsewhere", "not to be looked at"),
        ("DROP EXTENSION idempotency_enforcer", "not to be looked at"),
        ("DELETE FROM idempotency_keys", "gone"),
        ("TRUNCATE idempotency_keys", "gone"),
        ("CREATE RULE r AS ON DELETE TO idempotency_keys DO ALSO NOTIFY x", "not to be looked at"),
        ("DROP EXTENSION idempotency_enforcer; CREATE EXTENSION idempotency_enforcer", "gone"),
        ("SELECT idem_unprotect('POST /pay', force => true)", "in_progress"),
        ("SELECT idem_protect('POST /pay', 'external')", "in_progress"),
    ] {
        let (db, mut c) = claimed();
        c.batch_execute(change).unwrap();
        let refused = refused(&db, &mut c);
        assert!(refused.detail.contains(said), "{change}: {refused:?}");
    }
}

// CASES 72
#[test]
fn an_extension_made_anew_inside_a_savepoint_does_not_draw_the_guard_off() {
    let (db, mut c) = claimed();
    c.batch_execute(
        "SAVEPOINT s; DROP EXTENSION idempotency_enforcer; CREATE SCHEMA other;
         CREATE EXTENSION idempotency_enforcer SCHEMA other; SELECT other.idem_protect('POST /pay');
         SELECT other.idem_claim('t', 'POST /pay', 'k2', ''::bytea);
         SELECT other.idem_complete('t', 'POST /pay', 'k2', 200, ''::bytea);
         ROLLBACK TO s",
    )
    .unwrap();
    refused(&db, &mut c);
}

#[test]
fn the_row_itself_has_the_last_word() {
    let (db, mut c) = claimed();
    // As the tables' owner may: the result is there, whoever has written it.
    c.batch_execute(
        "UPDATE idempotency_keys SET status = 'succeeded', response_code = 200, completed_at = now(); COMMIT",
    )
    .unwrap();
    assert_eq!(db.admin().claim("t", "POST /pay", "k", b"").unwrap().outcome, "replay");
}
