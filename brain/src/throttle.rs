//! Limits the rate of log lines that peers can cause.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// Lets one line pass in each interval, and counts the suppressed lines. Clones share the count.
#[derive(Clone, Debug)]
pub(crate) struct Throttle(Duration, Arc<Mutex<Passed>>);

/// Lets one line pass every 5 s.
impl Default for Throttle {
    fn default() -> Self {
        Self::every(Duration::from_secs(5))
    }
}

#[derive(Debug, Default)]
struct Passed {
    last: Option<Instant>,
    suppressed: u64,
}

impl Throttle {
    pub(crate) fn every(interval: Duration) -> Self {
        Self(interval, Arc::default())
    }

    /// Returns `None` if the line must not be written now. Otherwise returns the number of lines that were suppressed
    /// since the last written line.
    pub(crate) fn pass(&self) -> Option<u64> {
        let now = Instant::now();
        // Code that holds the lock never panics in the middle of a change.
        let mut passed = self.1.lock().unwrap_or_else(PoisonError::into_inner);
        if passed.last.is_some_and(|last| now.duration_since(last) < self.0) {
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
        tokio::time::advance(throttle.0).await;
        assert_eq!(throttle.pass(), Some(11_840));
        tokio::time::advance(throttle.0).await;
        assert_eq!(throttle.pass(), Some(0));
    }
}
