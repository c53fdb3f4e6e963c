//! The owner switch: statements against the tables run with their owner's rights and a fixed environment.
//!
//! The way of `ri_triggers.c`: the user id is switched around the internal queries only, so a caller needs no
//! right on the tables, and gets none. `search_path` is fixed for the same time, so that nothing of the caller's
//! is found and a caller that changes its own path costs no re-planning.

use pgrx::pg_sys;
use std::ffi::{c_int, CStr};

/// While it lives, the process acts as the tables' owner. Restores the caller when dropped.
pub struct OwnerRights {
    caller: pg_sys::Oid,
    caller_context: c_int,
    guc_level: c_int,
}

impl OwnerRights {
    pub fn assume(owner: pg_sys::Oid) -> Self {
        let mut caller = pg_sys::InvalidOid;
        let mut caller_context = 0;
        // SAFETY: plain setters of the backend's state. An ERROR before `drop` aborts the (sub)transaction, which
        // restores the user and the settings by itself (AbortTransaction, AbortSubTransaction in xact.c).
        let guc_level = unsafe {
            pg_sys::GetUserIdAndSecContext(&mut caller, &mut caller_context);
            pg_sys::SetUserIdAndSecContext(
                owner,
                caller_context | (pg_sys::SECURITY_LOCAL_USERID_CHANGE | pg_sys::SECURITY_NOFORCE_RLS) as c_int,
            );
            pg_sys::NewGUCNestLevel()
        };
        let rights = OwnerRights { caller, caller_context, guc_level };
        set_locally(c"search_path", c"pg_catalog, pg_temp");
        // A plan that is kept must never be one that reads the whole table, however small it was when planned.
        set_locally(c"enable_seqscan", c"off");
        rights
    }
}

impl Drop for OwnerRights {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return; // an ERROR is under way: the abort restores everything
        }
        // SAFETY: undoes what `assume` did, in reverse.
        unsafe {
            pg_sys::AtEOXact_GUC(true, self.guc_level);
            pg_sys::SetUserIdAndSecContext(self.caller, self.caller_context);
        }
    }
}

/// Sets a setting until the innermost nest level ends, as a function's SET clause does.
fn set_locally(name: &CStr, value: &CStr) {
    // SAFETY: both strings are NUL-terminated and copied by PostgreSQL.
    unsafe {
        pg_sys::set_config_option(
            name.as_ptr(),
            value.as_ptr(),
            pg_sys::GucContext::PGC_USERSET,
            pg_sys::GucSource::PGC_S_SESSION,
            pg_sys::GucAction::GUC_ACTION_SAVE,
            true,
            0,
            false,
        );
    }
}
