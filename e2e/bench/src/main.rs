//! The benchmark beside kube-proxy: the programs as shipped, a real API server, a real kernel, packets as the only witness.
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
//! | [`plane`] | a control plane that holds them |
//! | [`api`] | writes to it, watches it |
//! | [`contestants`] | who programs the node |
//! | [`site`] | the place of one contestant |
//! | [`packets`] | what a client sees |
//! | [`usage`] | what processes spend |
//! | [`mod@measure`] | the steps |
//! | [`steps`] | what criterion measured of steps alone |
//! | [`figures`] | what came of them |
//! | [`goals`] | what should have come of them; pure |
//! | [`report`] | how it is told; pure |

mod api;
mod cluster;
mod contestants;
mod figures;
mod goals;
mod machine;
mod measure;
mod options;
mod packets;
mod plane;
mod report;
mod site;
mod statistics;
mod steps;
mod usage;

use std::{collections::BTreeMap, fs, io::Write as _, path::Path};

use anyhow::Context as _;
use clap::Parser as _;
use serde::de::DeserializeOwned;

use crate::{
    contestants::ALL,
    figures::Figures,
    machine::Machine,
    options::{Options, RATE},
};

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let figures = match &options.report {
        Some(path) => read(path)?,
        None => measure(&options)?,
    };
    report::write(&figures, &options.output)?;
    // Nobody to read it: it is written down, too.
    _ = std::io::stdout().write_all(report::print(&figures).as_bytes());
    Ok(())
}

fn measure(options: &Options) -> anyhow::Result<Figures> {
    let runtime = tokio::runtime::Runtime::new()?;
    let kernel = match &options.kernel {
        Some(path) => read(path)?,
        None => Vec::new(),
    };
    let mut figures = Figures {
        machine: Machine::of_this()?,
        quick: options.quick,
        rate: RATE,
        runs: Vec::new(),
        kernel,
        steps: options.criterion.as_deref().map_or_else(|| Ok(BTreeMap::new()), steps::read)?,
    };
    for size in options.sizes() {
        for contestant in ALL {
            if !options.only.is_empty() && !options.only.iter().any(|part| contestant.name.contains(part.as_str())) {
                continue;
            }
            let run = measure::run(runtime.handle(), contestant, size, &options.lengths(size), &options.cache)
                .with_context(|| format!("measuring {} at {size}", contestant.name))?;
            say(&serde_json::to_string(&run)?);
            figures.runs.push(run);
        }
    }
    Ok(figures)
}

fn read<T: DeserializeOwned>(path: &Path) -> anyhow::Result<T> {
    let text = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("reading figures from {}", path.display()))
}

/// Tells the person who waits.
fn say(line: &str) {
    // Nobody to read it: that is no reason to fail.
    _ = writeln!(std::io::stderr(), "{line}");
}
