//! Counters in shared memory, per database and endpoint.
//!
//! They count calls, also those of transactions that roll back, as PostgreSQL's own statistics do. They live as long as
//! the server runs; without preloading there is no shared memory, nothing is counted, and everything else works.

mod rows;
mod slots;

use crate::pg::process;
use crate::settings;
use pgrx::pg_sys;
use pgrx::{pg_guard, pg_shmem_init, PgAtomic, PgLwLock};
use slots::{Slots, OVERFLOW};

pub use slots::MOST_ENDPOINTS;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What is counted for an endpoint, and, in the slot of the database itself, of its rounds.
#[derive(Clone, Copy)]
pub enum Counter {
    Executed,
    Replayed,
    InProgress,
    KeyReused,
    KeyRejected,
    Unprotected,
    Completed,
    Failed,
    Released,
    GuardRefused,
    Swept,
    StuckSeen,
    Rounds,
    /// Microseconds since 1970.
    LastRoundAt,
    /// Microseconds.
    LastRoundTook,
}

impl Counter {
    pub const COUNT: usize = Counter::LastRoundTook as usize + 1;
}

/// The counters of one endpoint of the current database; the endpoint is empty for the database itself.
pub struct Counted {
    pub endpoint: String,
    pub counters: [u64; Counter::COUNT],
}

/// The name under which endpoints are counted that found no room.
pub const OTHER_ENDPOINTS: &str = "(other endpoints)";
/// The slot of the database itself has no endpoint; it is not one of those that the setting limits.
const NO_ENDPOINT: &str = "";

// SAFETY: the names are ours alone.
static SLOTS: PgAtomic<Slots> = unsafe { PgAtomic::new(c"idempotency_enforcer counters") };
// SAFETY: as above. Held while a slot is given to an endpoint or taken back.
static ASSIGNMENT: PgLwLock<bool> = unsafe { PgLwLock::new(c"idempotency_enforcer slots") };

thread_local! {
    static PRELOADED: Cell<bool> = const { Cell::new(false) };
    /// Where this backend found its endpoints: the hot path is one look-up here and one atomic addition.
    static FOUND: RefCell<HashMap<String, usize>> = RefCell::default();
}

/// A backend that names this many endpoints starts its own table of them anew.
const MOST_REMEMBERED: usize = 4_096;

/// Asks for the shared memory. Called from `_PG_init`, while the postmaster preloads the library.
pub fn reserve() {
    pg_shmem_init!(SLOTS = Slots::new());
    pg_shmem_init!(ASSIGNMENT = false);
    PRELOADED.set(true);
}

/// Whether anything is counted.
pub fn is_available() -> bool {
    PRELOADED.get()
}

pub fn count(endpoint: &str, counter: Counter) {
    add(endpoint, counter, 1);
}

pub fn add(endpoint: &str, counter: Counter, n: u64) {
    if is_available() && n > 0 {
        SLOTS.get().counter(slot_of(endpoint), counter).fetch_add(n, Relaxed);
    }
}

/// Counts a round of the worker in the current database.
pub fn round_is_over(took: Duration) {
    if is_available() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let slot = slot_of(NO_ENDPOINT);
        if slot == OVERFLOW {
            return; // more databases than slots
        }
        let slots = SLOTS.get();
        slots.counter(slot, Counter::Rounds).fetch_add(1, Relaxed);
        slots.counter(slot, Counter::LastRoundAt).store(now.as_micros() as u64, Relaxed);
        slots.counter(slot, Counter::LastRoundTook).store(took.as_micros() as u64, Relaxed);
    }
}

/// All counters of the current database, and those of the endpoints that found no room, if there are any.
pub fn of_this_database() -> Vec<Counted> {
    let database = process::own_database().to_u32();
    SLOTS
        .get()
        .read(|slot, owner| slot == OVERFLOW || owner == database)
        .into_iter()
        .filter(|c| c.endpoint != OTHER_ENDPOINTS || c.counters.iter().any(|n| *n > 0))
        .collect()
}

/// Sets the counters of the current database, and those of the endpoints that found no room, to zero.
pub fn reset_this_database() {
    let database = process::own_database().to_u32();
    SLOTS.get().reset(|slot, owner| slot == OVERFLOW || owner == database);
}

/// The databases that have counters.
pub fn databases() -> HashSet<pg_sys::Oid> {
    let owners = if is_available() { SLOTS.get().owners() } else { HashSet::new() };
    owners.into_iter().map(pg_sys::Oid::from).collect()
}

/// Gives back the slots of databases that were dropped.
pub fn forget_databases(dropped: impl Iterator<Item = pg_sys::Oid>) {
    for database in dropped {
        let _lock = ASSIGNMENT.exclusive();
        SLOTS.get().free(database.to_u32());
    }
}

fn slot_of(endpoint: &str) -> usize {
    if let Some(slot) = FOUND.with_borrow(|found| found.get(endpoint).copied()) {
        return slot;
    }
    let database = process::own_database().to_u32();
    let slots = SLOTS.get();
    let slot = slots.find(database, endpoint).unwrap_or_else(|| {
        let _lock = ASSIGNMENT.exclusive();
        slots
            .find(database, endpoint)
            .unwrap_or_else(|| slots.assign(database, endpoint, settings::max_tracked_endpoints()))
    });
    FOUND.with_borrow_mut(|found| {
        if found.len() >= MOST_REMEMBERED {
            found.clear();
        }
        found.insert(endpoint.to_owned(), slot);
    });
    slot
}
