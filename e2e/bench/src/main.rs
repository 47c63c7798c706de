//! The benchmark against kube-proxy: the programs as shipped, a real API server, a real kernel, and packets as the only evidence.
//!
//! ```text
//!   options ─▶ for each size, for each contestant:
//!                plane::filled ─▶ Site::build ─▶ start, connect, change, load, delete ─▶ Run
//!            ─▶ Figures ─▶ goals ─▶ report: terminal, PERFORMANCE.md, performance.json, plots
//! ```
//!
//! | file | step |
//! |---|---|
//! | [`cluster`] | the Services and EndpointSlices; pure |
//! | [`plane`] | a control plane that contains them |
//! | [`api`] | writes to the API server and watches it |
//! | [`contestants`] | the programs that are measured |
//! | [`site`] | the environment of one contestant |
//! | [`packets`] | the view of a client |
//! | [`usage`] | CPU time and memory of processes |
//! | [`mod@measure`] | the measured steps |
//! | [`steps`] | criterion's measurements of single steps |
//! | [`etcd`] | writes many objects faster than through the API server |
//! | [`quiet`] | waits for an idle machine |
//! | [`figures`] | the results |
//! | [`goals`] | the goals for the results; pure |
//! | [`report`] | renders the results; pure |
//! | [`mod@scale`] | a separate benchmark in a cluster of real Deployments: from a change to a packet |
//! | [`mod@ipvs`] | a separate benchmark of two contestants that need a kernel with IPVS: only start and change |

mod api;
mod cluster;
mod contestants;
mod etcd;
mod figures;
mod goals;
mod ipvs;
mod machine;
mod measure;
mod number_text;
mod options;
mod packets;
mod plane;
mod quiet;
mod report;
mod scale;
mod site;
mod statistics;
mod steps;
mod usage;

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{ErrorKind, Write as _},
    path::Path,
    time::Duration,
};

use anyhow::Context as _;
use clap::Parser as _;
use localnet_lab::Sandbox;
use serde::{Serialize, de::DeserializeOwned};
use tokio::runtime::Runtime;

use crate::{
    cluster::Size,
    contestants::{ALL, BRAIN, EBPF, is_measured},
    figures::{Figures, Run},
    machine::Machine,
    options::{Options, RATE},
};

/// From this size on, the duration of a start is a lower bound for those of larger sizes.
const PREDICTS: u32 = 10_000;

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    usage::adopt_orphans()?;
    if let Some(page) = &options.ipvs {
        return ipvs::measure(&options, page);
    }
    if let Some(page) = &options.scale {
        return scale::measure(&options, page);
    }
    let figures = match &options.report {
        Some(path) => read(path)?,
        None => measure(&options)?,
    };
    let shares = figures.runs.iter().map(|run| (format!("{} at {}", run.contestant, run.size()), run.others_percent));
    let objection = if options.quick { None } else { quiet::objection(&figures.machine, shares) };
    // If no one reads the output, the result is still written to files.
    _ = std::io::stdout().write_all(report::print(&figures).as_bytes());
    // The figures are not lost: `--report` reads them.
    let folders = [options.output.as_path(), Path::new("target/bench/unpublished")];
    quiet::publish(objection, folders, |folder| report::write(&figures, folder))
}

fn measure(options: &Options) -> anyhow::Result<Figures> {
    let runtime = Runtime::new()?;
    let kernel = match &options.kernel {
        Some(path) => read(path)?,
        None => Vec::new(),
    };
    let mut figures = Figures {
        machine: Machine::of_this()?,
        quick: options.quick,
        rate: RATE,
        alone: Vec::new(),
        reduction: options.reduction.as_deref().map(read).transpose()?,
        replay: options.replay.as_deref().map_or_else(|| Ok(Vec::new()), read)?,
        runs: options.runs.as_deref().map_or_else(|| Ok(Vec::new()), measured)?,
        kernel,
        ebpf: options.ebpf.as_deref().map(read).transpose()?,
        steps: options.criterion.as_deref().map_or_else(|| Ok(BTreeMap::new()), steps::read)?,
    };
    for size in options.sizes() {
        for contestant in ALL {
            if !is_measured(contestant.name, size) || !options.includes(contestant.name) {
                continue;
            }
            let done = |run: &Run| run.contestant == contestant.name && run.size() == size;
            if figures.runs.iter().any(done) {
                continue;
            }
            if !may_end(&figures.runs, contestant.name, size, options.lengths(size).give_up) {
                print_progress(&format!("{} at {size}: skipped, because it would not finish in time", contestant.name));
                continue;
            }
            let measured = |runtime: &Runtime| {
                measure::run(runtime.handle(), contestant, size, &options.lengths(size), &options.cache)
            };
            // The threads of the runtime need the mounts of the sandbox.
            let run = match contestant.name {
                EBPF => Sandbox::run(|_| measured(&Runtime::new()?)),
                _ => measured(&runtime),
            };
            let run = run.with_context(|| format!("measuring {} at {size}", contestant.name))?;
            record(&run, options.runs.as_deref())?;
            figures.runs.push(run);
        }
    }
    if options.only.is_empty() || options.only.iter().any(|part| BRAIN.contains(part.as_str())) {
        for size in options.sizes_alone() {
            let alone = measure::alone::run(runtime.handle(), size, &options.lengths(size), &options.cache)
                .with_context(|| format!("measuring the brain alone at {size}"))?;
            print_progress(&serde_json::to_string(&alone)?);
            figures.alone.push(alone);
        }
    }
    Ok(figures)
}

/// Whether a contestant may start in time, judged by a smaller size. The duration of a start grows at least linearly.
fn may_end(runs: &[Run], contestant: &str, size: Size, give_up: Duration) -> bool {
    let smaller = runs.iter().rfind(|run| run.contestant == contestant && run.services >= PREDICTS);
    smaller.is_none_or(|run| {
        let factor = f64::from(size.services) / f64::from(run.services);
        run.start.as_ref().is_some_and(|start| start.took * factor <= give_up.as_secs_f64() * 1e3)
    })
}

fn read<T: DeserializeOwned>(path: &Path) -> anyhow::Result<T> {
    let text = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("reading figures from {}", path.display()))
}

/// The runs of an interrupted benchmark, one per line.
fn measured<T: DeserializeOwned>(path: &Path) -> anyhow::Result<Vec<T>> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        text => text.with_context(|| format!("reading {}", path.display()))?,
    };
    let runs: Result<Vec<T>, _> = text.lines().map(serde_json::from_str).collect();
    runs.with_context(|| format!("reading runs from {}", path.display()))
}

/// Prints a run, and adds it to the file of an interruptible benchmark.
fn record(run: &impl Serialize, path: Option<&Path>) -> anyhow::Result<()> {
    let line = serde_json::to_string(run)?;
    print_progress(&line);
    if let Some(path) = path {
        let mut file = File::options().create(true).append(true).open(path)?;
        writeln!(file, "{line}").with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

/// Prints progress.
fn print_progress(line: &str) {
    // A closed standard error is not a failure.
    _ = writeln!(std::io::stderr(), "{line}");
}
