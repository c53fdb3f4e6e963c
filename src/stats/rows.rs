//! The counters as SQL sees them; declared in `sql/stats.sql`.

use super::Counted;
use crate::stats;
use pgrx::prelude::*;

/// One row an endpoint of the current database: its name in UTF-8 and its counters in the order of [`stats::Counter`].
///
/// Raises `55000` when the library is not preloaded.
#[pg_extern(sql = false)]
fn idem_counters() -> TableIterator<'static, (name!(endpoint, Vec<u8>), name!(counters, Vec<i64>))> {
    require_preloading();
    let to_sql = |counted: Counted| (counted.endpoint.into_bytes(), counted.counters.map(|n| n as i64).to_vec());
    TableIterator::new(stats::of_this_database().into_iter().map(to_sql))
}

/// Sets the counters of the current database to zero. Raises `55000` when the library is not preloaded.
#[pg_extern(sql = false)]
fn idem_stats_reset() {
    require_preloading();
    stats::reset_this_database();
}

/// Whether the library is preloaded, and so whether anything is counted.
#[pg_extern(sql = false)]
fn idem_is_preloaded() -> bool {
    stats::is_available()
}

fn require_preloading() {
    if !stats::is_available() {
        pg_sys::panic::ErrorReport::new(
            PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
            "idempotency_enforcer must be loaded via shared_preload_libraries to count",
            "idempotency_enforcer",
        )
        .set_detail("The counters are in shared memory, which is reserved when the server starts.")
        .set_hint("Add idempotency_enforcer to shared_preload_libraries and restart. Everything else works without.")
        .report(PgLogLevel::ERROR);
    }
}
