//! How long to wait before the next attempt.

use std::time::Duration;

use rand::Rng as _;

/// Doubling delays with jitter, from a tenth of a second up to a limit.
#[derive(Debug)]
pub(crate) struct Backoff {
    limit: Duration,
    failures: u32,
}

const FIRST: Duration = Duration::from_millis(100);

impl Backoff {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, failures: 0 }
    }

    /// The attempt succeeded: the next failure waits shortly again.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    /// The delay after one more failure: between half and all of `100 ms × 2^failures`, at most the limit.
    pub(crate) fn next(&mut self) -> Duration {
        let full = FIRST.saturating_mul(1 << self.failures.min(20)).min(self.limit);
        self.failures = self.failures.saturating_add(1);
        rand::rng().random_range(full / 2..=full)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_limit_and_start_over() {
        let mut backoff = Backoff::new(Duration::from_secs(5));
        for expected in [100, 200, 400, 800, 1600, 3200, 5000, 5000] {
            let delay = backoff.next().as_millis();
            assert!((expected / 2..=expected).contains(&delay), "{delay} ms, up to {expected} expected");
        }
        backoff.reset();
        assert!(backoff.next() <= FIRST);
    }
}
