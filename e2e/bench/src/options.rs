//! The options: what to measure, and for how long.

use std::{path::PathBuf, time::Duration};

use clap::Parser;

use crate::{cluster::Size, quiet};

/// Measures localnet beside kube-proxy, in network namespaces of its own (needs root).
#[derive(Debug, Parser)]
#[command(name = "localnet-bench", version)]
pub(crate) struct Options {
    /// Small and short: to see that all works, not to compare
    #[arg(long)]
    pub(crate) quick: bool,
    /// Services and endpoints of each, such as 10000x3; may be given several times [default: 10x3 1x5000 100x500 1000x3 5000x3-affinity 10000x3 45000x2; quick: 10x3 1000x3]
    #[arg(long, value_name = "SIZE")]
    pub(crate) size: Vec<Size>,
    /// Only contestants with this in their name; may be given several times
    #[arg(long, value_name = "NAME")]
    pub(crate) only: Vec<String>,
    /// Where filled control planes are kept
    #[arg(long, value_name = "FOLDER", default_value = ".cache/bench")]
    pub(crate) cache: PathBuf,
    /// Where the figures go: performance.json, PERFORMANCE.md and a folder of plots
    #[arg(long, value_name = "FOLDER", default_value = "target/bench")]
    pub(crate) output: PathBuf,
    /// Add each run to this file, and do not measure the runs in it again, so that an interrupted benchmark can continue
    #[arg(long, value_name = "FILE")]
    pub(crate) runs: Option<PathBuf>,
    /// Instead, measure localnet-ipvs beside kube-proxy's ipvs mode, in a guest if this kernel has no IPVS, and write the figures into this
    /// page [size: those given, or 1000x3 and 10000x3; quick: 1000x3]
    #[arg(long, value_name = "FILE")]
    pub(crate) ipvs: Option<PathBuf>,
    /// Instead, measure how long after the change of a Deployment packets reach its new pods, and write the figures as this page
    /// [size: that given, or 5000x10; quick: 200x10]
    #[arg(long, value_name = "FILE")]
    pub(crate) scale: Option<PathBuf>,
    /// What `cargo bench -p localnet-nft` wrote
    #[arg(long, value_name = "FILE")]
    pub(crate) kernel: Option<PathBuf>,
    /// What `cargo bench -p localnet-bench --bench ebpf` wrote
    #[arg(long, value_name = "FILE")]
    pub(crate) ebpf: Option<PathBuf>,
    /// What `cargo bench -p localnet-bench --bench reduction` wrote
    #[arg(long, value_name = "FILE")]
    pub(crate) reduction: Option<PathBuf>,
    /// What `cargo bench -p localnet-bench --bench replay` wrote
    #[arg(long, value_name = "FILE")]
    pub(crate) replay: Option<PathBuf>,
    /// The folder that criterion wrote to
    #[arg(long, value_name = "FOLDER")]
    pub(crate) criterion: Option<PathBuf>,
    /// Write the report of figures that were measured before, and measure nothing
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
}

impl Options {
    /// Whether to measure the contestant with this name.
    pub(crate) fn includes(&self, contestant: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| contestant.contains(part.as_str()))
    }

    pub(crate) fn sizes(&self) -> Vec<Size> {
        let size = Size::new;
        match (self.size.is_empty(), self.quick) {
            (false, _) => self.size.clone(),
            (true, true) => vec![size(10, 3), size(1_000, 3)],
            (true, false) => vec![
                size(10, 3),
                size(1, 5_000),
                size(100, 500),
                size(1_000, 3),
                Size { affinity: true, ..size(5_000, 3) },
                size(10_000, 3),
                size(45_000, 2),
            ],
        }
    }

    /// The sizes at which the brain is measured alone.
    pub(crate) fn sizes_alone(&self) -> Vec<Size> {
        let size = Size::new;
        if self.quick { vec![size(1_000, 10)] } else { vec![size(10_000, 3), size(100_000, 5), size(10_000, 100)] }
    }

    pub(crate) fn lengths(&self, size: Size) -> Lengths {
        // A few Services only serve to compare connections.
        if self.quick || size.services < 1_000 || !size.is_usual() {
            Lengths {
                give_up: Duration::from_secs(60),
                changes: 20,
                changing: Duration::from_secs(15),
                rate: RATE,
                load: Duration::from_secs(6),
                connections: 2_000,
                traffic: Duration::from_secs(1),
                repairs: 20,
                repairs_of_others: 20,
                repairing: Duration::from_secs(60),
                kills: 5,
                kills_of_others: 2,
                patience: (!self.quick).then_some(PATIENCE),
            }
        } else {
            // At the size in the goals, there is time for more.
            let is_main = size.services == MAIN;
            let seconds = |main, other| Duration::from_secs(if is_main { main } else { other });
            Lengths {
                give_up: Duration::from_secs(180),
                changes: 200,
                changing: seconds(75, 20),
                rate: RATE,
                load: seconds(30, 15),
                connections: 10_000,
                traffic: seconds(5, 2),
                repairs: if is_main { 200 } else { 20 },
                repairs_of_others: 20,
                repairing: Duration::from_secs(300),
                kills: 100,
                kills_of_others: 3,
                patience: Some(PATIENCE),
            }
        }
    }
}

/// Changes per second of the load.
pub(crate) const RATE: u32 = 1_000;

/// The number of Services in most goals.
pub(crate) const MAIN: u32 = 10_000;

const PATIENCE: Duration = Duration::from_secs(600);

/// Durations and counts of the steps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lengths {
    /// Maximum time for the start, and for the end.
    pub(crate) give_up: Duration,
    /// Maximum number of single changes.
    pub(crate) changes: usize,
    /// Maximum time for all single changes.
    pub(crate) changing: Duration,
    /// Changes per second of the load.
    pub(crate) rate: u32,
    /// Duration of the load.
    pub(crate) load: Duration,
    /// The number of connections through each VIP.
    pub(crate) connections: usize,
    /// How long each kind of traffic goes to each destination.
    pub(crate) traffic: Duration,
    /// The number of flushes that localnet-nft repairs, and each other backend of ours, which may need seconds.
    pub(crate) repairs: usize,
    pub(crate) repairs_of_others: usize,
    /// Maximum time for all repairs. The last one may end later.
    pub(crate) repairing: Duration,
    /// How often each program of localnet-nft is killed, and each program of the others, which may need a minute to recover.
    pub(crate) kills: usize,
    pub(crate) kills_of_others: usize,
    /// Maximum time to wait for an idle machine. `None` if it need not be idle.
    pub(crate) patience: Option<Duration>,
}

impl Lengths {
    /// Waits for an idle machine.
    pub(crate) fn await_idle(&self) -> anyhow::Result<()> {
        match self.patience {
            Some(patience) => quiet::wait(patience),
            None => quiet::settle().map(|_| ()),
        }
    }
}
