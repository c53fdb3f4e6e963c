//! The constraint on a row of `idempotency_keys`, in one function.
//!
//! PostgreSQL reads a CHECK expression anew for each statement. Nine of them, written out, cost as much as the rest of a
//! claim and its completion together; one call costs little. They guard against rows written by other means: what the
//! functions write is checked before, so that no error shows a row.

use crate::limits::{KEY_BYTES, KEY_CHARS, NAME_BYTES};
use crate::pg::entry::{sql_function, Answer, Args};
use crate::refusal::Refusal;
use crate::status::Status;

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
    pub const LEASE_UNTIL: usize = 9;
    pub const CREATED_AT: usize = 10;
    pub const ERASED_AT: usize = 11;
    pub const EXPIRES_AT: usize = 12;
}

/// No attempt is above it: the next one must still be a number.
const MOST_ATTEMPTS: i32 = 1_000_000_000;
const DAY: i64 = 24 * 60 * 60 * 1_000_000;
/// The years 1970 to 2999, in microseconds since 2000, as PostgreSQL counts: arithmetic with times outside of them, or
/// with infinite ones, fails or is absurd, and one such row would stop the reports of all.
const SANE_TIMES: std::ops::Range<i64> = -10957 * DAY..365243 * DAY;

fn is_well_formed(args: &Args) -> Result<Answer, Refusal> {
    Ok(Answer::Bool(scope_fits(args) && state_is_consistent(args) && times_are_sane(args)))
}

fn scope_fits(args: &Args) -> bool {
    let size = |n| args.size(n).unwrap_or(0);
    let key_chars = || match args.text(arg::KEY, KEY_BYTES) {
        Ok(key) => key.unwrap_or_default().chars().count(),
        Err(_) => size(arg::KEY), // an SQL_ASCII database, where a byte is a character
    };
    size(arg::TENANT_ID) <= NAME_BYTES
        && (1..=NAME_BYTES).contains(&size(arg::ENDPOINT))
        && (1..=KEY_CHARS).contains(&key_chars())
        && size(arg::REQUEST_HASH) == 32
}

fn state_is_consistent(args: &Args) -> bool {
    let code = args.int(arg::RESPONSE_CODE);
    let has_response = code.is_some_and(|c| (100..=599).contains(&c)) && !args.is_null(arg::COMPLETED_AT);
    let has_none = code.is_none() && args.is_null(arg::COMPLETED_AT);
    let is_closed = args.is_null(arg::OPEN_SINCE) && args.is_null(arg::LEASE_UNTIL);
    let state = match args.bytes(arg::STATUS).and_then(Status::of) {
        Some(Status::InProgress) => has_none && args.is_null(arg::ERASED_AT),
        Some(Status::Succeeded | Status::Failed) => has_response && is_closed,
        Some(Status::Released) => has_none && is_closed,
        None => false,
    };
    state && args.int(arg::ATTEMPT).is_some_and(|attempt| (1..=MOST_ATTEMPTS).contains(&attempt))
}

fn times_are_sane(args: &Args) -> bool {
    [arg::COMPLETED_AT, arg::OPEN_SINCE, arg::LEASE_UNTIL, arg::CREATED_AT, arg::ERASED_AT, arg::EXPIRES_AT]
        .into_iter()
        .filter_map(|n| args.timestamptz(n))
        .all(|at| SANE_TIMES.contains(&at.into_inner()))
}
