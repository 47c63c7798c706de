//! Causes on the node, for packets that the state sends to endpoints but that do not arrive there.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use localnet_core::{Code, Diagnostic, Severity, Subject};
use localnet_linux::nft::foreign::{Fate, Stop};
use localnet_proto::Family;

use super::Ranking;
use crate::{
    diagnostics::{is_guessed, no_backend, of_backend, rules_differ, usual},
    evidence::{Evidence, Front},
    explain::PathRow,
};

/// The maximum number of endpoints whose addresses a cause lists.
const MOST_NAMED: usize = 3;

/// Adds the causes that concern the packets to one address of the Service. The state sends these packets to endpoints.
pub(super) fn of_front(evidence: &Evidence, number: usize, front: &Front, ranking: &mut Ranking) {
    let of = |code, problem: String| usual(code, Subject::Vip(front.to), problem);
    let mut add = |layer, cause: Diagnostic| ranking.push((number, layer, cause));
    let node = &front.node;
    let configuration = evidence.configuration.as_ref();
    // If no backend reports its configuration, the planned chains may be wrong.
    let guessed = is_guessed(configuration);
    let in_doubt = |row: &PathRow| guessed && node.damaged.contains(&row.place);
    let lacks = node.no_table || !node.damaged.is_empty() && !guessed || node.missing.iter().any(|row| !in_doubt(row));
    if let Some(cause) = backend(evidence, front.family()) {
        // What the kernel holds is stronger evidence than a report.
        let is_certain = lacks || evidence.kernel_unknown.is_some();
        let severity = if is_certain { Severity::Error } else { Severity::Warning };
        add(40, Diagnostic { subject: Subject::Vip(front.to), severity, ..cause });
    }
    if node.no_table {
        let problem = "the kernel has no table localnet: a program deleted it, or the backend never created it";
        add(41, of(Code::TableMissing, problem.to_owned()));
    } else {
        if let Some(cause) = rules_differ(&node.damaged, Subject::Vip(front.to), configuration) {
            add(42, cause);
        }
        let is_element = |row: &&PathRow| row.handle.is_none() && !node.damaged.contains(&row.place);
        if let Some(row) = node.missing.iter().find(is_element) {
            let found = row.found.as_ref().map(|found| format!("; it has {found} instead")).unwrap_or_default();
            let code = if row.found.is_some() { Code::ElementsDiffer } else { Code::ElementsMissing };
            add(43, of(code, format!("the kernel lacks {} {}{found}", row.place, row.text)));
        }
    }
    if evidence.tracking_is_full {
        add(50, of(Code::TrackingFull, "connection tracking is full: the kernel drops new connections".to_owned()));
    }
    for (whither, stop) in &node.stops {
        let (problem, remedy) = foreign_rule(whither, stop);
        let severity = if stop.certain { Severity::Error } else { Severity::Warning };
        add(51, of(Code::ForeignRule, problem).remedy(remedy).severity(severity));
    }
    if node.does_not_forward {
        add(52, of(Code::ForwardingOff, "the kernel does not forward packets between interfaces".to_owned()));
    }
    if let [flow, ..] = &node.stale[..] {
        let (count, example) = (node.stale.len(), format!("from {} to {}", flow.from, flow.endpoint));
        let problem = match count {
            1 => format!("a flow {example} is stale: the endpoint is no longer eligible"),
            _ => format!("{count} flows, such as one {example}, are stale: their endpoints are no longer eligible"),
        };
        add(54, of(Code::StaleFlow, problem));
    }
    if let Some(filtered) = &front.filtered {
        let remedy =
            "spec.loadBalancerSourceRanges must contain the address of the sender; to check a sender, add --from";
        add(60, of(Code::SourceRanges, filtered.clone()).remedy(remedy).severity(Severity::Warning));
    }
}

/// Adds one cause for each reason why endpoints have no route.
pub(super) fn of_routes(evidence: &Evidence, ranking: &mut Ranking) {
    let mut by_reason: BTreeMap<&str, (usize, BTreeSet<IpAddr>)> = BTreeMap::new();
    for (number, front) in evidence.fronts.iter().enumerate() {
        for (address, why) in &front.node.no_routes {
            by_reason.entry(why).or_insert_with(|| (number, BTreeSet::new())).1.insert(*address);
        }
    }
    for (why, (number, addresses)) in by_reason {
        let named: Vec<String> = addresses.iter().take(MOST_NAMED).map(ToString::to_string).collect();
        let more = addresses.len() - named.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let plural = if addresses.len() == 1 { "" } else { "s" };
        let problem = format!("there is no route to the endpoint{plural} {}{more}: {why}", named.join(", "));
        ranking.push((number, 53, usual(Code::NoRoute, Subject::Vip(evidence.fronts[number].to), problem)));
    }
}

/// Returns the problem of the backend that programs the node.
fn backend(evidence: &Evidence, family: Family) -> Option<Diagnostic> {
    let status = evidence.status.as_ref()?;
    let Some(backend) = status.newest() else { return no_backend(status) };
    let service = Subject::service(&evidence.service);
    if let Some(skipped) = backend.skipped.iter().find(|of| of.subject == service) {
        let problem = format!("the backend {} skips a part of this Service: {}", backend.name, skipped.reason());
        return Some(usual(Code::BackendSkips, service, problem));
    }
    of_backend(backend, backend.family(family)?)
}

/// Returns the problem and the remedy if a rule of another program stops the packet.
fn foreign_rule(whither: &str, stop: &Stop) -> (String, String) {
    let what = match (stop.fate, stop.certain) {
        (Fate::Dropped, true) => "drops",
        (Fate::Dropped, false) => "may drop",
        (Fate::Rejected, true) => "rejects",
        (Fate::Rejected, false) => "may reject",
    };
    let handle = stop.handle.map_or_else(|| "its policy".to_owned(), |handle| format!("rule # handle {handle}"));
    let comment = stop.comment.as_ref().map(|comment| format!(", {comment:?}")).unwrap_or_default();
    let Stop { family, table, chain, .. } = stop;
    let at = format!("table {family} {table} chain {chain}, {handle}{comment}");
    let problem = format!("a rule of another program {what} packets {whither}: {at}");
    (problem, format!("check the chain: nft -a list chain {family} {table} {chain}"))
}
