//! Verifies every Case: its state gives the plans in `win.txt`, an HNS that receives these plans holds them, and the load balancers
//! have the endpoints that answer in `flows.yaml`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use localnet_client::{
    served::{Expected, Lack},
    vips::{Config, NodePortAddresses},
};
use localnet_lab::{Case, Flow, Pod, Sender, cases, expect_file, flow::Expect, topology::Place};
use localnet_proto::{Changes, Family, Snapshot};

use crate::{
    Options, WinBackend, dry_run,
    hcn::{Guid, Kind, schema, schema::LoadBalancer},
    plan::{Address, Frontend},
    served,
    testing::FakeHcn,
};

/// The networks for which Cases are planned.
const NETWORKS: [&str; 2] = ["L2Bridge", "Overlay"];

/// A node as the CNI plugin has set it up: an endpoint for each pod of the node, and the way to the pods of another node.
fn kernel(state: &Snapshot, network: &str) -> FakeHcn {
    let is_pod = |address: &IpAddr| !state.node.addresses.contains(address);
    let endpoints = state.services.values().flat_map(|service| &service.endpoints);
    let pods: BTreeSet<IpAddr> =
        endpoints.filter(|endpoint| endpoint.local).map(|endpoint| endpoint.address).filter(is_pod).collect();
    let pods: Vec<String> = pods.iter().map(ToString::to_string).collect();
    let pods: Vec<&str> = pods.iter().map(String::as_str).collect();
    let mut fake = FakeHcn::with_network("pods", network, &[("10.180.1.0/24", "192.168.0.3")], &pods);
    // The source VIP needs a subnet, whichever pods the node has.
    fake.add_subnet("pods", "10.180.0.0/24".parse().unwrap());
    let mac = "00-15-5d-00-00-02".to_owned();
    fake.interfaces = state.node.addresses.iter().map(|address| (*address, mac.clone())).collect();
    fake
}

fn backend(case: &Case, kernel: FakeHcn, network: &str) -> WinBackend<FakeHcn> {
    let given = case.flows.node.node_port_addresses.clone();
    let node_port_addresses = given.map_or(NodePortAddresses::PRIMARY, NodePortAddresses::in_cidrs);
    let overlay = network == "Overlay";
    let options = Options {
        network: Some("pods".to_owned()),
        source_vip: overlay.then(|| IpAddr::from([10, 180, 0, 250])),
        dsr: overlay,
        ..Options::default()
    };
    WinBackend::new(Config { node_port_addresses, ..Config::default() }, options, kernel)
}

/// Whether the state can be programmed. In an overlay network, it cannot if the node has no address.
fn can_be(state: &Snapshot, network: &str) -> bool {
    network != "Overlay" || state.node.primary_address(Family::V4).is_some()
}

/// The lines of a plan's JSON that contain a document, each preceded by the name of its list.
fn documents(json: &str) -> String {
    let (mut text, mut list) = (String::new(), "");
    for line in json.lines() {
        match line.strip_prefix("    ") {
            Some(document) => text.push_str(&format!("{list} {}\n", document.trim_end_matches(','))),
            None => list = line.split('"').nth(1).unwrap_or(list),
        }
    }
    text
}

#[test]
fn states_give_plans() {
    let cases = cases();
    assert!(!cases.is_empty());
    for case in cases {
        let state: Snapshot = case.read_state().unwrap();
        let plan = |network: &str| match backend(&case, kernel(&state, network), network)
            .plan(&state, &Changes::everything())
        {
            Ok((plan, skipped)) => {
                let json = dry_run::text(&plan, &skipped);
                let parsed: serde_json::Value = serde_json::from_str(&json).unwrap();
                assert_eq!(parsed.as_object().unwrap().len(), 3, "{}", case.name);
                let text = documents(&json);
                let lists = parsed.as_object().unwrap().values();
                let elements: usize = lists.map(|list| list.as_array().unwrap().len()).sum();
                assert_eq!(text.lines().count(), elements, "{}", case.name);
                text
            }
            Err(error) => format!("error: {error:#}\n"),
        };
        let text = NETWORKS.map(|network| format!("# {network}\n{}", plan(network))).concat();
        expect_file(&case.file("win.txt"), &text);
    }
}

#[test]
fn hns_holds_the_plan_and_a_restart_writes_nothing() {
    for case in cases() {
        let state: Snapshot = case.read_state().unwrap();
        for network in NETWORKS.into_iter().filter(|network| can_be(&state, network)) {
            let about = format!("{} on {network}", case.name);
            let mut first = backend(&case, kernel(&state, network), network);
            let (plan, _) = first.plan(&state, &Changes::everything()).unwrap();
            first
                .apply(&state, &Changes::everything())
                .unwrap()
                .whole()
                .unwrap_or_else(|error| panic!("{about}: {error:#}"));
            let wanted: BTreeMap<Guid, LoadBalancer> = plan
                .balancers
                .iter()
                .map(|(frontend, planned)| {
                    (frontend.id(), LoadBalancer { id: Some(frontend.id()), ..planned.document.clone() })
                })
                .collect();
            let held: BTreeMap<Guid, LoadBalancer> =
                first.kernel().load_balancers().into_iter().map(|held| (held.id.unwrap(), held)).collect();
            assert_eq!(held, wanted, "{about}");
            for id in plan.endpoints.keys() {
                assert!(first.kernel().objects.contains_key(&(Kind::Endpoint, *id)), "{about}: {id}");
            }
            first.kernel().log.clear();
            first.apply(&state, &Changes::everything()).unwrap().whole().unwrap();
            let mut second = backend(&case, first.kernel().clone(), network);
            second.apply(&state, &Changes::everything()).unwrap().whole().unwrap();
            assert_eq!(second.kernel().log, [] as [&str; 0], "{about}");
        }
    }
}

/// What HNS cannot hold (`docs/backends/windows.md`).
const LACKS: [Lack; 6] = [Lack::Verdicts, Lack::Scopes, Lack::Seconds, Lack::Ports, Lack::HostNetwork, Lack::Sources];

#[test]
fn the_dump_of_every_case_equals_its_state() {
    let mut destinations = 0;
    for case in cases() {
        let state: Snapshot = case.read_state().unwrap();
        let options = Options { network: Some("pods".to_owned()), ..Options::default() };
        let mut backend = WinBackend::new(Config::default(), options, kernel(&state, "L2Bridge"));
        backend.apply(&state, &Changes::everything()).unwrap().whole().unwrap();
        let read = served::read(backend.kernel()).unwrap();
        destinations += read.0.len();
        let expected = Expected::without(&state, &LACKS.into_iter().collect());
        assert_eq!(expected.differences(&read), "", "{}", case.name);
        // The comparison finds a missing load balancer.
        let Some(first) = backend.kernel().documents(Kind::LoadBalancer).map(|(id, _)| id).next() else { continue };
        backend.kernel().objects.remove(&(Kind::LoadBalancer, first));
        let less = served::read(backend.kernel()).unwrap();
        assert!(expected.differences(&less).contains("lacks: "), "{}", case.name);
    }
    assert!(destinations > 300, "{destinations} destinations");
}

fn frontend(case: &Case, flow: &Flow) -> [Frontend; 2] {
    let of = |address| Frontend { address, protocol: flow.protocol, port: flow.to.port() };
    let on_node = case.flows.local_addresses().contains(&flow.to.ip());
    let node = if on_node { Address::Node(Family::of(flow.to.ip())) } else { Address::Vip(flow.to.ip()) };
    // A Service's own address comes before a NodePort.
    [of(Address::Vip(flow.to.ip())), of(node)]
}

/// This omits features that HNS does not support (`docs/backends/windows.md`): source ranges, this node's own traffic under external
/// policy Local, several ports, endpoints on the node's own network, NodePorts on some addresses only, and kept destinations.
#[test]
fn load_balancers_have_the_endpoints_that_answer() {
    let mut compared = 0;
    for case in cases() {
        let state: Snapshot = case.read_state().unwrap();
        let mut backend = backend(&case, kernel(&state, "L2Bridge"), "L2Bridge");
        let (plan, _) = backend.plan(&state, &Changes::everything()).unwrap();
        backend.apply(&state, &Changes::everything()).unwrap().whole().unwrap();
        let addresses: BTreeMap<Guid, IpAddr> = backend
            .kernel()
            .documents(Kind::Endpoint)
            .filter_map(|(id, document)| {
                Some((id, document["IpConfigurations"][0]["IpAddress"].as_str()?.parse().ok()?))
            })
            .collect();
        for flow in &case.flows.flows {
            let about = || format!("{}: {flow:?}", case.name);
            let planned = frontend(&case, flow).into_iter().find_map(|frontend| plan.balancers.get(&frontend));
            let service = planned.map(|planned| &state.services[&planned.service]);
            let filtered = service.is_some_and(|service| {
                service.source_filters.iter().any(|filter| filter.targets.contains(&flow.to.ip()))
            });
            let internal = service.is_some_and(|service| service.cluster_ips.contains(&flow.to.ip()));
            let own_traffic = flow.from == Sender::Node || matches!(flow.from, Sender::Pod(_));
            if filtered || (own_traffic && !internal && service.is_none_or(|service| service.external_traffic_to_local))
            {
                continue;
            }
            let answering = match &flow.expect {
                Expect::Answers { by, .. } => by.clone(),
                Expect::Reject | Expect::Drop | Expect::Untouched => BTreeSet::new(),
            };
            let port = planned.map(|planned| planned.document.port_mappings[0].internal_port);
            let kept = planned.is_some_and(|planned| planned.document.flags.contains(schema::LoadBalancerFlags::DSR))
                || planned.is_some_and(|planned| planned.document.frontend_vips.is_empty());
            let kept = kept && service.is_some_and(|service| service.preserve_destination);
            let expressible = |endpoint: &&SocketAddr| {
                let on_host = state.node.addresses.contains(&endpoint.ip());
                let elsewhere = kept && Pod::at(endpoint.ip()).is_none_or(|pod| pod.place == Place::Remote);
                !on_host && !elsewhere && **endpoint != flow.to && port.is_none_or(|port| endpoint.port() == port)
            };
            let expected: BTreeSet<SocketAddr> = answering.iter().filter(expressible).copied().collect();
            let own = case.flows.local_addresses().contains(&flow.to.ip());
            let other_address = planned.is_none() && own && !state.node.addresses.contains(&flow.to.ip())
                || planned.is_some_and(|planned| planned.document.frontend_vips.is_empty()) && answering.is_empty();
            if other_address {
                continue;
            }
            let ids = planned.iter().flat_map(|planned| &planned.document.host_compute_endpoints);
            let has: BTreeSet<SocketAddr> = ids.map(|id| SocketAddr::new(addresses[id], port.unwrap())).collect();
            let whole = expected == has || (planned.is_none() && flow.from == Sender::Node);
            assert!(whole, "{}\nanswers {expected:?}\nload balancer {has:?}", about());
            compared += usize::from(!has.is_empty());
        }
    }
    assert!(compared > 100, "only {compared} flows were compared");
}
