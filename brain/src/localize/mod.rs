//! From Kubernetes objects to what they mean on this node: pure, total, one module per decision.
//!
//! ```text
//! proxied?  ─► front: families, addresses, ports, source ranges   ─┐
//! slices ─► candidates: merged, de-duplicated endpoints per port  ─┼─► categorize ─► Service
//! node   ─► here: name, zone, addresses                           ─┘
//! ```
//!
//! The rules are those of kube-proxy v1.36; each module says which one it holds. Whatever cannot be used is left out and
//! returned as [`Skipped`]; an odd object never stops another.

mod candidates;
mod categorize;
mod endpoints;
#[cfg(test)]
pub(crate) mod fixtures;
mod front;
mod health;
mod node;
mod ports;
mod proxied;
pub mod reasons;
mod source_ranges;
mod special;
#[cfg(test)]
mod tests;
mod topology;

use std::{net::IpAddr, sync::Arc};

use localnet_proto::{Family, Node, Protocol, Service, ServiceKey, encode};

use crate::cluster::{ServiceObject, SliceObject};
use categorize::Policy;
pub use front::wanted;
pub use health::{HEALTH_CHECK_NODE_PORT, HealthCheck, health_check, health_check_port, is_eligible};
pub use node::{Here, NodeIps, node, node_is_gone};
pub use ports::NODE_PORTS;
pub use proxied::is_proxied;
pub use reasons::{Reasons, Standing};
pub use topology::{Mode, Reason, Topology};

/// What changed on this node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Localized {
    /// The facts about the node, if they may have changed.
    pub node: Option<Node>,
    /// The services that may have changed, sorted; `None` for those that are not served (any more).
    pub services: Vec<(ServiceKey, Option<Arc<Service>>)>,
    /// Those of the services that load balancers ask after, sorted: what they are told.
    pub health_checks: Vec<(ServiceKey, HealthCheck)>,
    /// Whether load balancers may choose this node, if that may have changed.
    pub node_eligible: Option<bool>,
    /// The family of the node's first address, if the node's facts are here and tell.
    pub primary: Option<Family>,
    /// What was left out of them, or is odd in them.
    pub skipped: Vec<Skipped>,
    /// The objects that changed.
    pub changes: ObjectChanges,
}

/// How many objects changed, and why when.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectChanges {
    /// Changes of Services.
    pub services: u64,
    /// Changes of EndpointSlices.
    pub slices: u64,
    /// When what changed the EndpointSlices had happened, in microseconds since 1970, of those that say so.
    pub triggered: Vec<i64>,
}

/// Something that was left out of the state, or that is odd in it, and why.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Skipped {
    /// Whether it was left out. What is odd is in the state nevertheless.
    pub left_out: bool,
    /// The service that it is about; `None` for the node.
    pub service: Option<ServiceKey>,
    /// The object at fault: `Service default/web`.
    pub object: String,
    /// The field at fault: `spec.ports[1].port`.
    pub field: String,
    /// What is wrong with it.
    pub problem: String,
    /// What can be done.
    pub remedy: String,
}

/// An address and port of a service that belongs to another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The address and port; NodePorts stand under the unspecified address of their family.
    pub front: (IpAddr, Protocol, u16),
    /// The field that names it.
    pub field: &'static str,
    /// Whose it is.
    pub to: ServiceKey,
}

/// Collects what is left out of one service.
struct Skips<'a> {
    service: &'a ServiceObject,
    skipped: Vec<Skipped>,
}

impl Skips<'_> {
    fn service(&mut self, field: impl Into<String>, problem: impl Into<String>, remedy: impl Into<String>) {
        let object = format!("Service {}/{}", self.service.namespace, self.service.name);
        self.push(object, field, problem, remedy);
    }

    /// Says what is odd about the service although it is served.
    fn odd(&mut self, field: impl Into<String>, problem: impl Into<String>, remedy: impl Into<String>) {
        self.service(field, problem, remedy);
        if let Some(said) = self.skipped.last_mut() {
            said.left_out = false;
        }
    }

    fn slice(&mut self, slice: &SliceObject, field: impl Into<String>, problem: impl Into<String>, remedy: &str) {
        self.push(format!("EndpointSlice {}/{}", slice.namespace, slice.name), field, problem, remedy);
    }

    fn push(
        &mut self,
        object: String,
        field: impl Into<String>,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        let (field, problem, remedy) = (field.into(), problem.into(), remedy.into());
        let service = Some(self.service.key());
        self.skipped.push(Skipped { left_out: true, service, object, field, problem, remedy });
    }
}

/// What a proxied service means on this node. `None` when nothing of it can be served.
pub fn service<'a>(
    object: &ServiceObject,
    slices: impl IntoIterator<Item = &'a SliceObject>,
    here: &Here,
    lost: &[Lost],
) -> (Option<Service>, Vec<Skipped>) {
    let mut skips = Skips { service: object, skipped: Vec::new() };
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
    let service = Service {
        key: object.key(),
        kind: object.kind.as_str().to_owned(),
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
        endpoints,
    };
    if let Some(bytes) = encode::too_large(&service) {
        let problem = format!(
            "is too large to be sent: {} MiB in one message, of which readers accept {} MiB",
            bytes.div_ceil(1 << 20),
            encode::LARGEST_ITEM >> 20
        );
        skips.service("spec", problem, "split it into several Services");
        return (None, skips.skipped);
    }
    (Some(service), skips.skipped)
}

/// How hints narrow the endpoints of each port of a proxied service in each family, and why they do not. Computed anew: it is
/// for people who ask, not for each change.
pub fn topology<'a>(
    object: &ServiceObject,
    slices: impl IntoIterator<Item = &'a SliceObject>,
    here: &Here,
    lost: &[Lost],
) -> Vec<Topology> {
    // What is wrong has been said when the service was localized.
    let mut said = Skips { service: object, skipped: Vec::new() };
    let front = front::front(object, here, lost, &mut said);
    let ports = ports::ports(object, lost, &mut said);
    let families: Vec<Family> = front.cluster_ips.iter().map(|ip| Family::of(*ip)).collect();
    let candidates = candidates::merge(&ports, &families, slices, here, &mut said).unwrap_or_default();
    let policy = Policy::of(object);
    let mut explained = Vec::new();
    for (port, candidates) in ports.iter().zip(&candidates) {
        for family in &families {
            let asked = policy.uses_cluster(port.node_port.is_some() || front.is_external(*family));
            let of_family = candidates.iter().filter(|((address, _), _)| Family::of(*address) == *family);
            let endpoints = of_family.map(|((address, _), candidate)| (*address, candidate));
            explained.push(topology::explain(port, *family, asked, endpoints, here));
        }
    }
    explained
}

/// The port on which load balancers ask after the service: its own, if no other Service has it.
fn health_check_node_port(object: &ServiceObject, lost: &[Lost], skips: &mut Skips<'_>) -> Option<u16> {
    if !health::is_asked_after(object) {
        return None;
    }
    let Some(port) = health_check_port(object) else {
        skips.service(
            HEALTH_CHECK_NODE_PORT,
            "a load balancer with externalTrafficPolicy Local has no port for its health checks",
            "set it, or let the API server allocate one by removing it",
        );
        return None;
    };
    let Some(taken) = lost.iter().find(|lost| lost.field == HEALTH_CHECK_NODE_PORT) else { return Some(port) };
    skips.service(
        HEALTH_CHECK_NODE_PORT,
        format!("{port}/TCP belongs to Service {}, which is older or sorts first", taken.to),
        "give one of the two another port",
    );
    None
}
