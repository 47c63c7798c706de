//! The levels of checks.

use std::{fmt, str::FromStr};

/// A level of checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// How the backend reads streams.
    Wire,
    /// Which state the backend holds.
    State,
    /// Where packets go.
    Packets,
    /// How the backend survives failures.
    Life,
}

impl Level {
    /// All levels, in the order in which they run.
    pub const ALL: [Self; 4] = [Self::Wire, Self::State, Self::Packets, Self::Life];
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Wire => "wire",
            Self::State => "state",
            Self::Packets => "packets",
            Self::Life => "life",
        })
    }
}

/// The error for a string that is not a [`Level`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadLevel;

impl std::error::Error for BadLevel {}

impl fmt::Display for BadLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected wire, state, packets or life")
    }
}

impl FromStr for Level {
    type Err = BadLevel;

    fn from_str(text: &str) -> Result<Self, BadLevel> {
        Self::ALL.into_iter().find(|level| level.to_string() == text).ok_or(BadLevel)
    }
}
