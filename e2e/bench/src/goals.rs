//! The goals, and whether a run reaches them. Pure.

use std::fmt::Write as _;

use crate::{
    contestants::{BRAIN, EBPF, IPTABLES, IPTABLES_NF_TABLES, NFT},
    figures::{Ebpf, Figures, Memory, Run, UnderLoad},
    number_text as text,
};

/// A goal, and the corresponding measurement.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Judged {
    pub(crate) what: &'static str,
    pub(crate) goal: &'static str,
    pub(crate) measured: String,
    /// Whether the goal is met. `None` if it was not measured.
    pub(crate) met: Option<bool>,
}

/// The sizes in the goals, in Services.
const LARGE: u32 = 10_000;
const HUGE: u32 = 45_000;
const OURS: &str = "localnet-nft";
/// The mode with the same kernel subsystem, and the one that most clusters use.
const PEERS: [&str; 2] = ["kube-proxy nftables", "kube-proxy iptables"];

/// All goals.
pub(crate) fn judge(figures: &Figures) -> Vec<Judged> {
    vec![
        kernel(
            figures,
            LARGE,
            "nft: time to write all rules into an empty kernel, from a state in memory, 10000x3",
            "≤ 100 ms",
            100.0,
        ),
        kernel(figures, HUGE, "nft: time to write all rules, as in the row above, 45000x2", "≤ 400 ms", 400.0),
        growth(figures),
        commit(figures),
        change(figures),
        under_load(figures),
        start(figures),
        memory(figures, BRAIN, "resident memory of the brain, 10000x3", "≤ 64 MiB", 64.0),
        memory(figures, NFT, "resident memory of the nft backend, 10000x3", "≤ 32 MiB", 32.0),
        memory_of_both(figures),
        peak(figures),
        cpu(figures),
        readers(figures),
        repair(figures),
        kills(figures),
        connections(figures),
        flat(figures),
        iptables_start(figures),
        iptables_change(figures),
        nf_tables_change(figures),
        iptables_memory(figures),
        ebpf_connections(figures),
        ebpf(
            figures,
            "ebpf: time to load all Services into empty maps, from a state in memory, 10000x3",
            "≤ 50 ms",
            |ebpf| (ebpf.load, 50.0),
        ),
        ebpf(figures, "ebpf: time to replace one endpoint in the maps, 10000x3", "≤ 50 µs", |ebpf| {
            (ebpf.change, 0.05)
        }),
        replay(figures),
        history(figures),
    ]
}

fn judged(what: &'static str, goal: &'static str, measured: Option<(String, bool)>) -> Judged {
    match measured {
        Some((measured, met)) => Judged { what, goal, measured, met: Some(met) },
        None => Judged { what, goal, measured: "not measured".to_owned(), met: None },
    }
}

fn kernel(figures: &Figures, services: u32, what: &'static str, goal: &'static str, limit: f64) -> Judged {
    let found = figures.kernel.iter().find(|kernel| kernel.services == services);
    judged(what, goal, found.map(|kernel| (text::time(kernel.median), kernel.median <= limit)))
}

/// "Near linear" means that an element takes at most 1.5 times as long.
fn growth(figures: &Figures) -> Judged {
    let each = |services| {
        let kernel = figures.kernel.iter().find(|kernel| kernel.services == services)?;
        Some(kernel.median / f64::from(services * (1 + kernel.endpoints)))
    };
    let factor = each(LARGE).zip(each(HUGE)).map(|(large, huge)| huge / large);
    judged(
        "nft: time per Service or endpoint in the two rows above, 45000x2 relative to 10000x3",
        "≤ × 1.5 (near linear)",
        factor.map(|factor| (format!("× {factor:.2}"), factor <= 1.5)),
    )
}

fn commit(figures: &Figures) -> Judged {
    let longest = figures.kernel.iter().map(|kernel| kernel.longest).reduce(f64::max);
    let complete = figures.kernel.iter().any(|kernel| kernel.services == HUGE);
    judged(
        "nft: longest single commit while all rules are written, at any size",
        "≤ 250 ms",
        longest.filter(|_| complete).map(|longest| (text::time(longest), longest <= 250.0)),
    )
}

fn change(figures: &Figures) -> Judged {
    let change = figures.run(OURS, LARGE).and_then(|run| run.change);
    let measured = change.map(|change| {
        let times = change.event;
        let text = format!("p99 {}, p50 {} (n = {})", text::time(times.p99), text::time(times.p50), times.n);
        (text, times.p99 <= 8.0 && change.lost == 0)
    });
    judged(
        "one endpoint changed: time from the API event until packets go to the new endpoint, 10000x3",
        "p99 ≤ 8 ms",
        measured,
    )
}

fn under_load(figures: &Figures) -> Judged {
    let load = figures.run(OURS, LARGE).and_then(|run| run.load.as_ref());
    let measured = load.and_then(|load| {
        let change = load.change?;
        let times = change.event;
        let at = format!("{:.0} changes per second", load.rate);
        let text = format!("p99 {}, p50 {} (n = {}) at {at}", text::time(times.p99), text::time(times.p50), times.n);
        // If the API server could not take the load, the result is not valid.
        let loaded = load.rate >= f64::from(figures.rate) * 0.9;
        Some((text, loaded && times.p99 <= 60.0 && change.lost == 0))
    });
    judged("the time in the row above, while 1,000 other endpoints change per second", "p99 ≤ 60 ms", measured)
}

fn repair(figures: &Figures) -> Judged {
    let times = figures.run(OURS, LARGE).and_then(|run| run.repair);
    let measured = times.map(|times| {
        let text = format!("p99 {}, p50 {} (n = {})", text::time(times.p99), text::time(times.p50), times.n);
        (text, times.p99 <= 50.0)
    });
    judged("another program deletes one table: time until packets are answered again, 10000x3", "p99 ≤ 50 ms", measured)
}

fn start(figures: &Figures) -> Judged {
    let took = |contestant: &str| Some(figures.run(contestant, LARGE)?.start.as_ref()?.took);
    let measured = took(OURS).zip(took(PEERS[0])).map(|(ours, peer)| {
        let mut text = format!("{}, 1/{:.0} of {}", text::time(ours), peer / ours, PEERS[0]);
        if let Some(other) = took(PEERS[1]) {
            // Writing to a string cannot fail.
            _ = write!(text, ", 1/{:.1} of {}", other / ours, PEERS[1]);
        }
        (text, ours <= 800.0)
    });
    judged(
        "time from the start of brain and backend, with a live API server, until every Service answers, 10000x3",
        "≤ 0.8 s",
        measured,
    )
}

/// The larger resident memory of those after the start and after the load.
fn most(run: &Run, process: &str) -> Option<f64> {
    let of = |memory: Option<&Memory>| memory.map(|memory| memory.resident);
    let after_start = of(run.start.as_ref()?.memory.get(process));
    let after_load = of(run.load.as_ref().and_then(|load: &UnderLoad| load.memory.get(process)));
    after_start.into_iter().chain(after_load).reduce(f64::max)
}

fn memory(figures: &Figures, process: &str, what: &'static str, goal: &'static str, limit: f64) -> Judged {
    let most = figures.run(OURS, LARGE).and_then(|run| most(run, process));
    judged(what, goal, most.map(|most| (text::memory(most), most <= limit)))
}

fn memory_of_both(figures: &Figures) -> Judged {
    let ours = figures.run(OURS, HUGE).and_then(|run| Some(most(run, BRAIN)? + most(run, NFT)?));
    let peers = PEERS.iter().filter_map(|peer| most(figures.run(peer, LARGE)?, "kube-proxy"));
    let least = peers.reduce(f64::min);
    judged(
        "resident memory of brain and nft backend together at 45000x2, compared with kube-proxy at 10000x3",
        "less",
        ours.zip(least)
            .map(|(ours, least)| (format!("{} against {}", text::memory(ours), text::memory(least)), ours < least)),
    )
}

fn peak(figures: &Figures) -> Judged {
    let of = |process| {
        let run = figures.run(OURS, LARGE)?;
        let peak = run.load.as_ref()?.memory.get(process)?.peak;
        Some((peak, peak / most(run, process)?))
    };
    judged(
        "largest resident memory of brain and nft backend until the end of the load, relative to what stays, 10000x3",
        "≤ × 1.2 each",
        of(BRAIN).zip(of(NFT)).map(|((brain, brain_factor), (nft, nft_factor))| {
            let text =
                format!("{} (× {brain_factor:.2}), {} (× {nft_factor:.2})", text::memory(brain), text::memory(nft));
            (text, brain_factor <= 1.2 && nft_factor <= 1.2)
        }),
    )
}

fn cpu(figures: &Figures) -> Judged {
    let load = figures.run(OURS, LARGE).and_then(|run| run.load.as_ref());
    judged(
        "CPU time of brain and nft backend for one of 1,000 changes per second, 10000x3",
        "≤ 0.15 ms",
        load.map(|load| {
            let each = load.cpu_per_second / load.rate * 1e3;
            (text::time(each), each <= 0.15)
        }),
    )
}

fn kills(figures: &Figures) -> Judged {
    judged(
        "SIGKILL of brain and nft backend in turns, 500 connections per second, 10000x3",
        "no connection fails",
        figures.run(OURS, LARGE).and_then(|run| run.kills).map(|kills| {
            let text = format!("{} of {} failed, {} kills", kills.failed, kills.connections, kills.kills);
            (text, kills.failed == 0)
        }),
    )
}

fn readers(figures: &Figures) -> Judged {
    let readers = figures.run(OURS, LARGE).and_then(|run| run.readers);
    let measured = readers.map(|readers| {
        let more = (readers.memory[1] / readers.memory[0] - 1.0) * 100.0;
        let [without, with] = readers.change;
        let text = format!(
            "memory {more:+.0} %; p99 {} without these clients, {} with them",
            text::time(without.p99),
            text::time(with.p99)
        );
        (text, readers.memory[1] <= readers.memory[0] * 1.1 && with.p99 <= 20.0)
    });
    judged(
        "effect of 256 more clients of the brain, 32 of which stop reading, 10000x3",
        "the brain's memory grows by ≤ 10 %; the time of one endpoint's change stays p99 ≤ 20 ms",
        measured,
    )
}

fn connections(figures: &Figures) -> Judged {
    let extra = extra(figures, OURS);
    let most = extra.iter().map(|(_, extra)| *extra).reduce(f64::max);
    judged(
        "time to open a connection through the slowest VIP, minus the time to open a direct one, at every size",
        "≤ 3 µs (medians)",
        most.map(|most| (format!("{most:+.1} µs at most"), most <= 3.0)),
    )
}

fn flat(figures: &Figures) -> Judged {
    let extra = extra(figures, OURS);
    let complete = extra.first().is_some_and(|(services, _)| *services == 10)
        && extra.last().is_some_and(|(services, _)| *services == HUGE);
    let of = |pick: fn(f64, f64) -> f64| extra.iter().map(|(_, extra)| *extra).reduce(pick);
    let range = of(f64::min).zip(of(f64::max)).filter(|_| complete);
    judged(
        "smallest and largest value of this difference, from 10 to 45,000 Services",
        "≤ 3 µs apart",
        range.map(|(least, most)| (format!("{least:+.1} to {most:+.1} µs"), most - least <= 3.0)),
    )
}

fn ebpf_connections(figures: &Figures) -> Judged {
    let most = extra(figures, EBPF).into_iter().map(|(_, extra)| extra).reduce(f64::max);
    judged(
        "ebpf: time to open a connection through the slowest VIP, minus the time to open a direct one, at every size",
        "≤ 1 µs (medians)",
        most.map(|most| (format!("{most:+.1} µs at most"), most <= 1.0)),
    )
}

fn ebpf(figures: &Figures, what: &'static str, goal: &'static str, of: fn(Ebpf) -> (f64, f64)) -> Judged {
    judged(what, goal, figures.ebpf.map(of).map(|(measured, limit)| (text::time(measured), measured <= limit)))
}

fn extra(figures: &Figures, contestant: &str) -> Vec<(u32, f64)> {
    let sizes = figures.sizes().into_iter().filter(|size| size.is_usual());
    let runs = sizes.filter_map(|size| figures.run(contestant, size.services));
    runs.filter_map(|run| Some((run.services, run.connect?.extra_us()))).collect()
}

/// Values of the iptables backend and of its peer, both with the legacy tools.
fn iptables(figures: &Figures, of: impl Fn(&Run) -> Option<f64>) -> Option<(f64, f64)> {
    let of = |contestant| figures.run(contestant, LARGE).and_then(&of);
    of(IPTABLES).zip(of(PEERS[1]))
}

fn iptables_start(figures: &Figures) -> Judged {
    let took = iptables(figures, |run| Some(run.start.as_ref()?.took));
    judged(
        "iptables: time from the start of brain and backend, with a live API server, until every Service answers, 10000x3",
        "≤ 1/2 of kube-proxy's time (iptables)",
        took.map(|(ours, peer)| {
            (format!("{}, 1/{:.1} of kube-proxy's", text::time(ours), peer / ours), ours <= peer / 2.0)
        }),
    )
}

fn nf_tables_change(figures: &Figures) -> Judged {
    // kube-proxy cannot load the large size in time.
    let common = figures.runs.iter().rfind(|run| run.contestant == IPTABLES_NF_TABLES[1] && run.change.is_some());
    let median = |contestant, services| Some(figures.run(contestant, services)?.change?.event.p50);
    let measured = common.and_then(|peer| {
        let [ours, theirs] = IPTABLES_NF_TABLES.map(|contestant| median(contestant, peer.services));
        let (ours, theirs) = ours.zip(theirs)?;
        let text = format!(
            "{} at {}x{}, 1/{:.1} of kube-proxy's",
            text::time(ours),
            peer.services,
            peer.endpoints,
            theirs / ours
        );
        Some((text, ours <= theirs / 10.0))
    });
    judged(
        "the same with the nf_tables flavour, at the largest size that kube-proxy loads in time",
        "≤ 1/10 of kube-proxy's time (iptables nf_tables)",
        measured,
    )
}

fn iptables_change(figures: &Figures) -> Judged {
    let lost = |run: &Run| run.change.is_some_and(|change| change.lost > 0);
    let lost = figures.run(IPTABLES, LARGE).is_some_and(lost);
    let median = iptables(figures, |run| Some(run.change?.event.p50));
    judged(
        "iptables: one endpoint changed: median time from the API event until packets go to the new endpoint, 10000x3",
        "≤ 1/10 of kube-proxy's time (iptables)",
        median.map(|(ours, peer)| {
            (format!("{}, 1/{:.1} of kube-proxy's", text::time(ours), peer / ours), ours <= peer / 10.0 && !lost)
        }),
    )
}

fn iptables_memory(figures: &Figures) -> Judged {
    let process = |run: &Run| most(run, if run.contestant == IPTABLES { IPTABLES } else { "kube-proxy" });
    judged(
        "resident memory of the iptables backend, 10000x3",
        "≤ 1/4 of kube-proxy's memory (iptables)",
        iptables(figures, process).map(|(ours, peer)| {
            (format!("{}, 1/{:.1} of kube-proxy's", text::memory(ours), peer / ours), ours <= peer / 4.0)
        }),
    )
}

/// The changes of the trace in the goal.
const TRACE: u32 = 1_000_000;

fn replay(figures: &Figures) -> Judged {
    let traces = figures.replay.iter().filter(|replay| replay.changes >= TRACE);
    let longest = traces.map(|replay| replay.took).reduce(f64::max);
    judged(
        "localnet replay: time for a trace of 1,000,000 changes, 10,000 Services",
        "≤ 60 s",
        longest.map(|longest| (text::time(longest), longest <= 60e3)),
    )
}

fn history(figures: &Figures) -> Judged {
    let most = figures.replay.iter().map(|replay| replay.recorded_bytes).reduce(f64::max);
    judged(
        "memory of the brain's history for one change of an endpoint",
        "≤ 100 B",
        most.map(|most| (format!("{most:.0} B"), most <= 100.0)),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn times(p99: f64) -> Value {
        json!({ "n": 100, "p50": 1.0, "p99": p99, "max": p99 })
    }

    fn memory(of: &[(&str, f64)]) -> Value {
        of.iter().map(|(name, resident)| (*name, json!({ "resident": resident, "peak": resident * 1.2 }))).collect()
    }

    fn run(contestant: &str, services: u32, took: f64, process: &[(&str, f64)]) -> Value {
        let change = json!({ "event": times(8.0), "write": times(200.0), "lost": 0 });
        json!({
            "contestant": contestant, "services": services, "endpoints": 3, "others_percent": 1.0, "delete": null,
            "start": { "took": took, "cpu": 10.0, "memory": memory(process) },
            "connect": { "n": 9, "bare_us": 19.0, "direct_us": 20.0, "first_us": 22.0, "middle_us": 23.0, "last_us": 21.0 },
            "change": change,
            "load": {
                "change": { "event": times(60.0), "write": times(200.0), "lost": 0 }, "rate": 1000.0, "seconds": 30.0,
                "cpu_per_second": 0.11, "surroundings_per_second": 1.0, "memory": memory(process),
            },
            "readers": {
                "readers": 256, "stalled": 32, "memory": [50.0, 55.0], "change": [times(20.0), times(20.0)],
                "spread": times(1.0),
            },
            "repair": times(50.0), "kills": { "kills": 200, "connections": 9, "failed": 0, "recovery": times(1.0) },
        })
    }

    /// A run that barely meets every goal.
    fn good() -> Value {
        let ours = [(BRAIN, 64.0), (NFT, 32.0)];
        let mut peer = run(PEERS[1], LARGE, 500.0, &[("kube-proxy", 100.0)]);
        peer["change"]["event"]["p50"] = 10.0.into();
        let mut nf_tables = run(IPTABLES_NF_TABLES[1], LARGE, 500.0, &[]);
        nf_tables["change"]["event"]["p50"] = 10.0.into();
        let mut ebpf = run(EBPF, LARGE, 800.0, &[]);
        ebpf["connect"]["middle_us"] = 21.0.into();
        ebpf["connect"]["first_us"] = 21.0.into();
        json!({
            "machine": {
                "date": "", "revision": "", "processors": 2, "processor": "", "memory_gib": 1.0, "kernel": "", "versions": [],
            },
            "quick": false, "rate": 1000,
            "runs": [
                run(OURS, 10, 1.0, &ours), run(OURS, LARGE, 800.0, &ours), run(OURS, HUGE, 900.0, &ours),
                run(PEERS[0], LARGE, 1_000.0, &[("kube-proxy", 97.0)]), peer,
                run(IPTABLES, LARGE, 250.0, &[(BRAIN, 64.0), (IPTABLES, 25.0)]),
                run(IPTABLES_NF_TABLES[0], LARGE, 250.0, &[]), nf_tables, ebpf,
            ],
            "ebpf": { "attach": 90.0, "load": 50.0, "change": 0.05 },
            "kernel": [
                { "services": LARGE, "endpoints": 3, "median": 100.0, "longest": 100.0, "nft": 1.0 },
                { "services": HUGE, "endpoints": 2, "median": 400.0, "longest": 250.0, "nft": null },
            ],
            "replay": [{
                "services": LARGE, "endpoints": 3, "changes": TRACE, "took": 60_000.0, "trace_bytes": 1, "recorded_bytes": 100.0,
            }],
        })
    }

    fn missed(figures: &Value) -> Vec<&'static str> {
        let judged = judge(&serde_json::from_value(figures.clone()).unwrap());
        judged.into_iter().filter(|judged| judged.met == Some(false)).map(|judged| judged.what).collect()
    }

    #[test]
    fn a_run_at_the_limits_meets_all_goals() {
        let judged = judge(&serde_json::from_value(good()).unwrap());
        assert!(judged.iter().all(|judged| judged.met == Some(true)), "{judged:#?}");
        assert_eq!(judged.len(), 26);
    }

    #[test]
    fn beyond_a_limit_its_goal_is_missed() {
        let large = "/runs/1";
        for (pointer, value, goal) in [
            (
                "/kernel/0/median".to_owned(),
                101.0,
                "nft: time to write all rules into an empty kernel, from a state in memory, 10000x3",
            ),
            ("/kernel/1/median".to_owned(), 401.0, "nft: time to write all rules, as in the row above, 45000x2"),
            (
                "/kernel/1/longest".to_owned(),
                251.0,
                "nft: longest single commit while all rules are written, at any size",
            ),
            (
                "/kernel/0/median".to_owned(),
                50.0,
                "nft: time per Service or endpoint in the two rows above, 45000x2 relative to 10000x3",
            ),
            (
                format!("{large}/change/event/p99"),
                8.1,
                "one endpoint changed: time from the API event until packets go to the new endpoint, 10000x3",
            ),
            (
                format!("{large}/repair/p99"),
                51.0,
                "another program deletes one table: time until packets are answered again, 10000x3",
            ),
            (
                format!("{large}/load/change/event/p99"),
                61.0,
                "the time in the row above, while 1,000 other endpoints change per second",
            ),
            (
                format!("{large}/load/rate"),
                800.0,
                "the time in the row above, while 1,000 other endpoints change per second",
            ),
            (
                format!("{large}/start/took"),
                801.0,
                "time from the start of brain and backend, with a live API server, until every Service answers, 10000x3",
            ),
            (format!("{large}/start/memory/{BRAIN}/resident"), 65.0, "resident memory of the brain, 10000x3"),
            (format!("{large}/load/memory/{NFT}/resident"), 33.0, "resident memory of the nft backend, 10000x3"),
            (
                "/runs/2/start/memory/localnet-nft/resident".to_owned(),
                34.0,
                "resident memory of brain and nft backend together at 45000x2, compared with kube-proxy at 10000x3",
            ),
            (
                format!("{large}/readers/memory/1"),
                56.0,
                "effect of 256 more clients of the brain, 32 of which stop reading, 10000x3",
            ),
            (
                format!("{large}/load/memory/{BRAIN}/peak"),
                77.0,
                "largest resident memory of brain and nft backend until the end of the load, relative to what stays, 10000x3",
            ),
            (
                format!("{large}/load/cpu_per_second"),
                0.16,
                "CPU time of brain and nft backend for one of 1,000 changes per second, 10000x3",
            ),
            (
                format!("{large}/kills/failed"),
                1.0,
                "SIGKILL of brain and nft backend in turns, 500 connections per second, 10000x3",
            ),
            (
                "/runs/2/connect/last_us".to_owned(),
                23.5,
                "time to open a connection through the slowest VIP, minus the time to open a direct one, at every size",
            ),
            (
                "/runs/5/start/took".to_owned(),
                251.0,
                "iptables: time from the start of brain and backend, with a live API server, until every Service answers, 10000x3",
            ),
            (
                "/runs/5/change/event/p50".to_owned(),
                1.1,
                "iptables: one endpoint changed: median time from the API event until packets go to the new endpoint, 10000x3",
            ),
            (
                "/runs/6/change/event/p50".to_owned(),
                1.1,
                "the same with the nf_tables flavour, at the largest size that kube-proxy loads in time",
            ),
            (
                "/runs/5/load/memory/localnet-iptables/resident".to_owned(),
                26.0,
                "resident memory of the iptables backend, 10000x3",
            ),
            (
                "/runs/8/connect/last_us".to_owned(),
                21.5,
                "ebpf: time to open a connection through the slowest VIP, minus the time to open a direct one, at every size",
            ),
            (
                "/ebpf/load".to_owned(),
                51.0,
                "ebpf: time to load all Services into empty maps, from a state in memory, 10000x3",
            ),
            ("/ebpf/change".to_owned(), 0.051, "ebpf: time to replace one endpoint in the maps, 10000x3"),
            (
                "/replay/0/took".to_owned(),
                60_001.0,
                "localnet replay: time for a trace of 1,000,000 changes, 10,000 Services",
            ),
            (
                "/replay/0/recorded_bytes".to_owned(),
                101.0,
                "memory of the brain's history for one change of an endpoint",
            ),
        ] {
            let mut figures = good();
            let number = if f64::fract(value) == 0.0 { json!(value as u64) } else { json!(value) };
            *figures.pointer_mut(&pointer).unwrap_or_else(|| panic!("{pointer}")) = number;
            assert_eq!(missed(&figures), [goal], "{pointer} = {value}");
        }
    }

    #[test]
    fn a_goal_without_a_measurement_is_neither_met_nor_missed() {
        let mut figures = good();
        figures["runs"] = json!([]);
        figures["kernel"] = json!([]);
        figures["ebpf"] = json!(null);
        figures["replay"] = json!([]);
        let judged = judge(&serde_json::from_value(figures).unwrap());
        assert!(judged.iter().all(|judged| judged.met.is_none()), "{judged:#?}");
    }
}
