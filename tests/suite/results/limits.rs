//! How large a stored body may be.

use super::{claim, finish, rows_as_stored, E};
use harness::{Calls, Cluster, Failure};

const LIMIT: usize = 64 * 1024;

#[test]
fn sixty_four_kib_are_stored_and_one_byte_more_is_refused() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    claim(&mut c);
    let before = rows_as_stored(&mut c);
    for function in ["idem_complete", "idem_fail"] {
        for body in ["repeat('S', 65537)", "repeat('S', 65537)::bytea"] {
            let refused = Failure::of(finish(&mut c, function, &format!("200, {body}")));
            assert_eq!(refused.sqlstate, "ID005", "{function} {body}");
            assert!(refused.message.contains("\"k\"") && refused.message.contains("\"POST /x\""), "{refused:?}");
            assert!(refused.detail.contains("65537") && refused.detail.contains("65536"), "{refused:?}");
            assert!(refused.hint.contains("resource_ref") && !refused.text().contains("SSS"), "{refused:?}");
        }
        assert_eq!(rows_as_stored(&mut c), before);
    }
    c.complete("t", E, "k", 200, &[b'S'; LIMIT]).unwrap();
    assert_eq!(claim(&mut c).response_body.map(|body| body.len()), Some(LIMIT));
}

/// The limit is in bytes of what is stored, which is UTF-8.
#[test]
fn the_limit_counts_bytes_not_characters() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    claim(&mut c);
    assert_eq!(Failure::of(finish(&mut c, "idem_complete", "200, repeat('é', 32769)")).sqlstate, "ID005");
    finish(&mut c, "idem_complete", "200, repeat('é', 32768)").unwrap();
}

#[test]
fn with_a_resource_ref_a_body_over_the_limit_is_dropped() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    for function in ["idem_complete", "idem_fail"] {
        c.batch_execute("DELETE FROM idempotency_keys").unwrap();
        claim(&mut c);
        finish(&mut c, function, "201, repeat('S', 65537), NULL, 'charges/7'").unwrap();
        let replay = claim(&mut c);
        assert_eq!((replay.outcome.as_str(), replay.response_code), ("replay", Some(201)));
        assert_eq!((replay.resource_ref.as_deref(), replay.response_body), (Some("charges/7"), None));
    }
    // Within the limit both are kept.
    c.batch_execute("DELETE FROM idempotency_keys").unwrap();
    claim(&mut c);
    finish(&mut c, "idem_complete", "201, 'small'::text, NULL, 'charges/7'").unwrap();
    let replay = claim(&mut c);
    assert_eq!((replay.resource_ref.as_deref(), replay.response_body), (Some("charges/7"), Some(b"small".to_vec())));
}

#[test]
fn the_endpoints_limit_goes_before_the_setting() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    c.batch_execute(
        "SELECT idem_protect('POST /small', 'external', max_body_bytes => 10),
                idem_protect('POST /none', 'external', max_body_bytes => 0),
                idem_protect('POST /large', 'external', max_body_bytes => 100000),
                idem_protect('POST /default', 'external');
         SET idempotency_enforcer.max_body_bytes = 100",
    )
    .unwrap();
    for (endpoint, limit) in
        [("POST /small", 10), ("POST /none", 0), ("POST /large", 100_000), ("POST /default", 100), ("POST /x", 100)]
    {
        c.claim("t", endpoint, "k", b"{}").unwrap();
        let refused = Failure::of(c.complete("t", endpoint, "k", 200, &vec![0; limit + 1]));
        assert_eq!(refused.sqlstate, "ID005", "{endpoint}");
        assert!(refused.detail.contains(&format!("limit is {limit}")), "{refused:?}");
        c.complete("t", endpoint, "k", 200, &vec![0; limit]).unwrap();
    }
}

/// Such a body was never stored, so nothing says that the result is the one that was.
#[test]
fn a_body_over_the_limit_is_not_the_same_result_as_none() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    claim(&mut c);
    finish(&mut c, "idem_complete", "201, NULL::text").unwrap();
    let refused = Failure::of(finish(&mut c, "idem_complete", "201, repeat('S', 65537)"));
    assert!(["ID002", "ID005"].contains(&refused.sqlstate.as_str()), "{refused:?}");
}

#[test]
fn a_lowered_limit_does_not_make_a_stored_result_another() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    claim(&mut c);
    finish(&mut c, "idem_complete", "201, repeat('S', 1000)").unwrap();
    let before = rows_as_stored(&mut c);
    c.batch_execute("SET idempotency_enforcer.max_body_bytes = 10").unwrap();
    finish(&mut c, "idem_complete", "201, repeat('S', 1000)").unwrap();
    assert_eq!(rows_as_stored(&mut c), before);
    assert_eq!(claim(&mut c).response_body.map(|body| body.len()), Some(1000));
}
