//! The checks of each level.

mod applied;
mod bench;
mod fixture;
mod life;
mod packets;
mod spread;
mod state;
pub(crate) mod states;
mod traffic;
mod wire;

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::PathBuf,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use localnet_client::served::Lacks;
use localnet_lab::Sandbox;
use rustix::process::Signal;

use crate::{
    claims::Claims,
    level::Level,
    outcome::{Outcome, Outcomes, Verdict},
};

/// What to check, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// The backend's command, for `sh`, with the placeholders `{api}`, `{socket}`, `{tcp}`, `{dump}`, `{folder}` and `{flags}`.
    pub backend: String,
    /// The levels to run.
    pub levels: Vec<Level>,
    /// What the backend claims to do with packets.
    pub claims: Claims,
    /// Runs only checks whose names (`level/name`) contain one of these strings; empty for all checks.
    pub only: Vec<String>,
    /// The folder of Cases.
    pub cases: PathBuf,
    /// The time limit of each step.
    pub patience: Duration,
    /// The signal that stops the backend.
    pub stop: Signal,
    /// A command that prints everything the backend has written.
    pub listing: Option<String>,
    /// A command that removes all rules of the node, as another program might.
    pub flush: Option<String>,
    /// A command that removes everything the backend has written.
    pub cleanup: Option<String>,
    /// A command that prints what the kernel serves, in the format of [`localnet_client::served`].
    pub read_back: Option<String>,
    /// What the kernel cannot hold, so that checks do not expect it.
    pub cannot_hold: Lacks,
    /// A command after which the kernel refuses the backend's changes.
    pub obstruct: Option<String>,
    /// A command after which the kernel accepts the backend's changes again.
    pub clear: Option<String>,
    /// Whether each check runs in a [`Sandbox`], for a backend with eBPF programs. The level `state` has one sandbox for all checks.
    pub sandbox: bool,
    /// How many checks run at a time. The checks of the level `state` always run one after the other.
    pub at_a_time: usize,
}

impl Options {
    /// The default options for a backend: all checks, all claims.
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
            cannot_hold: Lacks::default(),
            obstruct: None,
            clear: None,
            sandbox: false,
            at_a_time: 4,
        }
    }

    /// Runs `work`, in a sandbox if the options require this.
    fn isolated<T: Send>(&self, work: impl FnOnce() -> anyhow::Result<T> + Send) -> anyhow::Result<T> {
        if self.sandbox { Sandbox::run(|_| work()) } else { work() }
    }

    fn selects(&self, level: Level, name: &str) -> bool {
        let name = format!("{level}/{name}");
        self.only.is_empty() || self.only.iter().any(|only| name.contains(only.as_str()))
    }
}

/// Runs the checks, and calls `report` with each outcome as soon as it is known.
///
/// # Errors
/// Returns an error if a level cannot start, because a Case cannot be read or network namespaces cannot be created.
pub fn run(options: &Options, report: impl Fn(&Outcome) + Sync) -> anyhow::Result<Outcomes> {
    let mut outcomes = Outcomes::default();
    for level in &options.levels {
        outcomes.0.extend(match level {
            Level::Wire => wire::run(options, &report)?,
            Level::State => state::run(options, &report)?,
            Level::Packets => packets::run(options, &report)?,
            Level::Life => life::run(options, &report)?,
        });
    }
    Ok(outcomes)
}

/// Runs checks concurrently. The outcomes have the order of the checks.
fn run_concurrently<T: Sync>(options: &Options, checks: &[T], outcome: impl Fn(&T) -> Outcome + Sync) -> Vec<Outcome> {
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

/// Runs one check. A panic fails only this check.
fn check(
    level: Level,
    name: &str,
    report: &impl Fn(&Outcome),
    check: impl FnOnce() -> anyhow::Result<Verdict>,
) -> Outcome {
    let began = Instant::now();
    let verdict = match catch_unwind(AssertUnwindSafe(check)) {
        Ok(Ok(verdict)) => verdict,
        Ok(Err(error)) => Verdict::Failed(format!("{error:#}")),
        Err(_) => Verdict::Failed("the check itself panicked".to_owned()),
    };
    let outcome = Outcome { level, name: name.to_owned(), verdict, took: began.elapsed() };
    report(&outcome);
    outcome
}
