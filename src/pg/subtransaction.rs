//! A piece of work whose ERROR does not end the transaction, as a block with EXCEPTION in PL/pgSQL.

use pgrx::pg_sys::{self, panic::CaughtError};
use pgrx::{PgSqlErrorCode, PgTryBuilder};
use std::panic::AssertUnwindSafe;

/// Runs `body` in a subtransaction. An ERROR in it undoes all that it did, and is returned as its message; that the
/// statement is to be cancelled is raised again.
pub fn attempt<R>(body: impl FnOnce() -> R) -> Result<R, String> {
    // SAFETY: as plpgsql's exec_stmt_block does it: the memory context and the resource owner of before are set anew
    // after beginning and after ending the subtransaction, whose abort restores everything else. No error is caught
    // without that abort.
    let outcome = unsafe {
        let context = pg_sys::CurrentMemoryContext;
        let owner = pg_sys::CurrentResourceOwner;
        pg_sys::BeginInternalSubTransaction(std::ptr::null());
        pg_sys::MemoryContextSwitchTo(context);
        let body = AssertUnwindSafe(move || Ok(body()));
        let outcome = PgTryBuilder::new(body).catch_others(|caught| Err(Box::new(caught))).execute();
        match outcome {
            Ok(_) => pg_sys::ReleaseCurrentSubTransaction(),
            Err(_) => {
                pg_sys::MemoryContextSwitchTo(context);
                pg_sys::RollbackAndReleaseCurrentSubTransaction();
            }
        }
        pg_sys::MemoryContextSwitchTo(context);
        pg_sys::CurrentResourceOwner = owner;
        outcome
    };
    outcome.map_err(|caught| {
        let report = match &*caught {
            CaughtError::PostgresError(report) | CaughtError::ErrorReport(report) => report,
            CaughtError::RustPanic { ereport, .. } => ereport,
        };
        if report.sql_error_code() == PgSqlErrorCode::ERRCODE_QUERY_CANCELED {
            caught.rethrow();
        }
        report.message().to_owned()
    })
}
