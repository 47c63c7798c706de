//! Follows changes of the node: the addresses for NodePorts, and the cluster's ServiceCIDRs.

use std::{
    net::{IpAddr, UdpSocket},
    sync::Arc,
    time::{Duration, Instant},
};

use localnet_client::vips::{Config, NodePortAddresses};
use localnet_lab::{Endpoint, Namespace, Network, Outcome, Probe, Protocol, Servers, Topology};
use localnet_proto::Snapshot;

use super::{
    config, list,
    live::{Live, PATIENCE},
};

fn in_cidrs(cidrs: &[&str]) -> Config {
    let cidrs = cidrs.iter().map(|cidr| cidr.parse().unwrap()).collect();
    Config { node_port_addresses: NodePortAddresses::in_cidrs(cidrs), ..config() }
}

fn state() -> Snapshot {
    serde_saphyr::from_str(
        "node: {name: node-a, addresses: [192.168.0.2]}
services:
  - service: default/web
    type: NodePort
    clusterIPs: [172.30.0.10, \"fd00:172:30::10\"]
    ports: [{protocol: TCP, port: 80, nodePort: 30080}]
    endpoints:
      - {address: 10.180.0.1, ports: [{port: 8080}], local: true, scopes: {internal: true, external: true}}
      - {address: \"fd00:10:180::1\", ports: [{port: 8080}], local: true, scopes: {internal: true, external: true}}
",
    )
    .unwrap()
}

/// The addresses of a family that answer NodePorts.
fn answered(node: &Namespace, family: &str) -> Vec<IpAddr> {
    let listing = list(node);
    let table =
        listing.split("\ntable ").find(|table| table.trim_start_matches("table ").starts_with(&format!("{family} ")));
    let external = table.unwrap().split("set external {").nth(1).unwrap().split("\n\t}").next().unwrap();
    let words = external.split([' ', '\n', '\t']).filter_map(|word| word.parse().ok());
    let mut addresses: Vec<_> = words.collect();
    addresses.sort();
    addresses
}

#[track_caller]
fn await_answered(node: &Namespace, family: &str, expected: &[&str]) {
    let mut expected: Vec<IpAddr> = expected.iter().map(|address| address.parse().unwrap()).collect();
    expected.sort();
    let began = Instant::now();
    while answered(node, family) != expected {
        assert!(began.elapsed() < PATIENCE, "{:?}, not {expected:?}", answered(node, family));
    }
}

#[test]
fn node_ports_follow_the_addresses_of_the_node() {
    let network = Arc::new(super::network());
    let node = network.node();
    let live = Live::start(&network, in_cidrs(&["192.168.0.0/16", "127.0.0.0/8"]), state());
    await_answered(node, "ip", &["192.168.0.2"]);
    node.ip(["address add 192.168.77.7/32 dev lo".to_owned()]).unwrap();
    await_answered(node, "ip", &["192.168.0.2", "192.168.77.7"]);
    node.ip(["address add 10.9.9.9/32 dev lo".to_owned(), "address del 192.168.77.7/32 dev lo".to_owned()]).unwrap();
    await_answered(node, "ip", &["192.168.0.2"]);
    assert_eq!(live.set(state()), 3, "an address outside of all CIDRs causes no sync");
}

#[test]
fn all_addresses_excludes_loopback_and_link_local_ones() {
    for config in [in_cidrs(&["0.0.0.0/0", "::/0"]), in_cidrs(&[])] {
        let network = Arc::new(super::network());
        let node = network.node();
        let _live = Live::start(&network, config, state());
        let shown = node.output(std::process::Command::new("ip").args(["-o", "address"])).unwrap();
        let local = |family: &str| -> Vec<String> {
            let words = shown.lines().filter_map(|line| line.split_once(&format!(" {family} "))?.1.split('/').next());
            let mut all: Vec<_> = words
                .filter(|word| !word.starts_with("127.") && *word != "::1" && !word.starts_with("fe80:"))
                .collect();
            all.sort();
            all.dedup();
            all.into_iter().map(str::to_owned).collect()
        };
        for (family, name) in [("ip", "inet"), ("ip6", "inet6")] {
            let expected = local(name);
            assert!(!expected.is_empty());
            await_answered(node, family, &expected.iter().map(String::as_str).collect::<Vec<_>>());
        }
    }
}

#[test]
fn primary_means_all_addresses_of_a_family_that_the_node_object_does_not_name() {
    let network: Arc<Network> = Arc::new(super::network());
    let node = network.node();
    let _live = Live::start(&network, config(), state());
    await_answered(node, "ip", &["192.168.0.2"]);
    node.ip(["address add 192.168.77.7/32 dev lo".to_owned(), "address add fd77::7/128 dev lo".to_owned()]).unwrap();
    let began = Instant::now();
    while !answered(node, "ip6").contains(&"fd77::7".parse().unwrap()) {
        assert!(began.elapsed() < PATIENCE, "{:?}", answered(node, "ip6"));
    }
    await_answered(node, "ip", &["192.168.0.2"]);
}

/// With `route_localnet`, other hosts would reach every program that listens on a loopback address (CVE-2020-8558).
#[test]
fn only_the_node_reaches_node_ports_and_programs_on_127_0_0_1() {
    const POD: &str = "10.180.0.1";
    let network = Arc::new(Network::build(Topology::with_pods([POD]).unwrap()).unwrap());
    let (node, pod) = (network.node(), network.pod(POD.parse().unwrap()).unwrap());
    let endpoint = format!("{POD}:8080").parse().unwrap();
    let _server = Servers::start(&network, [Endpoint { protocol: Protocol::Tcp, address: endpoint }]).unwrap();
    node.sysctl(&[("net/ipv4/conf/all/route_localnet", "1")]).unwrap();
    pod.ip(["address del 127.0.0.1/8 dev lo".to_owned(), "route add 127.0.0.0/8 via 10.180.0.254".to_owned()]).unwrap();
    let listener = node.run(|| Ok(UdpSocket::bind("127.0.0.1:53")?)).unwrap();
    listener.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let is_reached = || {
        pod.run(|| Ok(UdpSocket::bind((POD, 0))?.send_to(b"?", "127.0.0.1:53")?)).unwrap();
        listener.recv(&mut [0; 8]).is_ok()
    };
    assert!(is_reached(), "without the backend");
    let node_port_addresses = NodePortAddresses { localhost: true, ..NodePortAddresses::PRIMARY };
    let _live = Live::start(&network, Config { node_port_addresses, ..config() }, state());
    assert!(!is_reached(), "with the backend");
    let probe = |from: &Namespace, to: &str| from.probe(Probe::new(Protocol::Tcp, to.parse().unwrap())).unwrap();
    let answer = Outcome::Answer { by: endpoint, seen_source: "10.180.0.254".parse().unwrap() };
    for to in ["127.0.0.1:30080", "192.168.0.2:30080"] {
        assert_eq!(probe(node, to), answer, "{to}");
    }
    assert_eq!(probe(node, "127.0.0.2:30080"), Outcome::Rejected, "no other loopback address answers");
    assert_eq!(probe(pod, "127.0.0.1:30080"), Outcome::Dropped);
}

#[test]
fn unallocated_addresses_are_dropped_in_the_current_service_cidrs() {
    let network = Arc::new(super::network());
    let live = Live::start(&network, config(), state());
    let silence = std::time::Duration::from_millis(300);
    for (cidrs, dropped) in [
        (&[][..], [false, false]),
        (&["172.30.0.0/16", "fd00:172:30::/112"], [true, false]),
        (&["172.30.0.0/16", "172.31.0.0/16"], [true, true]),
        (&["172.31.0.0/16"], [false, true]),
    ] {
        let mut state = state();
        state.node.service_cidrs = cidrs.iter().map(|cidr| cidr.parse().unwrap()).collect();
        live.set(state);
        let is_dropped = ["172.30.0.99:80", "172.31.0.99:80"].map(|to| {
            let probe = Probe::new(Protocol::Tcp, to.parse().unwrap()).timeout(silence);
            // The namespace outside rejects what it does not serve.
            network.client().probe(probe).unwrap() == Outcome::Dropped
        });
        assert_eq!(is_dropped, dropped, "{cidrs:?}");
    }
}
