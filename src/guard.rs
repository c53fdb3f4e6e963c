//! The commit guard: a transaction does not commit a claim of its own that it has not finished.
//!
//! It holds for endpoints registered as `transaction`, where an open row after COMMIT would mean an effect without a
//! stored result. No trigger: what the transaction has claimed is remembered in the process ([`journal`]), and only
//! when something seems left open is the table asked.

mod journal;

use crate::pg::transaction::{self, Watcher};
use crate::refusal::Refusal;
use crate::scope::Scope;
use crate::stats::{self, Counter};
use crate::tables::Tables;
pub use journal::Claim;
use journal::Journal;
use std::cell::RefCell;

thread_local! {
    static JOURNAL: RefCell<Journal> = RefCell::default();
}

static WATCHER: Watcher = Watcher {
    before_commit: refuse_open_claims,
    ended: || JOURNAL.with_borrow_mut(Journal::clear),
    sub_committed: |sub, parent| JOURNAL.with_borrow_mut(|j| j.sub_committed(sub, parent)),
    sub_aborted: |sub| JOURNAL.with_borrow_mut(|j| j.sub_aborted(sub)),
};

/// Called once, from `_PG_init`.
pub fn install() {
    transaction::watch(&WATCHER);
}

/// Remembers a claim. A guarded one must be finished before the transaction commits.
pub fn opened(scope: &Scope, claim: Claim) -> Result<(), Refusal> {
    if claim.guarded {
        transaction::be_asked_first(&WATCHER);
    }
    let sub = transaction::current_subtransaction();
    JOURNAL.with_borrow_mut(|j| j.opened(sub, scope.clone(), claim)).map_err(|_| Refusal::out_of_memory(scope))
}

/// The claim was completed or failed.
pub fn closed(scope: &Scope) -> Result<(), Refusal> {
    let sub = transaction::current_subtransaction();
    JOURNAL.with_borrow_mut(|j| j.closed(sub, scope)).map_err(|_| Refusal::out_of_memory(scope))
}

/// The claim was released before it was ever committed.
pub fn dropped(scope: &Scope) -> Result<(), Refusal> {
    let sub = transaction::current_subtransaction();
    JOURNAL.with_borrow_mut(|j| j.dropped(sub, scope)).map_err(|_| Refusal::out_of_memory(scope))
}

/// This transaction's own claim of the scope, finished or not.
pub fn own(scope: &Scope) -> Option<Claim> {
    JOURNAL.with_borrow(|j| j.get(scope))
}

/// The attempt that a call means which names none: that of this transaction's own claim, else the first.
pub fn attempt_meant(scope: &Scope, given: Option<i32>) -> i32 {
    given.or_else(|| own(scope).map(|claim| claim.attempt)).unwrap_or(1)
}

/// The table has the last word, and must be there to say it: a claim whose row cannot be looked at is not let through.
fn refuse_open_claims() -> Result<(), Refusal> {
    let mut last = 0;
    while let Some((scope, claim, order)) = JOURNAL.with_borrow(|j| j.next_open(last)) {
        last = order;
        let state = match Tables::open(claim.home.into()).map(|tables| tables.state(&scope)) {
            Ok(Some(found)) if found.status.is_finished() => continue,
            Ok(Some(found)) => format!("still {:?}", found.status.name()),
            Ok(None) => "gone".to_owned(),
            Err(why) => format!("not to be looked at: {}", why.message),
        };
        // The guard holds for registered endpoints only.
        stats::count(&scope.endpoint, Counter::GuardRefused, || true);
        return Err(Refusal::left_open(&scope, &state, JOURNAL.with_borrow(Journal::count_open)));
    }
    Ok(())
}
