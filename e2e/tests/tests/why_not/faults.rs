//! Runs every fault of `e2e/faults`: `--why-not` names its cause first, with exceptions for at most 1 in 20 faults.

use std::sync::atomic::{AtomicUsize, Ordering};

use localnet_e2e::Backend;

use crate::scenario::{self, Scenario};

/// The required ratio: 38 of 40.
const RIGHT_OF_TWENTY: usize = 19;
const AT_A_TIME: usize = 4;

/// The causes that `--why-not` names, in order.
fn named(folder: &std::path::Path, backend: Backend) -> anyhow::Result<(String, Vec<String>)> {
    let fault = scenario::read(folder)?;
    let scenario = Scenario::build_on(backend, folder, &fault.steps)?;
    let mut arguments = vec!["explain", "--why-not", &fault.ask, "-o", "json"];
    if let Some(from) = &fault.from {
        arguments.extend(["--from", from]);
    }
    if let Some(to) = &fault.to {
        arguments.extend(["--to", to]);
    }
    let run = scenario.localnet(&arguments)?;
    anyhow::ensure!(run.code == 1 || run.code == 0, "{run:?}");
    let answer: serde_json::Value = serde_json::from_str(&run.out)?;
    let causes = answer["causes"].as_array().cloned().unwrap_or_default();
    let codes = causes.iter().map(|of| format!("{}: {}", of["code"].as_str().unwrap_or_default(), of["problem"]));
    Ok((fault.cause, codes.collect()))
}

#[test]
fn the_right_cause_ranks_first() {
    ranks_first(Backend::Nft);
}

#[test]
fn the_right_cause_ranks_first_with_iptables_nft() {
    ranks_first(Backend::Iptables("nft"));
}

#[test]
fn the_right_cause_ranks_first_with_iptables_legacy() {
    ranks_first(Backend::Iptables("legacy"));
}

fn ranks_first(backend: Backend) {
    let kind = if backend == Backend::Nft { "nft" } else { "iptables" };
    let mut folders = scenario::all();
    folders.retain(|folder| scenario::read(folder).unwrap().backend.is_none_or(|of| of == kind));
    assert!(folders.len() >= 40, "only {} faults", folders.len());
    let next = AtomicUsize::new(0);
    let work = || {
        let mut wrong = Vec::new();
        while let Some(folder) = folders.get(next.fetch_add(1, Ordering::Relaxed)) {
            let name = folder.file_name().unwrap().to_string_lossy().into_owned();
            match named(folder, backend) {
                Ok((cause, found)) if found.first().is_some_and(|first| first.starts_with(&format!("{cause}: "))) => {}
                Ok((cause, found)) => wrong.push(format!("{name}: wanted {cause}, got {found:#?}")),
                Err(error) => wrong.push(format!("{name}: {error:#}")),
            }
        }
        wrong
    };
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_A_TIME).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    let right = folders.len() - wrong.len();
    println!("{right} of {} causes are named first\n{}", folders.len(), wrong.join("\n"));
    assert!(right * 20 >= folders.len() * RIGHT_OF_TWENTY, "{right} of {}", folders.len());
}

#[test]
fn every_fault_has_a_description() {
    for folder in scenario::all() {
        let text = std::fs::read_to_string(folder.join("fault.yaml")).unwrap();
        assert!(text.starts_with("# "), "{}", folder.display());
        scenario::read(&folder).unwrap();
    }
}
