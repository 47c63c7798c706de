//! `docs/PERFORMANCE.md`. Pure.

use std::fmt::Write as _;

use super::{PLOTS, tables};
use crate::{contestants::ALL, figures::Figures, goals::Judged};

/// The page. `plots`: the names of the pictures beside it.
pub(crate) fn page(figures: &Figures, goals: &[Judged], plots: &[&str]) -> String {
    let machine = &figures.machine;
    let mut page = String::from(
        "# Performance\n\n\
         Written by `make bench`, together with [performance.json](performance.json) and the plots: no figure here is typed by hand. \
         To have it anew: `make bench` as root (`QUICK=1` only shows that all works, and writes to `target/bench`).\n\n",
    );
    // Writing to a text cannot fail, here and below.
    _ = write!(
        page,
        "## What is measured\n\n\
         The programs as shipped (release build), one after the other, each in a fresh network namespace and against a fresh etcd and \
         kube-apiserver that hold the same Services and EndpointSlices: {}. kube-proxy has its defaults. Its iptables mode and \
         localnet-iptables use the legacy tools: with the nf_tables flavour kube-proxy does not end in time. A contestant is left out of a size at which it would not be complete \
         within three minutes, as its start at a smaller one shows.\n\n\
         A contestant is only seen by packets: new TCP connections from a pod of the node, every 0.2 ms while a change is awaited. For changes \
         a Service moves between two pods, of which one listens and one does not. Nothing that a contestant says of itself is used, except for \
         CPU time and memory, which the kernel tells.\n\n\
         Each table says what its columns mean. p99 of fewer than 100 values is their greatest.\n\n",
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
    row("used by others meanwhile", &others(figures));
    page += "\nOther machines give other times: compare within one run.\n\n";
    _ = write!(page, "## Figures to reach\n\n{}\n", tables::goals(goals).markdown());
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

/// What else the machine did.
fn others(figures: &Figures) -> String {
    let shares = || figures.runs.iter().map(|run| run.others_percent);
    let (least, most) = (shares().fold(f64::MAX, f64::min), shares().fold(0.0, f64::max));
    if figures.runs.is_empty() {
        return "–".to_owned();
    }
    let busy = if most > 10.0 { ": **the machine was not idle, times are too long**" } else { "" };
    format!("{least:.0} to {most:.0} % of all processors, by run{busy}")
}
