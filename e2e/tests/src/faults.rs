//! Runs the faults of `e2e/faults`: `--why-not` names the cause first, with exceptions for at most 1 in 20 faults.

use std::{
    env,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
};

use anyhow::{Context as _, ensure};

use crate::{
    Backend,
    scenario::{self, CommandRun, Fault, Scenario},
};

/// The required ratio: 38 of 40.
const RIGHT_OF_TWENTY: usize = 19;
/// The faults of each backend must be at least so many: all, and those that change the node.
pub const FAULTS: usize = 40;
const OF_NODE: usize = 15;
const AT_A_TIME: usize = 4;

/// Checks that `localnet explain --why-not` names the right cause of enough faults first. With ipvs, these are the faults that
/// change the node, because the guest is slow and the causes of the others are in the state. The variable `FAULTS=all` adds them.
///
/// # Errors
/// Returns the faults for which it names another cause, if they are too many.
pub fn the_right_cause_ranks_first(backend: Backend) -> anyhow::Result<()> {
    let kind = match backend {
        Backend::Nft => "nft",
        Backend::Iptables(_) => "iptables",
        Backend::Ipvs => "ipvs",
        Backend::Ebpf => "ebpf",
    };
    let all = !matches!(backend, Backend::Ipvs) || env::var("FAULTS").is_ok_and(|which| which == "all");
    let mut folders = Vec::new();
    for folder in scenario::all()? {
        let fault = scenario::read(&folder)?;
        if fault.is_with(kind) && (all || fault.changes_node()) {
            folders.push(folder);
        }
    }
    ensure!(folders.len() >= if all { FAULTS } else { OF_NODE }, "only {} faults", folders.len());
    most_are_right(&folders, |folder| {
        let fault = scenario::read(folder)?;
        let scenario = Scenario::build_on(backend, folder, &fault.steps)?;
        is_first(&fault, &scenario.localnet(&asked(&fault))?)
    })
}

/// Calls `names_first` for each folder, several at a time. It returns an error if another cause is named first.
///
/// # Errors
/// Returns the errors, if they are too many.
pub fn most_are_right(
    folders: &[PathBuf],
    names_first: impl Fn(&Path) -> anyhow::Result<()> + Sync,
) -> anyhow::Result<()> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut wrong = Vec::new();
        while let Some(folder) = folders.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(error) = names_first(folder) {
                wrong.push(format!("{}: {error:#}", folder.display()));
            }
        }
        wrong
    };
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_A_TIME).map(|_| scope.spawn(work)).collect();
        let join = |worker: std::thread::ScopedJoinHandle<'_, _>| {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        workers.into_iter().flat_map(join).collect()
    });
    let right = folders.len() - wrong.len();
    println!("{right} of {} causes are named first\n{}", folders.len(), wrong.join("\n"));
    ensure!(right * 20 >= folders.len() * RIGHT_OF_TWENTY, "only {right} of {}:\n{}", folders.len(), wrong.join("\n"));
    Ok(())
}

/// The arguments with which `localnet` explains a fault.
pub fn asked(fault: &Fault) -> Vec<&str> {
    let mut arguments = vec!["explain", "--why-not", &fault.ask, "-o", "json"];
    if let Some(from) = &fault.from {
        arguments.extend(["--from", from]);
    }
    if let Some(to) = &fault.to {
        arguments.extend(["--to", to]);
    }
    arguments
}

/// Checks that the answer names the cause of the fault first.
///
/// # Errors
/// Returns the causes that it names instead.
pub fn is_first(fault: &Fault, run: &CommandRun) -> anyhow::Result<()> {
    ensure!(run.code == 1 || run.code == 0, "{run:?}");
    let answer: serde_json::Value = serde_json::from_str(&run.out).with_context(|| format!("{run:?}"))?;
    let causes = answer["causes"].as_array().cloned().unwrap_or_default();
    let first = causes.first().is_some_and(|first| first["code"] == fault.cause.as_str());
    let named = causes.iter().map(|of| format!("{}: {}", of["code"].as_str().unwrap_or_default(), of["problem"]));
    ensure!(first, "wanted {}, got {:#?}", fault.cause, named.collect::<Vec<_>>());
    Ok(())
}
