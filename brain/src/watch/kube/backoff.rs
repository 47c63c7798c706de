//! Exponential backoff with jitter.

use std::time::Duration;

/// The maximum delay after the first failure.
const FIRST: Duration = Duration::from_millis(250);
/// The maximum delay after any failure.
const LONGEST: Duration = Duration::from_secs(10);

/// A delay that doubles with each attempt. Each delay is randomly shortened by up to one half, to spread the attempts of
/// many nodes.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    attempts: u32,
}

impl Backoff {
    /// Whether there was an attempt since the last reset.
    pub(super) fn is_running(&self) -> bool {
        self.attempts > 0
    }

    pub(super) fn reset(&mut self) {
        self.attempts = 0;
    }

    /// The delay before the next attempt.
    pub(super) fn next(&mut self) -> Duration {
        let longest = FIRST.saturating_mul(1 << self.attempts.min(16)).min(LONGEST);
        self.attempts = self.attempts.saturating_add(1);
        longest.mul_f64(rand::random_range(0.5..=1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_to_a_limit_and_restart_after_a_reset() {
        let mut backoff = Backoff::default();
        for attempt in 0..100 {
            let longest = FIRST.saturating_mul(1 << attempt.min(10)).min(LONGEST);
            let wait = backoff.next();
            assert!(longest / 2 <= wait && wait <= longest, "attempt {attempt} waits {wait:?}");
        }
        backoff.reset();
        assert!(!backoff.is_running());
        assert!(backoff.next() <= FIRST);
    }
}
