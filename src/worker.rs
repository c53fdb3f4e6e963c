//! The background worker: sweeps expired rows, reports stuck claims.
//!
//! A launcher that is connected to no database, and for each database and round one short-lived visitor: what is not
//! connected cannot be in the way of DROP DATABASE. Works only when the library is preloaded.

mod launcher;
mod trouble;
mod visit;

use pgrx::bgworkers::{BackgroundWorkerBuilder, BgWorkerStartTime};
use std::time::Duration;

const LIBRARY: &str = "idempotency_enforcer";
/// The least time that a database is given in a round.
const LEAST_BUDGET: Duration = Duration::from_secs(1);

/// Registers the launcher, and asks for its shared memory. Called from `_PG_init`, while the postmaster preloads the library.
///
/// It starts when recovery has finished: on a standby not before its promotion.
pub fn register() {
    trouble::reserve();
    BackgroundWorkerBuilder::new("idempotency_enforcer launcher")
        .set_type("idempotency_enforcer launcher")
        .set_library(LIBRARY)
        .set_function("idempotency_enforcer_launcher")
        .set_start_time(BgWorkerStartTime::RecoveryFinished)
        .set_restart_time(Some(Duration::from_secs(5)))
        .enable_spi_access()
        .load();
}
