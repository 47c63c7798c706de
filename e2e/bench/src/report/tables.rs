//! The figures as tables, for the terminal and for the page. Pure.

use std::{collections::BTreeMap, fmt::Write as _};

use crate::{
    contestants::{ALL, Role},
    figures::{Change, Figures, Memory, Run},
    goals::Judged,
    number_text::{memory, or_dash, ratio, time},
};

/// A table with a head.
pub(crate) struct Table {
    pub(crate) title: &'static str,
    /// What the reader needs to know to understand the table.
    pub(crate) note: &'static str,
    head: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    fn new(title: &'static str, note: &'static str, head: &[&'static str]) -> Self {
        Self { title, note, head: head.to_vec(), rows: Vec::new() }
    }

    /// The table as plain text, for a terminal.
    pub(crate) fn plain(&self) -> String {
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            cells.chain([self.head[column].chars().count()]).max().unwrap_or_default()
        };
        let widths: Vec<usize> = (0..self.head.len()).map(width).collect();
        let line = |cells: Vec<&str>| {
            let padded: Vec<String> =
                cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
            format!("{}\n", padded.join("  ").trim_end())
        };
        let mut text = format!("{}\n{}", self.title, line(self.head.clone()));
        for row in &self.rows {
            text += &line(row.iter().map(String::as_str).collect());
        }
        text
    }

    /// The table in Markdown, for a page.
    pub(crate) fn markdown(&self) -> String {
        let mut text = format!("| {} |\n|{}\n", self.head.join(" | "), "---|".repeat(self.head.len()));
        for row in &self.rows {
            // Writing to a string cannot fail.
            _ = writeln!(text, "| {} |", row.join(" | "));
        }
        text
    }
}

/// The table of goals and measurements.
pub(crate) fn goals(goals: &[Judged]) -> Table {
    let mut table = Table::new("Goals", "", &["what", "goal", "measured", ""]);
    for goal in goals {
        let verdict = match goal.met {
            Some(true) => "met",
            Some(false) => "**missed**",
            None => "–",
        };
        table.rows.push(vec![goal.what.to_owned(), goal.goal.to_owned(), goal.measured.clone(), verdict.to_owned()]);
    }
    table
}

/// All other tables. Empty ones are omitted.
pub(crate) fn all(figures: &Figures) -> Vec<Table> {
    let tables = [
        start(figures),
        change(figures),
        load(figures),
        resident(figures),
        connect(figures),
        delete(figures),
        readers(figures),
        repair(figures),
        kernel(figures),
        steps(figures),
    ];
    tables.into_iter().filter(|table| !table.rows.is_empty()).collect()
}

/// Adds one row for each run, preceded by the size and the contestant. The second argument of `row` is our run of the same size.
fn each(figures: &Figures, mut table: Table, row: impl Fn(&Run, Option<&Run>) -> Option<Vec<String>>) -> Table {
    for (services, endpoints) in figures.sizes() {
        let ours = ALL.iter().find(|one| one.role == Role::Ours).and_then(|one| figures.run(one.name, services));
        for run in figures.runs.iter().filter(|run| run.services == services) {
            if let Some(cells) = row(run, ours) {
                let front = [format!("{services}x{endpoints}"), run.contestant.clone()];
                table.rows.push(front.into_iter().chain(cells).collect());
            }
        }
    }
    table
}

fn start(figures: &Figures) -> Table {
    let table = Table::new(
        "Start → every Service answers",
        "From the start of the programs, against a live API server that has all objects, until 33 Services, from the \
         first to the last, each answer a packet. All others are checked afterwards; if one is missing, \
         the time extends until it answers.",
        &["size", "contestant", "time", "relative to localnet-nft", "CPU time"],
    );
    each(figures, table, |run, ours| {
        let ours = ours.and_then(|ours| ours.start.as_ref());
        Some(match &run.start {
            Some(start) => {
                vec![time(start.took), or_dash(ours.map(|ours| ratio(start.took, ours.took))), time(start.cpu)]
            }
            None => vec!["given up".to_owned(), "–".to_owned(), "–".to_owned()],
        })
    })
}

fn repair(figures: &Figures) -> Table {
    let table = Table::new(
        "Flush by another program → repaired",
        "From the end of a command that deletes the rules (`nft delete table ip localnet`, `iptables-legacy -t nat \
         -F`) until the first and the last Service answer again.",
        &["size", "contestant", "flushes", "p50", "p99", "longest"],
    );
    each(figures, table, |run, _| {
        let times = run.repair?;
        Some(vec![times.n.to_string(), time(times.p50), time(times.p99), time(times.max)])
    })
}

fn quantiles(change: &Change) -> [String; 5] {
    let pair = |low, high| format!("{} / {}", time(low), time(high));
    let lost = if change.lost == 0 { String::new() } else { format!(", {} not seen", change.lost) };
    [
        pair(change.event.p50, change.event.p99),
        pair(change.write.p50, change.write.p99),
        time(change.event.max),
        format!("{}{lost}", change.event.n),
        String::new(),
    ]
}

fn change(figures: &Figures) -> Table {
    let table = Table::new(
        "One endpoint changed → packets go elsewhere",
        "Nothing else changes. “Event” counts from the moment when the API server announces the change: in its answer to the \
         write, or in a watch event to a third client. “Write” counts from the request to the API server.",
        &[
            "size",
            "contestant",
            "event p50 / p99",
            "write p50 / p99",
            "event max",
            "n",
            "relative to localnet-nft (p50)",
        ],
    );
    each(figures, table, |run, ours| {
        let change = run.change.as_ref()?;
        let mut cells = quantiles(change);
        let ours = ours.and_then(|ours| ours.change.as_ref());
        cells[4] = or_dash(ours.map(|ours| ratio(change.event.p50, ours.event.p50)));
        Some(cells.to_vec())
    })
}

fn load(figures: &Figures) -> Table {
    let table = Table::new(
        "One endpoint changed while many other Services change",
        "Each of the other changes is a write to the API server that replaces one endpoint of another Service. “Rate” \
         is the number of writes that the API server accepted per second. “CPU” is that of the contestant with its \
         child processes, beside that of the control plane and the benchmark on the same processors; 100 % is one \
         processor.",
        &[
            "size",
            "contestant",
            "rate",
            "event p50 / p99",
            "write p50 / p99",
            "event max",
            "n",
            "CPU",
            "relative to localnet-nft (p50)",
        ],
    );
    each(figures, table, |run, ours| {
        let load = run.load.as_ref()?;
        let dash = || "–".to_owned();
        let [event, write, max, n, _] = load.change.as_ref().map_or_else(|| [(); 5].map(|()| dash()), quantiles);
        let of = |run: &Run| Some(run.load.as_ref()?.change?.event.p50);
        let against = of(run).zip(ours.and_then(of)).map(|(theirs, ours)| ratio(theirs, ours));
        let [cpu, beside] =
            [load.cpu_per_second, load.surroundings_per_second].map(|cpu| format!("{:.0} %", cpu * 100.0));
        let cpu = format!("{cpu} beside {beside}");
        Some(vec![format!("{:.0}", load.rate), event, write, max, n, cpu, or_dash(against)])
    })
}

fn resident(figures: &Figures) -> Table {
    let table = Table::new(
        "Memory",
        "Resident memory of each process after the start, after the load, and at its peak. The iptables tools and the \
         kernel's own memory are not included.",
        &["size", "contestant", "process", "after start", "after load", "peak"],
    );
    let mut table = table;
    for (services, endpoints) in figures.sizes() {
        for run in figures.runs.iter().filter(|run| run.services == services) {
            let Some(start) = &run.start else { continue };
            let after_load = run.load.as_ref().map(|load| &load.memory);
            for (process, after_start) in &start.memory {
                let later: Option<&Memory> = after_load.and_then(|all: &BTreeMap<String, Memory>| all.get(process));
                let peak = later.unwrap_or(after_start).peak;
                table.rows.push(vec![
                    format!("{services}x{endpoints}"),
                    run.contestant.clone(),
                    process.clone(),
                    memory(after_start.resident),
                    or_dash(later.map(|later| memory(later.resident))),
                    memory(peak),
                ]);
            }
        }
    }
    table
}

fn connect(figures: &Figures) -> Table {
    let table = Table::new(
        "A new TCP connection",
        "From a pod of the node to an endpoint on another node; medians. “Bare” connects directly, before the \
         contestant is started. “Direct” does so with the contestant's rules, alternating with three VIPs. “First”, \
         “middle” and “last” are VIPs in the order of their addresses. kube-proxy's iptables rules are a list in \
         another order, which changes with each full sync; direct connections pass the list as well.",
        &["size", "contestant", "bare", "direct", "first", "middle", "last", "slowest − direct", "slowest − bare"],
    );
    each(figures, table, |run, _| {
        let connect = run.connect?;
        let micros = |micros: f64| format!("{micros:.1} µs");
        let all =
            [connect.bare_us, connect.direct_us, connect.first_us, connect.middle_us, connect.last_us].map(micros);
        let more = [connect.direct_us, connect.bare_us].map(|than| format!("{:+.1} µs", connect.slowest_us() - than));
        Some(all.into_iter().chain(more).collect())
    })
}

fn delete(figures: &Figures) -> Table {
    let table = Table::new(
        "Everything deleted → nothing answers",
        "The benchmark deletes all Services and all EndpointSlices with one request each. “After” counts from the API \
         server's last answer.",
        &["size", "contestant", "API server", "after", "CPU time"],
    );
    each(figures, table, |run, _| {
        let delete = run.delete?;
        let after = delete.after.map_or_else(|| "given up".to_owned(), time);
        Some(vec![time(delete.api), after, time(delete.cpu)])
    })
}

fn readers(figures: &Figures) -> Table {
    let table = Table::new(
        "Many readers",
        "All readers read from the backend's brain. A stalled reader starts to read a full state and then stops \
         reading.",
        &[
            "size",
            "contestant",
            "readers (stalled)",
            "brain without / with",
            "change p50 / p99 without",
            "with",
            "spread p50 / p99",
        ],
    );
    each(figures, table, |run, _| {
        let readers = run.readers?;
        let pair = |times: crate::statistics::Times| format!("{} / {}", time(times.p50), time(times.p99));
        Some(vec![
            format!("{} ({})", readers.readers, readers.stalled),
            format!("{} / {}", memory(readers.memory[0]), memory(readers.memory[1])),
            pair(readers.change[0]),
            pair(readers.change[1]),
            pair(readers.spread),
        ])
    })
}

fn kernel(figures: &Figures) -> Table {
    let mut table = Table::new(
        "nft: empty kernel → all rules, from a state in memory",
        "In one process, without brain and API server. For comparison, `nft -f` loads the same tables as text.",
        &["size", "median", "longest commit", "nft -f", "relative to localnet"],
    );
    for kernel in &figures.kernel {
        table.rows.push(vec![
            format!("{}x{}", kernel.services, kernel.endpoints),
            time(kernel.median),
            time(kernel.longest),
            or_dash(kernel.nft.map(time)),
            or_dash(kernel.nft.map(|nft| ratio(nft, kernel.median))),
        ]);
    }
    table
}

fn steps(figures: &Figures) -> Table {
    let mut table = Table::new("Single steps", "In memory, measured with criterion.", &["step", "time"]);
    for (name, nanoseconds) in &figures.steps {
        table.rows.push(vec![name.clone(), time(nanoseconds / 1e6)]);
    }
    table
}
