//! Whether hints narrow the endpoints of a port to those near this node (KEP-2433, KEP-3015).
//!
//! Hints are an all-or-nothing offer of the endpoint controller: they are followed only when every ready endpoint has one
//! and one of them is meant for this node. Neither `spec.trafficDistribution` nor an annotation is read: they reach a node as
//! hints.

use std::{fmt, net::IpAddr, sync::Arc};

use localnet_proto::{Family, Port};

use super::{Here, candidates::Candidate};

/// Which endpoints are near enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// All.
    Everywhere,
    /// Those hinted for this node.
    SameNode,
    /// Those hinted for this node's zone.
    SameZone,
}

/// How hints narrow the endpoints of one port in one family, and why they do not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Name of the port; may be empty.
    pub port: Arc<str>,
    /// The family.
    pub family: Family,
    /// Which endpoints get traffic that may go anywhere.
    pub mode: Mode,
    /// Why hints for nodes are not followed; `None` when they are.
    pub not_same_node: Option<Reason>,
    /// Why hints for zones are not followed; `None` when they are, or when there is no need for them.
    pub not_same_zone: Option<Reason>,
}

/// Why hints are not followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A traffic policy of `Local` keeps all traffic on this node: no hint is asked for.
    PolicyLocal,
    /// No endpoint is ready; hints do not narrow those that serve while they terminate.
    NoReadyEndpoint,
    /// No ready endpoint has a hint: the cluster offers none.
    NoHints,
    /// Some ready endpoints have hints, but this one (the first) does not: a rollout may be under way.
    EndpointWithoutHint(IpAddr),
    /// The Node has no zone.
    NodeHasNoZone,
    /// No ready endpoint is hinted for this node.
    NoHintForNode(Arc<str>),
    /// No ready endpoint is hinted for this node's zone.
    NoHintForZone(Arc<str>),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PolicyLocal => f.write_str("the traffic policy is Local"),
            Self::NoReadyEndpoint => f.write_str("no endpoint is ready"),
            Self::NoHints => f.write_str("no endpoint has a hint"),
            Self::EndpointWithoutHint(address) => write!(f, "the endpoint {address} has no hint"),
            Self::NodeHasNoZone => f.write_str("the node has no zone (label topology.kubernetes.io/zone)"),
            Self::NoHintForNode(node) => write!(f, "no endpoint is hinted for node {node}"),
            Self::NoHintForZone(zone) => write!(f, "no endpoint is hinted for zone {zone}"),
        }
    }
}

/// Reads the hints of the ready endpoints: for the node, else for the zone, else none.
pub(super) fn mode<'a>(endpoints: impl Iterator<Item = &'a Candidate<'a>> + Clone, here: &Here) -> Mode {
    let ready = endpoints.filter(|endpoint| endpoint.conditions.ready);
    let offered = |mode: &Mode| offer(*mode, ready.clone(), here).is_ok();
    [Mode::SameNode, Mode::SameZone].into_iter().find(offered).unwrap_or(Mode::Everywhere)
}

/// What an offer lacks.
enum Gap {
    /// A hint of the ready endpoint at this position.
    Hint(usize),
    /// A hint that is meant for this node.
    Here,
}

/// Whether the ready endpoints, all of them, are hinted in the mode, and one of them for this node.
fn offer<'a>(mode: Mode, mut ready: impl Iterator<Item = &'a Candidate<'a>> + Clone, here: &Here) -> Result<(), Gap> {
    match ready.clone().position(|endpoint| hints(mode, endpoint).is_empty()) {
        Some(position) => Err(Gap::Hint(position)),
        None if ready.any(|endpoint| admits(mode, endpoint, here)) => Ok(()),
        None => Err(Gap::Here),
    }
}

fn hints<'a>(mode: Mode, endpoint: &Candidate<'a>) -> &'a [Arc<str>] {
    match mode {
        Mode::Everywhere => &[],
        Mode::SameNode => endpoint.node_hints,
        Mode::SameZone => endpoint.zone_hints,
    }
}

/// Explains [`mode`]. `asked`: some traffic may go to other nodes.
pub(super) fn explain<'a>(
    port: &Port,
    family: Family,
    asked: bool,
    endpoints: impl Iterator<Item = (IpAddr, &'a Candidate<'a>)>,
    here: &Here,
) -> Topology {
    let ready: Vec<_> = endpoints.filter(|(_, endpoint)| endpoint.conditions.ready).collect();
    let why_not = |mode: Mode| {
        if !asked {
            return Some(Reason::PolicyLocal);
        }
        if ready.is_empty() {
            return Some(Reason::NoReadyEndpoint);
        }
        let gap = offer(mode, ready.iter().map(|(_, endpoint)| *endpoint), here).err()?;
        Some(match (gap, mode) {
            (Gap::Hint(_), _) if ready.iter().all(|(_, endpoint)| hints(mode, endpoint).is_empty()) => Reason::NoHints,
            (Gap::Hint(position), _) => Reason::EndpointWithoutHint(ready[position].0),
            (Gap::Here, Mode::SameNode) => Reason::NoHintForNode(Arc::clone(&here.name)),
            (Gap::Here, _) if here.zone.is_empty() => Reason::NodeHasNoZone,
            (Gap::Here, _) => Reason::NoHintForZone(Arc::clone(&here.zone)),
        })
    };
    let not_same_node = why_not(Mode::SameNode);
    let not_same_zone = not_same_node.as_ref().and_then(|_| why_not(Mode::SameZone));
    let mode = match (&not_same_node, &not_same_zone) {
        (None, _) => Mode::SameNode,
        (Some(_), None) => Mode::SameZone,
        (Some(_), Some(_)) => Mode::Everywhere,
    };
    Topology { port: Arc::clone(&port.name), family, mode, not_same_node, not_same_zone }
}

/// Whether the endpoint is near enough in the mode.
pub(super) fn admits(mode: Mode, endpoint: &Candidate<'_>, here: &Here) -> bool {
    match mode {
        Mode::Everywhere => true,
        Mode::SameNode => endpoint.node_hints.contains(&here.name),
        // A node without a zone is in none, whatever an empty hint may say.
        Mode::SameZone => !here.zone.is_empty() && endpoint.zone_hints.contains(&here.zone),
    }
}
