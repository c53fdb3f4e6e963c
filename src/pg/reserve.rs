//! Memory for Rust's own allocations when there is none: a failed one would abort the process, and with it the server.
//!
//! What is large is PostgreSQL's to allocate, which reports 53200. What Rust allocates in one call is bounded (limits.rs), so
//! a reserve of fixed size carries a call to its end or to PostgreSQL's next allocation, which fails as it should.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicUsize, Ordering::*};

/// Never touched, and so no memory at all, while the system has some.
const SIZE: usize = 4 * 1024 * 1024;

#[cfg_attr(not(test), global_allocator)]
#[allow(dead_code)] // in unit tests, which have an allocator of their own
static ALLOCATOR: WithReserve<System> = WithReserve::over(System);

/// An allocator that turns to the reserve when the one below it has nothing left.
pub struct WithReserve<A> {
    below: A,
    reserve: UnsafeCell<[u8; SIZE]>,
    /// Bytes of the reserve that were handed out.
    used: AtomicUsize,
    /// Allocations in it that are alive: when the last one goes, all of it is free again.
    alive: AtomicUsize,
}

// SAFETY: parts of the reserve are handed out once each, by an atomic counter.
unsafe impl<A: Sync> Sync for WithReserve<A> {}

impl<A> WithReserve<A> {
    pub const fn over(below: A) -> Self {
        WithReserve {
            below,
            reserve: UnsafeCell::new([0; SIZE]),
            used: AtomicUsize::new(0),
            alive: AtomicUsize::new(0),
        }
    }

    fn take(&self, layout: Layout) -> *mut u8 {
        let base = self.reserve.get() as usize;
        let mut start = 0;
        let taken = self.used.fetch_update(AcqRel, Acquire, |used| {
            start = (base + used).next_multiple_of(layout.align()) - base;
            start.checked_add(layout.size()).filter(|end| *end <= SIZE)
        });
        if taken.is_err() {
            return std::ptr::null_mut();
        }
        self.alive.fetch_add(1, AcqRel);
        // SAFETY: `start` is within the reserve.
        unsafe { self.reserve.get().cast::<u8>().add(start) }
    }

    fn is_of_reserve(&self, pointer: *mut u8) -> bool {
        let base = self.reserve.get() as usize;
        (base..base + SIZE).contains(&(pointer as usize))
    }
}

// SAFETY: what comes from the allocator below goes back to it; what comes from the reserve is aligned, of the size that was
// asked for, and handed out once.
unsafe impl<A: GlobalAlloc> GlobalAlloc for WithReserve<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are handed on.
        let pointer = unsafe { self.below.alloc(layout) };
        if pointer.is_null() {
            return self.take(layout);
        }
        pointer
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if !self.is_of_reserve(pointer) {
            // SAFETY: it came from there.
            unsafe { self.below.dealloc(pointer, layout) };
        } else if self.alive.fetch_sub(1, AcqRel) == 1 {
            self.used.store(0, Release);
        }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if !self.is_of_reserve(pointer) {
            // SAFETY: it came from there.
            let grown = unsafe { self.below.realloc(pointer, layout, new_size) };
            if !grown.is_null() {
                return grown;
            }
        }
        // SAFETY: the caller promises that the size, rounded up to the alignment, is no overflow; both blocks have at least
        // the smaller size, and are not the same.
        unsafe {
            let new = self.alloc(Layout::from_size_align_unchecked(new_size, layout.align()));
            if !new.is_null() {
                std::ptr::copy_nonoverlapping(pointer, new, layout.size().min(new_size));
                self.dealloc(pointer, layout);
            }
            new
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    /// An allocator that can run dry.
    struct Limited {
        is_dry: AtomicBool,
    }

    // SAFETY: the system's, or nothing.
    unsafe impl GlobalAlloc for Limited {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            // SAFETY: the caller's promises are handed on.
            if self.is_dry.load(Acquire) {
                std::ptr::null_mut()
            } else {
                unsafe { System.alloc(layout) }
            }
        }

        unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
            // SAFETY: it came from there.
            unsafe { System.dealloc(pointer, layout) }
        }

        unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
            // SAFETY: the caller's promises are handed on.
            if self.is_dry.load(Acquire) {
                std::ptr::null_mut()
            } else {
                unsafe { System.realloc(pointer, layout, size) }
            }
        }
    }

    #[test]
    fn the_reserve_serves_while_there_is_nothing_else() {
        static MEMORY: WithReserve<Limited> = WithReserve::over(Limited { is_dry: AtomicBool::new(false) });
        let layout = |size, align| Layout::from_size_align(size, align).unwrap();
        // SAFETY: each block is used within its size and given back with its layout.
        unsafe {
            let early = MEMORY.alloc(layout(100, 1));
            early.write_bytes(7, 100);
            MEMORY.below.is_dry.store(true, Release);
            let odd = MEMORY.alloc(layout(3, 1));
            let aligned = MEMORY.alloc(layout(1000, 64));
            assert!(!odd.is_null() && !aligned.is_null() && (aligned as usize).is_multiple_of(64));
            // A block from before grows into the reserve, with what is in it.
            let grown = MEMORY.realloc(early, layout(100, 1), 5_000);
            assert!(MEMORY.is_of_reserve(grown) && (0..100).all(|i| *grown.add(i) == 7));
            let grown = MEMORY.realloc(grown, layout(5_000, 1), 10_000);
            assert!((0..100).all(|i| *grown.add(i) == 7));
            assert!(MEMORY.alloc(layout(SIZE, 1)).is_null(), "what does not fit fails as ever");
            MEMORY.dealloc(odd, layout(3, 1));
            MEMORY.dealloc(aligned, layout(1000, 64));
            MEMORY.dealloc(grown, layout(10_000, 1));
            // All of it is free again.
            let all = MEMORY.alloc(layout(SIZE, 1));
            assert!(!all.is_null());
            MEMORY.dealloc(all, layout(SIZE, 1));
        }
    }
}
