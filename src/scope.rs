//! The scope of a claim: tenant, endpoint and key, checked once on the way in.

use crate::refusal::Refusal;
use sha2::{Digest, Sha256};

/// Longest tenant and endpoint, in bytes of the database's encoding.
pub const MAX_NAME_BYTES: usize = 255;
/// Longest key, in characters.
pub const MAX_KEY_CHARS: usize = 255;

/// One (tenant, endpoint, key), in UTF-8.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Scope {
    pub tenant: String,
    pub endpoint: String,
    pub key: String,
}

/// What is wrong with a key that a client sent: an outcome, not an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyFault {
    /// NULL or empty.
    Missing,
    TooLong,
    ControlCharacter,
}

/// Checks a key as a client sent it.
///
/// Source: draft-ietf-httpapi-idempotency-key-header (a String of RFC 9651, so printable); the length is ours.
pub fn check_key(key: Option<String>) -> Result<String, KeyFault> {
    let key = key.filter(|k| !k.is_empty()).ok_or(KeyFault::Missing)?;
    if key.chars().nth(MAX_KEY_CHARS).is_some() {
        return Err(KeyFault::TooLong);
    }
    if key.chars().any(char::is_control) {
        return Err(KeyFault::ControlCharacter);
    }
    Ok(key)
}

/// Checks a tenant and an endpoint, which the application supplies: `22023` when one is missing or too long.
pub fn check_names(
    tenant: Option<String>,
    endpoint: Option<String>,
    size_in_database: impl Fn(&str) -> usize,
) -> Result<(String, String), Refusal> {
    let tenant = tenant.ok_or_else(|| {
        Refusal::invalid(
            "tenant_id must not be null",
            "Keys of different tenants are kept apart by it.",
            "Pass the account that the request is authenticated for; an application without tenants passes ''.",
        )
    })?;
    let endpoint = endpoint.ok_or_else(|| {
        Refusal::invalid(
            "endpoint must not be null",
            "The same key on two endpoints means two operations.",
            "Pass the operation, by convention 'METHOD /route/template'.",
        )
    })?;
    let too_long = |name: &str, size: usize| {
        Refusal::invalid(
            format!("{name} is too long"),
            format!("It has {size} bytes; at most {MAX_NAME_BYTES} are allowed."),
            "Pass an identifier, not data; of a URL only the route template.",
        )
    };
    match size_in_database(&tenant) {
        0..=MAX_NAME_BYTES => {}
        size => return Err(too_long("tenant_id", size)),
    }
    match size_in_database(&endpoint) {
        0 => {
            return Err(Refusal::invalid(
                "endpoint must not be empty",
                "The same key on two endpoints means two operations.",
                "Pass the operation, by convention 'METHOD /route/template'.",
            ))
        }
        1..=MAX_NAME_BYTES => {}
        size => return Err(too_long("endpoint", size)),
    }
    Ok((tenant, endpoint))
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
        let check = |t: Option<&str>, e: Option<&str>| {
            check_names(t.map(Into::into), e.map(Into::into), str::len).map_err(|r| r.message)
        };
        assert!(check(Some(""), Some("POST /x")).is_ok());
        assert!(check(Some(&"t".repeat(255)), Some(&"e".repeat(255))).is_ok());
        assert_eq!(check(None, Some("e")), Err("tenant_id must not be null".into()));
        assert_eq!(check(Some("t"), None), Err("endpoint must not be null".into()));
        assert_eq!(check(Some("t"), Some("")), Err("endpoint must not be empty".into()));
        assert_eq!(check(Some(&"t".repeat(256)), Some("e")), Err("tenant_id is too long".into()));
        assert_eq!(check(Some("t"), Some(&"é".repeat(128))), Err("endpoint is too long".into()));
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
