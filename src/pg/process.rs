//! A background process: its signals, what it shows of itself, and its locks on databases.

use crate::pg::raise;
use pgrx::bgworkers::{BackgroundWorker, SignalWakeFlags};
use pgrx::pg_sys::panic::CaughtError;
use pgrx::{pg_guard, pg_sys, PgTryBuilder};
use std::ffi::{c_int, CStr, CString};
use std::panic::AssertUnwindSafe;
use std::sync::Once;

extern "C-unwind" {
    /// `tcop/postgres.c`: notes the request to terminate, which the next check for interrupts serves. pgrx's
    /// binding of it is a Rust function, which cannot be a signal handler.
    fn die(signal: c_int);
}

/// SIGHUP and SIGTERM set flags and the latch: for a process that looks at them between its steps.
pub fn handle_signals_between_steps() {
    BackgroundWorker::attach_signal_handlers(SignalWakeFlags::SIGHUP | SignalWakeFlags::SIGTERM);
}

/// SIGTERM interrupts even a long statement, as in an ordinary backend; SIGHUP sets a flag.
pub fn handle_signals_at_once() {
    // SAFETY: `die` is PostgreSQL's own handler for SIGTERM.
    unsafe {
        #[cfg(not(feature = "pg18"))]
        pg_sys::pqsignal(pg_sys::SIGTERM as c_int, Some(die));
        #[cfg(feature = "pg18")]
        pg_sys::pqsignal_be(pg_sys::SIGTERM as c_int, Some(die));
    }
    BackgroundWorker::attach_signal_handlers(SignalWakeFlags::SIGHUP);
}

/// Reads the configuration again, if a SIGHUP has asked for it.
pub fn reload_if_asked() {
    if BackgroundWorker::sighup_received() {
        // SAFETY: what every process does on SIGHUP; outside of any transaction.
        unsafe {
            pg_sys::ConfigReloadPending = 0;
            pg_sys::ProcessConfigFile(pg_sys::GucContext::PGC_SIGHUP);
        }
    }
}

/// Connects to the shared catalogs, but to no database.
pub fn connect_to_no_database() {
    // SAFETY: called once, at the start of a background worker; NULL means no database and the bootstrap superuser.
    unsafe { pg_sys::BackgroundWorkerInitializeConnection(std::ptr::null(), std::ptr::null(), 0) };
}

/// Connects to a database as the bootstrap superuser, with none of the settings that its owner may have chosen for
/// sessions and that would stop a worker (as `AutoVacWorkerMain` does).
///
/// Also to one that has begun to refuse connections, which would be an error in the log: the caller looks.
pub fn connect_to(database: pg_sys::Oid) {
    // SAFETY: called once, at the start of a background worker; no role means the bootstrap superuser.
    unsafe {
        let flags = pg_sys::BGWORKER_BYPASS_ALLOWCONN;
        pg_sys::BackgroundWorkerInitializeConnectionByOid(database, pg_sys::InvalidOid, flags);
    }
    for (name, value) in [
        (c"search_path", c"pg_catalog, pg_temp"),
        (c"default_transaction_isolation", c"read committed"),
        (c"default_transaction_read_only", c"off"),
        (c"default_transaction_deferrable", c"off"),
        (c"statement_timeout", c"0"),
        (c"lock_timeout", c"0"),
        #[cfg(any(feature = "pg17", feature = "pg18"))]
        (c"transaction_timeout", c"0"),
        // A batch is over sooner than it is compiled.
        (c"jit", c"off"),
        (c"synchronous_commit", c"local"),
    ] {
        set(name, value, pg_sys::GucSource::PGC_S_OVERRIDE);
    }
}

fn set(name: &CStr, value: &CStr, source: pg_sys::GucSource::Type) {
    // SAFETY: both strings are NUL-terminated and copied.
    unsafe { pg_sys::SetConfigOption(name.as_ptr(), value.as_ptr(), pg_sys::GucContext::PGC_SUSET, source) };
}

/// Shows a name in `pg_stat_activity.application_name` and in the structured log (`%a` of `log_line_prefix` is for
/// clients only). May be called before the process is connected, so that its first line has it.
pub fn show_name(name: &CStr) {
    // The assign hook of the setting reports it to pg_stat_activity.
    set(c"application_name", name, pg_sys::GucSource::PGC_S_SESSION);
}

/// Shows in `pg_stat_activity` that the process works, and on what.
pub fn show_work(what: &str) {
    let what = CString::new(what).unwrap_or_default();
    // SAFETY: the text is copied into shared memory.
    unsafe { pg_sys::pgstat_report_activity(pg_sys::BackendState::STATE_RUNNING, what.as_ptr()) };
}

/// Shows in `pg_stat_activity` that the process waits for its next turn.
pub fn show_idle() {
    // SAFETY: NULL leaves the last text in place.
    unsafe { pg_sys::pgstat_report_activity(pg_sys::BackendState::STATE_IDLE, std::ptr::null()) };
}

/// Makes the changes of the last transactions count, so that autovacuum follows.
pub fn report_statistics() {
    // SAFETY: called between transactions, as PostgreSQL demands.
    unsafe { pg_sys::pgstat_report_stat(true) };
}

/// Runs one transaction. An ERROR in it ends the process, which is what a worker that is started anew each round wants.
pub fn transaction<R>(body: impl FnOnce() -> R) -> R {
    BackgroundWorker::transaction(AssertUnwindSafe(body))
}

/// An ERROR that was caught.
pub struct Failure {
    /// Five characters.
    pub sqlstate: String,
    /// Without DETAIL and CONTEXT, which may hold values of rows.
    pub message: String,
}

/// Runs one transaction; an ERROR in it, which is not logged then, aborts it.
pub fn attempt<R>(body: impl FnOnce() -> R) -> Result<R, Failure> {
    let failed = |error: CaughtError| {
        // SAFETY: the error is out of PostgreSQL's hands; this gives back all that the transaction held.
        unsafe { pg_sys::AbortCurrentTransaction() };
        let (CaughtError::PostgresError(report)
        | CaughtError::ErrorReport(report)
        | CaughtError::RustPanic { ereport: report, .. }) = error;
        Err(Failure {
            sqlstate: raise::unpack_sqlstate(report.sql_error_code() as c_int),
            message: report.message().to_owned(),
        })
    };
    PgTryBuilder::new(AssertUnwindSafe(|| Ok(transaction(body))))
        .catch_others(failed)
        .catch_rust_panic(failed)
        .execute()
}

/// Whether pg_upgrade runs this server: what is changed then is lost, or worse, half of it is.
pub fn is_binary_upgrade() -> bool {
    // SAFETY: a per-process value that is fixed when the server starts.
    unsafe { pg_sys::IsBinaryUpgrade }
}

/// Ends the process. Code 0 means: not to be started again; 1: to be started again after its restart time.
#[allow(unreachable_code)] // its type says so or not, depending on the version
pub fn exit(code: i32) -> ! {
    // SAFETY: runs PostgreSQL's own exit callbacks and ends the process.
    unsafe { pg_sys::proc_exit(code) };
    unreachable!()
}

/// The database that the process is connected to.
pub fn own_database() -> pg_sys::Oid {
    // SAFETY: a per-process value that is fixed when the backend connects.
    unsafe { pg_sys::MyDatabaseId }
}

/// The name of that database; empty when it is gone.
pub fn own_database_name() -> String {
    // SAFETY: the name, if there is one, is a palloc'd C string; valid in a transaction.
    unsafe {
        let name = pg_sys::get_database_name(pg_sys::MyDatabaseId);
        if name.is_null() {
            String::new()
        } else {
            CStr::from_ptr(name).to_string_lossy().into_owned()
        }
    }
}

/// The lock that connecting to a database takes on it. DROP DATABASE and CREATE DATABASE ... TEMPLATE conflict with it, so
/// whoever holds it keeps the database in place, and whoever cannot get it at once knows that somebody wants it gone.
pub struct DatabaseLock {
    tag: pg_sys::LOCKTAG,
}

/// lock.h
const DEFAULT_LOCKMETHOD: u8 = 1;

/// PostgreSQL releases the locks of a session that is in a transaction when it ends, and only those.
fn release_locks_at_exit() {
    static ONCE: Once = Once::new();
    // SAFETY: registers a callback that takes no argument, before shared memory is left.
    ONCE.call_once(|| unsafe { pg_sys::before_shmem_exit(Some(release_locks), pg_sys::Datum::from(0)) });
}

/// # Safety
///
/// Called by PostgreSQL when the process ends.
#[pg_guard]
unsafe extern "C-unwind" fn release_locks(_code: c_int, _argument: pg_sys::Datum) {
    // SAFETY: the process still has its place in shared memory.
    unsafe { pg_sys::LockReleaseAll(DEFAULT_LOCKMETHOD.into(), true) };
}

impl DatabaseLock {
    const MODE: pg_sys::LOCKMODE = pg_sys::RowExclusiveLock as pg_sys::LOCKMODE;

    pub fn of(database: pg_sys::Oid) -> Self {
        // `SET_LOCKTAG_OBJECT(tag, InvalidOid, DatabaseRelationId, database, 0)` of lock.h.
        DatabaseLock {
            tag: pg_sys::LOCKTAG {
                locktag_field1: 0,
                locktag_field2: pg_sys::DatabaseRelationId.to_u32(),
                locktag_field3: database.to_u32(),
                locktag_field4: 0,
                locktag_type: pg_sys::LockTagType::LOCKTAG_OBJECT as u8,
                locktag_lockmethodid: DEFAULT_LOCKMETHOD,
            },
        }
    }

    /// Takes it until the transaction ends; false when somebody holds or awaits a conflicting lock.
    pub fn try_in_transaction(&self) -> bool {
        self.try_lock(false)
    }

    /// Takes it until [`DatabaseLock::release_session`] or the end of the process; as above. Works before the process is
    /// connected and outside of a transaction.
    pub fn try_in_session(&self) -> bool {
        release_locks_at_exit();
        self.try_lock(true)
    }

    pub fn release_session(&self) {
        // SAFETY: the tag outlives the call.
        unsafe { pg_sys::LockRelease(&self.tag, Self::MODE, true) };
    }

    fn try_lock(&self, session: bool) -> bool {
        // SAFETY: the tag outlives the call; the lock table copies it.
        let result = unsafe { pg_sys::LockAcquire(&self.tag, Self::MODE, session, true) };
        result != pg_sys::LockAcquireResult::LOCKACQUIRE_NOT_AVAIL
    }
}
