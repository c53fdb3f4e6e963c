//! Transaction-scoped advisory locks in a class that SQL cannot reach, and locks on relations that nobody waits for.

use pgrx::pg_sys;

/// `locktag_field4` of our locks, `objsubid` in `pg_locks`. The SQL functions use 1 (one bigint) and
/// 2 (two integers) only, so an application's own advisory locks never meet these (`lockfuncs.c`).
pub const LOCK_CLASS: u16 = 0x1DE0;

/// `USER_LOCKMETHOD` of `lock.h`: the method that advisory locks use.
const USER_LOCKMETHOD: u8 = 2;

fn tag(id: u64) -> pg_sys::LOCKTAG {
    pg_sys::LOCKTAG {
        // SAFETY: a per-process value that is fixed when the backend connects.
        locktag_field1: unsafe { pg_sys::MyDatabaseId }.to_u32(),
        locktag_field2: (id >> 32) as u32,
        locktag_field3: id as u32,
        locktag_field4: LOCK_CLASS,
        locktag_type: pg_sys::LockTagType::LOCKTAG_ADVISORY as u8,
        locktag_lockmethodid: USER_LOCKMETHOD,
    }
}

/// Takes the lock until the transaction ends, if nobody else has it; never waits.
///
/// Raises `53200` where the shared lock table is full.
pub fn try_lock(id: u64) -> bool {
    // SAFETY: the tag outlives the call; the lock table copies it.
    let result = owned_by_transaction(|| unsafe {
        pg_sys::LockAcquire(&tag(id), pg_sys::ExclusiveLock as pg_sys::LOCKMODE, false, true)
    });
    result != pg_sys::LockAcquireResult::LOCKACQUIRE_NOT_AVAIL
}

/// Gives one acquisition of the lock back before the transaction ends.
pub fn unlock(id: u64) {
    // SAFETY: as above; only called by the holder.
    owned_by_transaction(|| unsafe { pg_sys::LockRelease(&tag(id), pg_sys::ExclusiveLock as pg_sys::LOCKMODE, false) });
}

/// Makes the lock belong to the (sub)transaction, as the row does that it gates, and not to the portal that happens to
/// run: a cursor that fails would take it along and leave the row.
fn owned_by_transaction<R>(body: impl FnOnce() -> R) -> R {
    // SAFETY: the innermost transaction's owner outlives the call. An ERROR in between aborts the (sub)transaction,
    // which sets the current owner anew.
    unsafe {
        let before = pg_sys::CurrentResourceOwner;
        pg_sys::CurrentResourceOwner = pg_sys::CurTransactionResourceOwner;
        let result = body();
        pg_sys::CurrentResourceOwner = before;
        result
    }
}

/// Takes the lock that reading a relation takes, until the transaction ends; false when that would have to wait.
pub fn try_lock_relation_to_read(relation: pg_sys::Oid) -> bool {
    // SAFETY: the lock manager takes any Oid; it processes invalidations once the lock is held.
    unsafe { pg_sys::ConditionalLockRelationOid(relation, pg_sys::AccessShareLock as pg_sys::LOCKMODE) }
}
