//! Quantiles of measurements. Pure.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Quantiles of several durations, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Times {
    /// The number of measurements.
    pub(crate) n: usize,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
}

impl Times {
    /// Computes the quantiles. `None` without measurements.
    pub(crate) fn of(mut times: Vec<Duration>) -> Option<Self> {
        times.sort_unstable();
        let max = millis(*times.last()?);
        let at = |percent| millis(times[rank(times.len(), percent)]);
        Some(Self { n: times.len(), p50: at(50), p99: at(99), max })
    }
}

/// The median.
pub(crate) fn median(mut times: Vec<Duration>) -> Option<Duration> {
    times.sort_unstable();
    times.get(rank(times.len(), 50)).copied()
}

pub(crate) fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The smallest rank that includes this percentage of the measurements.
fn rank(count: usize, percent: usize) -> usize {
    (count * percent).div_ceil(100).saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_measured_values() {
        let times = |numbers: &[u64]| numbers.iter().map(|number| Duration::from_millis(*number)).collect::<Vec<_>>();
        assert_eq!(Times::of(vec![]), None);
        assert_eq!(Times::of(times(&[7])), Some(Times { n: 1, p50: 7.0, p99: 7.0, max: 7.0 }));
        let hundred: Vec<u64> = (1..=100).rev().collect();
        assert_eq!(Times::of(times(&hundred)), Some(Times { n: 100, p50: 50.0, p99: 99.0, max: 100.0 }));
        let more: Vec<u64> = (1..=201).collect();
        assert_eq!(Times::of(times(&more)), Some(Times { n: 201, p50: 101.0, p99: 199.0, max: 201.0 }));
        assert_eq!(median(times(&[9, 1, 5])), Some(Duration::from_millis(5)));
    }
}
