//! Waiting for somebody else's transaction.

use crate::pg::transaction;
use std::cell::Cell;
use std::time::{Duration, Instant};

/// How long a caller is ready to wait, looking again in growing steps.
pub struct Patience {
    since: Instant,
    wait: Duration,
    step: Cell<Duration>,
}

impl Patience {
    const FIRST_STEP: Duration = Duration::from_millis(2);
    const LONGEST_STEP: Duration = Duration::from_millis(100);

    pub fn new(wait: Duration) -> Self {
        Patience { since: Instant::now(), wait, step: Cell::new(Self::FIRST_STEP) }
    }

    fn left(&self) -> Duration {
        self.wait.saturating_sub(self.since.elapsed())
    }

    pub fn is_over(&self) -> bool {
        self.left().is_zero()
    }

    pub fn pause(&self) {
        let step = self.step.get();
        transaction::pause(step.min(self.left()));
        self.step.set((step * 2).min(Self::LONGEST_STEP));
    }
}
