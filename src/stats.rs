//! Counters in shared memory, per database and endpoint.
//!
//! They count calls, also those of transactions that roll back, as PostgreSQL's own statistics do. They live as long as
//! the server runs; without preloading there is no shared memory, nothing is counted, and everything else works.
//!
//! Whoever may claim can invent names, so only a registered endpoint gets counters of its own. The others are counted
//! together, in their database.

mod rows;
mod slots;

use crate::pg::{encoding, process, shared_memory};
use crate::settings;
use pgrx::pg_sys;
use slots::{Counters, Place, Slot, Slots};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What is counted for an endpoint, and, from [`Counter::Rounds`] on, for the database itself.
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
    /// What was counted with the other endpoints because a registered one found no free slot.
    CrowdedOut,
}

impl Counter {
    pub const COUNT: usize = Counter::CrowdedOut as usize + 1;
    /// The ones of the database itself begin here.
    const OF_DATABASE: usize = Counter::Rounds as usize;
}

/// The name under which the endpoints of a database are counted that have no counters of their own. It cannot be
/// registered: `endpoint_not_reserved` in `sql/tables.sql`.
pub const OTHER_ENDPOINTS: &str = "(other endpoints)";
/// The slot of the database itself, which also has the counters of its other endpoints, has no name.
const NO_NAME: &str = "";

/// Where a backend has found the slot of a name: the hot path is one look-up and one atomic addition.
#[derive(Clone, Copy)]
enum Known {
    At(Place),
    /// There was no free one when slots had been freed this many times.
    NoRoom(u64),
}

thread_local! {
    static KNOWN: RefCell<HashMap<String, Known>> = RefCell::default();
}

/// A backend that names this many endpoints starts its own table of them anew.
const MOST_REMEMBERED: usize = 4_096;

/// Asks for the shared memory. Called from `_PG_init`, while the postmaster preloads the library.
pub fn reserve() {
    shared_memory::reserve(Slots::words_for(settings::max_tracked_endpoints()));
}

/// Whether anything is counted.
pub fn is_available() -> bool {
    slots().is_some()
}

/// Counts one of an endpoint. `is_registered` is asked only when this backend does not know the endpoint's slot.
pub fn count(endpoint: &str, counter: Counter, is_registered: impl FnOnce() -> bool) {
    add(endpoint, counter, 1, is_registered);
}

/// As [`count`], `n` at once.
pub fn add(endpoint: &str, counter: Counter, n: u64, is_registered: impl FnOnce() -> bool) {
    let Some(slots) = slots().filter(|_| n > 0) else { return };
    if let Some(slot) = remembered(&slots, endpoint) {
        return slot.add(counter, n);
    }
    let may_have_its_own = endpoint != OTHER_ENDPOINTS && is_registered();
    let own = may_have_its_own.then(|| look_for(&slots, endpoint)).flatten();
    if let Some(slot) = own {
        return slot.add(counter, n);
    }
    if let Some(database) = slot_of_database(&slots) {
        database.add(counter, n);
        if may_have_its_own {
            database.add(Counter::CrowdedOut, n);
        }
    }
}

/// Counts a round of the worker in the current database.
pub fn round_is_over(took: Duration) {
    if let Some(database) = slots().and_then(|slots| slot_of_database(&slots)) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        database.add(Counter::Rounds, 1);
        database.set(Counter::LastRoundAt, now.as_micros() as u64);
        database.set(Counter::LastRoundTook, took.as_micros() as u64);
    }
}

/// Whose counters they are.
pub enum Counted {
    /// The database's own, those of endpoints being zero.
    Database(Counters),
    /// Of an endpoint, whose name is in the database's encoding.
    Endpoint(Vec<u8>, Counters),
    /// Of the endpoints of the database that have none of their own, if anything was counted for them.
    Others(Counters),
}

/// All counters of the current database; `None` when nothing is counted.
pub fn of_this_database() -> Option<Vec<Counted>> {
    let slots = slots()?;
    let database = process::own_database().to_u32();
    let mut all = Vec::new();
    if let Some(mut own) = slots.of_database(database) {
        let mut others = [0; Counter::COUNT];
        others[..Counter::OF_DATABASE].swap_with_slice(&mut own[..Counter::OF_DATABASE]);
        all.push(Counted::Database(own));
        if others.iter().any(|n| *n > 0) {
            all.push(Counted::Others(others));
        }
    }
    all.extend(slots.of_endpoints(database).into_iter().map(|(name, counters)| Counted::Endpoint(name, counters)));
    Some(all)
}

/// Starts the counters of the current database from zero, and frees the slots of its endpoints; false when nothing is
/// counted.
pub fn reset_this_database() -> bool {
    let Some(slots) = slots() else { return false };
    let database = process::own_database().to_u32();
    shared_memory::exclusively(|| slots.reset(database));
    true
}

/// The databases that have counters.
pub fn databases() -> HashSet<pg_sys::Oid> {
    let owners = slots().map(|slots| slots.owners()).unwrap_or_default();
    owners.into_iter().map(pg_sys::Oid::from).collect()
}

/// Gives back the slots of databases that were dropped.
pub fn forget_databases(dropped: impl Iterator<Item = pg_sys::Oid>) {
    let Some(slots) = slots() else { return };
    for database in dropped {
        shared_memory::exclusively(|| slots.forget(database.to_u32()));
    }
}

fn slots() -> Option<Slots<'static>> {
    shared_memory::words().map(Slots::new)
}

fn slot_of_database(slots: &Slots<'static>) -> Option<Slot<'static>> {
    remembered(slots, NO_NAME).or_else(|| look_for(slots, NO_NAME))
}

/// The slot that this backend remembers, if it has not changed hands.
fn remembered(slots: &Slots<'static>, name: &str) -> Option<Slot<'static>> {
    match KNOWN.with_borrow(|known| known.get(name).copied()) {
        Some(Known::At(place)) => slots.at(place),
        _ => None,
    }
}

/// Finds a slot for the name, or gives it one, and remembers it.
fn look_for(slots: &Slots<'static>, name: &str) -> Option<Slot<'static>> {
    let freed = slots.times_freed();
    if KNOWN.with_borrow(|known| matches!(known.get(name), Some(Known::NoRoom(at)) if *at == freed)) {
        return None;
    }
    let (database, bytes) = (process::own_database().to_u32(), encoding::to_server_bytes(name));
    let find = || slots.find(database, &bytes);
    let place = find().or_else(|| shared_memory::exclusively(|| find().or_else(|| slots.assign(database, &bytes))));
    KNOWN.with_borrow_mut(|known| {
        if known.len() >= MOST_REMEMBERED {
            known.clear();
        }
        known.insert(name.to_owned(), place.map_or(Known::NoRoom(freed), Known::At));
    });
    place.and_then(|place| slots.at(place))
}
