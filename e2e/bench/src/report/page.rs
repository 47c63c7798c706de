//! Renders `docs/PERFORMANCE.md`. Pure.

use std::fmt::Write as _;

use super::{PLOTS, tables};
use crate::{contestants::ALL, figures::Figures, goals::Judged};

/// The page. `plots` contains the file names of the plots.
pub(crate) fn page(figures: &Figures, goals: &[Judged], plots: &[&str]) -> String {
    let machine = &figures.machine;
    let mut page = String::from(
        "# Performance\n\n\
         This page compares the speed and memory of localnet and kube-proxy. `make bench` measures both in one run, as root, \
         and writes this page, [performance.json](performance.json) and the plots. `QUICK=1` only checks that the benchmark \
         works, and writes to `target/bench`.\n\n",
    );
    // Writing to a string cannot fail, here and below.
    _ = write!(
        page,
        "## What is measured\n\n\
         The benchmark runs the programs as shipped (release build), one after the other. Each gets a fresh network \
         namespace, and a fresh etcd and kube-apiserver with the same Services and EndpointSlices. The contestants are {}. \
         kube-proxy has its default configuration. Its iptables mode and localnet-iptables use the legacy tools, because kube-proxy does not finish in time with \
         the nf_tables flavour. The benchmark skips a contestant at sizes where, judging by its start at a smaller \
         size, it would need more than three minutes.\n\n\
         Only packets count: new TCP connections from a pod of the node, one every 0.2 ms while a change is pending. \
         To measure a change, the benchmark moves a Service between two pods; one of them listens, the other does not. \
         CPU time and memory come from the kernel. Reports of the contestants themselves are not used.\n\n\
         Sizes are Services × endpoints of each. With fewer than 100 values, p99 is the maximum.\n\n",
        ALL.iter().map(|contestant| contestant.name).collect::<Vec<_>>().join(", "),
    );
    page += "## Machine\n\n| | |\n|---|---|\n";
    let mut row = |name: &str, value: &str| _ = writeln!(page, "| {name} | {value} |");
    row("date, commit", &format!("{}, {}", machine.date, machine.revision));
    row("processors", &format!("{} × {}", machine.processors, machine.processor));
    row("memory", &format!("{:.0} GiB", machine.memory_gib));
    row("kernel", &machine.kernel);
    for (name, version) in &machine.versions {
        row(name, version);
    }
    row("CPU used by other programs during the runs", &others(figures));
    page += "\nTimes depend on the machine: compare only within one run.\n\n";
    _ = write!(page, "## Goals\n\n{}\n", tables::goals(goals).markdown());
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

/// The share of other programs in the machine's CPU time.
fn others(figures: &Figures) -> String {
    let shares = || figures.runs.iter().map(|run| run.others_percent);
    let (least, most) = (shares().fold(f64::MAX, f64::min), shares().fold(0.0, f64::max));
    if figures.runs.is_empty() {
        return "–".to_owned();
    }
    let busy = if most > 10.0 { ": **the machine was not idle, so times are too long**" } else { "" };
    format!("{least:.0} to {most:.0} % of all processors, depending on the run{busy}")
}
