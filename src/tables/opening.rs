//! The way to the tables: found by name, locked, found again, and looked at before anything runs on them.

use crate::pg::trust::{self, Definition, Distrust};
use crate::refusal::Refusal;
use pgrx::pg_sys;
use std::ffi::CStr;

/// One of the two tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Table {
    Keys,
    Endpoints,
}

/// The tables, locked until the transaction ends, as far as reading needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    pub keys: pg_sys::Oid,
    pub endpoints: pg_sys::Oid,
}

impl Found {
    pub fn in_schema(schema: pg_sys::Oid) -> Option<Found> {
        let (keys, endpoints) = (find(schema, c"idempotency_keys")?, find(schema, c"idempotency_endpoints")?);
        Some(Found { keys, endpoints })
    }

    /// Finds and locks the tables, and finds them again: whoever was waited for may have dropped them, or put others into
    /// their place. `55000` when they are not there.
    pub fn locked(schema: pg_sys::Oid) -> Result<Found, Refusal> {
        const LOCK: pg_sys::LOCKMODE = pg_sys::AccessShareLock as pg_sys::LOCKMODE;
        loop {
            let found = Found::in_schema(schema).ok_or_else(Refusal::not_installed)?;
            // SAFETY: the lock manager takes any Oid; with the lock it processes invalidations, and serves interrupts
            // while it waits.
            unsafe {
                pg_sys::LockRelationOid(found.keys, LOCK);
                pg_sys::LockRelationOid(found.endpoints, LOCK);
            }
            if Found::in_schema(schema) == Some(found) {
                return Ok(found);
            }
            // SAFETY: locks that were taken just now.
            unsafe {
                pg_sys::UnlockRelationOid(found.keys, LOCK);
                pg_sys::UnlockRelationOid(found.endpoints, LOCK);
            }
        }
    }

    /// Locks a table and its partitions as writing them does. From now on nobody else can put a trigger on them.
    pub fn lock_for_writing(&self, table: Table) {
        let oid = match table {
            Table::Keys => self.keys,
            Table::Endpoints => self.endpoints,
        };
        // SAFETY: as in `locked`; the table is locked already, so it is there.
        unsafe { pg_sys::LockRelationOid(oid, pg_sys::RowExclusiveLock as pg_sys::LOCKMODE) };
        if let Some(table) = Definition::of(oid) {
            table.children(pg_sys::RowExclusiveLock);
        }
    }

    /// The owner of both tables, with whose rights statements run. `55000` when that would run somebody else's code.
    pub fn trusted_owner(&self) -> Result<pg_sys::Oid, Refusal> {
        let open = |table| Definition::of(table).ok_or_else(Refusal::not_installed);
        let (keys, endpoints) = (open(self.keys)?, open(self.endpoints)?);
        if keys.owner() != endpoints.owner() {
            let name = trust::name_of_role;
            return Err(Refusal::tables_of_two_owners(&name(keys.owner()), &name(endpoints.owner())));
        }
        for (name, table) in [("idempotency_keys", &keys), ("idempotency_endpoints", &endpoints)] {
            let children = table.children(pg_sys::AccessShareLock);
            if children.iter().any(|child| Definition::of(*child).is_none_or(|c| c.owner() != table.owner())) {
                return Err(Refusal::child_of_another_owner(name));
            }
            let of_children = || children.iter().filter_map(|child| Definition::of(*child)).find_map(|c| c.distrust());
            match table.distrust().or_else(of_children) {
                None => {}
                Some(Distrust::Trigger { name: trigger, owner }) => {
                    return Err(Refusal::untrusted_trigger(name, &trigger, &owner))
                }
                Some(Distrust::Rule { name: rule }) => return Err(Refusal::rule_on_table(name, &rule)),
            }
        }
        Ok(keys.owner())
    }

    /// Whether a trigger of `idempotency_keys` may swallow what is written.
    pub fn has_triggers(&self) -> bool {
        Definition::of(self.keys).is_some_and(|keys| keys.has_triggers())
    }
}

/// A table in the extension's schema.
fn find(schema: pg_sys::Oid, name: &CStr) -> Option<pg_sys::Oid> {
    // SAFETY: a catalog look-up by name.
    let table = unsafe { pg_sys::get_relname_relid(name.as_ptr(), schema) };
    (table != pg_sys::InvalidOid).then_some(table)
}

/// Takes the locks that using the tables takes, until the transaction ends; false when that would have to wait. Whoever
/// holds them waits for no other session's lock on a table. Where one is missing, [`super::Tables::open`] has the words
/// for it.
pub fn try_lock(schema: pg_sys::Oid) -> bool {
    let Some(found) = Found::in_schema(schema) else { return true };
    let wanted = [(found.endpoints, pg_sys::AccessShareLock), (found.keys, pg_sys::RowExclusiveLock)];
    // SAFETY: the lock manager takes any Oid; it processes invalidations once the lock is held.
    let locked = wanted
        .into_iter()
        .all(|(table, mode)| unsafe { pg_sys::ConditionalLockRelationOid(table, mode as pg_sys::LOCKMODE) });
    // They may have been dropped before they were locked.
    locked && Found::in_schema(schema) == Some(found)
}
