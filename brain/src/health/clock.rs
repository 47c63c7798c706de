//! A clock that tests can control.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};

/// A point in time, on the monotonic clock and on the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The monotonic time, for durations.
    pub at: Instant,
    /// The wall clock time, for display. It may jump.
    pub wall: SystemTime,
}

impl std::ops::Add<Duration> for Moment {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self { at: self.at + time, wall: self.wall + time }
    }
}

/// A clock.
#[derive(Clone, Debug)]
pub enum Clock {
    /// The clocks of the machine.
    System,
    /// A clock that stands still until [`Clock::advance`].
    Set(Arc<Mutex<Moment>>),
}

impl Clock {
    /// A standing clock at `wall`.
    pub fn standing(wall: SystemTime) -> Self {
        Self::Set(Arc::new(Mutex::new(Moment { at: Instant::now(), wall })))
    }

    /// The current time.
    pub fn now(&self) -> Moment {
        match self {
            Self::System => Moment { at: Instant::now(), wall: SystemTime::now() },
            Self::Set(moment) => *moment.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// Advances a standing clock. Does nothing to the system clock.
    pub fn advance(&self, time: Duration) {
        if let Self::Set(moment) = self {
            let mut moment = moment.lock().unwrap_or_else(PoisonError::into_inner);
            *moment = *moment + time;
        }
    }
}
