//! Shared memory: words that every process of the server sees, and a lock for those who rearrange them.
//!
//! pgrx's `pg_shmem_init!` makes a value on the stack and moves it into place, more than once: what is large does not
//! fit there. Here nothing is made: the words are zero where they are.
//!
//! Source: `shmem_request_hook` and `shmem_startup_hook` of `ipci.c`, as `pg_stat_statements.c` uses them.

use pgrx::{pg_guard, pg_sys};
use std::ffi::CStr;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::OnceLock;

/// Of the memory, and of the lock's tranche, which `pg_stat_activity` shows who waits for it.
const NAME: &CStr = c"idempotency_enforcer";

type Hook = Option<unsafe extern "C-unwind" fn()>;

// Set by the postmaster before it starts any process; the others inherit them.
static COUNT: AtomicUsize = AtomicUsize::new(0);
static WORDS: AtomicPtr<AtomicU64> = AtomicPtr::new(null_mut());
static LOCK: AtomicPtr<pg_sys::LWLock> = AtomicPtr::new(null_mut());

// What other libraries have asked for: ours run after them.
#[cfg(not(feature = "pg14"))]
static EARLIER_REQUEST: OnceLock<Hook> = OnceLock::new();
static EARLIER_STARTUP: OnceLock<Hook> = OnceLock::new();

/// Asks for `count` words. Called once, from `_PG_init`, while the postmaster preloads the library.
pub fn reserve(count: usize) {
    COUNT.store(count, Relaxed);
    // SAFETY: the postmaster has one thread, and reads the hooks when it has loaded all libraries.
    unsafe {
        #[cfg(feature = "pg14")]
        request();
        #[cfg(not(feature = "pg14"))]
        {
            EARLIER_REQUEST.get_or_init(|| pg_sys::shmem_request_hook);
            pg_sys::shmem_request_hook = Some(on_request);
        }
        EARLIER_STARTUP.get_or_init(|| pg_sys::shmem_startup_hook);
        pg_sys::shmem_startup_hook = Some(on_startup);
    }
}

/// The words; `None` when none were reserved.
pub fn words() -> Option<&'static [AtomicU64]> {
    let first = WORDS.load(Relaxed);
    // SAFETY: `on_startup` has set it to as many words, which are there as long as the server runs, are valid whatever
    // their bytes, and are only ever used as atomics.
    (!first.is_null()).then(|| unsafe { std::slice::from_raw_parts(first, COUNT.load(Relaxed)) })
}

/// Does something that no other process does at the same time. It must be brief, and cannot be interrupted.
pub fn exclusively<R>(work: impl FnOnce() -> R) -> R {
    let _held = Held::take();
    work()
}

struct Held(*mut pg_sys::LWLock);

impl Held {
    fn take() -> Self {
        let lock = LOCK.load(Relaxed);
        assert!(!lock.is_null(), "no shared memory was reserved");
        // SAFETY: a lock of a tranche of ours, in shared memory.
        unsafe { pg_sys::LWLockAcquire(lock, pg_sys::LWLockMode::LW_EXCLUSIVE) };
        Held(lock)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return; // an ERROR is under way: the abort releases all such locks
        }
        // SAFETY: taken in `take`, and released only here.
        unsafe { pg_sys::LWLockRelease(self.0) };
    }
}

fn request() {
    // SAFETY: called when PostgreSQL takes requests: in `_PG_init` on 14, in the hook from 15 on.
    unsafe {
        pg_sys::RequestAddinShmemSpace(COUNT.load(Relaxed) * size_of::<AtomicU64>());
        pg_sys::RequestNamedLWLockTranche(NAME.as_ptr(), 1);
    }
}

/// # Safety
///
/// Called by the postmaster when it sums up how much memory it needs.
#[cfg(not(feature = "pg14"))]
#[pg_guard]
unsafe extern "C-unwind" fn on_request() {
    call(&EARLIER_REQUEST);
    request();
}

/// # Safety
///
/// Called by the postmaster when it has made its shared memory: at its start, and again after a crash.
#[pg_guard]
unsafe extern "C-unwind" fn on_startup() {
    call(&EARLIER_STARTUP);
    let size = COUNT.load(Relaxed) * size_of::<AtomicU64>();
    let mut found = false;
    // SAFETY: as much was requested, so it is there, or PostgreSQL raises an ERROR, which ends the postmaster. The
    // memory is aligned to cache lines. Only the postmaster comes here, before it starts those who use the words.
    unsafe {
        let words = pg_sys::ShmemInitStruct(NAME.as_ptr(), size, &mut found).cast::<AtomicU64>();
        if !found {
            words.cast::<u8>().write_bytes(0, size);
        }
        WORDS.store(words, Relaxed);
        LOCK.store(&raw mut (*pg_sys::GetNamedLWLockTranche(NAME.as_ptr())).lock, Relaxed);
    }
}

fn call(earlier: &OnceLock<Hook>) {
    if let Some(hook) = earlier.get().copied().flatten() {
        // SAFETY: what was in the hook before; the boundary turns its ERROR into a panic, which the guard turns back.
        unsafe { pg_sys::ffi::pg_guard_ffi_boundary(|| hook()) };
    }
}
