//! CASES 46: the WHEN condition of a trigger is the code of whoever made it, also when he has lost the right to make another.

use harness::{Calls, Cluster, Failure};

/// Conditions of PostgreSQL's own functions that do more than compute.
const HOSTILE: &[&str] = &[
    "query_to_xml('SELECT evil.seen()', true, false, '') IS NOT NULL",
    "table_to_xml('evil.trap', true, false, '') IS NOT NULL",
    "ts_rewrite('a'::tsquery, 'SELECT evil.seen()::text::tsquery, ''b''::tsquery') IS NOT NULL",
    "pg_read_file('PG_VERSION') IS NOT NULL",
    "set_config('app.tenant_id', 'evil', false) IS NOT NULL",
];

#[test]
fn a_condition_that_does_more_than_compute_is_refused_also_after_the_right_was_taken_away() {
    let db = Cluster::shared().database();
    let role = db.role("mallory");
    let mut admin = db.admin();
    admin
        .batch_execute(&format!(
            "SELECT idem_protect('POST /x', 'external');
             GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}; CREATE SCHEMA evil AUTHORIZATION {role};
             CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$"
        ))
        .unwrap();
    let mut evil = db.connect_as(&role);
    // A sequence keeps its number when what has counted is rolled back.
    evil.batch_execute(
        "CREATE SEQUENCE evil.times;
         CREATE FUNCTION evil.seen() RETURNS boolean LANGUAGE plpgsql AS
           $$ BEGIN PERFORM nextval('evil.times'); RETURN true; END $$;
         CREATE VIEW evil.trap AS SELECT evil.seen()",
    )
    .unwrap();
    for condition in HOSTILE {
        evil.batch_execute(&format!(
            "CREATE TRIGGER spy BEFORE INSERT ON public.idempotency_keys FOR EACH ROW WHEN ({condition})
               EXECUTE FUNCTION public.audit()"
        ))
        .unwrap_or_else(|e| panic!("{condition}: {e:?}"));
        for right in ["GRANT TRIGGER ON idempotency_keys TO", "REVOKE TRIGGER ON idempotency_keys FROM"] {
            admin.batch_execute(&format!("{right} {role}")).unwrap();
            let refused = Failure::of(admin.claim("t", "POST /x", "k", b""));
            assert_eq!(refused.sqlstate, "55000", "{right}: {condition}: {refused:?}");
            assert!(refused.message.contains("\"spy\""), "{refused:?}");
        }
        admin
            .batch_execute(&format!(
                "DROP TRIGGER spy ON idempotency_keys; GRANT TRIGGER ON idempotency_keys TO {role}"
            ))
            .unwrap();
    }
    assert!(!admin.value::<bool>("SELECT is_called FROM evil.times"), "it has run");
}

#[test]
fn conditions_that_only_compute_are_let_be() {
    let db = Cluster::shared().database();
    let mut admin = db.admin();
    admin
        .batch_execute(
            "SELECT idem_protect('POST /x', 'external');
             CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$",
        )
        .unwrap();
    for condition in
        ["NEW.status = 'failed'", "OLD.* IS DISTINCT FROM NEW.*", "NEW.key LIKE 'a%' OR length(NEW.key) > 3"]
    {
        admin
            .batch_execute(&format!(
                "CREATE TRIGGER audit AFTER UPDATE ON idempotency_keys FOR EACH ROW WHEN ({condition})
                   EXECUTE FUNCTION audit()"
            ))
            .unwrap();
        assert_eq!(admin.claim("t", "POST /x", condition, b"").unwrap().outcome, "execute", "{condition}");
        admin.batch_execute("DROP TRIGGER audit ON idempotency_keys").unwrap();
    }
}
