//! Checks flows with real packets, whichever program programmed the node.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ScopedJoinHandle;

use anyhow::{Context, bail};
use localnet_core::Protocol;

use crate::case::Case;
use crate::flow::{Expect, Flow, Flows, Sender, Source};
use crate::namespace::Namespace;
use crate::network::Network;
use crate::probe::{Outcome, Probe, SILENCE_TIMEOUT};
use crate::serve::Servers;
use crate::topology::Topology;

/// The minimum number of probes. With fewer, an endpoint that must not answer could escape by chance.
const LEAST_PROBES: usize = 16;
/// The maximum number of probes per endpoint. If each of n endpoints is equally likely, the chance to miss one of 20 endpoints
/// is below 10⁻¹⁶.
const MOST_PROBES_PER_ENDPOINT: usize = 40;
const AT_A_TIME: usize = 6;
const PROBES_INTO_SILENCE: usize = 3;

/// Builds the network of a Case, starts its servers, lets `program` program the node, and checks every flow. The result of
/// `program` lives as long as the check, such as a [`crate::Running`] process.
///
/// # Errors
/// Returns an error if the network cannot be built, `program` fails, or a flow differs from its expectation.
pub fn check_case<G>(case: &Case, program: impl FnOnce(&Network) -> anyhow::Result<G>) -> anyhow::Result<()> {
    let checked = || {
        let endpoints = case.endpoints()?;
        let network = Network::build(case.flows.topology(&endpoints))?;
        if case.flows.node.localhost {
            network.node().sysctl(&[("net/ipv4/conf/all/route_localnet", "1")])?;
        }
        let _servers = Servers::start(&network, endpoints)?;
        check_flows(&network, &case.flows, program).map(drop)
    };
    checked().with_context(|| format!("case {} ({})", case.name, case.dir.display()))
}

/// Builds a network with the other node for a Case that has packets between nodes, and starts its servers. `program` programs each
/// node, and the result lives as long as the check.
///
/// # Errors
/// The network cannot be built, `program` fails, or a flow differs from its expectation.
pub fn check_between_nodes<G>(
    case: &Case,
    program: impl Fn(&Case, &Namespace) -> anyhow::Result<G>,
) -> anyhow::Result<()> {
    let checked = || {
        let other = case.on_other_node().context("the Case has no packets between nodes")?;
        let endpoints = other.endpoints()?;
        let network = Network::build(Topology { other_node: true, ..other.flows.topology(&endpoints) })?;
        let _servers = Servers::start(&network, endpoints)?;
        let _guards = (program(case, network.node())?, program(&other, network.other_node()?)?);
        probe_flows(&network, &other.flows.flows)
    };
    checked().with_context(|| format!("case {} between nodes ({})", case.name, case.dir.display()))
}

/// Checks Cases as [`check_case`] does, several at a time because they mostly wait. Returns the errors in the order of the Cases.
pub fn check_cases<G>(cases: &[Case], program: impl Fn(&Case, &Network) -> anyhow::Result<G> + Sync) -> Vec<String> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut wrong = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(case) = cases.get(number) else { return wrong };
            if let Err(error) = check_case(case, |network| program(case, network)) {
                wrong.push((number, format!("{error:#}")));
            }
        }
    };
    let mut wrong: Vec<_> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_A_TIME).map(|_| scope.spawn(work)).collect();
        let join = |worker: ScopedJoinHandle<'_, _>| worker.join().unwrap_or_else(|panic| resume_unwind(panic));
        workers.into_iter().flat_map(join).collect()
    });
    wrong.sort();
    wrong.into_iter().map(|(_, text)| text).collect()
}

/// Lets `program` program the node, then checks every flow. Servers must already run at [`Flows::endpoints`]. Returns the result
/// of `program`; while it lives, [`probe_flows`] can check further flows.
///
/// # Errors
/// Returns an error if `program` fails, or a flow differs from its expectation.
pub fn check_flows<G>(
    network: &Network,
    flows: &Flows,
    program: impl FnOnce(&Network) -> anyhow::Result<G>,
) -> anyhow::Result<G> {
    let guard = program(network).context("programming the node")?;
    probe_flows(network, &flows.flows)?;
    Ok(guard)
}

/// Checks flows without changing the node.
///
/// # Errors
/// Returns an error if at least one flow differs from its expectation. The error lists each such flow with its outcome.
pub fn probe_flows(network: &Network, flows: &[Flow]) -> anyhow::Result<()> {
    let mut wrong = String::new();
    let mut count = 0;
    // Silence takes time, so await it for all flows at once. One SCTP probe receives the ICMP errors of another.
    let waits = |flow: &Flow| flow.expect == Expect::Drop && flow.protocol != Protocol::Sctp;
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let waiting: Vec<_> =
            flows.iter().map(|flow| waits(flow).then(|| scope.spawn(|| probe_flow(network, flow)))).collect();
        let join = |(flow, waiting): (_, Option<ScopedJoinHandle<'_, _>>)| match waiting {
            Some(waiting) => waiting.join().unwrap_or_else(|panic| resume_unwind(panic)),
            None => probe_flow(network, flow),
        };
        flows.iter().zip(waiting).map(join).collect()
    });
    for (flow, outcome) in flows.iter().zip(outcomes) {
        if let Err(error) = outcome {
            count += 1;
            let _ = write!(wrong, "\n- {flow}\n    expected {}\n    got {error:#}", flow.expect);
        }
    }
    if count > 0 {
        bail!("{count} of {} flows are wrong:{wrong}", flows.len());
    }
    Ok(())
}

fn probe_flow(network: &Network, flow: &Flow) -> anyhow::Result<()> {
    let sender = match flow.from {
        Sender::Client(_) => network.client(),
        Sender::Node => network.node(),
        Sender::OtherNode => network.other_node()?,
        Sender::Pod(pod) => network.pod(pod.addresses()[0])?,
    };
    let mut probe = Probe::new(flow.protocol, flow.to);
    if let Sender::Client(Some(address)) = flow.from {
        probe = probe.from(address);
    }
    let to = flow.to.ip();
    // The source of a packet from a node to one of its own addresses is that address.
    let to_itself = match flow.from {
        Sender::Node => to.is_loopback() || network.topology().node_has(to),
        Sender::OtherNode => network.topology().other_node_has(to),
        Sender::Client(_) | Sender::Pod(_) => false,
    };
    let own = if to_itself { to } else { flow.from.source(to) };
    match &flow.expect {
        Expect::Answers { by, source } => {
            let seen_as = |seen: IpAddr| match source {
                Some(Source::Kept) => seen == own,
                Some(Source::Masqueraded) => network.topology().node_has(seen),
                Some(Source::MasqueradedByOtherNode) => network.topology().other_node_has(seen),
                None => true,
            };
            answers(sender, probe, by, seen_as)
        }
        Expect::Untouched => answers(sender, probe, &BTreeSet::from([flow.to]), |seen| seen == own),
        Expect::Reject => all_are(sender, probe, Outcome::Rejected),
        Expect::Drop => silence(sender, probe),
    }
}

/// Probes until every endpoint in `expected` has answered. Fails at the first other outcome.
fn answers(
    sender: &Namespace,
    probe: Probe,
    expected: &BTreeSet<SocketAddr>,
    source_is_right: impl Fn(IpAddr) -> bool + Sync,
) -> anyhow::Result<()> {
    let most = LEAST_PROBES.max(MOST_PROBES_PER_ENDPOINT * expected.len());
    let mut counts: BTreeMap<SocketAddr, usize> = expected.iter().map(|address| (*address, 0)).collect();
    let mut probes = 0;
    let mut surprise = None;
    sender.probe_until(probe, most, |outcome| {
        probes += 1;
        match outcome {
            Outcome::Answer { by, seen_source } if expected.contains(&by) && source_is_right(seen_source) => {
                *counts.entry(by).or_default() += 1;
            }
            _ => surprise = Some(outcome),
        }
        surprise.is_some() || probes >= LEAST_PROBES && counts.values().all(|count| *count > 0)
    })?;
    if let Some(outcome) = surprise {
        bail!("{outcome} (probe number {probes})");
    }
    let missing: Vec<_> = counts.iter().filter(|(_, count)| **count == 0).map(|(by, _)| by.to_string()).collect();
    if !missing.is_empty() {
        bail!("no answer by {} in {probes} probes", missing.join(", "));
    }
    Ok(())
}

fn all_are(sender: &Namespace, probe: Probe, expected: Outcome) -> anyhow::Result<()> {
    let mut surprise = None;
    sender.probe_until(probe, LEAST_PROBES, |outcome| {
        surprise = (outcome != expected).then_some(outcome);
        surprise.is_some()
    })?;
    match surprise {
        Some(outcome) => bail!("{outcome}"),
        None => Ok(()),
    }
}

fn silence(sender: &Namespace, probe: Probe) -> anyhow::Result<()> {
    let probe = probe.timeout(SILENCE_TIMEOUT);
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let probes: Vec<_> = (0..PROBES_INTO_SILENCE).map(|_| scope.spawn(|| sender.probe(probe))).collect();
        probes.into_iter().map(|probe| probe.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    });
    for outcome in outcomes {
        match outcome? {
            Outcome::Dropped => {}
            other => bail!("{other}"),
        }
    }
    Ok(())
}
