//! The claims that the running transaction has made, right under savepoints.
//!
//! An undo log: each change is recorded with the subtransaction it belongs to and with what was there before. A rollback to
//! a savepoint undoes that subtransaction's changes, which are the last ones; a release hands them to the parent.

use crate::scope::Scope;
use std::collections::{HashMap, TryReserveError};
use std::rc::Rc;

/// Identifies a subtransaction (`SubTransactionId`), the top-level transaction being 1.
pub type Sub = u32;

/// A claim of this transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    pub attempt: i32,
    /// It must not be committed open.
    pub guarded: bool,
    /// It has taken the place of a tombstone.
    pub over_tombstone: bool,
    /// The schema (`Oid`) of the table that it is in.
    pub home: u32,
    /// Not completed and not failed.
    pub is_open: bool,
}

struct Step {
    sub: Sub,
    scope: Rc<Scope>,
    before: Option<Entry>,
}

#[derive(Clone, Copy)]
struct Entry {
    claim: Claim,
    /// Position in the order of claims, so that the first one left open is the one that is named.
    order: u64,
}

#[derive(Default)]
pub struct Journal {
    steps: Vec<Step>,
    claims: HashMap<Rc<Scope>, Entry>,
    made: u64,
}

impl Journal {
    /// Fails where there is no memory for it.
    pub fn opened(&mut self, sub: Sub, scope: Scope, claim: Claim) -> Result<(), TryReserveError> {
        self.claims.try_reserve(1)?;
        self.steps.try_reserve(1)?;
        self.made += 1;
        self.set(sub, Rc::new(scope), Some(Entry { claim, order: self.made }));
        Ok(())
    }

    /// The claim was completed or failed. One that is not of this transaction is ignored. Fails where there is no memory.
    pub fn closed(&mut self, sub: Sub, scope: &Scope) -> Result<(), TryReserveError> {
        if let Some((scope, entry)) = self.entry(scope).filter(|(_, entry)| entry.claim.is_open) {
            self.steps.try_reserve(1)?;
            let claim = Claim { is_open: false, ..entry.claim };
            self.set(sub, scope, Some(Entry { claim, ..entry }));
        }
        Ok(())
    }

    /// The claim was released: it is as if it had not been made. Fails where there is no memory.
    pub fn dropped(&mut self, sub: Sub, scope: &Scope) -> Result<(), TryReserveError> {
        if let Some((scope, _)) = self.entry(scope) {
            self.steps.try_reserve(1)?;
            self.set(sub, scope, None);
        }
        Ok(())
    }

    pub fn get(&self, scope: &Scope) -> Option<Claim> {
        self.claims.get(scope).map(|entry| entry.claim)
    }

    /// The number of guarded claims that are open.
    pub fn count_open(&self) -> usize {
        self.open().count()
    }

    /// Of the guarded claims that are open the first that was made after the `after`th claim of the transaction, and which
    /// one it was. Takes no memory, however many there are.
    pub fn next_open(&self, after: u64) -> Option<(Rc<Scope>, Claim, u64)> {
        let next = self.open().filter(|(_, entry)| entry.order > after).min_by_key(|(_, entry)| entry.order);
        next.map(|(scope, entry)| (scope.clone(), entry.claim, entry.order))
    }

    fn open(&self) -> impl Iterator<Item = (&Rc<Scope>, &Entry)> {
        self.claims.iter().filter(|(_, entry)| entry.claim.guarded && entry.claim.is_open)
    }

    pub fn sub_committed(&mut self, sub: Sub, parent: Sub) {
        for step in self.steps.iter_mut().rev().take_while(|step| step.sub == sub) {
            step.sub = parent;
        }
    }

    pub fn sub_aborted(&mut self, sub: Sub) {
        while self.steps.last().is_some_and(|step| step.sub == sub) {
            if let Some(Step { scope, before, .. }) = self.steps.pop() {
                match before {
                    Some(entry) => self.claims.insert(scope, entry),
                    None => self.claims.remove(&scope),
                };
            }
        }
    }

    pub fn clear(&mut self) {
        *self = Journal::default();
    }

    fn entry(&self, scope: &Scope) -> Option<(Rc<Scope>, Entry)> {
        self.claims.get_key_value(scope).map(|(scope, entry)| (scope.clone(), *entry))
    }

    fn set(&mut self, sub: Sub, scope: Rc<Scope>, entry: Option<Entry>) {
        let before = match entry {
            Some(entry) => self.claims.insert(scope.clone(), entry),
            None => self.claims.remove(&scope),
        };
        self.steps.push(Step { sub, scope, before });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scope::scope;

    fn claim(guarded: bool) -> Claim {
        Claim { attempt: 1, guarded, over_tombstone: false, home: 2200, is_open: true }
    }

    fn make(journal: &mut Journal, sub: Sub, key: &str, guarded: bool) {
        journal.opened(sub, scope("t", "e", key), claim(guarded)).unwrap();
    }

    fn open(journal: &Journal) -> Vec<String> {
        let next = |after: u64| journal.next_open(after);
        let open: Vec<_> = std::iter::successors(next(0), |(_, _, order)| next(*order)).collect();
        assert_eq!(open.len(), journal.count_open());
        open.into_iter().map(|(scope, _, _)| scope.key.clone()).collect()
    }

    #[test]
    fn finishing_closes_and_keeps_the_attempt() {
        let mut j = Journal::default();
        make(&mut j, 1, "b", true);
        make(&mut j, 1, "a", true);
        make(&mut j, 1, "external", false);
        assert_eq!(open(&j), ["b", "a"]);
        j.closed(1, &scope("t", "e", "b")).unwrap();
        j.closed(1, &scope("t", "e", "never claimed")).unwrap();
        assert_eq!(open(&j), ["a"]);
        assert_eq!(j.get(&scope("t", "e", "b")), Some(Claim { is_open: false, ..claim(true) }));
        assert_eq!(j.get(&scope("t", "e", "never claimed")), None);
        j.clear();
        assert!(open(&j).is_empty() && j.get(&scope("t", "e", "b")).is_none());
    }

    #[test]
    fn rollback_to_a_savepoint_undoes_its_steps() {
        let mut j = Journal::default();
        make(&mut j, 1, "a", true);
        j.closed(2, &scope("t", "e", "a")).unwrap();
        make(&mut j, 2, "b", true);
        assert_eq!(open(&j), ["b"]);
        j.sub_aborted(2);
        assert_eq!(open(&j), ["a"]);
        j.dropped(3, &scope("t", "e", "a")).unwrap();
        assert!(open(&j).is_empty() && j.get(&scope("t", "e", "a")).is_none());
        j.sub_aborted(3);
        assert_eq!(open(&j), ["a"]);
    }

    #[test]
    fn release_hands_steps_to_the_parent() {
        let mut j = Journal::default();
        make(&mut j, 1, "a", true);
        make(&mut j, 3, "b", true);
        j.sub_committed(3, 2);
        assert_eq!(open(&j), ["a", "b"]);
        j.closed(2, &scope("t", "e", "a")).unwrap();
        j.sub_aborted(2);
        assert_eq!(open(&j), ["a"]);
    }

    #[test]
    fn a_claim_made_again_is_undone_to_what_it_was() {
        let mut j = Journal::default();
        make(&mut j, 1, "a", true);
        j.closed(1, &scope("t", "e", "a")).unwrap();
        make(&mut j, 2, "a", false);
        j.sub_aborted(2);
        assert_eq!(j.get(&scope("t", "e", "a")), Some(Claim { is_open: false, ..claim(true) }));
    }
}
