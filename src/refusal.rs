//! The errors of this extension: programming mistakes and protocol violations, each with a SQLSTATE, a message
//! that names the endpoint and the key, the state found and a way out.
//!
//! A duplicate, a wrong body or a missing key is an outcome of `idem_claim`, not an error. No error carries a
//! request or response body.

use crate::scope::Scope;

/// `ID001`: complete, fail or checkpoint without a claim.
pub const CLAIM_NOT_FOUND: &str = "ID001";
/// `ID002`: the claim was finished before with another result.
pub const CLAIM_ALREADY_FINISHED: &str = "ID002";
/// `ID003`: the claim has changed hands since.
pub const STALE_ATTEMPT: &str = "ID003";
/// `ID004`: the commit guard.
pub const CLAIM_LEFT_OPEN: &str = "ID004";
/// `ID005`: the body is over the limit and there is no `resource_ref`.
pub const RESPONSE_TOO_LARGE: &str = "ID005";
/// `22023`, invalid_parameter_value.
pub const INVALID_PARAMETER_VALUE: &str = "22023";
/// `42501`, insufficient_privilege.
pub const INSUFFICIENT_PRIVILEGE: &str = "42501";
/// `40001`, serialization_failure: a retry of the transaction cures it.
pub const SERIALIZATION_FAILURE: &str = "40001";
/// `22021`, character_not_in_repertoire.
pub const CHARACTER_NOT_IN_REPERTOIRE: &str = "22021";
/// `55000`, object_not_in_prerequisite_state.
pub const OBJECT_NOT_IN_PREREQUISITE_STATE: &str = "55000";

/// Why a call is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub sqlstate: &'static str,
    pub message: String,
    pub detail: String,
    pub hint: String,
}

impl Refusal {
    /// `22023`.
    pub fn invalid(message: impl Into<String>, detail: impl Into<String>, hint: impl Into<String>) -> Self {
        Refusal { sqlstate: INVALID_PARAMETER_VALUE, message: message.into(), detail: detail.into(), hint: hint.into() }
    }

    /// Adds what the call was about to the message.
    pub fn naming(mut self, endpoint: &str, key: Option<&str>) -> Self {
        self.message += &match key {
            Some(key) => format!(", for key {key:?} on endpoint {endpoint:?}"),
            None => format!(", for endpoint {endpoint:?}"),
        };
        self
    }

    pub fn not_utf8(argument: &str) -> Self {
        Refusal {
            sqlstate: CHARACTER_NOT_IN_REPERTOIRE,
            message: format!("{argument} is not valid UTF-8"),
            detail: "The database has the encoding SQL_ASCII, which does not check text.".into(),
            hint: "Pass UTF-8, or use a database with an encoding.".into(),
        }
    }

    pub fn not_installed() -> Self {
        Refusal {
            sqlstate: OBJECT_NOT_IN_PREREQUISITE_STATE,
            message: "the table idempotency_keys is missing from the extension's schema".into(),
            detail: "It belongs to the extension and was dropped or renamed.".into(),
            hint: "Install the extension anew: DROP EXTENSION, then CREATE EXTENSION idempotency_enforcer.".into(),
        }
    }

    pub fn no_place_for_rows() -> Self {
        Refusal {
            sqlstate: "0A000",
            message: "a set of rows was returned to a context that cannot accept one".into(),
            detail: "The function returns any number of rows.".into(),
            hint: "Call it in FROM.".into(),
        }
    }

    pub fn foreign_tenant(setting: &str) -> Self {
        Refusal {
            sqlstate: INSUFFICIENT_PRIVILEGE,
            message: "tenant_id is not the session's tenant".into(),
            detail: format!(
                "idempotency_enforcer.tenant_setting names {setting:?}, whose value differs or is not set."
            ),
            hint: format!("Set {setting} to the tenant of this request before calling, and pass the same value."),
        }
    }

    /// A setting of the administrator's, under its full name.
    pub fn setting_lost(setting: &str) -> Self {
        Refusal {
            sqlstate: INSUFFICIENT_PRIVILEGE,
            message: format!("permission denied: the session has connected with a value of its own for {setting}"),
            detail: "It came before the library was loaded, and the administrator's value is lost to this session.".into(),
            hint: format!(
                "Connect without {setting}. With idempotency_enforcer in shared_preload_libraries the attempt is refused \
                 at once."
            ),
        }
    }

    pub fn not_preloaded() -> Self {
        Refusal {
            sqlstate: OBJECT_NOT_IN_PREREQUISITE_STATE,
            message: "idempotency_enforcer must be loaded via shared_preload_libraries to count".into(),
            detail: "The counters are in shared memory, which is reserved when the server starts.".into(),
            hint: "Add idempotency_enforcer to shared_preload_libraries and restart. Everything else works without."
                .into(),
        }
    }

    pub fn not_found(scope: &Scope) -> Self {
        Refusal {
            sqlstate: CLAIM_NOT_FOUND,
            message: format!("there is no claim of key {:?} on endpoint {:?}", scope.key, scope.endpoint),
            detail: format!("No row is stored for it under tenant {:?}.", scope.tenant),
            hint: "Call idem_claim first, in this transaction or in one that has committed, and go on only when its \
                   outcome is \"execute\"."
                .into(),
        }
    }

    pub fn unclaimable_key(endpoint: &str) -> Self {
        Refusal {
            sqlstate: CLAIM_NOT_FOUND,
            message: format!("there is no claim without a valid key on endpoint {endpoint:?}"),
            detail: "The key is null, empty, longer than 255 characters or has a control character.".into(),
            hint: "Only the outcome \"execute\" has a claim; after \"unprotected\" there is nothing to complete."
                .into(),
        }
    }

    pub fn already_finished(scope: &Scope, status: &str, attempted: &str) -> Self {
        Refusal {
            sqlstate: CLAIM_ALREADY_FINISHED,
            message: format!("the claim of key {:?} on endpoint {:?} is already finished", scope.key, scope.endpoint),
            detail: format!("It is stored as {status:?}; {attempted} would change that."),
            hint: "The stored result stands. Call idem_claim again to replay it.".into(),
        }
    }

    pub fn stale_attempt(scope: &Scope, status: &str, stored: i32, given: i32) -> Self {
        Refusal {
            sqlstate: STALE_ATTEMPT,
            message: format!(
                "attempt {given} no longer owns the claim of key {:?} on endpoint {:?}",
                scope.key, scope.endpoint
            ),
            detail: format!("The claim is at attempt {stored} and is {status:?}."),
            hint: "Stop: whoever holds the current attempt decides the result. Pass the attempt that idem_claim or \
                   idem_reconcile returned."
                .into(),
        }
    }

    pub fn left_open(scope: &Scope, open: usize) -> Self {
        let others = match open {
            1 => String::new(),
            n => format!(" It is one of {n} such claims of this transaction."),
        };
        Refusal {
            sqlstate: CLAIM_LEFT_OPEN,
            message: format!(
                "transaction would leave the claim of key {:?} on endpoint {:?} open",
                scope.key, scope.endpoint
            ),
            detail: format!(
                "The endpoint is registered as \"transaction\" and the claim is still \"in_progress\".{others}"
            ),
            hint: "Call idem_complete or idem_fail before COMMIT, in the transaction that claimed. Work that cannot \
                   share the transaction belongs on an endpoint registered as \"external\"."
                .into(),
        }
    }

    pub fn response_too_large(scope: &Scope, size: usize, limit: i32) -> Self {
        Refusal {
            sqlstate: RESPONSE_TOO_LARGE,
            message: format!(
                "the response for key {:?} on endpoint {:?} is too large to store",
                scope.key, scope.endpoint
            ),
            detail: format!("It has {size} bytes; the limit is {limit}."),
            hint: "Pass a resource_ref from which the response can be rebuilt, or raise max_body_bytes of the \
                   endpoint or idempotency_enforcer.max_body_bytes."
                .into(),
        }
    }

    pub fn too_new_to_see(scope: &Scope) -> Self {
        Refusal {
            sqlstate: SERIALIZATION_FAILURE,
            message: format!(
                "could not serialize access to key {:?} on endpoint {:?} due to concurrent update",
                scope.key, scope.endpoint
            ),
            detail: "The row changed after this transaction's snapshot was taken.".into(),
            hint: "Retry the transaction.".into(),
        }
    }
}
