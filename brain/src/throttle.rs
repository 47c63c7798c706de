//! Keeps a log line that peers can cause from flooding the log.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// How long the log is left alone after a line.
const SILENCE: Duration = Duration::from_secs(5);

/// Lets one line of a kind pass every [`SILENCE`], and counts the others. Clones are the same throttle.
#[derive(Clone, Debug, Default)]
pub(crate) struct Throttle(Arc<Mutex<Passed>>);

#[derive(Debug, Default)]
struct Passed {
    last: Option<Instant>,
    held: u64,
}

impl Throttle {
    /// Whether a line may be written now: if so, how many were held back since the last one.
    pub(crate) fn pass(&self) -> Option<u64> {
        let now = Instant::now();
        // Nothing in it is half done when a panic leaves it.
        let mut passed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if passed.last.is_some_and(|last| now.duration_since(last) < SILENCE) {
            passed.held += 1;
            return None;
        }
        passed.last = Some(now);
        Some(std::mem::take(&mut passed.held))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_line_passes_and_tells_how_many_did_not() {
        let throttle = Throttle::default();
        assert_eq!(throttle.pass(), Some(0));
        for _ in 0..11_840 {
            assert_eq!(throttle.clone().pass(), None);
        }
        tokio::time::advance(SILENCE).await;
        assert_eq!(throttle.pass(), Some(11_840));
        tokio::time::advance(SILENCE).await;
        assert_eq!(throttle.pass(), Some(0));
    }
}
