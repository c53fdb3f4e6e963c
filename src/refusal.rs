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
/// `ID006`: the endpoint is not registered, and must be.
pub const ENDPOINT_NOT_REGISTERED: &str = "ID006";
/// `55000`, object_not_in_prerequisite_state.
pub const NOT_IN_PREREQUISITE_STATE: &str = "55000";
/// `55006`, object_in_use.
pub const OBJECT_IN_USE: &str = "55006";
/// `25006`, read_only_sql_transaction.
pub const READ_ONLY_SQL_TRANSACTION: &str = "25006";
/// `53200`, out_of_memory.
pub const OUT_OF_MEMORY: &str = "53200";
/// `55P03`, lock_not_available.
pub const LOCK_NOT_AVAILABLE: &str = "55P03";
/// `0A000`, feature_not_supported.
pub const FEATURE_NOT_SUPPORTED: &str = "0A000";

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

    /// `22023`; sizes in bytes.
    pub fn too_long(argument: &str, size: usize, most: usize) -> Self {
        Refusal::invalid(
            format!("{argument} is too long"),
            format!("It has {size} bytes; at most {most} are allowed."),
            match argument {
                "tenant_id" | "only_endpoint" | "endpoint" => {
                    "Pass an identifier, not data; of a URL as endpoint only the route template."
                }
                "request_target" => "Pass the path and query; what is longer belongs into the body.",
                "response_headers" => "Store the headers that a retry must be sent; the server adds its own.",
                "resource_ref" | "recovery_state" => "Store a reference to the data, such as a path or an id.",
                _ => "Pass a shorter one.",
            },
        )
    }

    pub fn not_utf8(argument: &str) -> Self {
        Refusal {
            sqlstate: CHARACTER_NOT_IN_REPERTOIRE,
            message: format!("{argument} has bytes that are no UTF-8 and have no equivalent in it"),
            detail: "Text is stored, compared and hashed as UTF-8, whatever the database's encoding.".into(),
            hint: "Pass text that UTF-8 can hold; a body of any bytes as bytea.".into(),
        }
    }

    pub fn not_installed() -> Self {
        Refusal {
            sqlstate: NOT_IN_PREREQUISITE_STATE,
            message: "a table of extension idempotency_enforcer is not there".into(),
            detail: "idempotency_keys and idempotency_endpoints belong into the extension's schema. The extension was \
                     dropped, or one of them was renamed or moved."
                .into(),
            hint:
                "If the extension was dropped, create it. If a table was renamed or moved, give it back its name and \
                   schema: it holds the keys."
                    .into(),
        }
    }

    pub fn tables_of_two_owners(keys: &str, endpoints: &str) -> Self {
        Refusal {
            sqlstate: NOT_IN_PREREQUISITE_STATE,
            message: "the tables of extension idempotency_enforcer have different owners".into(),
            detail: format!("idempotency_keys belongs to {keys:?}, idempotency_endpoints to {endpoints:?}."),
            hint: "ALTER TABLE ... OWNER TO one role for both: statements on them run with their owner's rights."
                .into(),
        }
    }

    pub fn untrusted_trigger(table: &str, trigger: &str, owner: &str) -> Self {
        Refusal {
            sqlstate: NOT_IN_PREREQUISITE_STATE,
            message: format!("table {table} has a trigger that must not run with its owner's rights: {trigger:?}"),
            detail: match owner {
                "" => {
                    "It has a condition that does more than compute, or it has arguments or a condition and somebody else than \
                     the table's owner may add triggers."
                        .into()
                }
                _ => format!("Its code belongs to {owner:?}, who is neither a superuser nor the owner of the table."),
            },
            hint:
                "Look at who made it and DROP TRIGGER, or give its function to the owner of the table; only then take the \
                 right TRIGGER on it from everybody else."
                    .into(),
        }
    }

    pub fn child_of_another_owner(table: &str) -> Self {
        Refusal {
            sqlstate: NOT_IN_PREREQUISITE_STATE,
            message: format!("a partition or child of table {table} belongs to another role"),
            detail: "Statements on the table run with its owner's rights, on its children too.".into(),
            hint: "ALTER TABLE ... OWNER TO the owner of the table, or detach it.".into(),
        }
    }

    pub fn rule_on_table(table: &str, rule: &str) -> Self {
        Refusal {
            sqlstate: NOT_IN_PREREQUISITE_STATE,
            message: format!("table {table} has a rule: {rule:?}"),
            detail: "A rule makes statements do something else than they say.".into(),
            hint: "DROP RULE; a trigger of the table's owner can observe what is written.".into(),
        }
    }

    pub fn change_swallowed(scope: &Scope) -> Self {
        Refusal {
            sqlstate: NOT_IN_PREREQUISITE_STATE,
            message: format!("the row of key {:?} on endpoint {:?} cannot be written", scope.key, scope.endpoint),
            detail: "The statement did nothing, again and again: a trigger on idempotency_keys may have returned NULL."
                .into(),
            hint: "Look at the triggers of idempotency_keys. Nothing was stored.".into(),
        }
    }

    pub fn registration_swallowed(endpoint: &str) -> Self {
        Refusal {
            sqlstate: NOT_IN_PREREQUISITE_STATE,
            message: format!("the registration of endpoint {endpoint:?} cannot be written"),
            detail: "The statement did nothing: a trigger on idempotency_endpoints may have returned NULL.".into(),
            hint: "Look at the triggers of idempotency_endpoints. Nothing was changed.".into(),
        }
    }

    /// `25006`: replays work without writing, a first arrival does not.
    pub fn read_only(scope: &Scope) -> Self {
        Refusal {
            sqlstate: READ_ONLY_SQL_TRANSACTION,
            message: format!(
                "cannot write key {:?} on endpoint {:?} in a read-only transaction",
                scope.key, scope.endpoint
            ),
            detail:
                "The transaction is read-only, or this server is a standby; only stored results can be answered here."
                    .into(),
            hint: "Send claims to the primary, in a transaction that may write.".into(),
        }
    }

    pub fn out_of_memory(scope: &Scope) -> Self {
        Refusal {
            sqlstate: OUT_OF_MEMORY,
            message: "out of memory".into(),
            detail: format!("The claim of key {:?} on endpoint {:?} could not be noted.", scope.key, scope.endpoint),
            hint: "Make fewer claims in one transaction.".into(),
        }
    }

    /// `register` is the call that registers the endpoint.
    pub fn not_registered(scope: &Scope, register: &str) -> Self {
        Refusal {
            sqlstate: ENDPOINT_NOT_REGISTERED,
            message: format!("endpoint {:?} is not registered", scope.endpoint),
            detail: format!(
                "A claim of key {:?} on it would be executed without the rules that protect it.",
                scope.key
            ),
            hint: format!(
                "Check its spelling, or register it: {register} (an administrator may turn \
                 idempotency_enforcer.require_registration off)."
            ),
        }
    }

    pub fn tables_locked(seconds: u64) -> Self {
        Refusal {
            sqlstate: LOCK_NOT_AVAILABLE,
            message: "another session holds a lock on the tables of idempotency_enforcer".into(),
            detail: format!("They cannot be read beside it; {seconds} seconds were waited."),
            hint: "See idem_health(), which says who it is, and call again.".into(),
        }
    }

    pub fn no_place_for_rows() -> Self {
        Refusal {
            sqlstate: FEATURE_NOT_SUPPORTED,
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
            sqlstate: NOT_IN_PREREQUISITE_STATE,
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

    /// The attempt's own tombstone.
    pub fn was_released(scope: &Scope, attempt: i32) -> Self {
        Refusal {
            detail: format!(
                "Attempt {attempt} was released under tenant {:?}: it holds the key no more.",
                scope.tenant
            ),
            ..Refusal::not_found(scope)
        }
    }

    /// `55006`.
    pub fn endpoint_in_use(endpoint: &str, alive: i64) -> Self {
        Refusal {
            sqlstate: OBJECT_IN_USE,
            message: format!("endpoint {endpoint:?} has {alive} keys that are still alive"),
            detail: "Their clients may still retry; without the registration its rules no longer hold for them.".into(),
            hint: "Wait until they have expired, or pass force => true. The rows stay either way.".into(),
        }
    }

    /// `55006`.
    pub fn claim_is_open(scope: &Scope) -> Self {
        Refusal {
            sqlstate: OBJECT_IN_USE,
            message: format!("the claim of key {:?} on endpoint {:?} is open", scope.key, scope.endpoint),
            detail: "It is \"in_progress\": its effect may have happened, or may yet.".into(),
            hint: "Find out what happened, then call idem_complete, idem_fail or idem_release with its attempt.".into(),
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

    /// `state` is what was found of the claim's row.
    pub fn left_open(scope: &Scope, state: &str, open: usize) -> Self {
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
            detail: format!("The endpoint is registered as \"transaction\" and the claim is {state}.{others}"),
            hint: "Call idem_complete or idem_fail before COMMIT, in the transaction that claimed. Work that cannot \
                   share the transaction belongs on an endpoint registered as \"external\"."
                .into(),
        }
    }

    /// A claim of this transaction, on an endpoint registered as `transaction`, that a call would make as if it had not been.
    pub fn effect_without_result(scope: &Scope, function: &str) -> Self {
        Refusal {
            sqlstate: CLAIM_LEFT_OPEN,
            message: format!(
                "{function} would leave the effect of key {:?} on endpoint {:?} without its result",
                scope.key, scope.endpoint
            ),
            detail: "The endpoint is registered as \"transaction\" and the claim was made in this very transaction."
                .into(),
            hint:
                "ROLLBACK, or ROLLBACK TO a savepoint before the claim: that undoes the effect and the claim together."
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
