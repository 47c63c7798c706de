//! Localizes Kubernetes objects: computes what they mean for this node. The code is pure and accepts every object. Each
//! module makes one kind of decision.
//!
//! ```text
//! proxied?  ─► front: families, addresses, ports, source ranges   ─┐
//! slices ─► candidates: merged, de-duplicated endpoints per port  ─┼─► categorize ─► Service
//! node   ─► here: name, zone, addresses                           ─┘
//! ```
//!
//! The rules are those of kube-proxy v1.37. Each module names the rules that it implements. An object or part of an object that
//! cannot be used is skipped and reported as a [`Diagnostic`]. An invalid object never affects another one.

mod candidates;
mod categorize;
mod endpoints;
mod facts;
mod front;
mod health;
mod names;
mod node;
mod ports;
mod proxied;
pub mod reasons;
mod source_ranges;
mod special;
#[cfg(test)]
mod tests;
mod topology;
mod weights;

use std::{fmt, net::IpAddr, num::NonZeroU64, sync::Arc};

use localnet_core::{Code, Diagnostic, Object, Subject};
use localnet_proto::{Family, HashBy, Node, Protocol, Service, ServiceKey, encode, v1::dns};

use crate::objects::{
    Kind, Parsed, ServiceObject, SliceObject,
    reduce::{CLOSE_AFTER, HASH},
};
use categorize::Policy;
pub use front::wanted;
pub use health::{HEALTH_CHECK_NODE_PORT, HealthCheck, health_check, health_check_port, is_eligible};
pub use localnet_proto::reasons::{Reasons, Rule, Standing};
pub use names::names;
pub use node::{Here, NodeIps, node, node_deleted};
pub use ports::NODE_PORTS;
pub use proxied::is_proxied;
pub use topology::{Mode, Reason, Topology};

/// What has changed in the state of this node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Localized {
    /// The facts about the node, if they may have changed.
    pub node: Option<Node>,
    /// The Services that may have changed, sorted. The value is `None` if the node does not serve the Service, or no
    /// longer serves it.
    pub services: Vec<(ServiceKey, Option<Arc<Service>>)>,
    /// What DNS must know about the Services in `services`. The value is `None` if DNS must not know the Service. Empty without
    /// [`Options::dns`](crate::Options::dns).
    pub names: Vec<(ServiceKey, Option<Arc<dns::Service>>)>,
    /// The answers to load balancers' health checks, sorted: one for each Service in `services` that has a health check
    /// port.
    pub health_checks: Vec<(ServiceKey, HealthCheck)>,
    /// Whether load balancers may choose this node. `None` if that has not changed.
    pub node_eligible: Option<bool>,
    /// The family of the node's first address. `None` if it is unknown, or if the facts about the node have not changed.
    pub primary: Option<Family>,
    /// The diagnostics of the node and of the Services in `services`. Each has the Service that it concerns, or `None`
    /// for the node.
    pub skipped: Vec<(Option<ServiceKey>, Diagnostic)>,
    /// How many objects changed, and when their changes were triggered.
    pub changes: ObjectChanges,
}

/// The changed objects, and the times of their triggers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectChanges {
    /// The number of changed Services.
    pub services: u64,
    /// The number of changed EndpointSlices.
    pub slices: u64,
    /// The trigger times of the changed EndpointSlices, in microseconds since 1970. EndpointSlices without a trigger time
    /// are omitted.
    pub triggered: Vec<i64>,
    /// The first [`MAX_OBJECTS`](Self::MAX_OBJECTS) objects that have changed.
    pub objects: Vec<ChangedObject>,
    /// The number of changed objects that `objects` omits.
    pub more_objects: u32,
}

impl ObjectChanges {
    /// Maximum length of `objects`.
    pub const MAX_OBJECTS: usize = 16;

    pub(crate) fn add(&mut self, object: ChangedObject) {
        if self.objects.len() < Self::MAX_OBJECTS {
            self.objects.push(object);
        } else {
            self.more_objects += 1;
        }
    }
}

/// A version of an object that has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedObject {
    /// The kind of the object.
    pub kind: Kind,
    /// The namespace of the object. Empty for kinds without namespaces.
    pub namespace: Arc<str>,
    /// The name of the object.
    pub name: Arc<str>,
    /// The object's `metadata.resourceVersion`, if it is known and a number.
    pub version: Option<NonZeroU64>,
    /// Whether the object was deleted.
    pub deleted: bool,
}

/// An address and port that a Service claims, but that another Service owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The address, protocol and port. A NodePort has the unspecified address of its family.
    pub front: (IpAddr, Protocol, u16),
    /// The field of the Service that contains the address or port.
    pub field: &'static str,
    /// The owner of the address and port.
    pub to: Owner,
}

/// The Service that owns an address and port which another Service claims, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The owner.
    pub service: ServiceKey,
    /// Whether the source of the owner precedes that of the other Service. Otherwise, both have the same precedence.
    pub is_of_earlier_source: bool,
}

/// Names the owner, and why it is the owner: "Service shop/web, which …".
impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = if self.is_of_earlier_source {
            "whose source has precedence"
        } else {
            "which is older (or equally old and first by name)"
        };
        write!(f, "Service {}, {why}", self.service)
    }
}

/// Collects the diagnostics of one Service.
struct Skips<'a> {
    service: &'a ServiceObject,
    skipped: Vec<Diagnostic>,
}

impl<'a> Skips<'a> {
    fn new(service: &'a ServiceObject) -> Self {
        Self { service, skipped: Vec::new() }
    }

    fn service(&mut self, code: Code, field: impl Into<String>, problem: impl Into<String>, remedy: impl Into<String>) {
        let subject = Subject::service(&self.service.key());
        self.skipped.push(Diagnostic::new(code, subject, problem).field(field).remedy(remedy));
    }

    fn slice(&mut self, of: &SliceObject, code: Code, field: impl Into<String>, problem: String, remedy: &str) {
        let subject = Object::new("EndpointSlice", Arc::clone(&of.namespace), Arc::clone(&of.name));
        self.skipped.push(Diagnostic::new(code, subject, problem).field(field).remedy(remedy));
    }
}

/// Localizes a proxied Service. Returns `None` if no part of the Service can be served.
pub fn service<'a>(
    object: &ServiceObject,
    slices: impl IntoIterator<Item = &'a SliceObject>,
    here: &Here,
    lost: &[Lost],
) -> (Option<Service>, Vec<Diagnostic>) {
    let mut skips = Skips::new(object);
    let front = front::front(object, here, lost, &mut skips);
    let ports = ports::ports(object, lost, &mut skips);
    if front.cluster_ips.is_empty() || ports.is_empty() {
        return (None, skips.skipped);
    }
    let families: Vec<Family> = front.cluster_ips.iter().map(|ip| Family::of(*ip)).collect();
    let Some(candidates) = candidates::merge(&ports, &families, slices, here, &mut skips) else {
        return (None, skips.skipped);
    };
    let policy = Policy::of(object);
    let (ports, endpoints) = endpoints::endpoints(ports, &families, &front, policy, &candidates, here);
    let facts = facts::facts(object, &ports, &endpoints, &candidates);
    let service = Service {
        key: object.key(),
        kind: object.kind.as_str().into(),
        cluster_ips: front.cluster_ips,
        external_ips: front.external_ips,
        load_balancer_ips: front.load_balancer_ips,
        ports,
        internal_traffic_to_local: policy.internal_local,
        external_traffic_to_local: policy.external_local,
        client_ip_affinity: object.affinity,
        source_filters: front.source_filters,
        health_check_node_port: health_check_node_port(object, lost, &mut skips),
        ipvs_scheduler: object.ipvs_scheduler.clone(),
        preserve_destination: object.preserve_destination,
        close_after: close_after(object, &mut skips),
        hash: hash(object, &mut skips),
        facts,
        endpoints,
    };
    if let Some(bytes) = encode::too_large(&service) {
        let problem = format!(
            "is too large: it needs a message of {} MiB, and readers accept at most {} MiB",
            bytes.div_ceil(1 << 20),
            encode::MAX_ITEM_BYTES >> 20
        );
        skips.service(Code::ServiceTooLarge, "spec", problem, "split it into several Services");
        return (None, skips.skipped);
    }
    (Some(service), skips.skipped)
}

fn close_after(object: &ServiceObject, skips: &mut Skips<'_>) -> Option<u32> {
    match object.extensions.as_ref()?.close_after.as_ref()? {
        Parsed::Good(seconds) => Some(*seconds),
        Parsed::Bad(text) => {
            let field = format!("metadata.annotations[{CLOSE_AFTER}]");
            skips.service(
                Code::AnnotationInvalid,
                field,
                format!("{text:?} is no duration"),
                "write it like 0s, 30s or 5m, at most 24h",
            );
            None
        }
    }
}

/// What is hashed to choose an endpoint. With session affinity, each client already has its endpoint, so nothing is hashed.
fn hash(object: &ServiceObject, skips: &mut Skips<'_>) -> Option<HashBy> {
    let (problem, remedy) = match object.extensions.as_ref()?.hash.as_ref()? {
        Parsed::Good(by) if object.affinity.is_none() => return Some(*by),
        Parsed::Good(by) => (
            format!("{by} has no effect, because spec.sessionAffinity is ClientIP"),
            "set spec.sessionAffinity to None, or remove the annotation",
        ),
        Parsed::Bad(text) => (format!("{text:?} is neither source nor connection"), "write source or connection"),
    };
    skips.service(Code::AnnotationInvalid, format!("metadata.annotations[{HASH}]"), problem, remedy);
    None
}

/// For each port and family of a proxied Service: how hints narrow the endpoints, or why the hints are ignored. The brain
/// computes this on request, for diagnosis only.
pub fn topology<'a>(
    object: &ServiceObject,
    slices: impl IntoIterator<Item = &'a SliceObject>,
    here: &Here,
    lost: &[Lost],
) -> Vec<Topology> {
    // These diagnostics were already reported when the Service was localized.
    let mut skips = Skips::new(object);
    let front = front::front(object, here, lost, &mut skips);
    let ports = ports::ports(object, lost, &mut skips);
    let families: Vec<Family> = front.cluster_ips.iter().map(|ip| Family::of(*ip)).collect();
    let candidates = candidates::merge(&ports, &families, slices, here, &mut skips).unwrap_or_default();
    let policy = Policy::of(object);
    let mut explained = Vec::new();
    for (port, candidates) in ports.iter().zip(&candidates) {
        for family in &families {
            let uses_cluster = policy.uses_cluster(port.node_port.is_some() || front.is_external(*family));
            let of_family = candidates.iter().filter(|((address, _), _)| Family::of(*address) == *family);
            let endpoints = of_family.map(|((address, _), candidate)| (*address, candidate));
            explained.push(topology::explain(port, *family, uses_cluster, endpoints, here));
        }
    }
    explained
}

/// The Service's own port for load balancers' health checks, unless another Service owns it.
fn health_check_node_port(object: &ServiceObject, lost: &[Lost], skips: &mut Skips<'_>) -> Option<u16> {
    if !health::has_health_check(object) {
        return None;
    }
    let Some(port) = health_check_port(object) else {
        skips.service(
            Code::HealthCheckPortMissing,
            HEALTH_CHECK_NODE_PORT,
            "a Service of type LoadBalancer with externalTrafficPolicy Local has no port for health checks",
            "set the field, or remove it so that the API server allocates a port",
        );
        return None;
    };
    let Some(taken) = lost.iter().find(|lost| lost.field == HEALTH_CHECK_NODE_PORT) else { return Some(port) };
    let problem = format!("{port}/TCP belongs to {}", taken.to);
    skips.service(Code::AddressTaken, HEALTH_CHECK_NODE_PORT, problem, "give one of the two Services another port");
    None
}
