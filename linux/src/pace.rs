//! When the next repair may begin: at once, unless somebody keeps fighting. Pure: it is told the time.

use std::time::{Duration, Instant};

/// After so long without a repair the next one is nobody's fight.
const CALM: Duration = Duration::from_secs(10);
/// So many repairs without that are made as they come.
const PATIENCE: u32 = 50;
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// So much time they may take without any rest.
const AT_ONCE: Duration = Duration::from_secs(3);
/// After that, reading big tables over and over takes at most this share of one processor: a quarter.
const REST: u32 = 3;

/// The repairs of late.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    /// Repairs since it was calm last.
    streak: u32,
    /// How long they took together.
    spent: Duration,
    /// When the last one ended, and how long to wait after it.
    last: Option<(Instant, Duration)>,
}

impl Pace {
    /// When to repair what was noticed now.
    pub fn when(&self, now: Instant) -> Instant {
        self.last.map_or(now, |(ended, pause)| now.max(ended + pause))
    }

    /// A repair has ended that took so long. Says whether this is a fight from now on.
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
        let rest = if self.spent > AT_ONCE { took * REST } else { Duration::ZERO };
        self.last = Some((now, pause.max(rest)));
        self.streak == PATIENCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOOK: Duration = Duration::from_millis(2);

    /// Somebody disturbs as soon as it was repaired: how many repairs are made in that time, and how many fights are said.
    fn repairs_within(time: Duration, took: Duration) -> (u32, u32) {
        let start = Instant::now();
        let (mut pace, mut now, mut repairs, mut fights) = (Pace::default(), start, 0, 0);
        while now - start < time {
            now = pace.when(now) + took;
            fights += u32::from(pace.repaired(now, took));
            repairs += 1;
        }
        (repairs, fights)
    }

    #[test]
    fn a_fight_slows_down_and_is_said_once() {
        let (repairs, fights) = repairs_within(Duration::from_secs(60), TOOK);
        assert!((60..75).contains(&repairs), "{repairs}");
        assert_eq!(fights, 1);
    }

    #[test]
    fn long_repairs_leave_the_processor_to_others() {
        let (repairs, _) = repairs_within(Duration::from_secs(13), Duration::from_millis(250));
        assert!((22..=24).contains(&repairs), "{repairs}");
    }

    #[test]
    fn a_few_are_repaired_at_once_however_often_that_happens() {
        let mut now = Instant::now();
        let mut pace = Pace::default();
        for _ in 0..20 {
            now += CALM * 3;
            for _ in 0..PATIENCE - 1 {
                now += TOOK * REST;
                assert_eq!(pace.when(now), now);
                assert!(!pace.repaired(now, TOOK));
            }
        }
    }
}
