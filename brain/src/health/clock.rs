//! The time, which a test may set.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};

/// A point in time: one clock to measure with, one to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Never goes back.
    pub at: Instant,
    /// What a calendar says; somebody may set it.
    pub wall: SystemTime,
}

impl std::ops::Add<Duration> for Moment {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self { at: self.at + time, wall: self.wall + time }
    }
}

/// Tells the time.
#[derive(Clone, Debug)]
pub enum Clock {
    /// That of the machine.
    System,
    /// Whatever it was set to.
    Set(Arc<Mutex<Moment>>),
}

impl Clock {
    /// A clock that stands at `wall` until it is moved.
    pub fn standing(wall: SystemTime) -> Self {
        Self::Set(Arc::new(Mutex::new(Moment { at: Instant::now(), wall })))
    }

    /// Now.
    pub fn now(&self) -> Moment {
        match self {
            Self::System => Moment { at: Instant::now(), wall: SystemTime::now() },
            Self::Set(moment) => *moment.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// Moves a standing clock on; the machine's goes by itself.
    pub fn advance(&self, time: Duration) {
        if let Self::Set(moment) = self {
            let mut moment = moment.lock().unwrap_or_else(PoisonError::into_inner);
            *moment = *moment + time;
        }
    }
}
