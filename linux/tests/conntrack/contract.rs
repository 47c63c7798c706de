//! The contract of connection tracking: what the cleaner of stale flows and the simulation rely on. Each behaviour is a function, which
//! runs on the table in memory of the tests and on the kernel's.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

use localnet_core::{Family, Protocol};
use localnet_linux::conntrack::{Conntrack, Flow, Kernel, Selection, Status, Tuple, testing::Fake};

use crate::flows::{address, isolated, redirect, udp};

/// A node: its table, its rules, and datagrams.
trait Node {
    type Table: Conntrack;

    fn table(&mut self) -> &mut Self::Table;
    /// Replaces the rules: datagrams to the first address of each pair go to the second.
    fn redirect(&mut self, rules: &[(&'static str, &'static str)]);
    /// A client or an endpoint sends a datagram.
    fn send(&mut self, from: &str, to: &str);
}

#[derive(Default)]
struct Memory {
    table: Fake,
    rules: BTreeMap<SocketAddr, SocketAddr>,
}

impl Node for Memory {
    type Table = Fake;

    fn table(&mut self) -> &mut Fake {
        &mut self.table
    }

    fn redirect(&mut self, rules: &[(&'static str, &'static str)]) {
        self.rules = rules.iter().map(|(from, to)| (address(from), address(to))).collect();
    }

    fn send(&mut self, from: &str, to: &str) {
        let packet = Tuple { source: address(from), destination: address(to) };
        self.table.send(packet, |destination| self.rules.get(&destination).copied());
    }
}

struct Real {
    table: Kernel,
    sockets: BTreeMap<String, UdpSocket>,
}

impl Node for Real {
    type Table = Kernel;

    fn table(&mut self) -> &mut Kernel {
        &mut self.table
    }

    fn redirect(&mut self, rules: &[(&'static str, &'static str)]) {
        let rules: Vec<_> = rules.iter().map(|(from, to)| (Protocol::Udp, *from, *to)).collect();
        redirect(&rules);
    }

    fn send(&mut self, from: &str, to: &str) {
        let socket = self.sockets.entry(from.to_owned()).or_insert_with(|| udp(from));
        socket.send_to(b"x", to).unwrap();
    }
}

fn on_the_kernel(behaviour: fn(&mut Real)) {
    isolated(move || {
        // Nothing refuses the datagrams, but nothing reads them either.
        let endpoints = [A, B].map(|at| (at.to_owned(), udp(at)));
        let mut node = Real { table: Kernel::open().unwrap(), sockets: endpoints.into() };
        behaviour(&mut node);
    });
}

macro_rules! contract {
    ($($behaviour:ident),+ $(,)?) => {
        mod fake {
            $(#[test] fn $behaviour() { super::$behaviour(&mut super::Memory::default()); })+
        }

        mod kernel {
            $(#[test] fn $behaviour() { super::on_the_kernel(super::$behaviour); })+
        }
    };
}

contract! {
    a_flow_shows_the_vip_and_the_endpoint,
    a_flow_that_meets_no_rule_leads_to_the_vip,
    a_tracked_flow_keeps_its_endpoint,
    a_deleted_flow_meets_the_rules_again,
    a_flow_is_deleted_although_it_was_answered_after_the_dump,
    an_entry_is_deleted_once,
    an_entry_of_another_endpoint_stays,
    a_late_answer_enters_the_flow_backwards,
    flows_of_a_client_to_one_endpoint_have_different_replies,
}

const CLIENT: &str = "10.0.0.9:40000";
const VIP: &str = "10.96.0.10:53";
const A: &str = "10.244.0.2:5353";
const B: &str = "10.244.0.3:5353";

fn flows(table: &mut impl Conntrack) -> Vec<Flow> {
    let mut flows = Vec::new();
    let selection = Selection { family: Family::V4, protocol: Protocol::Udp, established: false };
    table.dump(selection, &mut |flow| flows.push(*flow)).unwrap();
    flows
}

/// The only flow.
#[track_caller]
fn flow(node: &mut impl Node) -> Flow {
    let flows = flows(node.table());
    assert_eq!(flows.len(), 1, "{flows:?}");
    flows[0]
}

/// The properties of a flow that the cleaner uses: both directions, and whether it is translated and answered.
fn seen(flow: &Flow) -> ([Tuple; 2], bool, bool) {
    let has = |status| flow.status.has(status);
    ([flow.original, flow.reply], has(Status::DESTINATION_NAT), has(Status::SEEN_REPLY))
}

fn tuple(source: &str, destination: &str) -> Tuple {
    Tuple { source: address(source), destination: address(destination) }
}

fn a_flow_shows_the_vip_and_the_endpoint(node: &mut impl Node) {
    node.redirect(&[(VIP, A)]);
    node.send(CLIENT, VIP);
    let both = [tuple(CLIENT, VIP), tuple(A, CLIENT)];
    assert_eq!(seen(&flow(node)), (both, true, false));
    node.send(A, CLIENT);
    assert_eq!(seen(&flow(node)), (both, true, true));
}

fn a_flow_that_meets_no_rule_leads_to_the_vip(node: &mut impl Node) {
    node.redirect(&[]);
    node.send(CLIENT, VIP);
    assert_eq!(seen(&flow(node)), ([tuple(CLIENT, VIP), tuple(VIP, CLIENT)], false, false));
}

fn a_tracked_flow_keeps_its_endpoint(node: &mut impl Node) {
    for (rules, endpoint) in [(&[(VIP, A)][..], A), (&[][..], VIP)] {
        node.redirect(rules);
        node.send(CLIENT, VIP);
        let before = flow(node);
        node.redirect(&[(VIP, B)]);
        node.send(CLIENT, VIP);
        let after = flow(node);
        assert_eq!((after.id, after.reply), (before.id, tuple(endpoint, CLIENT)));
        assert_eq!(node.table().delete(&[after]).unwrap(), 1);
    }
}

fn a_deleted_flow_meets_the_rules_again(node: &mut impl Node) {
    node.redirect(&[(VIP, A)]);
    node.send(CLIENT, VIP);
    let stale = flow(node);
    node.redirect(&[(VIP, B)]);
    assert_eq!(node.table().delete(&[stale]).unwrap(), 1);
    assert_eq!(flows(node.table()), []);
    node.send(CLIENT, VIP);
    assert_eq!(flow(node).reply, tuple(B, CLIENT));
}

fn a_flow_is_deleted_although_it_was_answered_after_the_dump(node: &mut impl Node) {
    node.redirect(&[(VIP, A)]);
    node.send(CLIENT, VIP);
    let unanswered = flow(node);
    node.send(A, CLIENT);
    assert_eq!(node.table().delete(&[unanswered]).unwrap(), 1);
    assert_eq!(flows(node.table()), []);
}

/// A dump may show a flow twice, and a flow may end before it is deleted.
fn an_entry_is_deleted_once(node: &mut impl Node) {
    node.redirect(&[(VIP, A)]);
    node.send(CLIENT, VIP);
    let gone = flow(node);
    assert_eq!(node.table().delete(&[gone, gone]).unwrap(), 1);
    node.send("10.0.0.9:40001", VIP);
    let other = flow(node);
    assert_eq!(node.table().delete(&[gone, other]).unwrap(), 1);
    assert_eq!(node.table().delete(&[gone, other]).unwrap(), 0);
}

fn an_entry_of_another_endpoint_stays(node: &mut impl Node) {
    node.redirect(&[(VIP, A)]);
    node.send(CLIENT, VIP);
    let before = flow(node);
    node.table().delete(&[before]).unwrap();
    node.redirect(&[(VIP, B)]);
    node.send(CLIENT, VIP);
    let after = flow(node);
    assert_eq!(node.table().delete(&[before]).unwrap(), 0);
    assert_eq!(flow(node).reply, after.reply);
}

/// The client's next datagram then counts as a reply, and follows no rule.
fn a_late_answer_enters_the_flow_backwards(node: &mut impl Node) {
    node.redirect(&[]);
    let at = "10.244.7.7:53";
    node.send(CLIENT, at);
    let gone = flow(node);
    node.table().delete(&[gone]).unwrap();
    node.redirect(&[(at, A)]);
    node.send(at, CLIENT);
    node.send(CLIENT, at);
    assert_eq!(seen(&flow(node)), ([tuple(at, CLIENT), tuple(CLIENT, at)], false, true));
}

/// Otherwise, one name would stand for two entries.
fn flows_of_a_client_to_one_endpoint_have_different_replies(node: &mut impl Node) {
    let other = "10.96.0.11:53";
    node.redirect(&[(VIP, A), (other, A)]);
    node.send(CLIENT, VIP);
    node.send(CLIENT, other);
    let both = flows(node.table());
    let replies: BTreeSet<_> = both.iter().map(|flow| flow.reply.destination).collect();
    assert_eq!((both.len(), replies.len()), (2, 2));
    assert!(both.iter().all(|flow| flow.reply.source == address(A)), "{both:?}");
    let gone = both.into_iter().find(|flow| flow.original.destination == address(other)).unwrap();
    assert_eq!(node.table().delete(&[gone]).unwrap(), 1);
    assert_eq!(flow(node).original, tuple(CLIENT, VIP));
}

/// A dump of the fake table is complete at once. The kernel writes parts, and other flows come and go in between.
#[test]
fn a_dump_shows_each_flow_that_stays_while_others_come_and_go() {
    const STAYING: u32 = 2000;
    const PASSING: u32 = 500;
    const ROUNDS: usize = 20;
    let at = |network: u8, index: u32| {
        let [_, _, high, low] = index.to_be_bytes();
        SocketAddr::new(Ipv4Addr::new(10, network, high, low).into(), 53)
    };
    isolated(move || {
        redirect(&[]);
        // Each namespace has this setting of its own.
        std::fs::write("/proc/sys/net/netfilter/nf_conntrack_udp_timeout", "3600").unwrap();
        let client = udp("10.0.0.9:0");
        let send = |network, count| {
            (0..count).for_each(|index| _ = client.send_to(b"x", at(network, index)).unwrap());
        };
        send(96, STAYING);
        let expected: BTreeSet<_> = (0..STAYING).map(|index| at(96, index)).collect();
        let mut table = Kernel::open().unwrap();
        std::thread::scope(|scope| {
            // The thread is in the same network namespace.
            let passing = scope.spawn(|| {
                let mut table = Kernel::open().unwrap();
                for _ in 0..ROUNDS {
                    send(99, PASSING);
                    let mut all = flows(&mut table);
                    all.retain(|flow| !expected.contains(&flow.original.destination));
                    table.delete(&all).unwrap();
                }
            });
            while !passing.is_finished() {
                let shown: BTreeSet<_> = flows(&mut table).iter().map(|flow| flow.original.destination).collect();
                let missing: Vec<_> = expected.difference(&shown).collect();
                assert!(missing.is_empty(), "{missing:?}");
            }
            passing.join().unwrap();
        });
    });
}
