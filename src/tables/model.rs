//! What goes into the tables, and what is read of them.

use crate::fingerprint::Fingerprint;
use crate::pg::value::Value;
use crate::scope::Scope;
use crate::status::Status;
use crate::verdict::Verdict;
use pgrx::datum::{Interval, TimestampWithTimeZone};

/// What an endpoint is registered as.
#[derive(Clone, Copy)]
pub struct Endpoint {
    pub external: bool,
    pub key_required: bool,
    pub retry_window: Interval,
    pub ttl: Interval,
}

/// A stored response, as it will be sent again. Its values are in PostgreSQL's memory: their size is the stored row's.
pub struct Response {
    pub code: Option<i32>,
    pub headers: Value,
    pub body: Value,
    pub resource_ref: Value,
    pub attempt: Option<i32>,
    pub provider_key: Option<[u8; 16]>,
    pub expires_at: Option<TimestampWithTimeZone>,
}

/// What is known of a scope when a request arrives.
pub struct Seen {
    pub verdict: Verdict,
    /// What tells this state of the row from others; `None`: there is no row.
    pub version: Option<Version>,
    /// Read only for [`Verdict::Replay`]: without the right body, a stored response cannot be read.
    pub response: Option<Response>,
}

/// A state of a row: it changes with everything that an outcome is taken from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Version {
    pub(super) status: Status,
    pub(super) attempt: i32,
    pub(super) same_request: bool,
    pub(super) created_at: Option<TimestampWithTimeZone>,
    pub(super) completed_at: Option<TimestampWithTimeZone>,
    pub(super) erased_at: Option<TimestampWithTimeZone>,
}

/// A new claim.
pub struct NewClaim<'a> {
    pub scope: &'a Scope,
    pub fingerprint: &'a Fingerprint,
    pub provider_key: Option<[u8; 16]>,
    /// The claim may be committed in progress.
    pub may_stay_open: bool,
    pub ttl: Interval,
}

/// What became of a new claim.
pub struct Claimed {
    pub attempt: i32,
    pub expires_at: TimestampWithTimeZone,
}

/// A result to store.
pub struct Outcome<'a> {
    pub scope: &'a Scope,
    pub status: Status,
    pub attempt: i32,
    pub response_code: i32,
    pub response_headers: Value,
    pub response_body: Value,
    pub resource_ref: Value,
    /// The limit in bytes where the endpoint does not say otherwise.
    pub max_body_bytes: i32,
}

/// A row as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    pub status: Status,
    pub attempt: i32,
}

/// Why a result could not be stored: the row as it is.
pub struct Obstacle {
    pub state: State,
    /// The row holds this very result.
    pub same_result: bool,
    /// The limit in bytes, when the body is over it and there is no `resource_ref`.
    pub over_limit: Option<i32>,
}

/// An open claim that is older than its endpoint's `stuck_after`.
pub struct StuckClaim {
    pub scope: Scope,
    pub attempt: i32,
    /// As an interval, to the second.
    pub open_for: String,
}

/// The rows of one endpoint that a batch has deleted.
pub struct Swept {
    pub endpoint: String,
    pub rows: i64,
    /// The latest end of their retention.
    pub latest: Option<TimestampWithTimeZone>,
}
