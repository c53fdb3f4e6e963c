//! The scope of a claim: tenant, endpoint and key, checked once on the way in.

use crate::limits::KEY_CHARS;
use crate::refusal::Refusal;
use sha2::{Digest, Sha256};

/// One (tenant, endpoint, key), in UTF-8.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Scope {
    pub tenant: String,
    pub endpoint: String,
    pub key: String,
}

/// As messages name it, control characters escaped.
impl std::fmt::Display for Scope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "of key {:?} on endpoint {:?} of tenant {:?}", self.key, self.endpoint, self.tenant)
    }
}

/// What is wrong with a key that a client sent: an outcome, not an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyFault {
    /// NULL or empty.
    Missing,
    TooLong,
    ControlCharacter,
    /// Of a database whose encoding lets it in.
    NotUtf8,
}

/// Checks a key as a client sent it.
///
/// Source: draft-ietf-httpapi-idempotency-key-header (a String of RFC 9651, so printable); the length is ours.
pub fn check_key(key: Option<String>) -> Result<String, KeyFault> {
    let key = key.filter(|k| !k.is_empty()).ok_or(KeyFault::Missing)?;
    if key.chars().nth(KEY_CHARS).is_some() {
        return Err(KeyFault::TooLong);
    }
    if key.chars().any(char::is_control) {
        return Err(KeyFault::ControlCharacter);
    }
    Ok(key)
}

/// Checks a tenant, which the application supplies: `22023` when it is missing.
pub fn check_tenant(tenant: Option<String>) -> Result<String, Refusal> {
    tenant.ok_or_else(|| {
        Refusal::invalid(
            "tenant_id must not be null",
            "Keys of different tenants are kept apart by it.",
            "Pass the account that the request is authenticated for; an application without tenants passes ''.",
        )
    })
}

/// Checks an endpoint, which the application supplies: `22023` when it is missing or empty.
pub fn check_endpoint(endpoint: Option<String>) -> Result<String, Refusal> {
    let what = match &endpoint {
        None => "null",
        Some(name) if name.is_empty() => "empty",
        Some(_) => return Ok(endpoint.unwrap_or_default()),
    };
    Err(Refusal::invalid(
        format!("endpoint must not be {what}"),
        "The same key on two endpoints means two operations.",
        "Pass the operation, by convention 'METHOD /route/template'.",
    ))
}

impl Scope {
    /// Feeds the scope to a digest so that no two scopes feed the same bytes: each part behind its length.
    pub fn digest_into(&self, digest: &mut Sha256) {
        for part in [&self.tenant, &self.endpoint, &self.key] {
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part.as_bytes());
        }
    }

    /// The number of the advisory lock that gates this scope: 64 bits of SHA-256.
    pub fn lock_id(&self) -> u64 {
        let mut digest = Sha256::new();
        self.digest_into(&mut digest);
        digest.finalize()[..8].iter().fold(0, |id, byte| id << 8 | u64::from(*byte))
    }
}

#[cfg(test)]
pub fn scope(tenant: &str, endpoint: &str, key: &str) -> Scope {
    Scope { tenant: tenant.into(), endpoint: endpoint.into(), key: key.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(k: &str) -> Result<String, KeyFault> {
        check_key(Some(k.into()))
    }

    #[test]
    fn keys() {
        assert_eq!(check_key(None), Err(KeyFault::Missing));
        assert_eq!(key(""), Err(KeyFault::Missing));
        assert_eq!(key(" "), Ok(" ".into()));
        assert_eq!(key(&"😀".repeat(255)), Ok("😀".repeat(255)));
        assert_eq!(key(&"😀".repeat(256)), Err(KeyFault::TooLong));
        for control in ["a\nb", "\t", "\u{7f}", "x\u{85}", "\u{1}"] {
            assert_eq!(key(control), Err(KeyFault::ControlCharacter), "{control:?}");
        }
    }

    #[test]
    fn names() {
        let message = |r: Result<String, Refusal>| r.map_err(|r| r.message);
        assert_eq!(message(check_tenant(Some(String::new()))), Ok(String::new()));
        assert_eq!(message(check_tenant(None)), Err("tenant_id must not be null".into()));
        assert_eq!(message(check_endpoint(Some("POST /x".into()))), Ok("POST /x".into()));
        assert_eq!(message(check_endpoint(None)), Err("endpoint must not be null".into()));
        assert_eq!(message(check_endpoint(Some(String::new()))), Err("endpoint must not be empty".into()));
    }

    #[test]
    fn no_two_scopes_share_a_lock_by_moving_a_boundary() {
        let ids = [
            scope("a", "b", "c").lock_id(),
            scope("ab", "", "c").lock_id(),
            scope("", "ab", "c").lock_id(),
            scope("a", "bc", "").lock_id(),
            scope("b", "a", "c").lock_id(),
        ];
        for (i, a) in ids.iter().enumerate() {
            assert!(ids[i + 1..].iter().all(|b| a != b), "{ids:x?}");
        }
        assert_eq!(ids[0], scope("a", "b", "c").lock_id());
    }
}
