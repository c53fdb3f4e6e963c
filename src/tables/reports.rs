//! What reports read of the tables, and the locks that they read them under.

use super::statements::Statement;
use super::{Found, Mode, Tables, Value};
use crate::pg::{locks, transaction};
use crate::refusal::Refusal;
use pgrx::datum::{Interval, TimestampWithTimeZone};
use pgrx::pg_sys;
use std::time::{Duration, Instant};

/// How long a report waits for a lock at most: better an error than a monitor that hangs.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time between two attempts.
const STEP: Duration = Duration::from_millis(10);

/// The open claims of one endpoint, or of all that are not named one by one.
pub struct OpenClaims {
    pub endpoint: Option<String>,
    pub registered: bool,
    pub open: i64,
    pub stuck: i64,
    /// Stuck ones that a reconciler holds.
    pub leased: i64,
    pub oldest: Option<TimestampWithTimeZone>,
}

/// An endpoint that has rows and is not registered.
pub struct UnregisteredEndpoint {
    pub endpoint: String,
    pub has_open_claims: bool,
    pub has_finished_claims: bool,
}

impl Tables {
    /// Open and stuck claims by endpoint. Reads the index of open claims only.
    pub fn open_claims(&self) -> Vec<OpenClaims> {
        self.rights.without_jit();
        self.all(Statement::OpenClaims, &[], Mode::Read, |row| OpenClaims {
            endpoint: (!row.is_null(0)).then(|| row.text(0)),
            registered: row.bool(1).unwrap_or(false),
            open: row.bigint(2),
            stuck: row.bigint(3),
            leased: row.bigint(4),
            oldest: row.timestamptz(5),
        })
    }

    /// How long the oldest expired row has been due for the sweep; `None` when there is none.
    pub fn sweep_lag(&self) -> Option<Interval> {
        self.first(Statement::SweepLag, &[], Mode::Read, |row| row.interval(0)).flatten()
    }

    /// The registered endpoints: all columns of `idempotency_endpoints`, in their order, to `each`.
    pub fn registry(&self, mut each: impl FnMut([Value; 11])) {
        self.all(Statement::Registry, &[], Mode::Read, |row| each(std::array::from_fn(|column| row.value(column))));
    }

    /// Endpoints that are in use and not registered, a few of them.
    pub fn unregistered_in_use(&self) -> Vec<UnregisteredEndpoint> {
        self.rights.without_jit();
        self.all(Statement::UnregisteredInUse, &[], Mode::Read, |row| UnregisteredEndpoint {
            endpoint: row.text(0),
            has_open_claims: row.bool(1).unwrap_or(false),
            has_finished_claims: row.bool(2).unwrap_or(false),
        })
    }

    /// Raises whatever reading the tables raises, without reading them.
    pub fn plan_to_read(&self) {
        self.stuck(0);
        self.endpoint("");
    }
}

/// Takes the locks that reading the tables takes, until the transaction ends; false when that would have to wait,
/// `55000` when the tables are not there. Never waits behind whoever awaits a stronger lock.
pub fn try_lock_to_read(schema: pg_sys::Oid) -> Result<bool, Refusal> {
    let found = Found::in_schema(schema).ok_or_else(Refusal::not_installed)?;
    let locked = [found.endpoints, found.keys].into_iter().all(locks::try_lock_relation_to_read);
    // They may have been dropped before they were locked.
    match Found::in_schema(schema) == Some(found) {
        true => Ok(locked),
        false => Err(Refusal::not_installed()),
    }
}

/// The same, waiting for a few seconds; then `55P03`.
pub fn lock_to_read(schema: pg_sys::Oid) -> Result<(), Refusal> {
    let since = Instant::now();
    while !try_lock_to_read(schema)? {
        if since.elapsed() > PATIENCE {
            return Err(Refusal::tables_locked(PATIENCE.as_secs()));
        }
        transaction::pause(STEP);
    }
    Ok(())
}
