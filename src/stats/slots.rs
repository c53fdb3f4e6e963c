//! The table of counters: a slot for each database, and slots for endpoints, in words of shared memory.
//!
//! Only atomics, so that backends read and count without locks; who gives out or frees a slot holds the lock of the
//! table. A slot's generation tells those who remember it whether it is still theirs. An increment in the very instant
//! in which the slot changes hands may be lost, or be counted for the new owner.

use super::Counter;
use std::collections::HashSet;
use std::sync::atomic::{fence, AtomicU64, Ordering::*};

/// Databases that are counted; more than that many with the extension are not.
const MOST_DATABASES: usize = 1_024;

/// The words before the slots: how many endpoint slots have ever been used, and how many times some were freed.
const USED: usize = 0;
const FREED: usize = 1;
const HEADER: usize = 2;

/// The words of a slot: odd while somebody owns it, the database's Oid, the counters, and, of an endpoint, its name.
const GENERATION: usize = 0;
const DATABASE: usize = 1;
const COUNTERS: usize = 2;
const DATABASE_SLOT: usize = COUNTERS + Counter::COUNT;
const LENGTH: usize = DATABASE_SLOT;
const NAME: usize = LENGTH + 1;
/// A registered endpoint has at most 255 bytes in the database's encoding.
const NAME_BYTES: usize = 256;
const ENDPOINT_SLOT: usize = NAME + NAME_BYTES / 8;

const FIRST_ENDPOINT: usize = HEADER + MOST_DATABASES * DATABASE_SLOT;

/// Slots of one kind, one after the other.
struct Area {
    /// The first word.
    first: usize,
    /// Words a slot.
    size: usize,
    count: usize,
}

const DATABASES: Area = Area { first: HEADER, size: DATABASE_SLOT, count: MOST_DATABASES };

pub type Counters = [u64; Counter::COUNT];

#[derive(Clone, Copy)]
pub struct Slots<'a> {
    words: &'a [AtomicU64],
}

/// Where a database or an endpoint was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Of its first word.
    at: usize,
    generation: u64,
}

impl<'a> Slots<'a> {
    /// The words that a table for that many endpoints takes.
    pub const fn words_for(endpoints: usize) -> usize {
        FIRST_ENDPOINT + endpoints * ENDPOINT_SLOT
    }

    /// All of them zero is an empty table.
    pub fn new(words: &'a [AtomicU64]) -> Self {
        Slots { words }
    }

    /// The slot, if it has not changed hands since.
    pub fn at(&self, place: Place) -> Option<Slot<'a>> {
        let size = if place.at < FIRST_ENDPOINT { DATABASE_SLOT } else { ENDPOINT_SLOT };
        let slot = Slot { at: place.at, words: &self.words[place.at..place.at + size] };
        (slot.generation() == place.generation).then_some(slot)
    }

    /// The name of an endpoint is in the database's encoding; that of the database itself is empty.
    pub fn find(&self, database: u32, name: &[u8]) -> Option<Place> {
        let mut candidates = self.slots(if name.is_empty() { DATABASES } else { self.used() });
        candidates.find_map(|slot| {
            let place = slot.place();
            (slot.read(|| slot.is_of(database, name)) == Some(true)).then_some(place)
        })
    }

    /// Gives a free slot to the database or the endpoint. The caller holds the lock, and has not found it.
    ///
    /// A database gets one more endpoint's slot only while it holds fewer than are still free, so that it cannot use up
    /// those of others.
    pub fn assign(&self, database: u32, name: &[u8]) -> Option<Place> {
        let is_free = |slot: &Slot| !slot.is_owned();
        if name.is_empty() {
            let free = self.slots(DATABASES).find(is_free)?;
            free.take(database, name);
            return Some(free.place());
        }
        let owned = || self.slots(self.used()).filter(Slot::is_owned);
        let held = owned().filter(|slot| slot.database() == database).count();
        if held >= self.room().count - owned().count() || name.len() > NAME_BYTES {
            return None;
        }
        let free = self.slots(self.room()).find(is_free)?;
        free.take(database, name);
        let used = (free.at - FIRST_ENDPOINT) / ENDPOINT_SLOT + 1;
        self.words[USED].fetch_max(used as u64, AcqRel);
        Some(free.place())
    }

    /// How many times slots were freed: while it stays the same, who has found no room will find none.
    pub fn times_freed(&self) -> u64 {
        self.words[FREED].load(Acquire)
    }

    pub fn of_database(&self, database: u32) -> Option<Counters> {
        self.slots(DATABASES)
            .find_map(|slot| slot.read(|| (slot.database() == database).then(|| slot.counters())).flatten())
    }

    /// The endpoints of a database, by name.
    pub fn of_endpoints(&self, database: u32) -> Vec<(Vec<u8>, Counters)> {
        let counted =
            |slot: Slot| slot.read(|| (slot.database() == database).then(|| (slot.name(), slot.counters()))).flatten();
        self.slots(self.used()).filter_map(counted).collect()
    }

    /// The databases that have slots.
    pub fn owners(&self) -> HashSet<u32> {
        self.slots(DATABASES)
            .chain(self.slots(self.used()))
            .filter(Slot::is_owned)
            .map(|slot| slot.database())
            .collect()
    }

    /// Frees the slots of a database's endpoints, and sets its own counters to zero. The caller holds the lock.
    pub fn reset(&self, database: u32) {
        self.free(self.slots(self.used()), database);
        self.slots(DATABASES).filter(|slot| slot.is_of(database, &[])).for_each(|slot| slot.zero());
    }

    /// Frees all slots of a database. The caller holds the lock.
    pub fn forget(&self, database: u32) {
        self.free(self.slots(DATABASES).chain(self.slots(self.used())), database);
    }

    fn free(&self, slots: impl Iterator<Item = Slot<'a>>, database: u32) {
        slots.filter(|slot| slot.is_owned() && slot.database() == database).for_each(|slot| slot.next_generation());
        self.words[FREED].fetch_add(1, AcqRel);
    }

    /// The area of those that are, or were once, given to an endpoint.
    fn used(&self) -> Area {
        Area { count: self.words[USED].load(Acquire) as usize, ..self.room() }
    }

    /// The area of all endpoints' slots.
    fn room(&self) -> Area {
        Area { first: FIRST_ENDPOINT, size: ENDPOINT_SLOT, count: (self.words.len() - FIRST_ENDPOINT) / ENDPOINT_SLOT }
    }

    fn slots(&self, Area { first, size, count }: Area) -> impl Iterator<Item = Slot<'a>> + use<'a> {
        let words = &self.words[first..first + count * size];
        words.chunks_exact(size).enumerate().map(move |(i, words)| Slot { at: first + i * size, words })
    }
}

pub struct Slot<'a> {
    at: usize,
    words: &'a [AtomicU64],
}

impl Slot<'_> {
    pub fn add(&self, counter: Counter, n: u64) {
        self.words[COUNTERS + counter as usize].fetch_add(n, Relaxed);
    }

    pub fn set(&self, counter: Counter, n: u64) {
        self.words[COUNTERS + counter as usize].store(n, Relaxed);
    }

    fn place(&self) -> Place {
        Place { at: self.at, generation: self.generation() }
    }

    fn generation(&self) -> u64 {
        self.words[GENERATION].load(Acquire)
    }

    fn is_owned(&self) -> bool {
        is_of_owner(self.generation())
    }

    /// From free to owned or back.
    fn next_generation(&self) {
        self.words[GENERATION].fetch_add(1, AcqRel);
    }

    /// What is read of an owned slot; `None` when it is free, or changes hands meanwhile.
    fn read<R>(&self, read: impl FnOnce() -> R) -> Option<R> {
        let before = self.generation();
        if !is_of_owner(before) {
            return None;
        }
        let result = read();
        fence(Acquire);
        (self.words[GENERATION].load(Relaxed) == before).then_some(result)
    }

    /// Fills the free slot before its generation shows it to others, and after that has shown them that it was freed.
    fn take(&self, database: u32, name: &[u8]) {
        fence(Release);
        self.zero();
        self.words[DATABASE].store(database.into(), Relaxed);
        if !name.is_empty() {
            self.words[LENGTH].store(name.len() as u64, Relaxed);
            for (word, part) in self.words[NAME..].iter().zip(name_words(name)) {
                word.store(part, Relaxed);
            }
        }
        self.next_generation();
    }

    fn zero(&self) {
        self.words[COUNTERS..DATABASE_SLOT].iter().for_each(|word| word.store(0, Relaxed));
    }

    fn database(&self) -> u32 {
        self.words[DATABASE].load(Relaxed) as u32
    }

    fn is_of(&self, database: u32, name: &[u8]) -> bool {
        self.is_owned()
            && self.database() == database
            && (name.is_empty()
                || self.words[LENGTH].load(Relaxed) == name.len() as u64
                    && self.words[NAME..].iter().zip(name_words(name)).all(|(word, part)| word.load(Relaxed) == part))
    }

    fn name(&self) -> Vec<u8> {
        let length = self.words[LENGTH].load(Relaxed) as usize;
        let mut name: Vec<u8> = self.words[NAME..].iter().flat_map(|word| word.load(Relaxed).to_ne_bytes()).collect();
        name.truncate(length);
        name
    }

    fn counters(&self) -> Counters {
        std::array::from_fn(|i| self.words[COUNTERS + i].load(Relaxed))
    }
}

fn is_of_owner(generation: u64) -> bool {
    generation % 2 == 1
}

/// Eight bytes a word, the last one filled up with zeros.
fn name_words(name: &[u8]) -> impl Iterator<Item = u64> + '_ {
    name.chunks(8).map(|part| {
        let mut word = [0; 8];
        word[..part.len()].copy_from_slice(part);
        u64::from_ne_bytes(word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(endpoints: usize) -> Vec<AtomicU64> {
        std::iter::repeat_with(AtomicU64::default).take(Slots::words_for(endpoints)).collect()
    }

    fn names(slots: &Slots, database: u32) -> Vec<String> {
        slots.of_endpoints(database).into_iter().map(|(name, _)| String::from_utf8(name).unwrap()).collect()
    }

    fn executed(counters: Counters) -> u64 {
        counters[Counter::Executed as usize]
    }

    #[test]
    fn endpoints_of_two_databases_are_counted_apart() {
        let memory = memory(10);
        let slots = Slots::new(&memory);
        let (a, b) = (slots.assign(1, b"POST /x").unwrap(), slots.assign(2, b"POST /x").unwrap());
        slots.at(a).unwrap().add(Counter::Executed, 3);
        assert_ne!(a, b);
        assert_eq!((slots.find(1, b"POST /x"), slots.find(2, b"POST /x")), (Some(a), Some(b)));
        assert_eq!((slots.find(1, b"POST /"), slots.find(1, b"POST /x\0")), (None, None));
        let counted: Vec<u64> = slots.of_endpoints(1).into_iter().map(|(_, counters)| executed(counters)).collect();
        assert_eq!(counted, [3]);
    }

    #[test]
    fn the_longest_name_fits_and_a_longer_one_finds_no_room() {
        let memory = memory(10);
        let slots = Slots::new(&memory);
        let longest = [b'x'; NAME_BYTES];
        assert!(slots.assign(1, &longest).is_some() && slots.find(1, &longest).is_some());
        assert_eq!(names(&slots, 1)[0].len(), NAME_BYTES);
        assert_eq!(slots.assign(1, &[b'x'; NAME_BYTES + 1]), None);
    }

    #[test]
    fn no_database_uses_up_the_slots_of_another() {
        let memory = memory(100);
        let slots = Slots::new(&memory);
        let take_all = |database: u32| {
            (0..).take_while(|i| slots.assign(database, format!("POST /{i}").as_bytes()).is_some()).count()
        };
        assert_eq!((take_all(1), take_all(2), take_all(3)), (50, 25, 13));
        slots.reset(1);
        assert_eq!(take_all(3), 25, "of those that are free again");
    }

    // CASES 83
    #[test]
    fn a_thousand_databases_have_slots_of_their_own_however_many_endpoints_there_are() {
        let memory = memory(1);
        let slots = Slots::new(&memory);
        slots.assign(1, b"a").unwrap();
        assert_eq!(slots.assign(1, b"b"), None);
        for database in 1..=MOST_DATABASES as u32 {
            let place = slots.assign(database, &[]).unwrap();
            slots.at(place).unwrap().add(Counter::Rounds, database.into());
        }
        let rounds = |database| slots.of_database(database).map(|c| c[Counter::Rounds as usize]);
        assert!((1..=MOST_DATABASES as u32).all(|database| rounds(database) == Some(database.into())));
        assert_eq!(slots.assign(5_000, &[]), None);
        assert_eq!(slots.owners().len(), MOST_DATABASES);
    }

    #[test]
    fn what_a_reset_frees_is_no_longer_of_those_who_remember_it() {
        let memory = memory(2);
        let slots = Slots::new(&memory);
        let (own, place) = (slots.assign(1, &[]).unwrap(), slots.assign(1, b"a").unwrap());
        slots.at(own).unwrap().add(Counter::Rounds, 7);
        slots.at(place).unwrap().add(Counter::Executed, 9);
        let freed = slots.times_freed();
        slots.reset(1);
        assert!(slots.at(place).is_none() && slots.find(1, b"a").is_none() && names(&slots, 1).is_empty());
        assert_ne!(slots.times_freed(), freed);
        assert_eq!(slots.of_database(1), Some([0; Counter::COUNT]), "its own is kept");
        let other = slots.assign(2, b"b").unwrap();
        assert_eq!(other.at, place.at);
        assert!(slots.at(place).is_none());
        assert_eq!(slots.of_endpoints(2).into_iter().map(|(_, c)| executed(c)).collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn slots_of_dropped_databases_are_used_again() {
        let memory = memory(1);
        let slots = Slots::new(&memory);
        slots.assign(1, &[]).unwrap();
        slots.assign(1, b"a").unwrap();
        assert_eq!(slots.owners(), [1].into());
        slots.forget(1);
        assert!(slots.owners().is_empty() && slots.of_database(1).is_none());
        assert!(slots.assign(2, b"b").is_some());
        assert_eq!((names(&slots, 1).len(), names(&slots, 2)), (0, vec!["b".to_owned()]));
    }
}
