//! What code of the tables' owner sets in passing does not outlive the call.

use super::*;

// CASES 47
#[test]
fn a_setting_changed_by_the_owners_code_ends_with_the_call() {
    let db = Cluster::shared().database();
    let (owner, role, mut admin) = (db.role("owner"), db.role("app"), db.admin());
    admin
        .batch_execute(&format!(
            "SELECT idem_protect('POST /charges', 'external'), idem_grant('{role}');
             ALTER TABLE idempotency_keys OWNER TO {owner}; ALTER TABLE idempotency_endpoints OWNER TO {owner};
             GRANT EXECUTE ON FUNCTION idem_row_is_well_formed TO {owner};
             CREATE SCHEMA evil AUTHORIZATION {owner}; GRANT USAGE ON SCHEMA evil, public TO PUBLIC; GRANT CREATE ON SCHEMA public TO {owner}"
        ))
        .unwrap();
    // An index expression, which every new row evaluates as the owner.
    db.connect_as(&owner)
        .batch_execute(
            "CREATE FUNCTION evil.set(k text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
             BEGIN
               PERFORM set_config('search_path', 'evil', false), set_config('statement_timeout', '777s', false),
                       set_config('app.tenant_id', 'theirs', false), set_config('session_replication_role', 'origin', true);
               RETURN k;
             EXCEPTION WHEN insufficient_privilege THEN
               PERFORM set_config('search_path', 'evil', false), set_config('statement_timeout', '777s', false),
                       set_config('app.tenant_id', 'theirs', false);
               RETURN k;
             END $$;
             CREATE INDEX ON idempotency_keys (evil.set(key))",
        )
        .unwrap();
    let mut c = db.connect_as(&role);
    c.batch_execute("SET app.tenant_id = 'mine'").unwrap();
    let settings = |c: &mut Client| {
        c.value::<String>(
            "SELECT concat_ws(' ', current_setting('search_path'), current_setting('statement_timeout'),
                              current_setting('app.tenant_id'), current_user)",
        )
    };
    let before = settings(&mut c);
    assert!(before.contains("mine"));
    for call in [
        "idem_claim('t', 'POST /charges', 'k', ''::bytea)",
        "idem_checkpoint('t', 'POST /charges', 'k', 'p')",
        "idem_complete('t', 'POST /charges', 'k', 200, ''::bytea)",
        "idem_claim('t', 'POST /charges', 'k', ''::bytea)",
    ] {
        c.query(&format!("SELECT {call}"), &[]).unwrap();
        assert_eq!(settings(&mut c), before, "{call}");
    }
    // Nor after an error, in a transaction that goes on.
    c.batch_execute("BEGIN; SAVEPOINT s").unwrap();
    let error = c.query("SELECT idem_claim('t', 'POST /charges', 'n', ''::bytea), 1 / 0", &[]).unwrap_err();
    assert_eq!(sqlstate(&error), "22012");
    c.batch_execute("ROLLBACK TO s").unwrap();
    assert_eq!(settings(&mut c), before);
    c.batch_execute("COMMIT").unwrap();
    assert_eq!(settings(&mut c), before);
}
