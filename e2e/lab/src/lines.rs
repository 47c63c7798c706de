//! The `ip` lines that give the namespaces of a network their addresses and routes. Pure.

use std::fmt::Display;
use std::net::IpAddr;

use crate::topology::{
    CLIENT, CLIENT_GATEWAY, CLIENT_TWO, NODE, OTHER_NODE, POD_CIDRS, Place, Pod, ROUTER, Topology, of_family,
};

/// For each node, the link to the outside world: the node's link-local address, which is its only one there, and the name of the
/// outside world's end.
const ON_OUTSIDE: [[&str; 2]; 2] = [["fe80::2", "node"], ["fe80::3", "node2"]];
const OUTSIDE: &str = "fe80::1";
/// The addresses from which the outside world sends ICMP errors.
const OUTSIDE_V4: &str = "192.0.2.1";
const OUTSIDE_V6: &str = "2001:db8:f::1";
/// The client's networks.
const BEHIND_ROUTER: [&str; 2] = ["203.0.113.0/24", "2001:db8:2::/64"];
/// The networks of each node's pods.
const PODS_OF: [[&str; 2]; 2] = [POD_CIDRS, ["10.180.1.0/24", "fd00:10:180:1::/64"]];
/// The router's link to the other node.
pub(crate) const UPLINK_TO_OTHER: &str = "uplink2";
/// The networks that the outside world reaches through the node.
const ELSEWHERE: [&[&str]; 2] = [
    &["192.168.0.0/24", "203.0.113.0/24", "10.180.0.0/16"],
    &["2001:db8::/64", "2001:db8:1::/64", "2001:db8:2::/64", "fd00:10:180::/48"],
];

/// The node's lines, or the other node's.
pub(crate) fn node(topology: &Topology, place: Place) -> Vec<String> {
    let (own, [on_outside, _]) = (place.addresses(), ON_OUTSIDE[place as usize]);
    let mut lines = up("lo");
    lines.extend(own.map(|address| add_address(address, network_length(address), "uplink")));
    if place == Place::Local {
        let more = topology.node_addresses.iter();
        lines.extend(more.map(|address| add_address(*address, host_length(*address), "uplink")));
    }
    lines.extend(up("uplink"));
    lines.push(format!("addr add {on_outside}/64 dev outside nodad"));
    lines.extend(up("outside"));
    // `onlink`, because the kernel cannot verify the gateway while the other end is down.
    let via_router = |to: &dyn Display, router| format!("route add {to} via {router} dev uplink onlink");
    for ((router, client), other_pods) in ROUTER.into_iter().zip(BEHIND_ROUTER).zip(PODS_OF[1 - place as usize]) {
        lines.extend([via_router(&client, router), via_router(&other_pods, router)]);
    }
    if topology.other_node {
        let others: Vec<IpAddr> = match place {
            Place::Local => OTHER_NODE.to_vec(),
            Place::Remote => NODE.iter().chain(&topology.node_addresses).copied().collect(),
        };
        lines.extend(others.into_iter().map(|address| via_router(&address, of_family(ROUTER, address))));
    }
    lines.push(format!("route add default via {OUTSIDE_V4} dev outside onlink src {}", own[0]));
    lines.push(format!("route add default via {OUTSIDE} dev outside src {}", own[1]));
    lines.extend(topology.pods_at(place).flat_map(link_to_pod));
    lines
}

pub(crate) fn router(topology: &Topology) -> Vec<String> {
    let mut lines = up("lo");
    lines.extend(ROUTER.map(|address| add_address(address, network_length(address), "uplink")));
    lines.extend(up("uplink"));
    lines.extend(CLIENT_GATEWAY.map(|address| add_address(address, network_length(address), "client")));
    lines.extend(up("client"));
    lines.extend(NODE.map(|node| format!("route add default via {node} dev uplink onlink")));
    if !topology.other_node {
        lines.extend(topology.pods_at(Place::Remote).flat_map(link_to_pod));
        return lines;
    }
    // The router has the same addresses on both links, and a route to each node. So the nodes need no common link.
    lines.extend(ROUTER.map(|address| add_address(address, host_length(address), UPLINK_TO_OTHER)));
    lines.extend(up(UPLINK_TO_OTHER));
    for (node, pods) in OTHER_NODE.into_iter().zip(PODS_OF[1]) {
        lines.push(format!("route add {node} dev {UPLINK_TO_OTHER}"));
        lines.push(format!("route add {pods} via {node} dev {UPLINK_TO_OTHER} onlink"));
    }
    lines
}

/// The outside world's lines: every address is local, except those behind the nodes.
pub(crate) fn outside(topology: &Topology) -> Vec<String> {
    let mut lines = up("lo");
    lines.push(format!("addr add {OUTSIDE_V4}/32 dev node"));
    lines.push(format!("addr add {OUTSIDE_V6}/128 dev node nodad"));
    let places = [Some(Place::Local), topology.other_node.then_some(Place::Remote)];
    for place in places.into_iter().flatten() {
        let [node_on_outside, link] = ON_OUTSIDE[place as usize];
        lines.push(format!("addr add {OUTSIDE}/64 dev {link} nodad"));
        lines.extend(up(link));
        let behind: [Vec<String>; 2] = match place {
            Place::Local => ELSEWHERE.map(|networks| networks.iter().map(|&network| network.to_owned()).collect()),
            Place::Remote => [0, 1].map(|family| vec![OTHER_NODE[family].to_string(), PODS_OF[1][family].to_owned()]),
        };
        for (node, networks) in place.addresses().into_iter().zip(behind) {
            let via = if node.is_ipv4() { node.to_string() } else { node_on_outside.to_owned() };
            let route = |network| format!("route add {network} via {via} dev {link} onlink table local");
            lines.extend(networks.iter().map(route));
        }
        let metric = 256 + place as usize;
        lines.push(format!("route add fe80::/64 dev {link} table local metric {metric}"));
    }
    lines.push("route add local 0.0.0.0/0 dev lo table local".to_owned());
    lines.push("route add local ::/0 dev lo table local".to_owned());
    lines
}

pub(crate) fn client() -> Vec<String> {
    let mut lines = up("lo");
    lines.extend(CLIENT.map(|address| add_address(address, network_length(address), "eth0")));
    // With the full prefix length, so that the kernel never chooses them as a source address.
    lines.extend(CLIENT_TWO.map(add_unchosen_address));
    lines.extend(up("eth0"));
    lines.extend(CLIENT_GATEWAY.map(|gateway| format!("route add default via {gateway} dev eth0 onlink")));
    lines
}

pub(crate) fn pod(pod: Pod) -> Vec<String> {
    let mut lines = up("lo");
    lines.extend(pod.addresses().map(|address| add_address(address, host_length(address), "eth0")));
    lines.extend(up("eth0"));
    for gateway in pod.place.gateways() {
        lines.push(format!("route add {gateway}/{} dev eth0", host_length(gateway)));
        let source = of_family(pod.addresses(), gateway);
        lines.push(format!("route add default via {gateway} dev eth0 onlink src {source}"));
    }
    lines
}

/// The `ip` lines for the node's (or router's) end of a pod's link, set up like the ptp CNI plugin does.
fn link_to_pod(pod: Pod) -> Vec<String> {
    let interface = interface(pod);
    let mut lines: Vec<_> = pod
        .place
        .gateways()
        .into_iter()
        .map(|gateway| add_address(gateway, host_length(gateway), &interface))
        .collect();
    lines.extend(up(&interface));
    lines
        .extend(pod.addresses().map(|address| format!("route add {address}/{} dev {interface}", host_length(address))));
    lines
}

/// The name of a pod's link on its node. All begin with `pod`.
pub(crate) fn interface(pod: Pod) -> String {
    format!("pod{}", pod.number)
}

fn up(interface: &str) -> Vec<String> {
    vec![format!("link set {interface} up")]
}

fn add_address(address: IpAddr, length: u8, interface: &str) -> String {
    let nodad = if address.is_ipv6() { " nodad" } else { "" };
    format!("addr add {address}/{length} dev {interface}{nodad}")
}

fn add_unchosen_address(address: IpAddr) -> String {
    let unchosen = if address.is_ipv6() { " nodad preferred_lft 0" } else { "" };
    format!("addr add {address}/{} dev eth0{unchosen}", host_length(address))
}

fn network_length(address: IpAddr) -> u8 {
    if address.is_ipv4() { 24 } else { 64 }
}

fn host_length(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}
