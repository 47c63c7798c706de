//! Decides whether topology hints narrow the endpoints of a port to those near this node (KEP-2433, KEP-3015).
//!
//! The endpoint controller sets hints on all endpoints or on none. Hints therefore apply only if every ready endpoint has
//! one, and if at least one hint is for this node or its zone. This module reads neither `spec.trafficDistribution` nor
//! the annotations of a Service, because the endpoint controller turns them into hints.

use std::{fmt, net::IpAddr, sync::Arc};

use localnet_proto::{
    Family, Port,
    reasons::{self, Nearness},
};

use super::{Here, candidates::Candidate};

/// The endpoints that remain after hints have been applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// All endpoints.
    Everywhere,
    /// Endpoints that are hinted for this node.
    SameNode,
    /// Endpoints that are hinted for this node's zone.
    SameZone,
}

/// How hints narrow the endpoints of one port in one family, or why they are ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// The name of the port. May be empty.
    pub port: Arc<str>,
    /// The family of the endpoints.
    pub family: Family,
    /// Which endpoints remain for traffic to which no traffic policy `Local` applies.
    pub mode: Mode,
    /// Why hints for nodes are ignored. `None` if they apply.
    pub not_same_node: Option<Reason>,
    /// Why hints for zones are ignored. `None` if they apply, or if hints for nodes apply instead.
    pub not_same_zone: Option<Reason>,
}

/// The reason why hints are ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A traffic policy of `Local` keeps all traffic on this node, so hints are not needed.
    PolicyLocal,
    /// No endpoint is ready. Hints do not narrow endpoints that serve while they terminate.
    NoReadyEndpoint,
    /// No ready endpoint has a hint.
    NoHints,
    /// Some ready endpoints have hints, and others do not, for example during a rollout. The address is that of the first
    /// endpoint without a hint.
    EndpointWithoutHint(IpAddr),
    /// This node's Node object has no zone, so hints for zones cannot apply.
    NodeHasNoZone,
    /// No ready endpoint is hinted for this node.
    NoHintForNode(Arc<str>),
    /// No ready endpoint is hinted for this node's zone.
    NoHintForZone(Arc<str>),
}

impl From<&Topology> for reasons::Topology {
    fn from(of: &Topology) -> Self {
        let text = |reason: &Option<Reason>| reason.as_ref().map(ToString::to_string).unwrap_or_default();
        Self {
            port_name: of.port.to_string(),
            family: of.family,
            nearness: match of.mode {
                Mode::Everywhere => Nearness::Everywhere,
                Mode::SameNode => Nearness::SameNode,
                Mode::SameZone => Nearness::SameZone,
            },
            not_same_node: text(&of.not_same_node),
            not_same_zone: text(&of.not_same_zone),
            unhinted: [&of.not_same_node, &of.not_same_zone].iter().all(|of| **of == Some(Reason::NoHints)),
        }
    }
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

/// Reads the hints of the ready endpoints. Hints for nodes outrank hints for zones. If neither kind of hint applies to
/// this node, all endpoints remain.
pub(super) fn mode<'a>(endpoints: impl Iterator<Item = &'a Candidate<'a>> + Clone, here: &Here) -> Mode {
    let ready = endpoints.filter(|endpoint| endpoint.conditions.ready);
    let offered = |mode: &Mode| offer(*mode, ready.clone(), here).is_ok();
    [Mode::SameNode, Mode::SameZone].into_iter().find(offered).unwrap_or(Mode::Everywhere)
}

/// The reason why the hints that a mode uses do not apply.
enum Gap {
    /// The ready endpoint at this position has no hint.
    Hint(usize),
    /// No hint is for this node or its zone.
    Here,
}

/// Checks that every ready endpoint has a hint of the kind that `mode` uses, and that at least one of these hints is for
/// this node or its zone.
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
        Mode::SameNode => &endpoint.of.node_hints,
        Mode::SameZone => &endpoint.of.zone_hints,
    }
}

/// Explains [`mode`]. `uses_cluster`: whether some traffic may go to other nodes.
pub(super) fn explain<'a>(
    port: &Port,
    family: Family,
    uses_cluster: bool,
    endpoints: impl Iterator<Item = (IpAddr, &'a Candidate<'a>)>,
    here: &Here,
) -> Topology {
    let ready: Vec<_> = endpoints.filter(|(_, endpoint)| endpoint.conditions.ready).collect();
    let why_not = |mode: Mode| {
        if !uses_cluster {
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

/// Whether the hints that the mode uses allow the endpoint.
pub(super) fn admits(mode: Mode, endpoint: &Candidate<'_>, here: &Here) -> bool {
    match mode {
        Mode::Everywhere => true,
        Mode::SameNode => endpoint.of.node_hints.contains(&here.name),
        // A node without a zone never matches, not even an empty hint.
        Mode::SameZone => !here.zone.is_empty() && endpoint.of.zone_hints.contains(&here.zone),
    }
}
