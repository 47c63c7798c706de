//! How long to wait before the next attempt.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(250);
const LONGEST: Duration = Duration::from_secs(10);

/// Doubles from attempt to attempt, and spreads the attempts of many nodes: each waits between half of it and all of it.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    attempts: u32,
}

impl Backoff {
    pub(super) fn is_running(&self) -> bool {
        self.attempts > 0
    }

    pub(super) fn reset(&mut self) {
        self.attempts = 0;
    }

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
    fn waits_grow_up_to_a_limit_and_start_anew() {
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
