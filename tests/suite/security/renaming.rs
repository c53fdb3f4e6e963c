//! A schema that is renamed and made anew while a call is under way: what is in its place is never run as the owner.

use harness::{sqlstate, Background, Calls, Cluster};

#[test]
fn a_waiting_claim_does_not_run_what_its_schemas_owner_puts_in_its_place() {
    // An immutable function would be run by the planner, before anything is executed.
    for volatility in ["VOLATILE", "IMMUTABLE"] {
        rename_under_a_waiting_claim(volatility);
    }
}

fn rename_under_a_waiting_claim(volatility: &str) {
    let db = Cluster::shared().lenient_database();
    let mut admin = db.admin();
    let owner = db.role("owner");
    admin
        .batch_execute(&format!(
            "SELECT idem_protect('POST /t'), idem_grant('{owner}');
             ALTER SCHEMA public OWNER TO {owner}; GRANT CREATE ON DATABASE {} TO {owner}",
            db.name()
        ))
        .unwrap();
    let mut first = db.connect_as(&owner);
    first.batch_execute("BEGIN; SELECT idem_claim('t', 'POST /t', 'k', 'b'::bytea)").unwrap();
    let waiting = Background::run(db.connect_as(&owner), |c| c.claim_waiting("t", "POST /t", "k", b"b", "1 hour"));
    waiting.until_waiting_for("Extension", &mut admin);
    // Views and a table that look like the extension's, with a function that tells who runs it.
    db.connect_as(&owner)
        .batch_execute(&format!(
            "BEGIN;
             ALTER SCHEMA public RENAME TO elsewhere;
             CREATE SCHEMA public;
             CREATE FUNCTION public.trap() RETURNS text LANGUAGE plpgsql {volatility} AS
               'BEGIN RAISE EXCEPTION ''TRAP as %'', current_user; END';
             CREATE VIEW public.idempotency_endpoints AS
               SELECT 'POST /t'::text AS endpoint, public.trap() AS effect, true AS key_required,
                      interval '1 h' AS retry_window, interval '48 h' AS ttl, NULL::int AS max_body_bytes;
             CREATE VIEW public.idempotency_keys AS
               SELECT 't'::text AS tenant_id, 'POST /t'::text AS endpoint, 'k'::text AS key, '\\x'::bytea AS request_hash,
                      public.trap() AS status, 1 AS attempt, NULL::int AS response_code, NULL::jsonb AS response_headers,
                      NULL::bytea AS response_body, NULL::text AS resource_ref, NULL::uuid AS provider_key,
                      now() AS expires_at;
             COMMIT"
        ))
        .unwrap();
    first.batch_execute("ROLLBACK").unwrap();
    let refused = waiting.join().0.expect_err("the schema is another");
    assert_eq!(sqlstate(&refused), "55000", "{refused:?}");
    // The extension is where it was, under its new name.
    let outcome: String = first
        .query_one("SELECT outcome FROM elsewhere.idem_claim('t', 'POST /u', 'k', 'b'::bytea)", &[])
        .unwrap()
        .get(0);
    assert_eq!(outcome, "execute");
}
