//! Delays before retries: of a failed attempt, and of Services that the kernel refused.

use std::{
    collections::BTreeSet,
    hash::{BuildHasher as _, RandomState},
    time::Duration,
};

use localnet_proto::ServiceKey;
use tokio::time::Instant;

/// Doubling delays with jitter, from 100 ms up to a limit.
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

    /// Starts again with the shortest delay, after a success.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    /// The delay after one more failure: between half and all of `100 ms × 2^failures`, at most the limit.
    pub(crate) fn next(&mut self) -> Duration {
        let full = FIRST.saturating_mul(1 << self.failures.min(20)).min(self.limit);
        self.failures = self.failures.saturating_add(1);
        // Each `RandomState` has another random key, so a hash is a random number.
        let random = RandomState::new().hash_one(());
        full.mul_f64(0.5 + 0.5 * (random as f64 / u64::MAX as f64))
    }
}

/// The Services that the kernel refused, and when to retry those that have not changed. A retry can succeed, because the
/// kernel may later accept a Service that it refuses now. The delay grows, because each attempt reads the whole live state.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    services: BTreeSet<ServiceKey>,
    due: Option<Instant>,
    /// The delay that follows the next attempt.
    pause: Duration,
}

/// The first delay before a retry of refused Services. It doubles up to `LONGEST_PAUSE`.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

impl Refusals {
    /// Sets the complete list of the Services that are refused now.
    pub(crate) fn seen(&mut self, refused: &BTreeSet<ServiceKey>, now: Instant) {
        if refused.is_empty() {
            *self = Self::default();
            return;
        }
        if !refused.is_subset(&self.services) {
            // A newly refused Service need not wait as long as Services that were refused earlier.
            self.pause = FIRST_PAUSE;
            self.due = self.due.map(|due| due.min(now + FIRST_PAUSE));
        }
        self.services.clone_from(refused);
        if self.due.is_none() {
            self.due = Some(now + self.pause);
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Records that the Services are being retried.
    pub(crate) fn tried(&mut self) {
        self.due = None;
    }

    /// When to retry the Services. `None` if none are refused or a retry is in progress.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// The number of refused Services.
    pub(crate) fn count(&self) -> usize {
        self.services.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_retried_with_backoff_and_new_ones_soon() {
        let services = |names: &[&str]| names.iter().map(|name| ServiceKey::new("ns", *name)).collect::<BTreeSet<_>>();
        let mut refusals = Refusals::default();
        let mut now = Instant::now();
        refusals.seen(&services(&[]), now);
        assert_eq!(refusals.due(), None);
        for pause in [10, 20, 40, 80, 160, 320, 600, 600] {
            refusals.seen(&services(&["a"]), now);
            // Other syncs do not postpone the retry.
            refusals.seen(&services(&["a"]), now + Duration::from_secs(1));
            assert_eq!(refusals.due(), Some(now + Duration::from_secs(pause)));
            now += Duration::from_secs(pause);
            refusals.tried();
        }
        refusals.seen(&services(&["a"]), now);
        refusals.seen(&services(&["a", "b"]), now);
        assert_eq!((refusals.due(), refusals.count()), (Some(now + FIRST_PAUSE), 2));
        refusals.tried();
        refusals.seen(&services(&[]), now);
        assert_eq!((refusals.due(), refusals.count()), (None, 0));
        refusals.seen(&services(&["a"]), now);
        assert_eq!(refusals.due(), Some(now + FIRST_PAUSE), "from the start");
    }

    #[test]
    fn delays_double_up_to_the_limit_and_start_over() {
        let mut backoff = Backoff::new(Duration::from_secs(5));
        for expected in [100, 200, 400, 800, 1600, 3200, 5000, 5000] {
            let delay = backoff.next().as_millis();
            assert!((expected / 2..=expected).contains(&delay), "{delay} ms, up to {expected} expected");
        }
        // With random delays, the readers of a brain do not all return at once.
        let last: BTreeSet<_> = (0..10).map(|_| backoff.next()).collect();
        assert!(last.len() > 1, "{last:?}");
        backoff.reset();
        assert!(backoff.next() <= FIRST);
    }
}
