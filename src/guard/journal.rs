//! The claims that the running transaction has made and not finished, right under savepoints.
//!
//! An undo log: each step is recorded with the subtransaction it belongs to. A rollback to a savepoint undoes that
//! subtransaction's steps, which are the last ones; a release hands them to the parent.

use crate::scope::Scope;
use std::collections::HashMap;

/// Identifies a subtransaction (`SubTransactionId`), the top-level transaction being 1.
pub type Sub = u32;

enum Step {
    /// With the claim of the same scope that was open before, whose row has gone by other means.
    Opened(Scope, Option<Claim>),
    Closed(Scope, Claim),
}

/// An open claim of this transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// It must not be committed open.
    pub guarded: bool,
    /// Position in the order of claims, so that the first one left open is the one that is named.
    order: u64,
}

#[derive(Default)]
pub struct Journal {
    steps: Vec<(Sub, Step)>,
    open: HashMap<Scope, Claim>,
    claims: u64,
}

impl Journal {
    pub fn opened(&mut self, sub: Sub, scope: Scope, guarded: bool) {
        self.claims += 1;
        let before = self.open.insert(scope.clone(), Claim { guarded, order: self.claims });
        self.steps.push((sub, Step::Opened(scope, before)));
    }

    /// Ignores a claim that is not of this transaction.
    pub fn closed(&mut self, sub: Sub, scope: &Scope) {
        if let Some((scope, claim)) = self.open.remove_entry(scope) {
            self.steps.push((sub, Step::Closed(scope, claim)));
        }
    }

    pub fn is_open(&self, scope: &Scope) -> bool {
        self.open.contains_key(scope)
    }

    /// The guarded claims that are open, in the order in which they were made.
    pub fn left_open(&self) -> Vec<&Scope> {
        let mut left: Vec<_> = self.open.iter().filter(|(_, claim)| claim.guarded).collect();
        left.sort_by_key(|(_, claim)| claim.order);
        left.into_iter().map(|(scope, _)| scope).collect()
    }

    pub fn sub_committed(&mut self, sub: Sub, parent: Sub) {
        for (of, _) in self.steps.iter_mut().rev().take_while(|(of, _)| *of == sub) {
            *of = parent;
        }
    }

    pub fn sub_aborted(&mut self, sub: Sub) {
        while self.steps.last().is_some_and(|(of, _)| *of == sub) {
            match self.steps.pop() {
                Some((_, Step::Opened(scope, None))) => {
                    self.open.remove(&scope);
                }
                Some((_, Step::Opened(scope, Some(claim)) | Step::Closed(scope, claim))) => {
                    self.open.insert(scope, claim);
                }
                None => {}
            }
        }
    }

    pub fn clear(&mut self) {
        *self = Journal::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scope::scope;

    fn open(journal: &Journal) -> Vec<&str> {
        journal.left_open().into_iter().map(|s| s.key.as_str()).collect()
    }

    #[test]
    fn finishing_closes() {
        let mut j = Journal::default();
        j.opened(1, scope("t", "e", "b"), true);
        j.opened(1, scope("t", "e", "a"), true);
        j.opened(1, scope("t", "e", "external"), false);
        assert_eq!(open(&j), ["b", "a"]);
        j.closed(1, &scope("t", "e", "b"));
        j.closed(1, &scope("t", "e", "never claimed"));
        assert_eq!(open(&j), ["a"]);
        assert!(j.is_open(&scope("t", "e", "external")));
        j.clear();
        assert!(open(&j).is_empty() && !j.is_open(&scope("t", "e", "external")));
    }

    #[test]
    fn rollback_to_savepoint_forgets_a_claim_and_reopens_a_completion() {
        let mut j = Journal::default();
        j.opened(1, scope("t", "e", "outer"), true);
        j.opened(2, scope("t", "e", "inner"), true);
        j.closed(2, &scope("t", "e", "outer"));
        assert_eq!(open(&j), ["inner"]);
        j.sub_aborted(2);
        assert_eq!(open(&j), ["outer"]);
    }

    #[test]
    fn a_released_savepoint_belongs_to_its_parent() {
        let mut j = Journal::default();
        j.opened(1, scope("t", "e", "a"), true);
        j.opened(2, scope("t", "e", "b"), true);
        j.closed(3, &scope("t", "e", "a"));
        j.sub_committed(3, 2);
        assert_eq!(open(&j), ["b"]);
        j.sub_aborted(2);
        assert_eq!(open(&j), ["a"]);
    }

    #[test]
    fn a_claim_whose_row_went_by_other_means_comes_back_with_it() {
        let k = scope("t", "e", "k");
        let mut j = Journal::default();
        j.opened(1, k.clone(), true);
        j.opened(2, k.clone(), true);
        j.sub_aborted(2);
        assert_eq!(open(&j), ["k"]);
    }

    #[test]
    fn claimed_completed_and_claimed_again_in_nested_savepoints() {
        let k = scope("t", "e", "k");
        let mut j = Journal::default();
        j.opened(2, k.clone(), true);
        j.closed(3, &k);
        j.opened(4, k.clone(), true);
        j.sub_committed(4, 3);
        assert_eq!(open(&j), ["k"]);
        j.sub_aborted(3);
        assert_eq!(open(&j), ["k"]);
        j.sub_aborted(2);
        assert!(open(&j).is_empty());
    }
}
