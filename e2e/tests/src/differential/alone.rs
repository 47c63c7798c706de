//! The state of each Service as if it were the only one. If several Services claim one address, the brain gives it to the oldest,
//! whereas kube-proxy gives each port to whichever Service it processes last. Pure.

use std::net::IpAddr;

use anyhow::Context as _;
use k8s_openapi::api::{
    core::v1::{self, Node},
    discovery::v1::EndpointSlice,
};
use localnet_client::Snapshot;
use localnet_cluster;
use localnet_cluster::objects::{Event, Kind, Object};
use localnet_proto::{Node as NodeState, Service as Localized};
use serde_json::Value;

use super::cluster::{Cluster, NAMESPACE, NodeFacts, Service};

/// The state of a node in a cluster that has only this Service.
pub(crate) fn alone(service: &Service, facts: &NodeFacts, node: &NodeState) -> anyhow::Result<Snapshot> {
    let in_namespace = |mut object: Value| {
        object["metadata"]["namespace"] = NAMESPACE.into();
        object
    };
    let mut object = in_namespace(service.object());
    object["status"] = service.status();
    let object: v1::Service = serde_json::from_value(object).context("reading a Service")?;
    let slices = service.slices.iter().map(|slice| {
        let slice: EndpointSlice = serde_json::from_value(in_namespace(slice.object(&service.name)))?;
        Ok(Object::Slice(slice.into()))
    });
    let slices = slices.collect::<anyhow::Result<_>>().context("reading a slice")?;
    let of_node: Node = serde_json::from_value(facts.object(&node.name)).context("reading a Node")?;
    let mut cluster = localnet_cluster::Cluster::new(localnet_cluster::Options::of_node(&node.name));
    for (kind, objects) in [
        (Kind::Service, vec![Object::Service(object.into())]),
        (Kind::Slice, slices),
        (Kind::Node, vec![Object::Node(of_node.into())]),
        (Kind::ServiceCidr, vec![]),
    ] {
        cluster.handle(Event::Replace { kind, objects });
    }
    let localized = cluster.localize().context("a list is missing")?;
    let services = localized.services.into_iter().filter_map(|(key, service)| Some((key, service?)));
    Ok(Snapshot { node: node.clone(), services: services.collect(), ..Snapshot::default() })
}

/// For each Service that claims `address` as an external address, the state with that Service alone.
pub(crate) fn claimants(cluster: &Cluster, address: IpAddr, node: &NodeState) -> Vec<Snapshot> {
    let names = |service: &&Service| {
        let external = service.external_ips.iter().copied();
        external.chain(service.ingress().iter().map(|ingress| ingress.ip)).any(|ip| ip == address)
    };
    let states = cluster.services.values().filter(names).map(|service| {
        alone(service, &cluster.node, node).unwrap_or_else(|error| panic!("{}: {error:#}", service.name))
    });
    states.filter(|state| state.services.values().any(|service| has(service, address))).collect()
}

fn has(service: &Localized, address: IpAddr) -> bool {
    service.external_ips.iter().chain(&service.load_balancer_ips).any(|ip| *ip == address)
}
