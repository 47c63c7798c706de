//! Runs the decisions of the programs on maps in memory, for all packets of all Cases that a process of this node sends.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use localnet_client::vips;
use localnet_core::Protocol;
use localnet_lab::{Sender, cases, flow::Expect, topology::Place};
use localnet_proto::{Changes, Snapshot};

use crate::{
    decide::{TCP, UDP, Verdict, destination, origin},
    desired::Desired,
    kernel::Content,
    layout::{Client, ClientKey, EndpointKey, GROUP, MemberKey, OriginKey, Socket, Vip, VipKey},
    plan::{self, socket, socket_addr},
    testing::{call::Call, config::config},
};

/// The maps, and the processes that use them.
struct Node {
    content: Content,
    clients: RefCell<BTreeMap<ClientKey, Client>>,
    origins: RefCell<BTreeMap<OriginKey, Socket>>,
}

impl Node {
    fn new(content: Content) -> Self {
        Self { content, clients: RefCell::default(), origins: RefCell::default() }
    }

    fn call(&self, socket: u64, namespace: u64, seconds: u64, random: u32) -> Call<'_> {
        let Self { content, clients, origins } = self;
        Call { content, clients, origins, random: Cell::new(random), seconds, socket, namespace }
    }
}

fn number(protocol: Protocol) -> u32 {
    match protocol {
        Protocol::Tcp => TCP,
        Protocol::Udp => UDP,
        Protocol::Sctp => 132,
    }
}

/// The verdicts for a flow, over all random numbers.
fn verdicts(node: &Node, protocol: Protocol, to: SocketAddr) -> BTreeSet<String> {
    let calls = (0..64).map(|random| node.call(random.into(), random.into(), 1, random));
    let text = |call: Call<'_>| match destination(&call, number(protocol), &socket(to), false) {
        Verdict::To(endpoint) => {
            assert_eq!(origin(&call, number(protocol), &endpoint), Some(socket(to)), "{to} is the peer's name");
            socket_addr(&endpoint).to_string()
        }
        verdict => format!("{verdict:?}"),
    };
    calls.map(text).collect()
}

fn is_local_policy(vip: &vips::Vip) -> bool {
    vip.exposure == vips::Exposure::ExternalLocal && !vip.endpoints.is_empty()
}

#[test]
fn every_case_has_the_expected_verdicts() {
    let (mut checked, mut wrong) = (0, Vec::new());
    for case in cases() {
        let state: Snapshot = case.read_state().unwrap();
        let mut desired = Desired::new(config(&case.flows));
        desired.vips.set_local_addresses(case.flows.local_addresses());
        desired.update(&state, &Changes::everything());
        let node = Node::new(desired.content());
        for flow in &case.flows.flows {
            let is_local = match flow.from {
                Sender::Node => true,
                Sender::Pod(pod) => pod.place == Place::Local,
                Sender::Client(_) | Sender::OtherNode => false,
            };
            if !is_local {
                continue;
            }
            let key = vips::VipKey { address: flow.to.ip(), protocol: flow.protocol, port: flow.to.port() };
            let vip = desired.vips.vip(&key);
            let is_ours = vip.as_ref().is_some_and(|vip| plan::vip(&key, vip).is_some());
            let found = verdicts(&node, flow.protocol, flow.to);
            let of_local = vip.as_ref().map(|vip| vip.endpoints.iter().map(ToString::to_string).collect());
            let right = match &flow.expect {
                _ if !is_ours && found == BTreeSet::from(["Pass".to_owned()]) => true,
                // The programs always know that the sender is a process of this node (docs/backends/ebpf.md, difference 3).
                _ if vip.as_ref().is_some_and(is_local_policy) && matches!(flow.from, Sender::Pod(_)) => {
                    Some(&found) == of_local.as_ref()
                }
                Expect::Answers { by, .. } => found == by.iter().map(ToString::to_string).collect(),
                Expect::Reject => found == BTreeSet::from(["Reject".to_owned()]),
                Expect::Drop => found == BTreeSet::from(["Drop".to_owned()]),
                Expect::Untouched => false,
            };
            checked += usize::from(is_ours);
            if !right {
                wrong.push(format!("{}: {flow}: expected {}, got {found:?}", case.name, flow.expect));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(checked > 200, "only {checked} flows");
}

const VIP: &str = "10.96.0.1:53";

/// One Service port with these endpoints.
fn content(protocol: u32, affinity: u32, endpoints: &[&str]) -> Content {
    let port = [1; 4];
    let vip = Vip { port, endpoints: u32::try_from(endpoints.len()).unwrap(), affinity, ..Vip::default() };
    let endpoints: Vec<Socket> = endpoints.iter().map(|text| socket(text.parse().unwrap())).collect();
    Content {
        vips: [(VipKey { to: socket(VIP.parse().unwrap()), protocol }, vip)].into(),
        endpoints: (0..)
            .zip(endpoints.chunks(GROUP))
            .map(|(group, of)| {
                let at = |index: usize| of.get(index).copied().unwrap_or_default();
                (EndpointKey { port, scope: 0, group }, std::array::from_fn(at))
            })
            .collect(),
        members: endpoints.iter().map(|endpoint| MemberKey { port, scope: 0, endpoint: *endpoint }).collect(),
    }
}

const ENDPOINTS: [&str; 3] = ["10.0.0.1:5", "10.0.0.2:5", "10.0.0.3:5"];

fn chosen(call: &Call<'_>, protocol: u32, is_message: bool) -> String {
    match destination(call, protocol, &socket(VIP.parse().unwrap()), is_message) {
        Verdict::To(endpoint) => socket_addr(&endpoint).to_string(),
        verdict => format!("{verdict:?}"),
    }
}

#[test]
fn the_clients_of_a_namespace_keep_an_endpoint_until_the_timeout_after_their_last_connection() {
    let node = Node::new(content(TCP, 10, &ENDPOINTS));
    let connect = |namespace, seconds, random| chosen(&node.call(seconds, namespace, seconds, random), TCP, false);
    assert_eq!(connect(1, 100, 0), "10.0.0.1:5");
    assert_eq!(connect(1, 109, 1), "10.0.0.1:5", "another socket of the namespace");
    assert_eq!(connect(1, 118, 1), "10.0.0.1:5", "the connection before prolongs the time");
    assert_eq!(connect(2, 118, 1), "10.0.0.2:5", "another namespace");
    assert_eq!(connect(1, 128, 2), "10.0.0.3:5", "after the timeout");
}

#[test]
fn a_client_leaves_an_endpoint_that_is_not_eligible() {
    let mut node = Node::new(content(TCP, 10, &ENDPOINTS));
    assert_eq!(chosen(&node.call(1, 1, 100, 2), TCP, false), "10.0.0.3:5");
    node.content = content(TCP, 10, &ENDPOINTS[..2]);
    assert_eq!(chosen(&node.call(2, 1, 101, 2), TCP, false), "10.0.0.1:5");
}

#[test]
fn a_socket_sends_all_messages_to_one_endpoint_while_it_is_eligible() {
    let mut node = Node::new(content(UDP, 0, &ENDPOINTS));
    let send = |node: &Node, socket, random| chosen(&node.call(socket, 1, 100, random), UDP, true);
    assert_eq!([send(&node, 1, 0), send(&node, 1, 1), send(&node, 2, 1)], ["10.0.0.1:5", "10.0.0.1:5", "10.0.0.2:5"]);
    node.content = content(UDP, 0, &ENDPOINTS[1..]);
    assert_eq!(send(&node, 1, 1), "10.0.0.3:5");
}

#[test]
fn a_call_during_a_change_gets_an_endpoint_that_exists() {
    let call = |content, random| chosen(&Node::new(content).call(1, 1, 1, random), TCP, false);
    let mut smaller = content(TCP, 0, &ENDPOINTS);
    smaller.endpoints.values_mut().for_each(|group| group[2] = Socket::default());
    assert_eq!(call(smaller, 2), "10.0.0.1:5");
    let more = ["10.0.0.1:5", "10.0.0.2:5", "10.0.0.3:5", "10.0.0.4:5", "10.0.0.5:5", "10.0.0.6:5"];
    let mut fewer_groups = content(TCP, 0, &more);
    assert_eq!(call(fewer_groups.clone(), 5), "10.0.0.6:5");
    fewer_groups.endpoints.pop_last();
    assert_eq!(call(fewer_groups.clone(), 5), "10.0.0.1:5");
    assert_eq!(call(fewer_groups, 3), "10.0.0.4:5");
}

#[test]
fn other_protocols_and_unknown_sockets_pass() {
    let node = Node::new(content(TCP, 0, &ENDPOINTS));
    assert_eq!(chosen(&node.call(1, 1, 1, 0), UDP, true), "Pass");
    assert_eq!(chosen(&node.call(1, 1, 1, 0), 1, false), "Pass");
    assert_eq!(origin(&node.call(1, 1, 1, 0), TCP, &socket("10.0.0.1:5".parse().unwrap())), None);
}
