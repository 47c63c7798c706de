//! The material of random clusters: the addresses and ports of the lab that Services, endpoints and packets may use.
//!
//! A server answers at every address that an untranslated packet could reach. So a missing translation is visible as an answer,
//! not just as silence.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use localnet_lab::{
    Endpoint, Pod, Protocol, Topology,
    topology::{CLUSTER_CIDRS, NODE, NODE_TO_PODS, POD_CIDRS, Place},
};

/// Maximum number of Services in a cluster. Each slot has its own ClusterIPs, NodePorts and health check port. The next Service
/// in a slot reuses them.
pub(crate) const SLOTS: u8 = 22;
/// The pods of the node. Another node has as many.
pub(crate) const PODS: [u8; 3] = [1, 2, 3];
pub(crate) const SERVICE_PORTS: [u16; 4] = [80, 443, 53, 8080];
pub(crate) const ENDPOINT_PORTS: [u16; 3] = [8080, 8081, 9000];
pub(crate) const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
const NODE_PORTS_OF_SLOT: u16 = 3;
const FIRST_NODE_PORT: u16 = 30_000;
const FIRST_HEALTH_PORT: u16 = 30_200;

/// The node's second address in each family, which is not its primary one.
pub(crate) const SECOND: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(192, 168, 1, 2)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 2))];

/// A link-local address of the node. In the lab, it is reachable like any other address.
pub(crate) const LINK_LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::new(169, 254, 1, 2));

/// All addresses of the node that other hosts can reach.
pub(crate) fn addresses_of_node() -> impl Iterator<Item = IpAddr> {
    [NODE, SECOND, NODE_TO_PODS].into_iter().flatten().chain([LINK_LOCAL])
}

/// The addresses and pod CIDRs that the Node object may have. The CIDRs contain the pods of this node, of another node, or of
/// both.
pub(crate) const NODE_ADDRESSES: [[IpAddr; 2]; 4] = [NODE, SECOND, [NODE[0], SECOND[1]], [SECOND[0], NODE[1]]];
pub(crate) const NODE_POD_CIDRS: [[&str; 2]; 3] =
    [POD_CIDRS, ["10.180.1.0/24", "fd00:10:180:1::/64"], [CLUSTER_CIDRS[0], CLUSTER_CIDRS[1]]];

/// The CIDRs that a further ServiceCIDR may have.
pub(crate) const MORE_SERVICE_CIDRS: [&[&str]; 4] =
    [&[], &["172.31.0.0/24"], &["fd00:172:31::/112"], &["172.31.0.0/24", "fd00:172:31::/112"]];
/// Addresses in these CIDRs that no Service has.
pub(crate) const IN_MORE_SERVICE_CIDRS: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(172, 31, 0, 5)), IpAddr::V6(Ipv6Addr::new(0xfd00, 0x172, 0x31, 0, 0, 0, 0, 5))];

/// The zones of nodes.
pub(crate) const ZONES: [&str; 2] = ["zone-a", "zone-b"];

/// The pairs of ClusterIPs of each slot. Its Service has one pair at a time.
pub(crate) const CLUSTER_IPS_OF_SLOT: [u8; 2] = [1, 2];

/// The addresses of a slot's Service, from one of the slot's pairs: IPv4, IPv6.
pub(crate) fn cluster_ips(slot: u8, pair: u8) -> [IpAddr; 2] {
    let last = 0x100 * u16::from(pair) + u16::from(slot) + 1;
    [Ipv4Addr::new(172, 30, pair, slot + 1).into(), Ipv6Addr::new(0xfd00, 0x172, 0x30, 0, 0, 0, 0, last).into()]
}

pub(crate) fn node_ports(slot: u8) -> Vec<u16> {
    (0..NODE_PORTS_OF_SLOT).map(|n| FIRST_NODE_PORT + u16::from(slot) * NODE_PORTS_OF_SLOT + n).collect()
}

pub(crate) fn health_port(slot: u8) -> u16 {
    FIRST_HEALTH_PORT + u16::from(slot)
}

/// The addresses that `spec.externalIPs` may contain: addresses outside the cluster and of the node.
pub(crate) fn external_ips() -> Vec<IpAddr> {
    let mut addresses: Vec<IpAddr> = (1..=5).map(|n| Ipv4Addr::new(198, 51, 100, n).into()).collect();
    addresses.extend((1..=5).map(|n| IpAddr::from(Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, n))));
    addresses.extend(SECOND);
    addresses.extend(NODE);
    addresses
}

/// The addresses that a load balancer may have.
pub(crate) fn load_balancer_ips() -> Vec<IpAddr> {
    let v6 = |n| IpAddr::from(Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 1, 0, 0, 0, n));
    (1..=5).map(|n| Ipv4Addr::new(198, 51, 101, n).into()).chain((1..=5).map(v6)).collect()
}

/// The number of endpoints that are not pods. With the pods and the node, there are 64 endpoints in each family.
pub(crate) const FOREIGN: u8 = 57;
/// Most Services use only this many of them.
pub(crate) const USUAL_FOREIGN: u8 = 2;

/// An endpoint that is not a pod: IPv4, IPv6. Of the node's addresses, the first one shares the longest prefix with it, so the
/// node masquerades to that address.
pub(crate) fn foreign(number: u8) -> [IpAddr; 2] {
    [
        Ipv4Addr::new(198, 18, 0, number + 1).into(),
        Ipv6Addr::new(0x2001, 0xdb8, 0, 0xf, 0, 0, 0, u16::from(number) + 1).into(),
    ]
}

pub(crate) fn pod(place: Place, number: u8) -> Pod {
    Pod { place, number }
}

pub(crate) fn topology() -> Topology {
    let pods = [Place::Local, Place::Remote].into_iter().flat_map(|place| PODS.map(|number| pod(place, number)));
    Topology { pods: pods.collect(), node_addresses: [&SECOND[..], &[LINK_LOCAL]].concat(), ..Topology::default() }
}

/// All servers, and those at the addresses of the other node.
pub(crate) fn servers_of_both_nodes() -> BTreeSet<Endpoint> {
    let ports = || (0..SLOTS).flat_map(node_ports).chain(ENDPOINT_PORTS).chain(SERVICE_PORTS);
    let at = |address| ports().map(move |port| SocketAddr::new(address, port));
    let all = Place::Remote.addresses().into_iter().flat_map(at);
    let every = all.flat_map(|address| PROTOCOLS.map(|protocol| Endpoint { protocol, address }));
    every.chain(servers()).collect()
}

/// All servers.
pub(crate) fn servers() -> BTreeSet<Endpoint> {
    let pods = topology().pods.into_iter().flat_map(Pod::addresses);
    let behind = pods.chain(NODE).chain((0..FOREIGN).flat_map(foreign)).map(|address| (address, &ENDPOINT_PORTS[..]));
    let external = external_ips().into_iter().chain(load_balancer_ips()).chain(IN_MORE_SERVICE_CIDRS);
    let external = external.map(|address| (address, &SERVICE_PORTS[..]));
    let node_ports: Vec<u16> = (0..SLOTS).flat_map(node_ports).collect();
    let of_node = addresses_of_node().map(|address| (address, &node_ports[..]));
    let all = behind.chain(external).chain(of_node).flat_map(|(address, ports)| {
        let at = move |port: &u16| SocketAddr::new(address, *port);
        PROTOCOLS
            .into_iter()
            .flat_map(move |protocol| ports.iter().map(move |port| Endpoint { protocol, address: at(port) }))
    });
    all.collect()
}
