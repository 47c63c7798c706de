//! The output: a table per round.

use std::{
    collections::BTreeMap,
    io::{self, IsTerminal as _, Write as _},
    path::{Path, PathBuf},
};

use localnet_lab::Outcome;
use localnet_proto::Snapshot;

use crate::{
    rates::Rates,
    targets::{self, Answers, Kind, Target},
};

/// Prints rounds. On a terminal each replaces the previous one.
#[derive(Debug)]
pub(crate) struct Screen {
    once: bool,
    services: PathBuf,
    redraw: bool,
    rounds: usize,
    connections: usize,
    failed: usize,
}

impl Screen {
    /// A screen before the first round.
    pub(crate) fn new(once: bool, services: &Path) -> Self {
        let redraw = !once && io::stdout().is_terminal();
        Self { once, services: services.to_owned(), redraw, rounds: 0, connections: 0, failed: 0 }
    }

    /// Prints a round and returns how many of its connections failed. An outcome is right if the state before or after the round
    /// permits it. `page` is the address of the page, if there is one.
    pub(crate) fn show(
        &mut self,
        (before, after): (&Snapshot, &Snapshot),
        rates: &Rates,
        answers: &[(Target, Answers)],
        page: Option<&str>,
    ) -> usize {
        let now = targets::of(after);
        let right = |target: &Target, outcome: &Outcome| {
            let same = now.iter().find(|other| (other.protocol, other.to) == (target.protocol, target.to));
            target.accepts(outcome) || same.is_none_or(|other| other.accepts(outcome))
        };
        let mut failed = 0;
        let mut text = String::new();
        if self.redraw {
            text.push_str("\x1b[2J\x1b[H");
        }
        text.push_str(&heading(before, rates));
        for (target, outcomes) in answers {
            let wrong: usize = outcomes.iter().filter(|(outcome, _)| !right(target, outcome)).map(|(_, n)| n).sum();
            failed += wrong;
            self.connections += outcomes.values().sum::<usize>();
            text.push_str(&row(target, outcomes, wrong));
        }
        self.rounds += 1;
        self.failed += failed;
        text.push_str(&format!(
            "\n{} connections in {} round{}, {} failed\n",
            self.connections,
            self.rounds,
            if self.rounds == 1 { "" } else { "s" },
            self.failed
        ));
        if let Some(page) = page {
            text.push_str(&format!("the page of localnet ui: {page}\n"));
        }
        if !self.once {
            text.push_str(&format!("edit {} to see connections move; press Ctrl-C to exit\n", self.services.display()));
        }
        // A closed standard output is not a failed connection.
        _ = io::stdout().write_all(text.as_bytes());
        failed
    }
}

/// The Services: their addresses and rates, and in a second line the rates of their endpoints.
fn heading(state: &Snapshot, rates: &Rates) -> String {
    let mut text = format!("node {} · revision {}\n\n", state.node.name, state.revision.rev);
    text.push_str(&format!(
        "  {:<24} {:<12} {:<32} {:<16} {:<13} {:>7}\n",
        "SERVICE", "TYPE", "CLUSTER-IPS", "PORTS", "", "CONNS/S"
    ));
    for service in state.services.values() {
        let ips: Vec<_> = service.cluster_ips.iter().map(ToString::to_string).collect();
        let ports: Vec<_> = service.ports.iter().map(|port| format!("{}/{}", port.port, port.protocol)).collect();
        text.push_str(&format!(
            "  {:<24} {:<12} {:<32} {:<16} {:<13} {:>7}\n",
            service.key.to_string(),
            service.kind,
            ips.join(","),
            ports.join(","),
            format!("{} endpoints", service.endpoints.len()),
            rates.get(&service.key).map_or_else(|| "-".to_owned(), |rate| format!("{:.1}", rate.all)),
        ));
        let endpoints = rates.get(&service.key).into_iter().flat_map(|rate| &rate.endpoints);
        let endpoints: Vec<_> = endpoints.map(|(endpoint, rate)| format!("{endpoint} {rate:.1}")).collect();
        if !endpoints.is_empty() {
            text.push_str(&format!("    of these: {}\n", endpoints.join("  ")));
        }
    }
    text.push_str(&format!(
        "\n  {:<14} {:<4} {:<30} {:<20} {}\n",
        "ADDRESS KIND", "", "ADDRESS", "FROM", "ANSWERED BY"
    ));
    text
}

fn row(target: &Target, outcomes: &Answers, wrong: usize) -> String {
    let (kind, from) = match target.kind {
        Kind::ClusterIp => ("ClusterIP", "pod 10.180.0.1"),
        Kind::NodePort => ("NodePort", "external client"),
        Kind::LoadBalancer => ("LoadBalancer", "external client"),
        Kind::ExternalIp => ("ExternalIP", "external client"),
    };
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for (outcome, count) in outcomes {
        let name = match outcome {
            Outcome::Answer { by, .. } => match target.weights.get(&by.ip()) {
                Some(weight) => format!("{} (weight {weight})", by.ip()),
                None => by.ip().to_string(),
            },
            Outcome::Rejected if target.endpoints.is_empty() => "rejected (no endpoints)".to_owned(),
            other => other.to_string(),
        };
        *counts.entry(name).or_default() += count;
    }
    let counts: Vec<_> = counts.iter().map(|(name, count)| format!("{name} ×{count}")).collect();
    let wrong = if wrong > 0 { format!("  {wrong} FAILED") } else { String::new() };
    let to = target.to.to_string();
    format!("  {kind:<14} {:<5} {to:<30} {from:<16} {}{wrong}\n", target.protocol.as_lowercase(), counts.join("  "))
}
