//! States for checks. Any backend can hold them, because no two services share an address.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::Path,
    sync::Arc,
};

use anyhow::bail;
use localnet_brain::watch::file;
use localnet_cluster::{Cluster, Options};
use localnet_proto::{Endpoint, EndpointPort, Family, Node, Port, Protocol, Scopes, Service, ServiceKey, Snapshot};

const SERVES: Scopes = Scopes { internal: true, external: true, short_circuit: false, established: true };

pub(crate) fn state(services: impl IntoIterator<Item = Service>) -> Snapshot {
    let node = Node {
        name: "node-a".to_owned(),
        addresses: vec![[192, 168, 0, 2].into()],
        zone: "zone-a".to_owned(),
        ..Node::default()
    };
    let services: BTreeMap<_, _> =
        services.into_iter().map(|service| (service.key.clone(), Arc::new(service))).collect();
    Snapshot { node, services, ..Snapshot::default() }
}

/// The ClusterIP of the service with this number.
pub(super) fn vip(number: u16) -> Ipv4Addr {
    let [high, low] = number.to_be_bytes();
    Ipv4Addr::new(172, 30, high, low)
}

/// A service with one TCP port and `endpoints` endpoints.
pub(crate) fn service(number: u16, endpoints: u16) -> Service {
    named(&format!("web-{number}"), number, "http", endpoints)
}

/// Like [`service`], but with the given names of the service and its port.
pub(super) fn named(name: &str, number: u16, port: &str, endpoints: u16) -> Service {
    let ports = vec![self::port(port, Protocol::Tcp, 80)];
    let endpoints = (0..endpoints).map(|index| endpoint(pod(index), port, 8080)).collect();
    Service { ports, endpoints, ..Service::new(ServiceKey::new("default", name), vec![vip(number).into()]) }
}

pub(super) fn port(name: &str, protocol: Protocol, number: u16) -> Port {
    Port { name: name.into(), protocol, port: number, ..Port::default() }
}

/// The address of the endpoint with this index.
pub(super) fn pod(index: u16) -> IpAddr {
    let [high, low] = (index + 1).to_be_bytes();
    Ipv4Addr::new(10, 180, high, low).into()
}

/// The last address of a pod on the node; pods with higher addresses are on other nodes.
const LAST_LOCAL: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 180, 0, 10)), IpAddr::V6(Ipv6Addr::new(0xfd00, 0x10, 0x180, 0, 0, 0, 0, 10))];

pub(super) fn endpoint(address: IpAddr, port: &str, number: u16) -> Endpoint {
    let ports = vec![EndpointPort { name: port.into(), port: number }];
    let local = LAST_LOCAL.iter().any(|last| last.is_ipv4() == address.is_ipv4() && address <= *last);
    Endpoint { address, ports, local, hostname: None, scopes: SERVES, weight: None }
}

/// A service with ClusterIPs and endpoints of both families.
pub(super) fn dual_stack(number: u16) -> Service {
    let mut service = service(number, 2);
    service.cluster_ips.push(Ipv6Addr::new(0xfd00, 0x172, 0x30, 0, 0, 0, 0, number).into());
    service.endpoints.push(endpoint(Ipv6Addr::new(0xfd00, 0x10, 0x180, 0, 0, 0, 0, 1).into(), "http", 8080));
    debug_assert!(Family::BOTH.iter().all(|family| service.has_family(*family)));
    service
}

/// The state of a node, from the cluster of a Case.
pub(super) fn state_of_case(cluster: &Path, node: &str) -> anyhow::Result<Snapshot> {
    let loaded = match file::load(cluster) {
        Ok(loaded) => loaded,
        Err(problems) => bail!("{}: {:?}", cluster.display(), problems.first().map(ToString::to_string)),
    };
    let mut cluster = Cluster::new(Options::of_node(node));
    for event in loaded.events {
        cluster.handle(event);
    }
    let Some(localized) = cluster.localize() else { bail!("the cluster of the Case is incomplete") };
    let services = localized.services.into_iter().filter_map(|(key, service)| Some((key, service?)));
    Ok(Snapshot { node: localized.node.unwrap_or_default(), services: services.collect(), ..Snapshot::default() })
}
