//! The constraint on a row of `idempotency_keys`, in one function.
//!
//! PostgreSQL reads a CHECK expression anew for each statement. Nine of them, written out, cost as much as the rest of a
//! claim and its completion together; one call costs little. They guard against rows written by other means: what the
//! functions write is checked before, so that no error shows a row.

use crate::pg::entry::{sql_function, Answer, Args};
use crate::refusal::Refusal;
use crate::scope::{MAX_KEY_CHARS, MAX_NAME_BYTES};

sql_function!("idem_row_is_well_formed" => is_well_formed);

/// Positions of the arguments in `sql/tables.sql`.
mod arg {
    pub const TENANT_ID: usize = 0;
    pub const ENDPOINT: usize = 1;
    pub const KEY: usize = 2;
    pub const REQUEST_HASH: usize = 3;
    pub const STATUS: usize = 4;
    pub const ATTEMPT: usize = 5;
    pub const RESPONSE_CODE: usize = 6;
    pub const COMPLETED_AT: usize = 7;
    pub const OPEN_SINCE: usize = 8;
}

fn is_well_formed(args: &Args) -> Result<Answer, Refusal> {
    Ok(Answer::Bool(scope_fits(args) && state_is_consistent(args)))
}

fn scope_fits(args: &Args) -> bool {
    let bytes = |n| args.bytes(n).map_or(0, <[u8]>::len);
    let key_chars = || match args.text(arg::KEY, "key") {
        Ok(key) => key.unwrap_or_default().chars().count(),
        Err(_) => bytes(arg::KEY), // an SQL_ASCII database, where a byte is a character
    };
    bytes(arg::TENANT_ID) <= MAX_NAME_BYTES
        && (1..=MAX_NAME_BYTES).contains(&bytes(arg::ENDPOINT))
        && (1..=MAX_KEY_CHARS).contains(&key_chars())
        && bytes(arg::REQUEST_HASH) == 32
}

fn state_is_consistent(args: &Args) -> bool {
    let code = args.int(arg::RESPONSE_CODE);
    let has_response = code.is_some_and(|c| (100..=599).contains(&c)) && !args.is_null(arg::COMPLETED_AT);
    let has_none = code.is_none() && args.is_null(arg::COMPLETED_AT);
    let state = match args.bytes(arg::STATUS) {
        Some(b"in_progress") => has_none,
        Some(b"succeeded" | b"failed") => has_response && args.is_null(arg::OPEN_SINCE),
        _ => false,
    };
    state && args.int(arg::ATTEMPT).is_some_and(|attempt| attempt >= 1)
}
