//! `idem_protect`, `idem_unprotect` and the endpoint registry.

use harness::{Calls, Cluster, Failure};
use postgres::error::DbError;
use std::sync::mpsc::Receiver;

const ROW: &str = "SELECT concat_ws('|', effect, key_required, retry_window, ttl, stuck_after, max_body_bytes,
                          expected_writes_per_day, guesses::text, notes)
                     FROM idempotency_endpoints WHERE endpoint = 'POST /x'";

/// What the server said since the last time.
fn said(notices: &Receiver<DbError>) -> Vec<String> {
    notices.try_iter().map(|n| format!("{}: {}", n.severity(), n.message())).collect()
}

#[test]
fn what_is_left_out_takes_its_default() {
    let db = Cluster::shared().database();
    let (mut c, notices) = db.admin_with_notices();
    let defaults = "transaction|t|24:00:00|48:00:00|00:01:00|{}";
    c.batch_execute("SELECT idem_protect('POST /x')").unwrap();
    assert_eq!(c.value::<String>(ROW), defaults);
    c.batch_execute("SELECT idem_protect('POST /x', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)").unwrap();
    assert_eq!(c.value::<String>(ROW), defaults);
    // Twice the retry window, at least a day.
    c.batch_execute("SELECT idem_protect('POST /x', retry_window => '1 minute')").unwrap();
    assert_eq!(c.value::<String>(ROW), "transaction|t|00:01:00|24:00:00|00:01:00|{}");
    c.batch_execute("SELECT idem_protect('POST /x', retry_window => '3 days')").unwrap();
    assert_eq!(c.value::<String>(ROW), "transaction|t|3 days|6 days|00:01:00|{}");
    assert_eq!(said(&notices), Vec::<String>::new());
}

#[test]
fn registering_again_replaces_everything_but_the_date() {
    let db = Cluster::shared().database();
    let (mut c, notices) = db.admin_with_notices();
    c.batch_execute(
        "SELECT idem_protect('POST /x', 'external', '2 days', '5 days', '3 minutes', false, 1000, 86400,
                             '{ttl,retry_window}', 'Ask the payments team.')",
    )
    .unwrap();
    assert_eq!(
        c.value::<String>(ROW),
        "external|f|2 days|5 days|00:03:00|1000|86400|{ttl,retry_window}|Ask the payments team."
    );
    c.batch_execute("UPDATE idempotency_endpoints SET created_at = '2001-01-01'").unwrap();
    assert_eq!(said(&notices), Vec::<String>::new());
    c.batch_execute("SELECT idem_protect('POST /x', notes => 'Now in the ledger.')").unwrap();
    assert_eq!(c.value::<String>(ROW), "transaction|t|24:00:00|48:00:00|00:01:00|{}|Now in the ledger.");
    assert_eq!(said(&notices), ["NOTICE: endpoint \"POST /x\" changes from external to transaction"]);
    assert!(c.value::<bool>("SELECT created_at = '2001-01-01' FROM idempotency_endpoints"));
}

/// A result must not be forgotten while its client still retries: the table itself refuses it.
#[test]
fn the_red_line_is_a_constraint_of_the_table() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    c.batch_execute("SELECT idem_protect('POST /x')").unwrap();
    for (change, constraint) in [
        ("retry_window = '48 hours'", "ttl_above_retry_window"),
        ("retry_window = '9 days'", "ttl_above_retry_window"),
        ("ttl = '24 hours'", "ttl_above_retry_window"),
        ("retry_window = '1 hour', ttl = '23 hours 59 minutes'", "ttl_at_least_a_day"),
        ("retry_window = '-1 hour'", "retry_window_positive"),
        ("effect = 'perhaps'", "effect_known"),
        ("stuck_after = '0'", "stuck_after_positive"),
        ("endpoint = ''", "endpoint_length"),
    ] {
        let error = c.batch_execute(&format!("UPDATE idempotency_endpoints SET {change}")).unwrap_err();
        let error = error.as_db_error().unwrap();
        assert_eq!((error.code().code(), error.constraint()), ("23514", Some(constraint)), "{change}");
    }
    let insert =
        "INSERT INTO idempotency_endpoints (endpoint, retry_window, ttl) VALUES ('POST /y', '2 days', '2 days')";
    assert_eq!(Failure::of(c.batch_execute(insert)).sqlstate, "23514");
}

#[test]
fn an_impossible_registration_is_refused_and_names_the_endpoint() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    for arguments in [
        "retry_window => '2 days', ttl => '2 days'",
        "retry_window => '2 days', ttl => '25 hours'",
        "retry_window => '1 hour', ttl => '23 hours'",
        "ttl => '-9 days'",
        "ttl => '36501 days'",
        "retry_window => '0'",
        "retry_window => '-1 day'",
        "retry_window => '178000000 years'",
        "retry_window => '-178000000 years'",
        "stuck_after => '0'",
        "stuck_after => '-1 minute'",
        "stuck_after => '178000000 years'",
        "effect => 'perhaps'",
        "effect => ''",
        "effect => 'External'",
        "max_body_bytes => -1",
        "max_body_bytes => -2147483648",
        "expected_writes_per_day => -1",
        "guesses => '{nonsense}'",
        "guesses => '{ttl,NULL}'",
        "guesses => '{endpoint}'",
        "guesses => '{TTL}'",
    ] {
        let refused = Failure::of(c.query(&format!("SELECT idem_protect('POST /x', {arguments})"), &[]));
        assert_eq!(refused.sqlstate, "22023", "{arguments}: {refused:?}");
        assert!(refused.message.contains("\"POST /x\""), "{arguments}: {refused:?}");
        assert!(!refused.detail.is_empty() && !refused.hint.is_empty(), "{arguments}: {refused:?}");
    }
    for endpoint in ["NULL", "''", "repeat('e', 256)", "repeat('é', 128)"] {
        let refused = Failure::of(c.query(&format!("SELECT idem_protect({endpoint})"), &[]));
        assert_eq!(refused.sqlstate, "22023", "{endpoint}");
        assert!(!refused.detail.is_empty() && !refused.hint.is_empty() && refused.text().len() < 1_000);
    }
    assert_eq!(c.value::<i64>("SELECT count(*) FROM idempotency_endpoints"), 0);
    c.batch_execute("SELECT idem_protect(repeat('e', 255), max_body_bytes => 0, expected_writes_per_day => 0)")
        .unwrap();
}

/// A safe method asks for no change, in whatever way it is written.
#[test]
fn safe_methods_have_nothing_to_protect() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    for endpoint in [
        "GET /x",
        "get /x",
        "  GET /x",
        "HEAD /x",
        "Options /x",
        "TRACE /x",
        "GET",
        " get ",
        "GET\t/x",
        "\tGET /x",
        "\nGET /x",
    ] {
        let refused = Failure::of(c.query("SELECT idem_protect($1)", &[&endpoint]));
        assert_eq!(refused.sqlstate, "22023", "{endpoint:?}");
        assert!(refused.message.contains("nothing to protect") && refused.detail.contains("safe"), "{refused:?}");
        assert!(!refused.hint.is_empty());
    }
    for endpoint in ["GETAWAY /x", "POST GET", "PATCH /get", "charge", "GraphQL createCharge"] {
        c.query("SELECT idem_protect($1)", &[&endpoint]).unwrap_or_else(|e| panic!("{endpoint}: {e}"));
    }
}

#[test]
fn put_and_delete_and_a_long_ttl_get_a_warning_and_are_registered() {
    let db = Cluster::shared().database();
    let (mut c, notices) = db.admin_with_notices();
    for (call, warnings) in [
        ("'PUT /x'", &["WARNING: endpoint \"PUT /x\" is idempotent by definition"][..]),
        ("' delete /x'", &["WARNING: endpoint \" delete /x\" is idempotent by definition"]),
        ("'POST /a', ttl => '7 days'", &[]),
        ("'POST /b', ttl => '7 days 1 second'", &["WARNING: ttl of endpoint \"POST /b\" is over 7 days"]),
        ("'POST /c', retry_window => '4 days'", &["WARNING: ttl of endpoint \"POST /c\" is over 7 days"]),
        (
            "'PUT /d', ttl => '1 year'",
            &[
                "WARNING: endpoint \"PUT /d\" is idempotent by definition",
                "WARNING: ttl of endpoint \"PUT /d\" is over 7 days",
            ],
        ),
    ] {
        c.batch_execute(&format!("SELECT idem_protect({call})")).unwrap();
        assert_eq!(said(&notices), warnings, "{call}");
    }
    assert_eq!(c.value::<i64>("SELECT count(*) FROM idempotency_endpoints"), 6);
    c.batch_execute("SELECT idem_protect('PUT /x')").unwrap();
    let warning = notices.try_iter().next().unwrap();
    assert!(warning.detail().is_some() && warning.hint().is_some());
}

#[test]
fn every_input_can_be_marked_as_a_guess() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    let inputs = "SELECT array_agg(attname::text) FROM pg_attribute
                   WHERE attrelid = 'idempotency_endpoints'::regclass AND attnum > 0
                     AND attname NOT IN ('endpoint', 'guesses', 'notes', 'created_at')";
    let inputs: Vec<String> = c.value(inputs);
    c.execute("SELECT idem_protect('POST /x', guesses => $1)", &[&inputs]).unwrap();
    assert_eq!(c.value::<Vec<String>>("SELECT guesses FROM idempotency_endpoints"), inputs);
}

#[test]
fn unprotect_is_refused_while_keys_are_alive_unless_forced() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    let unprotect = "SELECT idem_unprotect('POST /x')";
    c.batch_execute("SELECT idem_protect('POST /x', 'external'), idem_protect('POST /y', 'external')").unwrap();
    c.claim("t", "POST /x", "open", b"").unwrap();
    c.claim("t", "POST /x", "done", b"").unwrap();
    c.complete("t", "POST /x", "done", 200, b"").unwrap();
    let refused = Failure::of(c.query(unprotect, &[]));
    assert_eq!(refused.sqlstate, "55006");
    assert!(refused.message.contains("\"POST /x\"") && refused.message.contains('2'), "{refused:?}");
    assert!(!refused.detail.is_empty() && refused.hint.contains("force"));
    // An open claim is alive whatever its expires_at; a finished one until that.
    c.batch_execute("UPDATE idempotency_keys SET expires_at = now() - interval '1 s'").unwrap();
    assert_eq!(Failure::of(c.query(unprotect, &[])).sqlstate, "55006");
    assert_eq!(Failure::of(c.query("SELECT idem_unprotect('POST /x', NULL)", &[])).sqlstate, "55006");
    assert!(c.value::<bool>("SELECT idem_unprotect('POST /x', force => true)"));
    assert_eq!(c.value::<i64>("SELECT count(*) FROM idempotency_keys"), 2, "the rows stay");
    assert_eq!(c.claim("t", "POST /x", "open", b"").unwrap().outcome, "in_progress");
    assert!(!c.value::<bool>("SELECT idem_unprotect('POST /x', force => true)"), "there is none any more");
    assert!(c.value::<bool>("SELECT idem_unprotect('POST /y')"), "no key of its own");
    assert!(!c.value::<bool>("SELECT idem_unprotect('POST /never')"));
    assert!(!c.value::<bool>("SELECT idem_unprotect(NULL)"));
}

#[test]
fn unprotect_is_allowed_once_every_key_has_expired() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    c.batch_execute("SELECT idem_protect('POST /x', 'external')").unwrap();
    c.claim("t", "POST /x", "k", b"").unwrap();
    c.complete("t", "POST /x", "k", 200, b"").unwrap();
    c.batch_execute("UPDATE idempotency_keys SET expires_at = now()").unwrap();
    assert!(c.value::<bool>("SELECT idem_unprotect('POST /x')"));
}

/// A registration counts from the next claim on, in sessions that have their plans already.
#[test]
fn a_changed_registration_counts_at_once() {
    let db = Cluster::shared().lenient_database();
    let (mut c, mut admin) = (db.admin(), db.admin());
    c.claim("t", "POST /x", "1", b"").unwrap();
    admin.batch_execute("SELECT idem_protect('POST /x')").unwrap();
    assert_eq!(Failure::of(c.claim("t", "POST /x", "2", b"")).sqlstate, "ID004");
    admin.batch_execute("SELECT idem_protect('POST /x', 'external')").unwrap();
    assert!(c.claim("t", "POST /x", "3", b"").unwrap().provider_key.is_some());
    admin.batch_execute("SELECT idem_protect('POST /x', 'external', key_required => false)").unwrap();
    assert_eq!(c.claim("t", "POST /x", "", b"").unwrap().outcome, "unprotected");
    admin.batch_execute("SELECT idem_unprotect('POST /x', force => true)").unwrap();
    assert_eq!(c.claim("t", "POST /x", "", b"").unwrap().outcome, "key_missing");
}
