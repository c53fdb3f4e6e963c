//! The owner switch: statements against the tables run with their owner's rights and a fixed environment.
//!
//! The way of `ri_triggers.c`: the user id is switched around the internal queries only, so a caller needs no
//! right on the tables, and gets none. Nor does the owner get any of the caller's: the operation is restricted, so that no
//! trigger that an owner adds can be deferred to the caller's COMMIT. `search_path` is fixed for the same time, so that nothing of the caller's
//! is found and a caller that changes its own path costs no re-planning.

use crate::pg::{placeholders, trust};
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
                caller_context
                    | (pg_sys::SECURITY_LOCAL_USERID_CHANGE
                        | pg_sys::SECURITY_RESTRICTED_OPERATION
                        | pg_sys::SECURITY_NOFORCE_RLS) as c_int,
            );
            pg_sys::NewGUCNestLevel()
        };
        let rights = OwnerRights { caller, caller_context, guc_level };
        set_locally(c"search_path", c"pg_catalog, pg_temp", pg_sys::GucContext::PGC_USERSET);
        plan_for_good();
        #[cfg(not(any(feature = "pg14", feature = "pg15")))]
        keep_bodies_out_of_auto_explain();
        rights
    }
}

impl OwnerRights {
    /// Spares a statement whose cost is estimated high, but that runs often, its compilation.
    pub fn without_jit(&self) {
        // SAFETY: reads a per-process variable.
        if unsafe { pg_sys::jit_enabled } {
            set_locally(c"jit", c"off", pg_sys::GucContext::PGC_USERSET);
        }
    }
}

impl Drop for OwnerRights {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return; // an ERROR is under way: the abort restores everything
        }
        // SAFETY: undoes what `assume` did, in reverse; not committing the level undoes what an owner's code has set, too.
        unsafe {
            pg_sys::AtEOXact_GUC(false, self.guc_level);
            pg_sys::SetUserIdAndSecContext(self.caller, self.caller_context);
        }
    }
}

/// A plan that is kept must never be one that reads the whole table, however small it was when planned, and must be kept,
/// whatever the session that happens to make it prefers. What is as it should be costs nothing.
fn plan_for_good() {
    // SAFETY: reads per-process variables of the planner.
    let (seqscan, indexscan, bitmapscan, indexonlyscan, nestloop, plan_cache) = unsafe {
        (
            pg_sys::enable_seqscan,
            pg_sys::enable_indexscan,
            pg_sys::enable_bitmapscan,
            pg_sys::enable_indexonlyscan,
            pg_sys::enable_nestloop,
            pg_sys::plan_cache_mode,
        )
    };
    for (is_right, name, value) in [
        (!seqscan, c"enable_seqscan", c"off"),
        (indexscan, c"enable_indexscan", c"on"),
        (bitmapscan, c"enable_bitmapscan", c"on"),
        (indexonlyscan, c"enable_indexonlyscan", c"on"),
        (nestloop, c"enable_nestloop", c"on"),
        (plan_cache == pg_sys::PlanCacheMode::PLAN_CACHE_MODE_AUTO as c_int, c"plan_cache_mode", c"auto"),
    ] {
        if !is_right {
            set_locally(name, value, pg_sys::GucContext::PGC_USERSET);
        }
    }
}

/// From PostgreSQL 16 on, auto_explain logs parameters, also of nested statements: ours are bodies.
#[cfg(not(any(feature = "pg14", feature = "pg15")))]
fn keep_bodies_out_of_auto_explain() {
    let name = c"auto_explain.log_parameter_max_length";
    if placeholders::current_value(name).is_some_and(|value| value != b"0") {
        set_locally(name, c"0", pg_sys::GucContext::PGC_SUSET);
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
            if placeholders::current_value(name).is_some() {
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
        unsafe { pg_sys::AtEOXact_GUC(false, self.guc_level) };
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

/// Whether code runs that is not trusted with the session, as index expressions in ANALYZE do.
pub fn is_restricted() -> bool {
    // SAFETY: reads a per-process value.
    unsafe { pg_sys::InSecurityRestrictedOperation() }
}

/// The name of the role that has connected, whatever role is acted as.
pub fn session_role() -> String {
    // SAFETY: reads a per-process value.
    trust::name_of_role(unsafe { pg_sys::GetSessionUserId() })
}

/// Whether the current role may execute the function of this name and these types; false when there is none.
pub fn may_execute(schema: pg_sys::Oid, function: &CStr, types: &[pg_sys::Oid]) -> bool {
    const ANUM_OID: pg_sys::AttrNumber = 1; // pg_proc.h
                                            // SAFETY: a catalog look-up by name, types and schema; the vector is copied before the call returns.
    unsafe {
        let vector = pg_sys::buildoidvector(types.as_ptr(), types.len() as c_int);
        let found = pg_sys::GetSysCacheOid(
            pg_sys::SysCacheIdentifier::PROCNAMEARGSNSP as c_int,
            ANUM_OID,
            pg_sys::Datum::from(function.as_ptr()),
            pg_sys::Datum::from(vector),
            pg_sys::Datum::from(schema),
            pg_sys::Datum::from(0),
        );
        if found == pg_sys::InvalidOid {
            return false;
        }
        let role = pg_sys::GetUserId();
        let right = pg_sys::ACL_EXECUTE as pg_sys::AclMode;
        #[cfg(any(feature = "pg14", feature = "pg15"))]
        let result = pg_sys::pg_proc_aclcheck(found, role, right);
        #[cfg(not(any(feature = "pg14", feature = "pg15")))]
        let result = pg_sys::object_aclcheck(pg_sys::ProcedureRelationId, found, role, right);
        result == pg_sys::AclResult::ACLCHECK_OK
    }
}
