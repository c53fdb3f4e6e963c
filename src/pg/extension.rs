//! The extension as an object of the catalog.

use pgrx::pg_sys;

/// What the extension is held for.
#[derive(Clone, Copy)]
pub enum Hold {
    /// Any number of transactions at a time.
    ForReading = pg_sys::AccessShareLock as isize,
    /// One at a time, beside those that read.
    ForChange = pg_sys::ShareUpdateExclusiveLock as isize,
}

/// Keeps the extension that a function belongs to from being dropped until the transaction ends; false when it belongs
/// to none any more. Waits for who is dropping it.
pub fn hold(function: pg_sys::Oid, how: Hold) -> bool {
    // SAFETY: reads pg_depend, with its lock.
    let find = || unsafe { pg_sys::getExtensionOfObject(pg_sys::ProcedureRelationId, function) };
    let extension = find();
    if extension == pg_sys::InvalidOid {
        return false;
    }
    // SAFETY: the lock manager takes any Oid, and processes invalidations once it has waited. DROP takes AccessExclusiveLock on
    // the same object (`AcquireDeletionLock` in dependency.c).
    unsafe { pg_sys::LockDatabaseObject(pg_sys::ExtensionRelationId, extension, 0, how as pg_sys::LOCKMODE) };
    find() == extension
}
