//! Limits the rate of log lines that peers can cause.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// Minimum time between two lines.
const INTERVAL: Duration = Duration::from_secs(5);

/// Lets one line pass in each [`INTERVAL`], and counts the suppressed ones. Clones share the count.
#[derive(Clone, Debug, Default)]
pub(crate) struct Throttle(Arc<Mutex<Passed>>);

#[derive(Debug, Default)]
struct Passed {
    last: Option<Instant>,
    suppressed: u64,
}

impl Throttle {
    /// Returns `None` if the line must not be written now, or else the number of lines that were suppressed since the last one.
    pub(crate) fn pass(&self) -> Option<u64> {
        let now = Instant::now();
        // No code that holds the lock can panic halfway through a change.
        let mut passed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if passed.last.is_some_and(|last| now.duration_since(last) < INTERVAL) {
            passed.suppressed += 1;
            return None;
        }
        passed.last = Some(now);
        Some(std::mem::take(&mut passed.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_line_passes_with_the_number_of_suppressed_ones() {
        let throttle = Throttle::default();
        assert_eq!(throttle.pass(), Some(0));
        for _ in 0..11_840 {
            assert_eq!(throttle.clone().pass(), None);
        }
        tokio::time::advance(INTERVAL).await;
        assert_eq!(throttle.pass(), Some(11_840));
        tokio::time::advance(INTERVAL).await;
        assert_eq!(throttle.pass(), Some(0));
    }
}
