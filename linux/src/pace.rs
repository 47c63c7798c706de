//! Backoff for repairs. A repair is made immediately, unless another program keeps undoing the repairs. Pure: the caller passes
//! the time.

use std::time::{Duration, Instant};

/// After this long without a repair, the next repair starts a new series.
const CALM: Duration = Duration::from_secs(10);
/// How many repairs of a series are made without a pause.
const PATIENCE: u32 = 50;
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// If the repairs of a series take longer than this in total, a rest follows each further repair.
const BUDGET: Duration = Duration::from_secs(3);
/// How long to rest after a repair, as a multiple of the repair's duration. With 3, reading large tables takes at most
/// a quarter of one processor.
const REST: u32 = 3;

/// The backoff after a series of repairs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    /// Repairs in the current series.
    streak: u32,
    /// How long the repairs of the series took together.
    spent: Duration,
    /// When the last repair ended, and the pause after it.
    last: Option<(Instant, Duration)>,
}

impl Pace {
    /// The earliest time for a repair that became necessary at `now`.
    pub fn next_at(&self, now: Instant) -> Instant {
        self.last.map_or(now, |(ended, pause)| now.max(ended + pause))
    }

    /// Records a repair that ended at `now`. Returns whether this repair turns the series into a conflict with another program.
    /// It returns true at most once per series.
    pub fn repaired(&mut self, now: Instant, took: Duration) -> bool {
        if self.last.is_some_and(|(ended, pause)| now.duration_since(ended) > CALM + pause) {
            self.streak = 0;
            self.spent = Duration::ZERO;
        }
        self.spent += took;
        self.streak = self.streak.saturating_add(1);
        let pause = match self.streak.checked_sub(PATIENCE) {
            Some(excess) => FIRST_PAUSE.saturating_mul(1 << excess.min(16)).min(LONGEST_PAUSE),
            None => Duration::ZERO,
        };
        let rest = if self.spent > BUDGET { took * REST } else { Duration::ZERO };
        self.last = Some((now, pause.max(rest)));
        self.streak == PATIENCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOOK: Duration = Duration::from_millis(2);

    /// Repairs and conflicts within `time`, if another program undoes each repair at once.
    fn repairs_within(time: Duration, took: Duration) -> (u32, u32) {
        let start = Instant::now();
        let (mut pace, mut now, mut repairs, mut conflicts) = (Pace::default(), start, 0, 0);
        while now - start < time {
            now = pace.next_at(now) + took;
            conflicts += u32::from(pace.repaired(now, took));
            repairs += 1;
        }
        (repairs, conflicts)
    }

    #[test]
    fn a_conflict_slows_repairs_down_and_is_reported_once() {
        let (repairs, conflicts) = repairs_within(Duration::from_secs(60), TOOK);
        assert!((60..75).contains(&repairs), "{repairs}");
        assert_eq!(conflicts, 1);
    }

    #[test]
    fn long_repairs_use_a_quarter_of_a_processor() {
        let (repairs, _) = repairs_within(Duration::from_secs(13), Duration::from_millis(250));
        assert!((22..=24).contains(&repairs), "{repairs}");
    }

    #[test]
    fn short_series_are_repaired_at_once_however_many_there_are() {
        let mut now = Instant::now();
        let mut pace = Pace::default();
        for _ in 0..20 {
            now += CALM * 3;
            for _ in 0..PATIENCE - 1 {
                now += TOOK * REST;
                assert_eq!(pace.next_at(now), now);
                assert!(!pace.repaired(now, TOOK));
            }
        }
    }
}
