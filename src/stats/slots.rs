//! The table of counters: a fixed number of slots, each of one (database, endpoint).
//!
//! Only atomics, so that backends share it without locks; who assigns or frees a slot holds the lock of the table.

use super::{Counted, Counter, OTHER_ENDPOINTS};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicU8, Ordering::*};

/// The slot of the endpoints that found no room.
pub const OVERFLOW: usize = 0;
/// The slots after it are those of the databases themselves.
const MOST_DATABASES: usize = 127;
/// The others are those of endpoints.
pub const MOST_ENDPOINTS: usize = 896;
const FIRST_ENDPOINT: usize = OVERFLOW + 1 + MOST_DATABASES;
const MOST_SLOTS: usize = FIRST_ENDPOINT + MOST_ENDPOINTS;
/// An endpoint has at most 255 bytes in the database's encoding, and at most three times as many in UTF-8.
const NAME_BYTES: usize = 768;

pub struct Slots([Slot; MOST_SLOTS]);

struct Slot {
    used: AtomicBool,
    database: AtomicU32,
    length: AtomicU32,
    name: [AtomicU8; NAME_BYTES],
    counters: [AtomicU64; Counter::COUNT],
}

// SAFETY: atomics only, no pointers: the same bytes mean the same in every process.
unsafe impl pgrx::PGRXSharedMemory for Slots {}

impl Slots {
    pub fn new() -> Self {
        let slots = Slots(std::array::from_fn(|_| Slot::new()));
        slots.0[OVERFLOW].take(0, OTHER_ENDPOINTS);
        slots
    }

    pub fn counter(&self, slot: usize, counter: Counter) -> &AtomicU64 {
        &self.0[slot].counters[counter as usize]
    }

    pub fn find(&self, database: u32, endpoint: &str) -> Option<usize> {
        (OVERFLOW + 1..MOST_SLOTS).find(|i| self.0[*i].is_of(database, endpoint))
    }

    /// Gives a free slot to the endpoint, or that of the others when `most` are in use; with no endpoint, to the
    /// database. The caller holds the lock.
    pub fn assign(&self, database: u32, endpoint: &str, most: usize) -> usize {
        let mut candidates = match endpoint {
            "" => OVERFLOW + 1..FIRST_ENDPOINT,
            _ => FIRST_ENDPOINT..FIRST_ENDPOINT + most.min(MOST_ENDPOINTS),
        };
        let free = candidates.find(|i| !self.0[*i].used.load(Acquire));
        let slot = free.filter(|_| endpoint.len() <= NAME_BYTES).unwrap_or(OVERFLOW);
        if slot != OVERFLOW {
            self.0[slot].take(database, endpoint);
        }
        slot
    }

    pub fn read(&self, wanted: impl Fn(usize, u32) -> bool) -> Vec<Counted> {
        let counted = |slot: &Slot| Counted {
            endpoint: slot.name(),
            counters: std::array::from_fn(|i| slot.counters[i].load(Relaxed)),
        };
        self.in_use(wanted).into_iter().map(counted).collect()
    }

    pub fn reset(&self, wanted: impl Fn(usize, u32) -> bool) {
        self.in_use(wanted).into_iter().for_each(Slot::zero);
    }

    /// The databases that have slots.
    pub fn owners(&self) -> HashSet<u32> {
        self.in_use(|i, _| i != OVERFLOW).into_iter().map(|slot| slot.database.load(Relaxed)).collect()
    }

    /// Frees the slots of a database. The caller holds the lock.
    pub fn free(&self, database: u32) {
        for slot in self.in_use(|i, owner| i != OVERFLOW && owner == database) {
            slot.used.store(false, Release);
        }
    }

    fn in_use(&self, wanted: impl Fn(usize, u32) -> bool) -> Vec<&Slot> {
        let slots = self.0.iter().enumerate();
        slots
            .filter(|(i, slot)| slot.used.load(Acquire) && wanted(*i, slot.database.load(Relaxed)))
            .map(|(_, slot)| slot)
            .collect()
    }
}

impl Slot {
    fn new() -> Self {
        Slot {
            used: AtomicBool::new(false),
            database: AtomicU32::new(0),
            length: AtomicU32::new(0),
            name: [const { AtomicU8::new(0) }; NAME_BYTES],
            counters: [const { AtomicU64::new(0) }; Counter::COUNT],
        }
    }

    /// The name is complete before `used` shows it to others.
    fn take(&self, database: u32, endpoint: &str) {
        self.zero();
        self.database.store(database, Relaxed);
        self.length.store(endpoint.len() as u32, Relaxed);
        for (cell, byte) in self.name.iter().zip(endpoint.bytes()) {
            cell.store(byte, Relaxed);
        }
        self.used.store(true, Release);
    }

    fn zero(&self) {
        self.counters.iter().for_each(|c| c.store(0, Relaxed));
    }

    fn is_of(&self, database: u32, endpoint: &str) -> bool {
        self.used.load(Acquire)
            && self.database.load(Relaxed) == database
            && self.length.load(Relaxed) as usize == endpoint.len()
            && self.name.iter().zip(endpoint.bytes()).all(|(cell, byte)| cell.load(Relaxed) == byte)
    }

    fn name(&self) -> String {
        let length = (self.length.load(Relaxed) as usize).min(NAME_BYTES);
        let bytes: Vec<u8> = self.name[..length].iter().map(|cell| cell.load(Relaxed)).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots() -> Box<Slots> {
        let mut slots = Box::<Slots>::new_uninit();
        // SAFETY: all zero is free slots. On the heap at once: a thread's stack has no room for several copies.
        let slots = unsafe {
            slots.as_mut_ptr().write_bytes(0, 1);
            slots.assume_init()
        };
        slots.0[OVERFLOW].take(0, OTHER_ENDPOINTS);
        slots
    }

    fn names(slots: &Slots, database: u32) -> Vec<String> {
        slots.read(|slot, owner| slot != OVERFLOW && owner == database).into_iter().map(|c| c.endpoint).collect()
    }

    #[test]
    fn endpoints_of_two_databases_are_counted_apart() {
        let slots = slots();
        let (a, b) = (slots.assign(1, "POST /x", 10), slots.assign(2, "POST /x", 10));
        slots.counter(a, Counter::Executed).fetch_add(3, Relaxed);
        assert_ne!(a, b);
        assert_eq!((slots.find(1, "POST /x"), slots.find(2, "POST /x")), (Some(a), Some(b)));
        assert_eq!(slots.find(1, "POST /"), None);
        let counted: Vec<u64> =
            slots.read(|_, owner| owner == 1).into_iter().map(|c| c.counters[Counter::Executed as usize]).collect();
        assert_eq!(counted, [3]);
    }

    #[test]
    fn the_ones_that_find_no_room_share_a_slot() {
        let slots = slots();
        assert_ne!(slots.assign(1, "a", 2), OVERFLOW);
        assert_ne!(slots.assign(1, "b", 2), OVERFLOW);
        assert_eq!(slots.assign(1, "c", 2), OVERFLOW);
        assert_eq!(names(&slots, 1), ["a", "b"]);
    }

    #[test]
    fn a_database_has_a_slot_of_its_own_however_many_endpoints_there_are() {
        let slots = slots();
        slots.assign(1, "a", 1);
        assert_eq!(slots.assign(1, "b", 1), OVERFLOW);
        let own = slots.assign(1, "", 1);
        assert_ne!(own, OVERFLOW);
        assert_eq!(slots.find(1, ""), Some(own));
    }

    #[test]
    fn slots_of_dropped_databases_are_used_again_from_zero() {
        let slots = slots();
        let slot = slots.assign(1, "a", 1);
        slots.counter(slot, Counter::Replayed).store(9, Relaxed);
        assert_eq!(slots.owners(), [1].into());
        slots.free(1);
        assert!(names(&slots, 1).is_empty());
        assert_eq!(slots.assign(2, "b", 1), slot);
        assert_eq!(slots.counter(slot, Counter::Replayed).load(Relaxed), 0);
        slots.counter(slot, Counter::Replayed).store(5, Relaxed);
        slots.reset(|_, owner| owner == 2);
        assert_eq!(slots.counter(slot, Counter::Replayed).load(Relaxed), 0);
    }
}
