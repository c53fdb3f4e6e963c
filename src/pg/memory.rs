//! Memory that a loop uses again and again, so that waiting does not make it grow.

use pgrx::pg_sys;

/// A memory context of its own; deleted when dropped.
pub struct Scratch {
    context: pg_sys::MemoryContext,
}

impl Scratch {
    pub fn new() -> Self {
        // SAFETY: a child of the current context, which outlives this value; the sizes are ALLOCSET_DEFAULT_SIZES.
        let context = unsafe {
            pg_sys::AllocSetContextCreateInternal(
                pg_sys::CurrentMemoryContext,
                c"idempotency_enforcer scratch".as_ptr(),
                pg_sys::ALLOCSET_DEFAULT_MINSIZE as usize,
                pg_sys::ALLOCSET_DEFAULT_INITSIZE as usize,
                pg_sys::ALLOCSET_DEFAULT_MAXSIZE as usize,
            )
        };
        Scratch { context }
    }

    /// Runs the body with this as the current context, and forgets what it has allocated.
    pub fn run<R>(&self, body: impl FnOnce() -> R) -> R {
        // SAFETY: the context lives as long as this value. An ERROR in the body makes PostgreSQL choose the context anew.
        unsafe {
            let before = pg_sys::MemoryContextSwitchTo(self.context);
            let result = body();
            pg_sys::MemoryContextSwitchTo(before);
            pg_sys::MemoryContextReset(self.context);
            result
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: nothing of the context is in use; after an ERROR it goes with its parent.
            unsafe { pg_sys::MemoryContextDelete(self.context) };
        }
    }
}
