//! Tests the path of a packet through the rules of the iptables backend. Pure.
#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
};

use localnet::{
    configuration::Configuration,
    inspect::tables,
    kernel,
    listings::Listings,
    shadow::{
        self, Mode,
        read::{OfFamily, Rules},
    },
    world::World,
};
use localnet_client::{
    Snapshot,
    route::{Origin, Packet},
    vips::{Config, Detector},
};
use localnet_iptables::{desired::Desired, inspect};
use localnet_lab::{cases, topology::CLUSTER_CIDRS};
use localnet_linux::nft::family_name;
use localnet_proto::{ByFamily, Changes, Family, Protocol};

fn config() -> Config {
    Config {
        detector: Detector::ClusterCidr(CLUSTER_CIDRS.map(|cidr| cidr.parse().unwrap()).into()),
        ..Config::default()
    }
}

/// The listings of a kernel that holds the plan.
fn listings(state: &Snapshot, local: &[IpAddr], many_vips: usize) -> Listings {
    let mut desired = Desired::new(config());
    desired.set_many_vips(many_vips);
    desired.vips.set_local_addresses(local.to_vec());
    desired.update(state, &Changes::everything());
    let planned: localnet_client::inspect::Listing =
        Family::BOTH.into_iter().flat_map(|family| inspect::planned(&desired, family)).collect();
    Listings { live: planned.clone(), planned }
}

fn world(state: Snapshot, local: Vec<IpAddr>) -> World {
    let configuration = Configuration::chosen(config());
    let facts = configuration.facts(&state.node, Some(&local));
    let kernel = Err(kernel::unread("a test"));
    World {
        state,
        configuration,
        facts,
        local,
        is_here: false,
        has_ebpf: false,
        other: None,
        kernel,
        listings: BTreeMap::new(),
        dumped: None,
    }
}

/// For all kinds of packets in all Cases, the rules of the plan do what the oracle predicts. With `many_vips` 0, the VIPs are grouped.
#[test]
fn planned_rules_do_what_the_oracle_predicts() {
    let (mut compared, mut wrong) = (0, Vec::new());
    for case in cases() {
        for many_vips in [1000, 0] {
            let (state, local): (Snapshot, _) = (case.read_state().unwrap(), case.flows.local_addresses());
            let listings = listings(&state, &local, many_vips);
            let of_family = |family| Some(OfFamily::Iptables(tables(&listings.planned, family_name(family))));
            let rules = Rules { mode: Mode::Iptables, families: ByFamily::from_fn(of_family) };
            let world = world(state, local);
            let shadow = shadow::compare(&world, &rules, shadow::packets(&world, &rules));
            compared += shadow.compared;
            wrong.extend(shadow.differences.iter().map(|difference| format!("{}: {difference:?}", case.name)));
        }
    }
    assert!(wrong.is_empty(), "{} of {compared}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(compared > 1000, "{compared}");
}

const STATE: &str = "node: {name: node-a, addresses: [192.168.0.2]}
services:
- {service: shop/web, type: ClusterIP, clusterIPs: [172.30.0.1], externalIPs: [192.0.2.1], ports: [{name: http, protocol: TCP, port: 80}],
   endpoints: [{address: 10.180.0.1, ports: [{name: http, port: 8080}], scopes: {internal: true, external: true, shortCircuit: true}}]}
- {service: shop/empty, type: ClusterIP, clusterIPs: [172.30.0.2], ports: [{name: http, protocol: TCP, port: 80}], endpoints: []}
";

#[test]
fn the_path_contains_the_rules_that_decide_and_names_those_that_the_kernel_lacks() {
    let state = localnet::source::read(STATE).unwrap();
    let local = [IpAddr::from([192, 168, 0, 2])];
    let mut listings = listings(&state, &local, 1000);
    let path = |listings: &Listings, from: &str, to: &str| -> Vec<(String, bool)> {
        let to: SocketAddr = to.parse().unwrap();
        let origin = if from.starts_with("10.180.") { Origin::Pod } else { Origin::Outside };
        let (source, destination, port) = (from.parse().unwrap(), to.ip(), to.port());
        let packet = Packet { source, destination, protocol: Protocol::Tcp, port, origin };
        // Without the hashes in names of chains.
        let short = |text: &str| text.split('-').take(2).collect::<Vec<_>>().join("-");
        let target = |rule: &str| rule.split("-j ").last().unwrap().split(' ').next().unwrap().to_owned();
        let rows = listings.rules(&packet, &local).unwrap().into_iter();
        rows.map(|row| (format!("{} {}", short(&row.place), short(&target(&row.text))), row.held == "yes")).collect()
    };
    let names = |path: Vec<(String, bool)>| path.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    let from_pod = names(path(&listings, "10.180.0.9", "172.30.0.1:80"));
    let expected = [
        "nat PREROUTING KUBE-SERVICES",
        "nat KUBE-SERVICES KUBE-SVC",
        "nat KUBE-SVC KUBE-SEP",
        "nat KUBE-SEP DNAT",
        "nat POSTROUTING KUBE-POSTROUTING",
        "nat KUBE-POSTROUTING RETURN",
    ];
    assert_eq!(from_pod, expected);
    let from_outside = names(path(&listings, "203.0.113.1", "192.0.2.1:80"));
    for rule in [
        "nat KUBE-EXT KUBE-MARK",
        "nat KUBE-MARK MARK",
        "filter KUBE-FORWARD ACCEPT",
        "nat KUBE-POSTROUTING MASQUERADE",
    ] {
        assert!(from_outside.contains(&rule.to_owned()), "{rule}: {from_outside:#?}");
    }
    let refused = names(path(&listings, "10.180.0.9", "172.30.0.2:80"));
    assert_eq!(refused, ["filter FORWARD KUBE-SERVICES", "filter KUBE-SERVICES REJECT"]);

    listings.live.values_mut().for_each(|rules| rules.retain(|rule| !rule.contains("DNAT --to")));
    let missing: Vec<_> =
        path(&listings, "10.180.0.9", "172.30.0.1:80").into_iter().filter(|(_, held)| !held).collect();
    assert_eq!(names(missing), ["nat KUBE-SEP DNAT"]);
}
