//! Owners, triggers, rules, foreign keys and rights. CASES 46: all of it is reported, and nothing of it is run.

use super::*;

#[test]
fn a_foreign_key_a_rule_and_row_security_are_found() {
    break_and_mend(
        "CREATE TABLE other (tenant_id text, endpoint text, key text, CONSTRAINT \"re\nfers\"
           FOREIGN KEY (tenant_id, endpoint, key) REFERENCES idempotency_keys);
         CREATE RULE \"r\nule\" AS ON DELETE TO idempotency_keys DO INSTEAD NOTHING;
         ALTER TABLE idempotency_keys ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY",
        &[
            (
                "critical",
                "The tables cannot be used: \"table idempotency_keys has a rule: \\\"r\\\\nule\\\"\"",
            ),
            ("critical", "Rule \"r\\nule\" on table \"public.idempotency_keys\" changes what is stored."),
            (
                "critical",
                "Foreign key \"re\\nfers\" of table \"public.other\" refers to \"public.idempotency_keys\": it stops the sweep, \
                 or goes with what is swept.",
            ),
            (
                "warning",
                "Row-level security is on for table \"public.idempotency_keys\": a dump or a reader may miss rows.",
            ),
        ],
    );
}

#[test]
fn tables_of_two_owners_are_found() {
    let db = Cluster::shared().database();
    let other = db.role("other");
    let mut c = db.admin();
    for table in ["idempotency_keys", "idempotency_endpoints"] {
        c.batch_execute(&format!("ALTER TABLE {table} OWNER TO {other}")).unwrap();
        let found = the(about_tables(&mut c), "critical", "The tables have different owners");
        mend(&db, &found.remedy);
        assert!(about_tables(&mut c).is_empty(), "{:#?}", about_tables(&mut c));
    }
    // One owner is well, whoever it is.
    c.batch_execute(&format!(
        "ALTER TABLE idempotency_keys OWNER TO {other}; ALTER TABLE idempotency_endpoints OWNER TO {other};
         GRANT USAGE ON SCHEMA public TO {other}"
    ))
    .unwrap();
    let found = about_tables(&mut c);
    assert!(found.iter().all(|f| !f.finding.starts_with("The tables have different owners")), "{found:#?}");
}

#[test]
fn triggers_of_untrusted_functions_are_found_and_those_of_superusers_are_not() {
    let db = Cluster::shared().database();
    let other = db.role("other");
    let mut c = db.admin();
    c.batch_execute(&format!(
        "CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
         CREATE TRIGGER audit AFTER INSERT ON idempotency_keys FOR EACH ROW EXECUTE FUNCTION audit();
         CREATE FUNCTION spy() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
         ALTER FUNCTION spy() OWNER TO {other};
         CREATE TRIGGER truncated AFTER TRUNCATE ON idempotency_keys EXECUTE FUNCTION spy();"
    ))
    .unwrap();
    assert!(about_tables(&mut c).is_empty(), "{:#?}", about_tables(&mut c));
    for (event, table) in
        [("INSERT", "idempotency_keys"), ("UPDATE", "idempotency_endpoints"), ("DELETE", "idempotency_keys")]
    {
        c.batch_execute(&format!(
            "CREATE TRIGGER \"s\npy\" AFTER {event} ON {table} FOR EACH STATEMENT EXECUTE FUNCTION spy()"
        ))
        .unwrap();
        let found =
            the(about_tables(&mut c), "critical", &format!("Trigger \"s\\npy\" on table \"public.{table}\" runs"));
        mend(&db, &found.remedy);
        assert!(about_tables(&mut c).is_empty(), "{:#?}", about_tables(&mut c));
    }
}

#[test]
fn rights_on_the_tables_are_critical_but_for_those_of_a_backup() {
    let db = Cluster::shared().database();
    let (backup, writer, friend) = (db.role("backup"), db.role("writer"), db.role("friend"));
    let mut c = db.admin();
    let mut broken = |statement: &str, expected: &str| {
        c.batch_execute(statement).unwrap();
        let found = the(about_tables(&mut c), "critical", expected);
        mend(&db, &found.remedy);
        assert!(about_tables(&mut c).is_empty(), "{:#?}", about_tables(&mut c));
    };
    broken("GRANT SELECT ON idempotency_keys TO PUBLIC", "PUBLIC has rights on table");
    broken(
        &format!("GRANT ALL ON idempotency_keys TO \"{writer}\""),
        &format!("Role \"{writer}\" has rights on table \"public.idempotency_keys\""),
    );
    broken(
        &format!("GRANT UPDATE (status, attempt), SELECT (key) ON idempotency_keys TO \"{writer}\""),
        &format!("Role \"{writer}\" has rights on columns of table"),
    );
    broken(
        &format!(
            "GRANT SELECT ON idempotency_keys TO \"{writer}\" WITH GRANT OPTION;
             SET ROLE \"{writer}\"; GRANT SELECT ON idempotency_keys TO {friend}; RESET ROLE"
        ),
        &format!("Role \"{writer}\" has rights on table \"public.idempotency_keys\" beside its owner (SELECT with grant option)"),
    );
    // A view is as good as its table for whoever may write to it.
    broken(
        &format!("GRANT SELECT, DELETE ON idem_key_details TO \"{writer}\""),
        &format!("Role \"{writer}\" has rights on view \"public.idem_key_details\" beside its owner (DELETE)"),
    );
    c.batch_execute(&format!("GRANT SELECT ON idempotency_keys, idempotency_endpoints TO {backup}")).unwrap();
    assert!(about_tables(&mut c).is_empty(), "{:#?}", about_tables(&mut c));
}
