//! `localnet explain`: follows one packet, from the outcome in the brain's state to the kernel's rules.
//!
//! ```text
//!  state ─► oracle (client::route) ─► outcome ─┬─► reasons: endpoints that are not eligible, and why
//!                                              ├─► path: chains, rules, elements ─► kernel: whether it holds them
//!                                              └─► connection tracking: the existing flows
//! ```

mod in_kernel;
mod text;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use localnet_client::{
    route::{Origin, Outcome, Packet, Target},
    vips::{VipKey, hashing},
};
use localnet_proto::{
    Affinity, Family, HashBy, ServiceKey,
    reasons::{Ineligible, Reasons, Topology},
};
use serde::Serialize;

pub use in_kernel::{PathRow, in_kernel};

use crate::{
    flows::{FlowRow, flows},
    origin::Origin as Configured,
    peer::Peer,
    world::{Judged, World},
};

/// The maximum number of flows in an answer.
const MOST_FLOWS: usize = 20;

/// The outcome for a packet, and the reasons.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// The packet's source address; empty if unknown.
    pub from: String,
    /// The packet's sender, as the node sees it: `pod`, `node` or `outside`.
    pub origin: &'static str,
    /// The packet's destination.
    pub to: String,
    /// The packet's protocol.
    pub protocol: &'static str,
    /// The Service that the packet is sent to.
    pub service: Option<String>,
    /// The port of the Service.
    pub port: Option<String>,
    /// The kind of the destination: `ClusterIP`, `external`, `NodePort`, or `none`.
    pub destination: &'static str,
    /// The outcome: `endpoints`, `reject`, `drop` or `notOurs`.
    pub outcome: &'static str,
    /// Why, in one sentence.
    pub why: String,
    /// The endpoints that may receive the packet.
    pub endpoints: BTreeSet<SocketAddr>,
    /// How a hash chooses one of these endpoints; `None` if the choice is random.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hash: Option<Hashed>,
    /// The weights of these endpoints, or with a hash the numbers of their slots; empty if all weights are equal. A new connection goes to an endpoint with the probability that its
    /// weight has in the sum of all weights.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub weights: BTreeMap<SocketAddr, u32>,
    /// Whether the node's address replaces the packet's source address.
    pub masquerade: bool,
    /// Whether the ebpf backend replaces the destination when the sender connects. The endpoint then sees the sender's own address.
    pub translated_on_connect: bool,
    /// The endpoints that belong to the sender itself. For these, the source address is replaced even if `masquerade` is false.
    pub hairpin: BTreeSet<SocketAddr>,
    /// The session affinity, which sends the sender's new connections to the same endpoint.
    #[serde(rename = "affinitySeconds")]
    pub affinity: Option<Affinity>,
    /// Endpoints of the port that are not eligible for this traffic, each with the rule that excludes it.
    pub ineligible: Vec<Ineligible>,
    /// How many endpoints of the Service are not eligible for at least one scope.
    pub ineligible_count: usize,
    /// How topology hints reduce the eligible endpoints.
    pub hints: Vec<Topology>,
    /// Why the brain's reasons are unknown.
    pub reasons_unknown: Option<String>,
    /// The steps of the packet through the kernel's rules.
    pub path: Vec<PathRow>,
    /// Why the kernel was not read.
    pub kernel_unknown: Option<String>,
    /// Existing flows to the same destination, and from the same source if it is known.
    pub flows: Vec<FlowRow>,
    /// The total number of these flows. `flows` may contain only some of them.
    pub flows_count: usize,
    /// Why the flows are unknown.
    pub flows_unknown: Option<String>,
    /// The configuration that the answer was computed with; `None` if the packet is one of many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub configuration: Option<Configured>,
}

/// How a hash chooses the endpoint of a new connection.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Hashed {
    /// What is hashed.
    pub by: HashBy,
    /// The number of slots, each with one endpoint.
    pub slots: u32,
    /// The endpoint of this sender; `None` if it depends on the sender's port, or if the sender is unknown.
    pub endpoint: Option<SocketAddr>,
}

impl Explanation {
    /// Whether the packet reaches an endpoint, according to the state and the kernel.
    pub fn arrives(&self) -> bool {
        self.outcome == "endpoints" && self.path.iter().all(|row| !matches!(row.held, "no" | "other"))
    }
}

/// The outcomes for many packets, computed only from the state.
#[derive(Debug, Serialize)]
pub struct Many(pub Vec<Explanation>);

/// The name of an outcome, as in `Explanation::outcome`.
pub fn outcome_name(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Endpoints { .. } => "endpoints",
        Outcome::Reject => "reject",
        Outcome::Drop => "drop",
        Outcome::NotOurs => "notOurs",
    }
}

/// The name of an origin, as in `Explanation::origin`.
pub fn origin_name(origin: Origin) -> &'static str {
    match origin {
        Origin::Pod => "pod",
        Origin::Node => "node",
        Origin::Outside => "outside",
    }
}

/// Returns the part of the answer that follows from the state. It needs neither the kernel nor the brain's reasons.
pub fn from_state(world: &World, judged: &Judged<'_>) -> Explanation {
    let packet = &judged.packet;
    let mut explanation = Explanation {
        from: if packet.source.is_unspecified() { String::new() } else { packet.source.to_string() },
        origin: origin_name(packet.origin),
        to: SocketAddr::new(packet.destination, packet.port).to_string(),
        protocol: packet.protocol.as_str(),
        service: judged.service().map(ToString::to_string),
        port: judged.target.as_ref().map(|target| port_name(target)),
        destination: match (&judged.target, &judged.vip) {
            (Some(target), _) if target.internal => "ClusterIP",
            (_, Some(vip)) if vip.by_node_port => "NodePort",
            (Some(_), _) => "external",
            (None, _) => "none",
        },
        outcome: outcome_name(&judged.outcome),
        why: why(world, judged),
        translated_on_connect: judged.is_translated_on_connect(world),
        ..Explanation::default()
    };
    if let Outcome::Endpoints { choices, masquerade, hairpin, affinity } = &judged.outcome {
        explanation.endpoints.clone_from(choices);
        explanation.hairpin.clone_from(hairpin);
        let all: Vec<SocketAddr> = choices.iter().copied().collect();
        if let Some(vip) = judged.vip.as_ref().filter(|vip| vip.weights.differ(&all)) {
            explanation.weights = all.iter().map(|endpoint| (*endpoint, vip.weights.of(endpoint))).collect();
        }
        let hashing = judged.vip.as_ref().filter(|_| all.len() > 1 && !explanation.translated_on_connect);
        if let Some((vip, hashing)) = hashing.and_then(|vip| Some((vip, vip.hash.as_ref()?))) {
            let slots = hashing.slots(&all.into(), &vip.weights);
            explanation.weights.clear();
            slots.iter().for_each(|endpoint| *explanation.weights.entry(*endpoint).or_default() += 1);
            let count = u32::try_from(slots.len()).unwrap_or(u32::MAX);
            let known = hashing.by == HashBy::Source && !packet.source.is_unspecified();
            let slot = || hashing::slot(hashing.by, SocketAddr::new(packet.source, 0), count) as usize;
            let endpoint = known.then(slot).and_then(|slot| slots.get(slot).copied());
            explanation.hash = Some(Hashed { by: hashing.by, slots: count, endpoint });
        }
        (explanation.masquerade, explanation.affinity) = (*masquerade, *affinity);
    }
    explanation
}

fn port_name(target: &Target<'_>) -> String {
    if target.port.name.is_empty() { target.port.port.to_string() } else { target.port.name.to_string() }
}

fn why(world: &World, judged: &Judged<'_>) -> String {
    let to = judged.packet.destination;
    let Some(target) = &judged.target else {
        return match judged.outcome {
            Outcome::Reject => format!("{to} is a ClusterIP, and its Service has no such port"),
            Outcome::Drop => format!("{to} is in the range of ClusterIPs, but no Service has it"),
            _ if world.has(to) => format!("{to} is an address of the node, but no NodePort answers there on this port"),
            _ => format!("no Service of this node has {to} with this port"),
        };
    };
    let key = &target.service.key;
    let policy = if target.internal { "internalTrafficPolicy" } else { "externalTrafficPolicy" };
    let local = if target.internal {
        target.service.internal_traffic_to_local
    } else {
        target.service.external_traffic_to_local
    };
    match &judged.outcome {
        Outcome::Endpoints { masquerade: true, .. } if !target.internal => {
            format!("an address of Service {key} for external traffic, which is masqueraded")
        }
        Outcome::Endpoints { masquerade: true, .. } => {
            format!("a ClusterIP of Service {key}; the sender is not a pod of this node, so its address is masqueraded")
        }
        Outcome::Endpoints { .. } => format!("an address of Service {key}; the source address is kept"),
        Outcome::Drop if judged.is_filtered() => {
            format!("spec.loadBalancerSourceRanges of Service {key} does not admit {}", judged.packet.source)
        }
        Outcome::Drop if local => {
            format!("{policy} of Service {key} is Local, and no endpoint on this node is eligible")
        }
        Outcome::Drop => format!("Service {key} has endpoints, but none is eligible for this traffic on this node"),
        Outcome::Reject => format!("no endpoint of Service {key} is eligible for this port"),
        Outcome::NotOurs => String::new(),
    }
}

/// Returns the complete answer about a packet.
pub async fn explain(world: &mut World, brain: Option<&Peer>, packet: Packet, has_source: bool) -> Explanation {
    let judged = world.judge(packet);
    let mut explanation = from_state(world, &judged);
    explanation.configuration = Some(world.configuration.origin.clone());
    if !has_source {
        explanation.from = String::new();
    }
    let (steps, scope) = (judged.steps(world), judged.scope());
    let family = Family::of(packet.destination);
    let key = judged.target.as_ref().map(|target| (target.service.key.clone(), target.port.name.clone()));
    let serving = judged.vip.as_ref().map(|vip| vip.serving.clone()).unwrap_or_default();
    let has_affinity = judged.vip.as_ref().is_some_and(|vip| vip.affinity.is_some());
    drop(judged);
    if let Some((key, port)) = &key {
        match reasons(brain, key).await {
            Ok(why) => {
                explanation.ineligible_count = why.ineligible_count;
                let of_port = |of: &Ineligible| *of.port_name == **port && of.is_of(family) && of.from.overlaps(scope);
                explanation.ineligible = why.ineligible.into_iter().filter(of_port).collect();
                let of_port = |of: &Topology| *of.port_name == **port && of.family == family;
                explanation.hints = why.topology.into_iter().filter(of_port).collect();
            }
            Err(unknown) => explanation.reasons_unknown = Some(unknown),
        }
    }
    (explanation.path, explanation.kernel_unknown) = in_kernel(world, family, &steps);
    if has_affinity && let Ok(kernel) = &mut world.kernel {
        let key = VipKey { address: packet.destination, protocol: packet.protocol, port: packet.port };
        explanation.path.extend(in_kernel::affinity_rows(kernel, family, &key));
    }
    if world.is_here && (world.kernel.is_ok() || world.other.is_some()) {
        let source = has_source.then_some(packet.source);
        match flows(&packet, source, &serving) {
            Ok(flows) => {
                explanation.flows_count = flows.len();
                explanation.flows = flows.into_iter().take(MOST_FLOWS).collect();
            }
            Err(unknown) => explanation.flows_unknown = Some(unknown),
        }
    }
    explanation
}

/// Returns the brain's reasons about a Service.
///
/// # Errors
/// Returns the cause in words if there is no brain, or if the brain does not answer.
pub async fn reasons(brain: Option<&Peer>, key: &ServiceKey) -> Result<Reasons, String> {
    let Some(brain) = brain else {
        return Err("a saved or earlier state has no reasons; query a brain with --api".to_owned());
    };
    brain.why(key).await
}
