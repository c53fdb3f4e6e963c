//! The key for an external provider: whatever happens to the claim, the provider recognizes the retry.

use harness::{Calls, Cluster};
use postgres::Client;
use std::collections::HashSet;
use uuid::Uuid;

const PAY: &str = "POST /charges";

fn provider_key(c: &mut Client, tenant: &str, endpoint: &str, key: &str, body: &[u8]) -> Uuid {
    let answer = c.claim(tenant, endpoint, key, body).unwrap();
    assert_eq!(answer.outcome, "execute");
    answer.provider_key.expect("a provider key")
}

#[test]
fn the_provider_key_is_the_same_after_release_loss_and_expiry() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    c.batch_execute("SELECT idem_protect('POST /charges', 'external')").unwrap();
    let first = provider_key(&mut c, "t", PAY, "k", b"{}");
    // Providers remember these keys: this very value is part of the contract.
    assert_eq!(first.to_string(), "9bb5ae2d-2ba3-877c-bae9-a824fa65fb8c");
    assert_eq!((first.get_version_num(), first.get_variant()), (8, uuid::Variant::RFC4122));

    assert!(c.release("t", PAY, "k").unwrap());
    assert_eq!(provider_key(&mut c, "t", PAY, "k", b"{}"), first);

    // As after a failover that lost the commit.
    c.batch_execute("DELETE FROM idempotency_keys").unwrap();
    assert_eq!(provider_key(&mut c, "t", PAY, "k", b"{}"), first);

    c.fail("t", PAY, "k", 402, b"declined").unwrap();
    assert_eq!(c.claim("t", PAY, "k", b"{}").unwrap().provider_key, Some(first), "a replay tells it too");
    c.batch_execute("UPDATE idempotency_keys SET expires_at = now() - interval '1 s'").unwrap();
    assert_eq!(provider_key(&mut c, "t", PAY, "k", b"{}"), first);

    // The hash stands in for the body here too.
    assert!(c.release("t", PAY, "k").unwrap());
    let by_hash: Option<Uuid> = c.value(
        "SELECT provider_key FROM idem_claim('t', 'POST /charges', 'k', NULL::bytea, request_hash => sha256('{}'))",
    );
    assert_eq!(by_hash, Some(first));
}

#[test]
fn two_operations_never_share_a_provider_key() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    c.batch_execute("SELECT idem_protect('POST /charges', 'external'), idem_protect('POST /refunds', 'external')")
        .unwrap();
    let mut keys = HashSet::new();
    keys.insert(provider_key(&mut c, "t", PAY, "k", b"{}"));
    keys.insert(provider_key(&mut c, "u", PAY, "k", b"{}"));
    keys.insert(provider_key(&mut c, "t", "POST /refunds", "k", b"{}"));
    keys.insert(provider_key(&mut c, "t", PAY, "k2", b"{}"));
    c.batch_execute("DELETE FROM idempotency_keys").unwrap();
    keys.insert(provider_key(&mut c, "t", PAY, "k", b"[]"));
    assert_eq!(keys.len(), 5);
}

#[test]
fn only_external_endpoints_have_one() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    c.batch_execute("SELECT idem_protect('POST /tx')").unwrap();
    let mut t = c.transaction().unwrap();
    for endpoint in ["POST /tx", "POST /unregistered"] {
        assert_eq!(t.claim("t", endpoint, "k", b"{}").unwrap().provider_key, None);
    }
}
