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
use journal::Journal;
use pgrx::pg_sys;
use std::cell::{Cell, RefCell};

thread_local! {
    static JOURNAL: RefCell<Journal> = RefCell::default();
    /// The extension's schema, as of the last claim: the guard runs outside any call.
    static SCHEMA: Cell<pg_sys::Oid> = const { Cell::new(pg_sys::InvalidOid) };
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

/// Remembers a claim. A `guarded` one must be finished before the transaction commits.
pub fn opened(tables: &Tables, scope: &Scope, guarded: bool) {
    SCHEMA.set(tables.schema());
    let sub = transaction::current_subtransaction();
    JOURNAL.with_borrow_mut(|j| j.opened(sub, scope.clone(), guarded));
}

/// The claim was completed, failed or released.
pub fn closed(scope: &Scope) {
    let sub = transaction::current_subtransaction();
    JOURNAL.with_borrow_mut(|j| j.closed(sub, scope));
}

/// Whether this transaction itself holds the claim open: nothing to wait for.
pub fn is_own(scope: &Scope) -> bool {
    JOURNAL.with_borrow(|j| j.is_open(scope))
}

/// The table has the last word: a row that was deleted or dropped by other means leaves nothing to refuse.
fn refuse_open_claims() -> Result<(), Refusal> {
    let left: Vec<Scope> = JOURNAL.with_borrow(|j| j.left_open().into_iter().cloned().collect());
    if left.is_empty() {
        return Ok(());
    }
    let Ok(tables) = Tables::open(SCHEMA.get()) else { return Ok(()) };
    match left.iter().find(|scope| tables.is_left_open(scope)) {
        Some(scope) => {
            // The guard holds for registered endpoints only.
            stats::count(&scope.endpoint, Counter::GuardRefused, || true);
            Err(Refusal::left_open(scope, left.len()))
        }
        None => Ok(()),
    }
}
