//! What an application can write is bounded, and what is too large is refused before it is copied.

mod endless;
mod memory;

use harness::{Calls, Cluster, Failure};
use postgres::Client;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// An argument that is bounded: the call with `{}` in its place as SQL text, and its limit in bytes.
const BOUNDED: [(&str, &str, usize); 11] = [
    ("tenant_id", "idem_claim({}, 'POST /x', 'new', ''::bytea)", 255),
    ("endpoint", "idem_claim('t', {}, 'new', ''::bytea)", 255),
    ("request_target", "idem_claim('t', 'POST /x', 'new', ''::bytea, {})", 8 * 1024),
    ("resource_ref", "idem_complete('t', 'POST /x', 'k', 200, ''::bytea, resource_ref => {})", 2 * 1024),
    ("recovery_point", "idem_checkpoint('t', 'POST /x', 'k', {})", 255),
    // As JSON, with the quotes around it.
    ("recovery_state", "idem_checkpoint('t', 'POST /x', 'k', 'p', to_jsonb({}))", 64 * 1024 - 2),
    // As [["x", "..."]].
    (
        "response_headers",
        "idem_complete('t', 'POST /x', 'k', 200, ''::bytea, jsonb_build_array(jsonb_build_array('x', {})))",
        64 * 1024 - 11,
    ),
    ("tenant_id", "idem_erase({})", 255),
    ("endpoint", "idem_protect({})", 255),
    ("notes", "idem_protect('POST /x', 'external', notes => {})", 8 * 1024),
    ("only_endpoint", "idem_reconcile(only_endpoint => {})", 255),
];

fn open_claim(c: &mut Client) {
    c.batch_execute(
        "SELECT idem_protect('POST /x', 'external'); DELETE FROM idempotency_keys;
         SELECT idem_claim('t', 'POST /x', 'k', ''::bytea)",
    )
    .unwrap();
}

// CASES 44
#[test]
fn every_argument_is_taken_up_to_its_limit_and_refused_beyond_it() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    let mut random = StdRng::seed_from_u64(7);
    for (name, call, limit) in BOUNDED {
        let over = [limit + 1, limit + random.random_range(2..5_000), 3_000_000 + random.random_range(0..1_000_000)];
        for size in [1, limit, random.random_range(1..limit)].into_iter().chain(over) {
            open_claim(&mut c);
            let sql = format!("SELECT {}", call.replace("{}", &format!("repeat('q', {size})")));
            let done = c.query(&sql, &[]).map(|_| ());
            if size > limit {
                let refused = Failure::of(done);
                assert_eq!(refused.sqlstate, "22023", "{name} of {size}: {refused:?}");
                assert!(refused.message.contains(name) && refused.detail.contains("at most"), "{refused:?}");
                assert!(!refused.text().contains("qqq"), "{refused:?}");
            } else if name == "endpoint" && call.starts_with("idem_claim") {
                assert_eq!(Failure::of(done).sqlstate, "ID006", "{name} of {size}");
            } else {
                done.unwrap_or_else(|e| panic!("{name} of {size}: {e:?}"));
            }
        }
    }
}

// CASES 44
#[test]
fn a_key_that_is_too_long_is_an_outcome_however_long_it_is() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    open_claim(&mut c);
    for (n, unit) in [(256, "k"), (256, "😀"), (1_021, "k"), (50_000_000, "k")] {
        let key = format!("repeat('{unit}', {n})");
        let claim = format!("SELECT outcome FROM idem_claim('t', 'POST /x', {key}, ''::bytea)");
        assert_eq!(c.value::<String>(&claim), "key_invalid");
        let complete = format!("SELECT idem_complete('t', 'POST /x', {key}, 200, ''::bytea)");
        assert_eq!(Failure::of(c.query(&complete, &[])).sqlstate, "ID001");
        assert!(!c.value::<bool>(&format!("SELECT idem_release('t', 'POST /x', {key})")));
        assert!(!c.value::<bool>(&format!("SELECT idem_forget('t', 'POST /x', {key})")));
    }
    let longest = "SELECT outcome FROM idem_claim('t', 'POST /x', repeat('😀', 255), ''::bytea)";
    assert_eq!(c.value::<String>(longest), "execute");
    for hash in ["''::bytea", "repeat('x', 33)::bytea", "repeat('x', 9000000)::bytea"] {
        let refused =
            Failure::of(c.query(&format!("SELECT idem_claim('t', 'POST /x', 'h', NULL::bytea, NULL, {hash})"), &[]));
        assert_eq!(refused.sqlstate, "22023", "{refused:?}");
    }
}

/// Times that are infinite or absurd, in every column that has one, are refused by the table itself.
#[test]
fn a_row_has_no_time_that_arithmetic_cannot_bear() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    open_claim(&mut c);
    c.batch_execute(
        "SELECT idem_claim('t', 'POST /x', 'done', ''::bytea), idem_complete('t', 'POST /x', 'done', 200, ''::bytea)",
    )
    .unwrap();
    for (key, column) in [
        ("k", "open_since"),
        ("k", "lease_until"),
        ("k", "created_at"),
        ("k", "expires_at"),
        ("done", "completed_at"),
        ("done", "erased_at"),
        ("done", "expires_at"),
    ] {
        for time in ["-infinity", "infinity", "1969-12-31 00:00Z", "3000-01-02 00:00Z", "290000-01-01", "4713-01-01 BC"]
        {
            let sql = format!("UPDATE idempotency_keys SET {column} = '{time}' WHERE key = '{key}'");
            assert_eq!(Failure::of(c.execute(&sql, &[])).sqlstate, "23514", "{column} {time}");
        }
        c.batch_execute(&format!("UPDATE idempotency_keys SET {column} = '2999-12-31' WHERE key = '{key}'")).unwrap();
    }
    let attempt = c.execute("UPDATE idempotency_keys SET attempt = 2147483647", &[]);
    assert_eq!(Failure::of(attempt).sqlstate, "23514");
    let registry = "UPDATE idempotency_endpoints SET stuck_after = interval '170000000 years'";
    assert_eq!(Failure::of(c.execute(registry, &[])).sqlstate, "23514");
}
