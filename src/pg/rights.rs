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
        set_locally(c"search_path", c"pg_catalog, pg_temp", pg_sys::GucContext::PGC_USERSET);
        // A plan that is kept must never be one that reads the whole table, however small it was when planned.
        set_locally(c"enable_seqscan", c"off", pg_sys::GucContext::PGC_USERSET);
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

/// While it lives, statements are neither counted by pg_stat_statements nor logged by auto_explain: a worker that finds
/// nothing to do leaves no trace. For a superuser's process.
pub struct Quiet {
    guc_level: c_int,
}

impl Quiet {
    pub fn new() -> Self {
        // SAFETY: as in `OwnerRights::assume`.
        let guc_level = unsafe { pg_sys::NewGUCNestLevel() };
        for (name, value) in [(c"pg_stat_statements.track", c"none"), (c"auto_explain.log_min_duration", c"-1")] {
            // SAFETY: looks a name up; NULL when that module is not loaded.
            let is_known = unsafe { !pg_sys::GetConfigOption(name.as_ptr(), true, false).is_null() };
            if is_known {
                set_locally(name, value, pg_sys::GucContext::PGC_SUSET);
            }
        }
        Quiet { guc_level }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return; // an ERROR is under way: the abort restores everything
        }
        // SAFETY: undoes what `new` did.
        unsafe { pg_sys::AtEOXact_GUC(true, self.guc_level) };
    }
}

/// While it lives, nothing can be put off until after it, as in `VACUUM` and `REFRESH MATERIALIZED VIEW`: a deferred
/// trigger of the tables' owner would run at COMMIT, in a worker with the rights of a superuser.
pub struct Restricted {
    user: pg_sys::Oid,
    context: c_int,
}

impl Restricted {
    pub fn new() -> Self {
        let (mut user, mut context) = (pg_sys::InvalidOid, 0);
        // SAFETY: as in `OwnerRights::assume`.
        unsafe {
            pg_sys::GetUserIdAndSecContext(&mut user, &mut context);
            pg_sys::SetUserIdAndSecContext(user, context | pg_sys::SECURITY_RESTRICTED_OPERATION as c_int);
        }
        Restricted { user, context }
    }
}

impl Drop for Restricted {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return; // an ERROR is under way: the abort restores everything
        }
        // SAFETY: undoes what `new` did.
        unsafe { pg_sys::SetUserIdAndSecContext(self.user, self.context) };
    }
}

/// Sets a setting until the innermost nest level ends, as a function's SET clause does.
fn set_locally(name: &CStr, value: &CStr, context: pg_sys::GucContext::Type) {
    // SAFETY: both strings are NUL-terminated and copied by PostgreSQL.
    unsafe {
        pg_sys::set_config_option(
            name.as_ptr(),
            value.as_ptr(),
            context,
            pg_sys::GucSource::PGC_S_SESSION,
            pg_sys::GucAction::GUC_ACTION_SAVE,
            true,
            0,
            false,
        );
    }
}
