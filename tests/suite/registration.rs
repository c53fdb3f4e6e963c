//! Protection is never silently off: an endpoint that is not registered is refused.

use harness::{Calls, Cluster, Failure};

// CASES 54
#[test]
fn a_claim_that_would_run_without_protection_is_refused() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    let refused = Failure::of(c.claim("t", "POST /it's\nhere\\", "k", b"body"));
    assert_eq!(refused.sqlstate, "ID006", "{refused:?}");
    assert!(refused.message.contains(r#""POST /it's\nhere\\""#) && refused.detail.contains(r#""k""#), "{refused:?}");
    // The hint has the statement that registers it, whatever its name.
    let statement = refused.hint.split("register it: ").nth(1).and_then(|s| s.split_inclusive(';').next()).unwrap();
    c.batch_execute(statement).unwrap();
    assert_eq!(c.value::<String>("SELECT endpoint FROM idempotency_endpoints"), "POST /it's\nhere\\");
    let mut t = c.transaction().unwrap();
    assert_eq!(t.claim("t", "POST /it's\nhere\\", "k", b"body").unwrap().outcome, "execute");
}

// CASES 54
#[test]
fn a_registry_that_was_emptied_is_noticed_and_what_is_stored_is_still_answered() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    c.batch_execute("SELECT idem_protect('POST /pay'), idem_protect('POST /charges', 'external')").unwrap();
    let mut t = c.transaction().unwrap();
    t.claim("t", "POST /pay", "k", b"body").unwrap();
    t.complete("t", "POST /pay", "k", 201, b"paid").unwrap();
    t.commit().unwrap();
    for key in ["open", "completed", "released"] {
        c.claim("t", "POST /charges", key, b"body").unwrap();
    }
    c.batch_execute("TRUNCATE idempotency_endpoints").unwrap();
    // Whatever does not execute is answered.
    assert_eq!(c.claim("t", "POST /pay", "k", b"body").unwrap().outcome, "replay");
    assert_eq!(c.claim("t", "POST /pay", "k", b"another").unwrap().outcome, "key_reused");
    assert_eq!(c.claim("t", "POST /charges", "open", b"body").unwrap().outcome, "in_progress");
    assert_eq!(c.claim("t", "POST /pay", "", b"body").unwrap().outcome, "key_missing");
    assert_eq!(c.claim("t", "POST /pay", &"k".repeat(256), b"body").unwrap().outcome, "key_invalid");
    // 22023 comes first.
    let refused = c.query_one("SELECT idem_claim('t', 'POST /pay', 'new', 'b'::bytea, wait => '-1 s')", &[]);
    assert_eq!(Failure::of(refused).sqlstate, "22023");
    // Finishing, releasing, checkpoints, hand-outs and the sweep go on.
    assert!(c.value::<bool>("SELECT idem_complete('t', 'POST /charges', 'completed', 200, ''::bytea)"));
    assert!(c.value::<bool>("SELECT idem_release('t', 'POST /charges', 'released')"));
    assert!(c.value::<bool>("SELECT idem_checkpoint('t', 'POST /charges', 'open', 'p')"));
    c.batch_execute("UPDATE idempotency_keys SET open_since = open_since - interval '2 minutes' WHERE key = 'open'")
        .unwrap();
    assert_eq!(c.value::<String>("SELECT key FROM idem_reconcile()"), "open");
    assert_eq!(c.value::<i32>("SELECT idem_sweep()"), 0);
    // What would execute is not: a first arrival, a released claim, an expired result.
    c.batch_execute(
        "UPDATE idempotency_keys SET created_at = now() - interval '9 days', expires_at = now() - interval '1 day'
          WHERE key = 'k'",
    )
    .unwrap();
    for (endpoint, key) in [("POST /pay", "new"), ("POST /charges", "released"), ("POST /pay", "k")] {
        assert_eq!(Failure::of(c.claim("t", endpoint, key, b"body")).sqlstate, "ID006", "{key}");
    }
}

#[test]
fn the_administrator_may_let_unregistered_endpoints_through_and_nobody_else() {
    let db = Cluster::shared().database();
    let role = db.role("app");
    let mut admin = db.admin();
    admin.batch_execute(&format!("SELECT idem_grant('{role}')")).unwrap();
    let mut c = db.connect_as(&role);
    assert_eq!(Failure::of(c.claim("t", "POST /x", "k", b"body")).sqlstate, "ID006");
    let set = "SET idempotency_enforcer.require_registration = off";
    assert_eq!(Failure::of(c.batch_execute(set)).sqlstate, "42501");
    admin.batch_execute(&format!("ALTER ROLE {role} IN DATABASE {} {set}", db.name())).unwrap();
    let mut c = db.connect_as(&role);
    let arrival = c.claim("t", "POST /x", "k", b"body").unwrap();
    assert_eq!((arrival.outcome.as_str(), arrival.provider_key), ("execute", None));
    // Committed in progress, as for external: no commit guard. A key is required, and the ttl is 24 hours.
    assert_eq!(c.claim("t", "POST /x", "", b"body").unwrap().outcome, "key_missing");
    let ttl = "SELECT expires_at - created_at = interval '24 hours' FROM idempotency_keys";
    assert!(admin.value::<bool>(ttl));
    // Only for that role.
    assert_eq!(Failure::of(admin.claim("t", "POST /x", "other", b"body")).sqlstate, "ID006");
}
