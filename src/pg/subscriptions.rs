//! Logical replication, seen from the subscriber.

use crate::pg::catalog;
use pgrx::pg_sys;

/// `SubscriptionRelRelationId` of `pg_subscription_rel.h`.
const PG_SUBSCRIPTION_REL: u32 = 6102;
/// `InheritsRelationId` of `pg_inherits.h`.
const PG_INHERITS: u32 = 2611;

/// What a row of `pg_subscription_rel` begins with.
#[repr(C)]
struct Subscribed {
    _subscription: pg_sys::Oid,
    table: pg_sys::Oid,
}

/// What a row of `pg_inherits` begins with.
#[repr(C)]
struct Inherits {
    child: pg_sys::Oid,
    parent: pg_sys::Oid,
}

/// Whether a table, or a partition of it, belongs to a subscription, be it enabled or not. Must run in a transaction.
pub fn have(table: pg_sys::Oid) -> bool {
    // SAFETY: as the catalogs are defined in every version.
    unsafe {
        let subscribed = catalog::rows(PG_SUBSCRIPTION_REL.into(), |row: &Subscribed| row.table);
        if subscribed.is_empty() {
            return false; // as nearly everywhere
        }
        let partitions = catalog::rows(PG_INHERITS.into(), |row: &Inherits| (row.parent == table).then_some(row.child));
        subscribed.contains(&table) || partitions.into_iter().flatten().any(|child| subscribed.contains(&child))
    }
}
