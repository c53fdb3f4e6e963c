//! The tables and what is in them.

use super::*;
use harness::Calls;

#[test]
fn a_missing_index_is_found() {
    break_and_mend(
        "DROP INDEX idempotency_keys_expires_at_idx, idempotency_keys_open_since_idx;
         ALTER TABLE idempotency_keys DROP CONSTRAINT idempotency_keys_pkey",
        &[
            (
                "critical",
                "Index idempotency_keys_pkey of \"public.idempotency_keys\" is missing: nothing but it stops two executions.",
            ),
            (
                "critical",
                "Index idempotency_keys_expires_at_idx of \"public.idempotency_keys\" is missing: every sweep reads the whole \
                 table.",
            ),
            (
                "critical",
                "Index idempotency_keys_open_since_idx of \"public.idempotency_keys\" is missing: looking for stuck claims \
                 reads the whole table.",
            ),
        ],
    );
}

#[test]
fn an_index_under_another_name_is_no_finding() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    c.batch_execute("ALTER INDEX idempotency_keys_expires_at_idx RENAME TO mine").unwrap();
    assert!(about_tables(&mut c).is_empty());
}

#[test]
fn an_invalid_index_is_found() {
    break_and_mend(
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'idempotency_keys_expires_at_idx'::regclass;
         CREATE INDEX idempotency_keys_pkey_ccnew ON idempotency_keys (key);
         UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'idempotency_keys_pkey_ccnew'::regclass",
        &[
            ("critical", "Index \"public.idempotency_keys_expires_at_idx\" is invalid."),
            ("critical", "Index \"public.idempotency_keys_pkey_ccnew\" is invalid."),
        ],
    );
}

#[test]
fn a_ttl_that_no_rule_covers_any_more_is_found_with_the_lost_rule() {
    break_and_mend(
        "ALTER TABLE idempotency_endpoints DROP CONSTRAINT ttl_above_retry_window;
         UPDATE idempotency_endpoints SET ttl = '25 hours', retry_window = '30 hours'",
        &[
            (
                "critical",
                "The ttl of endpoint \"POST /x\" is 25:00:00, with a retry window of 30:00:00: it must be above it and at \
                 least 24 hours.",
            ),
            ("critical", "Table \"public.idempotency_endpoints\" has lost its rule ttl_above_retry_window."),
        ],
    );
}

#[test]
fn a_rule_that_was_never_validated_is_found() {
    break_and_mend(
        "ALTER TABLE idempotency_endpoints DROP CONSTRAINT ttl_at_least_a_day;
         ALTER TABLE idempotency_endpoints ADD CONSTRAINT ttl_at_least_a_day CHECK (ttl >= '24 hours') NOT VALID",
        &[(
            "warning",
            "Rule \"ttl_at_least_a_day\" of table \"public.idempotency_endpoints\" does not cover the rows that were there before \
             it.",
        )],
    );
}

#[test]
fn autovacuum_off_on_the_table_or_its_toast_table_is_found() {
    break_and_mend(
        "ALTER TABLE idempotency_keys SET (autovacuum_enabled = off, toast.autovacuum_enabled = off)",
        &[
            (
                "warning",
                "autovacuum_enabled is off on table \"public.idempotency_keys\": nothing reclaims the space of swept rows.",
            ),
            (
                "warning",
                "toast.autovacuum_enabled is off on table \"public.idempotency_keys\": nothing reclaims the space of swept rows.",
            ),
        ],
    );
}

#[test]
fn an_endpoint_in_use_that_nobody_registered_is_found_finished_or_open() {
    break_and_mend(
        "BEGIN; SET LOCAL idempotency_enforcer.require_registration = off;
         SELECT idem_claim('t', 'POST /finished', 'k', ''::bytea);
         SELECT idem_complete('t', 'POST /finished', 'k', 200, ''::bytea);
         SELECT idem_claim('t', 'POST /o''pen', 'k', ''::bytea);
         SELECT idem_claim('t', 'POST /x', 'k', ''::bytea);
         SELECT idem_complete('t', 'POST /x', 'k', 200, ''::bytea); COMMIT",
        &[
            (
                "info",
                "Endpoint \"POST /finished\" is in use and not registered: a new claim is refused, or runs unguarded where require_registration is off.",
            ),
            ("info", "Endpoint \"POST /o'pen\" is in use and not registered: a new claim is refused, or runs unguarded where require_registration is off."),
        ],
    );
}

#[test]
fn an_endpoint_with_open_claims_is_not_proposed_as_one_that_refuses_them() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    c.claim("t", "POST /open", "k", b"").unwrap();
    let found = the(health(&mut c), "info", "Endpoint \"POST /open\"");
    assert!(found.remedy.contains("effect => 'external'"), "{}", found.remedy);
}

/// Nobody may settle a stuck claim without knowing: the remedy shows it, a person settles it.
#[test]
fn stuck_claims_are_found_until_they_are_settled() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    c.batch_execute("SELECT idem_protect('POST /x', 'external')").unwrap();
    c.claim("t", "POST /x", "secret-key", b"").unwrap();
    assert!(about_tables(&mut c).is_empty());
    c.batch_execute("UPDATE idempotency_keys SET open_since = now() - interval '2 hours'").unwrap();
    let found = the(health(&mut c), "warning", "Stuck claims: 1, the oldest open for 02:00:0");
    assert!(!found.finding.contains("secret"), "{}", found.finding);
    mend(&db, &found.remedy);
    c.release("t", "POST /x", "secret-key").unwrap();
    assert!(about_tables(&mut c).is_empty());
}
