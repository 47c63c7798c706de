//! The figures as tables, for the terminal and for the page. Pure.

use std::{collections::BTreeMap, fmt::Write as _};

use crate::{
    contestants::{ALL, Role},
    figures::{Change, Figures, Memory, Run, Traffic},
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
    pub(crate) fn new(title: &'static str, note: &'static str, head: &[&'static str]) -> Self {
        Self { title, note, head: head.to_vec(), rows: Vec::new() }
    }

    pub(crate) fn with(mut self, rows: impl Iterator<Item = Vec<String>>) -> Self {
        self.rows.extend(rows);
        self
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
        traffic(figures),
        delete(figures),
        readers(figures),
        repair(figures),
        kills(figures),
        alone(figures),
        reduction(figures),
        replay(figures),
        kernel(figures),
        ebpf(figures),
        steps(figures),
    ];
    tables.into_iter().filter(|table| !table.rows.is_empty()).collect()
}

/// Adds one row for each run, preceded by the size and the contestant. The second argument of `row` is our run of the same size.
fn each(figures: &Figures, mut table: Table, row: impl Fn(&Run, Option<&Run>) -> Option<Vec<String>>) -> Table {
    let is_ours = |run: &&Run| ALL.iter().any(|one| one.role == Role::Ours && one.name == run.contestant);
    for size in figures.sizes() {
        let runs = || figures.runs.iter().filter(|run| run.size() == size);
        let ours = runs().find(is_ours);
        for run in runs() {
            if let Some(cells) = row(run, ours) {
                let front = [size.to_string(), run.contestant.clone()];
                table.rows.push(front.into_iter().chain(cells).collect());
            }
        }
    }
    table
}

fn start(figures: &Figures) -> Table {
    let table = Table::new(
        "Start → every Service answers",
        "The API server is running and contains all objects. The time begins when the benchmark starts the programs of \
         the contestant. It ends when 33 Services, evenly spread over the list of Services, have answered (at size \
         10x3: all 10). If the benchmark then finds a Service that does not answer yet, the time ends when that \
         Service answers.",
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
        "The time begins when a command that deletes the rules (`nft delete table ip localnet`, `iptables -t nat \
         -F`) has ended. It ends when both the first and the last Service answer again.",
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
        "Nothing else changes during this measurement. Both times of a change end when a packet goes to the new \
         endpoint. The “write” time begins when the benchmark sends the change to the API server. The “event” time \
         begins when the API server first announces the change to the benchmark, in a response or a watch event.",
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
        "“Event”, “write” and n are as in the previous table. Each of the other changes replaces one endpoint of \
         another Service. “Rate” is the number of these other changes that the API server accepted per second. “CPU” \
         has two numbers, both in percent of one processor: the processor use of the contestant, and then that of the \
         control plane and the benchmark. “Not seen” is the number of changes after which no packet went to the new endpoint \
         within 60 s.",
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
        "The table shows the resident memory of each process after the measurement of the start, and after the \
         measurement with many other changes (“load”). “Peak” is the largest value until the end of the second \
         measurement. The memory of the iptables tools and of the kernel is not included.",
        &["size", "contestant", "process", "after start", "after load", "peak"],
    );
    let mut table = table;
    for size in figures.sizes() {
        for run in figures.runs.iter().filter(|run| run.size() == size) {
            let Some(start) = &run.start else { continue };
            let after_load = run.load.as_ref().map(|load| &load.memory);
            for (process, after_start) in &start.memory {
                let later: Option<&Memory> = after_load.and_then(|all: &BTreeMap<String, Memory>| all.get(process));
                let peak = later.unwrap_or(after_start).peak;
                table.rows.push(vec![
                    size.to_string(),
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
        "The table shows the median time in which a pod opens a TCP connection to an endpoint on another node. “Bare” \
         and “direct” connect to the endpoint's own address: “bare” before the start of the contestant, “direct” while \
         the contestant's rules are in the kernel. “First”, “middle” and “last” connect to the first, middle and last \
         VIP in the order of their addresses. “Slowest” is the largest of these three medians. In mode iptables, \
         kube-proxy's rules for all VIPs form one list, whose order differs from that of the addresses. Direct \
         connections also traverse this list.",
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

fn traffic(figures: &Figures) -> Table {
    let table = Table::new(
        "Connection rate and throughput",
        "A pod sends to a server on another node, directly and through a VIP: TCP connections one after the other, one TCP \
         connection that is kept full, and UDP datagrams of 1,400 bytes. The table shows what arrives at the server. Sender \
         and server share the processors of the machine.",
        &["size", "contestant", "connections per second: direct / VIP", "TCP: direct / VIP", "UDP: direct / VIP"],
    );
    each(figures, table, |run, _| {
        let Traffic { direct, vip } = run.traffic?;
        let gigabits = |direct: f64, vip: f64| format!("{:.2} / {:.2} Gbit/s", direct / 1e3, vip / 1e3);
        Some(vec![
            format!("{:.0} / {:.0}", direct.connections, vip.connections),
            gigabits(direct.tcp_megabits, vip.tcp_megabits),
            gigabits(direct.udp_megabits, vip.udp_megabits),
        ])
    })
}

fn delete(figures: &Figures) -> Table {
    let table = Table::new(
        "Everything deleted → nothing answers",
        "The benchmark deletes every Service and EndpointSlice with a separate request. “API server” is the time until \
         the API server has answered all requests. “After” is the additional time until none of 33 Services (at size \
         10x3: 10) answers. It is “0 µs” if these Services stopped answering earlier.",
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
        "A reader is a client that gets the node's state from the brain, as a backend does. The benchmark connects \
         additional readers to the brain. “Without” and “with” mean without and with these readers. A stalled reader \
         stops reading during its first answer. “Change” is the “event” time of one changed endpoint, as above. \
         “Spread” is the time between the first and the last reader to receive the same change; stalled readers do not \
         count.",
        &[
            "size",
            "contestant",
            "readers (stalled)",
            "brain's memory without / with",
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

fn kills(figures: &Figures) -> Table {
    let table = Table::new(
        "Programs killed under load",
        "The benchmark kills each program of the contestant with SIGKILL again and again, and starts it again at once. A pod \
         opens 500 TCP connections per second to a sample of the Services. “Failed” is the number of connections that were not \
         accepted. “Recovery” is the time from the start of the program until the change of an endpoint, which the \
         benchmark writes at that moment, has reached packets. The benchmark gives up after 60 s.",
        &["size", "contestant", "kills", "connections", "failed", "recovery p50 / p99"],
    );
    each(figures, table, |run, _| {
        let kills = run.kills?;
        let recovery = kills.recovery.map_or_else(
            || "given up".to_owned(),
            |recovery| format!("{} / {}", time(recovery.p50), time(recovery.p99)),
        );
        Some(vec![kills.kills.to_string(), kills.connections.to_string(), kills.failed.to_string(), recovery])
    })
}

fn alone(figures: &Figures) -> Table {
    let mut table = Table::new(
        "The brain alone",
        "No backend runs. One reader requests the state. “Start” is the time from the start of the brain until the reader \
         has the whole state. “Change” is the time of one changed endpoint, from the API server's first message until the \
         reader has the change. The memory is that after the start.",
        &[
            "size",
            "start",
            "CPU time",
            "CPU time per endpoint",
            "memory",
            "peak",
            "memory per endpoint",
            "change p50 / p99",
        ],
    );
    for alone in &figures.alone {
        let endpoints = f64::from(alone.services) * f64::from(alone.endpoints);
        table.rows.push(vec![
            format!("{}x{}", alone.services, alone.endpoints),
            time(alone.start),
            time(alone.cpu),
            time(alone.cpu / endpoints),
            memory(alone.memory.resident),
            memory(alone.memory.peak),
            format!("{:.0} B", alone.memory.resident * f64::from(1 << 20) / endpoints),
            format!("{} / {}", time(alone.change.p50), time(alone.change.p99)),
        ]);
    }
    table
}

fn reduction(figures: &Figures) -> Table {
    let mut table = Table::new(
        "What reaches a reader",
        "The activity is a model of ten minutes in a cluster of 1,000 nodes with 10,000 Services of three endpoints \
         (`e2e/bench/benches/reduction.rs`): Leases, status of nodes and pods, rolling updates, failing readiness probes, \
         and controllers that write metadata. KEP-2104 expects that the state of one node changes less often than the \
         cluster by two orders of magnitude. “Bytes” are those of the objects as JSON, or those of the answers to the reader.",
        &["", "count", "relative to the writes", "bytes"],
    );
    if let Some(counts) = figures.reduction {
        let part = |count: usize| format!("1/{:.0}", counts.writes as f64 / count.max(1) as f64);
        let kibibytes = |bytes: usize| format!("{:.0} KiB", bytes as f64 / 1024.0);
        for (name, count, bytes) in [
            ("writes to the API server", counts.writes, None),
            ("events that the brain gets", counts.events, Some(counts.event_bytes)),
            ("revisions that a reader gets", counts.revisions, Some(counts.reader_bytes)),
        ] {
            table.rows.push(vec![name.to_owned(), count.to_string(), part(count), or_dash(bytes.map(kibibytes))]);
        }
    }
    table
}

fn replay(figures: &Figures) -> Table {
    let mut table = Table::new(
        "A trace, replayed",
        "`localnet replay --dry-run --speed max` reads a trace, computes the state after each change, and checks its digest \
         (`e2e/bench/benches/replay.rs`). Each change replaces one endpoint. “In memory” is what the brain's history needs \
         for one change.",
        &["size", "changes", "time", "time per change", "trace", "in memory"],
    );
    for replay in &figures.replay {
        table.rows.push(vec![
            format!("{}x{}", replay.services, replay.endpoints),
            replay.changes.to_string(),
            time(replay.took),
            time(replay.took / f64::from(replay.changes)),
            memory(replay.trace_bytes as f64 / f64::from(1 << 20)),
            format!("{:.0} B", replay.recorded_bytes),
        ]);
    }
    table
}

fn kernel(figures: &Figures) -> Table {
    let mut table = Table::new(
        "nft: empty kernel → all rules, from a state in memory",
        "No brain and no API server run. One process has the state in memory, plans the rules, and writes them to the \
         kernel in several commits. “Median” is the median time until the kernel has acknowledged the last commit. \
         “nft -f” is the time in which the command `nft -f` loads the same tables as text.",
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

fn ebpf(figures: &Figures) -> Table {
    let mut table = Table::new(
        "ebpf: the backend alone, from a state in memory",
        "No brain and no API server run. One process has the state of 10,000 Services with three endpoints each in memory. The \
         table shows medians.",
        &["step", "time"],
    );
    if let Some(ebpf) = figures.ebpf {
        let steps = [
            ("attach the programs", ebpf.attach),
            ("load all Services", ebpf.load),
            ("replace one endpoint", ebpf.change),
        ];
        table.rows = steps.map(|(step, took)| vec![step.to_owned(), time(took)]).into();
    }
    table
}

fn steps(figures: &Figures) -> Table {
    let mut table = Table::new(
        "Single steps",
        "The benchmark library `criterion` measured these steps of localnet with 10,000 Services of three endpoints \
         each. “One” means one changed Service; “all” means all Services. Steps of the brain: “localize” computes the \
         node's state from the Kubernetes objects; “encode” turns a Service into bytes; “publish” encodes the result \
         of localizing and offers it to readers; “full state of a reader” assembles an answer. Steps of the nft \
         backend: “plan” computes the content of the tables; “netlink batch” writes it to the kernel.",
        &["step", "time"],
    );
    for (name, nanoseconds) in &figures.steps {
        table.rows.push(vec![name.clone(), time(nanoseconds / 1e6)]);
    }
    table
}
