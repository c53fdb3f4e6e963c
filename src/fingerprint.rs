//! Fingerprints: of the request body, and of the whole request for a provider.

use crate::scope::Scope;
use sha2::{Digest, Sha256};

/// SHA-256 of a request body.
pub type RequestHash = [u8; 32];

pub fn of_body(body: &[u8]) -> RequestHash {
    Sha256::digest(body).into()
}

/// The key to pass to an external provider: a UUID of version 8 (RFC 9562, section 5.8) from SHA-256 of the scope
/// and the request hash, each part behind its length as eight big-endian bytes.
///
/// Derived, not drawn: after a failover or a restore that lost the claim, the retry sends the same one.
pub fn provider_key(scope: &Scope, request: &RequestHash) -> [u8; 16] {
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
        let hex: String = of_body(b"abc").iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
}
