//! Waiting for a condition instead of for a time.

use std::time::{Duration, Instant};

/// How long a condition may take before the test fails. Generous: machines are slow at times.
const LIMIT: Duration = Duration::from_secs(60);
/// Time between two looks at the condition.
const STEP: Duration = Duration::from_millis(10);

/// Waits until `probe` returns something. Panics after a minute, naming what was waited for.
pub fn wait_for<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(since.elapsed() < LIMIT, "waited {LIMIT:?} for {what}");
        std::thread::sleep(STEP);
    }
}

/// Waits until `condition` holds. Panics after a minute, naming what was waited for.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    wait_for(what, || condition().then_some(()));
}
