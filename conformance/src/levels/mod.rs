//! The checks, level by level.

mod applied;
mod bench;
mod life;
mod packets;
mod state;
mod states;
mod traffic;
mod wire;

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::PathBuf,
    str::FromStr,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;

use crate::{
    claims::Claims,
    outcome::{Outcome, Outcomes, Verdict},
};

/// A level of checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// What it makes of streams.
    Wire,
    /// Which state it holds.
    State,
    /// Where packets go.
    Packets,
    /// What can happen to it.
    Life,
}

impl Level {
    /// All of them.
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

/// A word that is no level.
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

/// What is checked, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// The command of the backend, for `sh`. `{api}`, `{socket}`, `{tcp}`, `{dump}`, `{folder}` and `{flags}` in it are filled in.
    pub backend: String,
    /// The levels.
    pub levels: Vec<Level>,
    /// What it claims of packets.
    pub claims: Claims,
    /// Only checks whose names (`level/name`) contain one of these; empty for all.
    pub only: Vec<String>,
    /// The folder of Cases.
    pub cases: PathBuf,
    /// How long anything may take.
    pub patience: Duration,
    /// What asks it to end.
    pub stop: Signal,
    /// A command that prints all that the backend has written.
    pub listing: Option<String>,
    /// A command that removes all rules of the node, as others would.
    pub flush: Option<String>,
    /// A command that removes all that the backend has written.
    pub cleanup: Option<String>,
    /// A command that prints what the kernel serves, as [`localnet_client::served`] writes it.
    pub read_back: Option<String>,
    /// A command after which the backend cannot write what it wants.
    pub obstruct: Option<String>,
    /// A command after which it can again.
    pub clear: Option<String>,
    /// Checks at a time. Those of states are always done one after the other.
    pub at_a_time: usize,
}

impl Options {
    /// All checks of a backend.
    pub fn of(backend: impl Into<String>) -> Self {
        Self {
            backend: backend.into(),
            levels: Level::ALL.to_vec(),
            claims: Claims::default(),
            only: Vec::new(),
            cases: localnet_lab::case::folder(),
            patience: Duration::from_secs(20),
            stop: Signal::TERM,
            listing: None,
            flush: None,
            cleanup: None,
            read_back: None,
            obstruct: None,
            clear: None,
            at_a_time: 4,
        }
    }

    fn asks_for(&self, level: Level, name: &str) -> bool {
        let name = format!("{level}/{name}");
        self.only.is_empty() || self.only.iter().any(|only| name.contains(only.as_str()))
    }
}

/// Runs the checks, and hands each outcome to `tell` as it comes.
///
/// # Errors
/// A level cannot be begun: there are no Cases, or no namespaces can be made.
pub fn run(options: &Options, tell: impl Fn(&Outcome) + Sync) -> anyhow::Result<Outcomes> {
    let mut outcomes = Outcomes::default();
    for level in &options.levels {
        outcomes.0.extend(match level {
            Level::Wire => wire::run(options, &tell)?,
            Level::State => state::run(options, &tell)?,
            Level::Packets => packets::run(options, &tell)?,
            Level::Life => life::run(options, &tell)?,
        });
    }
    Ok(outcomes)
}

/// Does checks, several at a time. The outcomes are in the order of the checks.
fn side_by_side<T: Sync>(options: &Options, checks: &[T], outcome: impl Fn(&T) -> Outcome + Sync) -> Vec<Outcome> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut outcomes = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(check) = checks.get(number) else { return outcomes };
            outcomes.push((number, outcome(check)));
        }
    };
    let mut outcomes: Vec<_> = thread::scope(|scope| {
        let workers: Vec<_> = (0..options.at_a_time.max(1)).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    });
    outcomes.sort_by_key(|(number, _)| *number);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

/// Does one check. What breaks in it, breaks only it.
fn check(
    level: Level,
    name: &str,
    tell: &impl Fn(&Outcome),
    check: impl FnOnce() -> anyhow::Result<Verdict>,
) -> Outcome {
    let began = Instant::now();
    let verdict = match catch_unwind(AssertUnwindSafe(check)) {
        Ok(Ok(verdict)) => verdict,
        Ok(Err(error)) => Verdict::Failed(format!("{error:#}")),
        Err(_) => Verdict::Failed("the check itself has panicked".to_owned()),
    };
    let outcome = Outcome { level, name: name.to_owned(), verdict, took: began.elapsed() };
    tell(&outcome);
    outcome
}
