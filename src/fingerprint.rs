//! Fingerprints: of a request, and of the whole of it for a provider.

use crate::scope::Scope;
use sha2::{Digest, Sha256};

/// The 32 bytes by which a request is told from another with the same key.
pub type Fingerprint = [u8; 32];

/// SHA-256 of a request body.
pub fn of_body(body: &[u8]) -> Fingerprint {
    Sha256::digest(body).into()
}

/// The fingerprint of a request whose body has this hash: with a target SHA-256(SHA-256(target) || hash), else the hash.
///
/// The empty target is a target like any other: it says that the body holds everything.
pub fn of_request(body: Fingerprint, target: Option<&str>) -> Fingerprint {
    let Some(target) = target else { return body };
    let mut digest = Sha256::new();
    digest.update(Sha256::digest(target.as_bytes()));
    digest.update(body);
    digest.finalize().into()
}

/// The key to pass to an external provider: a UUID of version 8 (RFC 9562, section 5.8) from SHA-256 of the scope
/// and the fingerprint, each part behind its length as eight big-endian bytes.
///
/// Derived, not drawn: after a failover or a restore that lost the claim, the retry sends the same one.
pub fn provider_key(scope: &Scope, request: &Fingerprint) -> [u8; 16] {
    let mut digest = Sha256::new();
    scope.digest_into(&mut digest);
    digest.update((request.len() as u64).to_be_bytes());
    digest.update(request);
    let digest: [u8; 32] = digest.finalize().into();
    let mut custom = [0; 16];
    custom.copy_from_slice(&digest[..16]);
    uuid::Builder::from_custom_bytes(custom).into_uuid().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scope::scope;

    fn hex(fingerprint: Fingerprint) -> String {
        fingerprint.iter().map(|b| format!("{b:02x}")).collect()
    }

    #[test]
    fn provider_keys_are_stable_version_8_uuids() {
        let a = scope("t", "POST /charges", "k");
        let hash = of_body(b"{}");
        let key = uuid::Uuid::from_bytes(provider_key(&a, &hash));
        assert_eq!(key.get_version_num(), 8);
        assert_eq!(key.get_variant(), uuid::Variant::RFC4122);
        // Providers remember these keys: a change of the derivation is a second charge.
        assert_eq!(key.to_string(), "9bb5ae2d-2ba3-877c-bae9-a824fa65fb8c");
        assert_ne!(provider_key(&a, &hash), provider_key(&a, &of_body(b"{ }")));
        assert_ne!(provider_key(&a, &hash), provider_key(&scope("u", "POST /charges", "k"), &hash));
    }

    #[test]
    fn body_hash_is_sha256() {
        assert_eq!(hex(of_body(b"abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn targets_tell_requests_apart() {
        let body = of_body(b"");
        assert_eq!(of_request(body, None), body);
        let kinds = [None, Some(""), Some("/orders/1"), Some("/orders/2")].map(|target| of_request(body, target));
        for (i, a) in kinds.iter().enumerate() {
            assert!(kinds[i + 1..].iter().all(|b| a != b));
        }
        // Stored rows hold it: sha256(sha256('/orders/1') || sha256('')), as PostgreSQL computes it.
        assert_eq!(hex(kinds[2]), "47f455debc8557f3d8dcbf6f1529a28d4940d59128c40ac1e62364d7e539d573");
    }
}
