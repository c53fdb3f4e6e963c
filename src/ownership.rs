//! Whether an attempt still owns a claim: what a statement that changed nothing means.

use crate::pg::transaction;
use crate::refusal::Refusal;
use crate::scope::Scope;
use crate::status::Status;
use crate::tables::{State, Tables};

/// How often a statement is repeated that did nothing though it should have: the claim may have been released and made again
/// in between. After that, something swallows what is written.
pub const MOST_REPETITIONS: u32 = 3;

/// Refuses unless the row that stood in the way is, by now, this attempt's open claim. `function` is the call.
pub fn check(tables: &Tables, scope: &Scope, found: State, attempt: i32, function: &str) -> Result<(), Refusal> {
    check_is_latest(tables, scope, Some(found))?;
    if found.attempt != attempt {
        return Err(Refusal::stale_attempt(scope, found.status.name(), found.attempt, attempt));
    }
    match found.status {
        Status::InProgress => Ok(()),
        Status::Released => Err(Refusal::was_released(scope, attempt)),
        Status::Succeeded | Status::Failed => Err(Refusal::already_finished(scope, found.status.name(), function)),
    }
}

/// Where the snapshot is fixed, what it shows may be long past: an answer is given on what is stored now, or not at all
/// (`40001`).
pub fn check_is_latest(tables: &Tables, scope: &Scope, found: Option<State>) -> Result<(), Refusal> {
    if transaction::snapshot_is_fixed() && tables.latest_state(scope) != found {
        return Err(Refusal::too_new_to_see(scope));
    }
    Ok(())
}

/// Why there is no row: none at all (`ID001`), or one that is too new to see.
pub fn missing(tables: &Tables, scope: &Scope) -> Refusal {
    check_is_latest(tables, scope, None).err().unwrap_or_else(|| Refusal::not_found(scope))
}
