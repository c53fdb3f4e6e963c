//! The gate: of the transactions that want to claim an absent key, one gets in and the others know at once.
//!
//! It spares them waiting on the unique index for the length of somebody else's transaction. It is not what
//! guarantees one execution: that is the primary key.

use crate::pg::locks;
use crate::scope::Scope;

/// A passed gate; left again when dropped, unless it is kept.
pub struct Gate {
    lock: Option<u64>,
}

impl Gate {
    /// `None` when another transaction is inside.
    pub fn try_enter(scope: &Scope) -> Option<Gate> {
        let id = scope.lock_id();
        locks::try_lock(id).then(|| Gate { lock: Some(id) })
    }

    /// Stays inside until the transaction ends.
    pub fn keep(mut self) {
        self.lock = None;
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        if let Some(id) = self.lock.filter(|_| !std::thread::panicking()) {
            locks::unlock(id);
        }
    }
}
