//! What a transaction is and when it ends.

use crate::pg::raise::{self, Raised};
use crate::refusal::Refusal;
use pgrx::pg_sys;
use std::ffi::{c_int, c_long, c_void};
use std::time::Duration;

/// True at REPEATABLE READ and SERIALIZABLE, where all statements see one snapshot.
pub fn snapshot_is_fixed() -> bool {
    // SAFETY: reads a per-process variable. `IsolationUsesXactSnapshot()` of xact.h.
    unsafe { pg_sys::XactIsoLevel >= pg_sys::XACT_REPEATABLE_READ as c_int }
}

/// True where nothing can be written: in a read-only transaction, or on a standby.
pub fn is_read_only() -> bool {
    // SAFETY: reads per-process state.
    unsafe { pg_sys::XactReadOnly || pg_sys::RecoveryInProgress() }
}

/// Has the COMMIT wait for its WAL to be on disk, even where synchronous_commit is off: what is about to happen outside of the
/// database must not be forgotten by a crash.
pub fn force_durable_commit() {
    // SAFETY: sets a flag of the current transaction.
    unsafe { pg_sys::ForceSyncCommit() }
}

/// The innermost subtransaction, the top-level transaction being 1.
pub fn current_subtransaction() -> pg_sys::SubTransactionId {
    // SAFETY: reads the transaction state; valid in any transaction.
    unsafe { pg_sys::GetCurrentSubTransactionId() }
}

/// Sleeps up to `time`, ending early for an interrupt, which is then served (cancel, terminate, shutdown).
pub fn pause(time: Duration) {
    // SAFETY: the protocol of latch.h: wait, reset, then serve what may have set the latch.
    unsafe {
        let wake = pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH;
        pg_sys::WaitLatch(
            pg_sys::MyLatch,
            wake as c_int,
            time.as_millis().clamp(1, 1_000) as c_long,
            pg_sys::PG_WAIT_EXTENSION,
        );
        pg_sys::ResetLatch(pg_sys::MyLatch);
    }
    pgrx::check_for_interrupts!();
}

/// What wants to know of the ends of transactions.
pub struct Watcher {
    /// Before COMMIT or PREPARE TRANSACTION takes effect; a refusal aborts the transaction.
    pub before_commit: fn() -> Result<(), Refusal>,
    /// After the transaction has ended, either way, or was prepared.
    pub ended: fn(),
    /// A subtransaction was merged into its parent.
    pub sub_committed: fn(pg_sys::SubTransactionId, parent: pg_sys::SubTransactionId),
    /// A subtransaction was rolled back.
    pub sub_aborted: fn(pg_sys::SubTransactionId),
}

/// Registers the watcher for the life of the process. Called once, from `_PG_init`.
pub fn watch(watcher: &'static Watcher) {
    let arg = std::ptr::from_ref(watcher).cast_mut().cast::<c_void>();
    // SAFETY: the callbacks get back the pointer to a `'static` that they were registered with.
    unsafe {
        pg_sys::RegisterXactCallback(Some(on_transaction_event), arg);
        pg_sys::RegisterSubXactCallback(Some(on_subtransaction_event), arg);
    }
}

/// Has the watcher asked before those that were registered since: PostgreSQL asks the latest first, and postgres_fdw, say,
/// commits on its remote servers when it is asked. One that is registered after this call still comes before.
pub fn be_asked_first(watcher: &'static Watcher) {
    let arg = std::ptr::from_ref(watcher).cast_mut().cast::<c_void>();
    // SAFETY: takes the registration of `watch` out of the list and puts it to its front; called from a function call, not
    // while the list is walked.
    unsafe {
        pg_sys::UnregisterXactCallback(Some(on_transaction_event), arg);
        pg_sys::RegisterXactCallback(Some(on_transaction_event), arg);
    }
}

/// # Safety
///
/// Called by PostgreSQL with the argument given to `RegisterXactCallback`.
unsafe extern "C-unwind" fn on_transaction_event(event: pg_sys::XactEvent::Type, arg: *mut c_void) {
    use pg_sys::XactEvent::*;
    // SAFETY: `arg` is the `&'static Watcher` of `watch`. The guarded half returns plain data, so `raise` skips
    // no destructor.
    unsafe {
        let refused: Option<Raised> = pgrx::pgrx_extern_c_guard(move || {
            let watcher = &*arg.cast::<Watcher>();
            match event {
                XACT_EVENT_PRE_COMMIT | XACT_EVENT_PRE_PREPARE => {
                    (watcher.before_commit)().err().map(|refusal| Raised::new(&refusal))
                }
                XACT_EVENT_COMMIT | XACT_EVENT_ABORT | XACT_EVENT_PREPARE => {
                    (watcher.ended)();
                    None
                }
                _ => None,
            }
        });
        if let Some(raised) = refused {
            raise::raise(raised);
        }
    }
}

/// # Safety
///
/// Called by PostgreSQL with the argument given to `RegisterSubXactCallback`.
unsafe extern "C-unwind" fn on_subtransaction_event(
    event: pg_sys::SubXactEvent::Type,
    sub: pg_sys::SubTransactionId,
    parent: pg_sys::SubTransactionId,
    arg: *mut c_void,
) {
    use pg_sys::SubXactEvent::*;
    // SAFETY: as in `on_transaction_event`.
    unsafe {
        pgrx::pgrx_extern_c_guard(move || {
            let watcher = &*arg.cast::<Watcher>();
            match event {
                SUBXACT_EVENT_COMMIT_SUB => (watcher.sub_committed)(sub, parent),
                SUBXACT_EVENT_ABORT_SUB => (watcher.sub_aborted)(sub),
                _ => {}
            }
        });
    }
}
