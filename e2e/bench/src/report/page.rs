//! Renders `docs/PERFORMANCE.md`. Pure.

use std::fmt::Write as _;

use super::{PLOTS, tables};
use crate::{
    contestants::{ALL, is_measured},
    figures::Figures,
    goals::Judged,
    machine::Machine,
};

/// The page. `plots` contains the file names of the plots.
pub(crate) fn page(figures: &Figures, goals: &[Judged], plots: &[&str]) -> String {
    let mut page = String::from(
        "# Performance\n\n\
         This page compares the speed and memory of localnet and kube-proxy. To measure both, run `make bench` as \
         root. The command writes this page, [performance.json](performance.json) and the plots. `make bench QUICK=1` \
         only checks that the benchmark works, and writes to `target/bench`. A separate benchmark, `make bench-scale`, \
         measures how long after a change of a Deployment packets reach its new pods, with the real controllers of \
         Kubernetes. It writes [another page](scale.md).\n\n",
    );
    // Writing to a string cannot fail, here and below.
    _ = write!(
        page,
        "## What is measured\n\n\
         The contestants are {}. Each localnet contestant is the named backend and a brain, which watches the API \
         server and computes the node's state. localnet-ebpf runs beside localnet-nft. Each kube-proxy contestant is kube-proxy in the named mode, with its \
         default configuration. The iptables contestants use the legacy iptables tools, or those of the nf_tables \
         flavour if their names say so. All programs are release builds. The benchmark \
         measures one contestant after the other, each with a new network namespace, a new etcd and a new \
         kube-apiserver, but with the same Services and EndpointSlices. If a contestant's start at one size shows \
         that its start at a larger size would take more than three minutes, the benchmark skips the larger size.\n\n\
         The benchmark relies only on packets, not on reports of the contestants, to determine when a contestant \
         has applied a change. To measure a change, the benchmark replaces the only endpoint of a Service: a pod \
         that listens replaces a pod that does not listen, or the reverse. During the change, a pod opens a TCP \
         connection to the Service every 0.2 ms, until the answer shows that the packets go to the new endpoint. \
         CPU times and memory sizes come from the kernel.\n\n\
         The size 10000x3 means 10,000 Services with 3 endpoints each. With “affinity”, these Services have session affinity. n is the number of measured changes. If n is \
         less than 100, p99 is the maximum.\n\n",
        ALL.iter().map(|contestant| contestant.name).collect::<Vec<_>>().join(", "),
    );
    let missing = missing(figures);
    if !missing.is_empty() {
        _ = write!(page, "This run has no figures for {}.\n\n", missing.join(", "));
    }
    page += &machine(&figures.machine, figures.runs.iter().map(|run| run.others_percent));
    page += "\nTimes depend on the machine and on its load: compare a time only with other times on this page.\n\n";
    _ = write!(page, "## Goals\n\n{}\n", tables::goals(goals).markdown());
    if goals.iter().any(|goal| goal.met == Some(false)) {
        page +=
            "[Decision 32](decisions/0032-missed-goals.md) explains what stands in the way of the missed goals.\n\n";
    }
    for name in plots {
        _ = writeln!(page, "![{name}]({PLOTS}/{name}.svg)");
    }
    for table in tables::all(figures) {
        _ = write!(page, "\n## {}\n\n", table.title);
        if !table.note.is_empty() {
            _ = write!(page, "{}\n\n", table.note);
        }
        page += &table.markdown();
    }
    page
}

/// The contestants and sizes without figures.
fn missing(figures: &Figures) -> Vec<String> {
    let sizes = figures.sizes();
    let pairs = ALL.iter().flat_map(|contestant| sizes.iter().map(move |size| (contestant.name, *size)));
    let pairs = pairs.filter(|(name, size)| is_measured(name, *size));
    let has = |name: &str, size| figures.runs.iter().any(|run| run.contestant == name && run.size() == size);
    pairs.filter(|(name, size)| !has(name, *size)).map(|(name, size)| format!("{name} at {size}")).collect()
}

/// The machine, with the shares of its CPU time in percent that other programs used.
pub(crate) fn machine(machine: &Machine, shares: impl Iterator<Item = f64> + Clone) -> String {
    let mut text = "## Machine\n\n| | |\n|---|---|\n".to_owned();
    let mut row = |name: &str, value: &str| _ = writeln!(text, "| {name} | {value} |");
    row("date, commit", &format!("{}, {}", machine.date, machine.revision));
    row("processors", &format!("{} × {}", machine.processors, machine.processor));
    row("memory", &format!("{:.0} GiB", machine.memory_gib));
    row("kernel", &machine.kernel);
    for (name, version) in &machine.versions {
        row(name, version);
    }
    row("CPU time that other programs used during the measurements", &others(shares));
    text
}

/// The share of other programs in the machine's CPU time.
fn others(shares: impl Iterator<Item = f64> + Clone) -> String {
    let (least, most) = (shares.clone().fold(f64::MAX, f64::min), shares.fold(0.0, f64::max));
    if least > most {
        return "–".to_owned();
    }
    let busy = if most > 10.0 {
        ": **the machine was not idle, so the times are longer than on an idle machine**"
    } else {
        ""
    };
    format!("{least:.0} to {most:.0} % of all processors' time, depending on the contestant and the size{busy}")
}
