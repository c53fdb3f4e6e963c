//! The functions have the rights of the tables' owner, no more, and only they have them.

use super::{application, sqlstate, whole_round};
use harness::{Calls, Cluster, Database};

/// Gives both tables to a role that has nothing else but USAGE on their schema.
fn give_away(db: &Database) -> String {
    let owner = db.role("owner");
    db.admin()
        .batch_execute(&format!(
            "ALTER TABLE idempotency_keys OWNER TO {owner}; ALTER TABLE idempotency_endpoints OWNER TO {owner};
             GRANT EXECUTE ON FUNCTION idem_row_is_well_formed TO {owner};
             GRANT USAGE ON SCHEMA public TO {owner}"
        ))
        .unwrap();
    owner
}

#[test]
fn an_unprivileged_owner_is_enough_for_everything() {
    let db = Cluster::shared().lenient_database();
    let mut early = db.connect_as(&application(&db));
    whole_round(&mut early, "public", "before");
    let owner = give_away(&db);
    let mut admin = db.admin();
    admin.execute("SELECT idem_protect('POST /guarded')", &[]).unwrap();
    // Whoever the statements run as fires the trigger.
    admin
        .batch_execute(&format!(
            "CREATE TABLE seen (as_role name); GRANT INSERT ON seen TO {owner};
             CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
               $$ BEGIN INSERT INTO public.seen VALUES (current_user); RETURN coalesce(new, old); END $$;
             CREATE TRIGGER note BEFORE INSERT OR UPDATE OR DELETE ON idempotency_keys
               FOR EACH ROW EXECUTE FUNCTION note()"
        ))
        .unwrap();
    whole_round(&mut early, "public", "after");
    assert_eq!(sqlstate(early.claim("t", "POST /guarded", "k", b"")), "ID004");
    admin.batch_execute("UPDATE idempotency_keys SET expires_at = now() - interval '1 s'; TRUNCATE seen").unwrap();
    assert_eq!(early.claim("t", "POST /round", "after a", b"body").unwrap().outcome, "execute", "taken over");
    assert_eq!(admin.value::<i32>("SELECT idem_sweep()"), 5, "every other finished row and the tombstones");
    assert_eq!(admin.value::<String>("SELECT string_agg(DISTINCT as_role::text, ',') FROM seen"), owner);
}

#[test]
fn what_the_owner_may_not_do_is_not_done() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.connect_as(&application(&db));
    c.claim("t", "POST /x", "open", b"").unwrap();
    let owner = give_away(&db);
    let mut admin = db.admin();
    admin.batch_execute(&format!("REVOKE INSERT ON idempotency_keys FROM {owner}")).unwrap();
    assert_eq!(sqlstate(c.claim("t", "POST /x", "new", b"")), "42501");
    c.complete("t", "POST /x", "open", 200, b"").unwrap();
    admin.batch_execute(&format!("REVOKE SELECT ON idempotency_keys FROM {owner}")).unwrap();
    assert_eq!(sqlstate(c.claim("t", "POST /x", "open", b"")), "42501");
}

#[test]
fn a_superuser_who_calls_lends_no_rights() {
    let db = Cluster::shared().lenient_database();
    let owner = give_away(&db);
    let mut admin = db.admin();
    whole_round(&mut admin, "public", "by a superuser");
    admin.batch_execute(&format!("REVOKE INSERT ON idempotency_keys FROM {owner}")).unwrap();
    assert_eq!(sqlstate(admin.claim("t", "POST /x", "k", b"")), "42501");
    assert_eq!(admin.value::<String>("SELECT current_user::text"), "postgres");
}

/// At COMMIT a deferred trigger would run as whoever called: the owner cannot have one wait there for a superuser.
#[test]
fn an_owners_trigger_is_not_deferred_to_the_commit_of_the_caller() {
    let db = Cluster::shared().lenient_database();
    let owner = give_away(&db);
    let mut admin = db.admin();
    admin
        .batch_execute(&format!(
            "CREATE TABLE seen (as_role name); GRANT INSERT ON seen TO PUBLIC; GRANT CREATE ON SCHEMA public TO {owner};
             SET ROLE {owner};
             CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
               $$ BEGIN INSERT INTO public.seen VALUES (current_user); RETURN NULL; END $$;
             CREATE CONSTRAINT TRIGGER note AFTER INSERT ON idempotency_keys DEFERRABLE INITIALLY DEFERRED
               FOR EACH ROW EXECUTE FUNCTION note();
             RESET ROLE"
        ))
        .unwrap();
    assert_eq!(sqlstate(admin.claim("t", "POST /x", "k", b"")), "42501");
    assert_eq!(admin.value::<i64>("SELECT count(*) FROM seen WHERE as_role = 'postgres'"), 0);
}

#[test]
fn an_application_has_no_way_to_the_tables_but_the_functions() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.connect_as(&application(&db));
    whole_round(&mut c, "public", "stored");
    for attempt in [
        "SELECT 1 FROM idempotency_keys",
        "SELECT count(*) FROM idempotency_keys",
        "SELECT response_body FROM idempotency_keys WHERE key = 'stored a'",
        "COPY idempotency_keys TO STDOUT",
        "COPY (SELECT * FROM idem_keys) TO STDOUT",
        "INSERT INTO idempotency_keys (tenant_id, endpoint, key, request_hash) VALUES ('t', 'e', 'k', sha256(''))",
        "UPDATE idempotency_keys SET request_hash = sha256('')",
        "DELETE FROM idempotency_keys",
        "TRUNCATE idempotency_keys",
        "SELECT * FROM idempotency_endpoints",
        "UPDATE idempotency_endpoints SET effect = 'external'",
        "SELECT * FROM idem_keys",
        "SELECT * FROM idem_stuck",
        "SELECT * FROM idem_endpoint_summary",
        "SELECT idem_sweep()",
        "SELECT idem_protect('POST /x')",
        "SELECT idem_unprotect('POST /x')",
        "SELECT idem_grant(current_user)",
        "SELECT idem_revoke(current_user)",
        "SELECT * FROM _idem_rights('operator')",
        "SELECT _idem_change_rights(current_user, 'operator', true, '{}', '{}')",
        "SELECT _idem_log('forged')",
        "SELECT * FROM _idem_registry()",
        "DO $$ BEGIN PERFORM idem_grant(current_user, 'operator'); END $$",
        "CREATE VIEW pg_temp.v AS SELECT response_body FROM idempotency_keys; SELECT * FROM pg_temp.v",
        "DROP EXTENSION idempotency_enforcer",
        "ALTER EXTENSION idempotency_enforcer UPDATE",
    ] {
        assert_eq!(sqlstate(c.batch_execute(attempt)), "42501", "{attempt}");
    }
}

/// Reading a table runs what its owner has put on it, with the rights of whoever reads.
#[test]
fn functions_that_report_do_not_read_the_tables_of_another_role_with_their_own_rights() {
    let db = Cluster::shared().database();
    let mut admin = db.admin();
    let _owner = give_away(&db);
    // These read them with the tables' owner's rights.
    for call in [
        "SELECT * FROM idem_health()",
        "SELECT * FROM idem_count_open_claims()",
        "SELECT * FROM idem_metrics",
        "SELECT idem_design_doc()",
    ] {
        admin.batch_execute(call).unwrap();
    }
}
