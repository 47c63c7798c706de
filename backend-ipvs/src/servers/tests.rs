//! Tests that the changes lead from any applied state to the desired one, and keep connections.

use std::sync::Arc;

use localnet_client::vips::Weights;
use localnet_linux::ipvs::Persistence;
use proptest::{collection::vec, prelude::*};

use super::*;

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn frontend(protocol: Protocol, port: u16) -> Frontend {
    Frontend::new(protocol, SocketAddr::from(([172, 30, 0, 1], port)))
}

fn endpoint(host: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, host], 8080))
}

fn plan(frontend: Frontend, hosts: &[u8]) -> Plan {
    let destinations: Arc<[SocketAddr]> = hosts.iter().map(|host| endpoint(*host)).collect();
    Plan { server: VirtualServer::new(frontend, "rr".parse().unwrap()), destinations, weights: Weights::default() }
}

/// A model of IPVS that accepts every change.
#[derive(Clone, Debug, Default, PartialEq)]
struct Ipvs(BTreeMap<Frontend, (VirtualServer, BTreeMap<SocketAddr, u32>)>);

impl Ipvs {
    #[track_caller]
    fn apply(&mut self, changes: &[Change]) {
        for change in changes {
            let all = &mut self.0;
            match change {
                Change::AddServer(server) => {
                    assert!(all.insert(server.frontend, (server.clone(), BTreeMap::new())).is_none(), "{change}");
                }
                Change::UpdateServer(server) => all.get_mut(&server.frontend).unwrap().0 = server.clone(),
                Change::DeleteServer(frontend) => assert!(all.remove(frontend).is_some(), "{change}"),
                Change::AddDestination(frontend, one) => {
                    assert!(all.get_mut(frontend).unwrap().1.insert(one.address, one.weight).is_none(), "{change}");
                }
                Change::UpdateDestination(frontend, one) => {
                    assert!(all.get_mut(frontend).unwrap().1.insert(one.address, one.weight).is_some(), "{change}");
                }
                Change::DeleteDestination(frontend, one) => {
                    assert!(all.get_mut(frontend).unwrap().1.remove(one).is_some(), "{change}");
                }
            }
        }
    }

    fn states(&self) -> Vec<ServerState> {
        let destination = |(address, weight): (&SocketAddr, &u32)| DestinationState {
            destination: Destination::masqueraded(*address, *weight),
            connections: Connections::default(),
        };
        let state = |(server, all): &(VirtualServer, BTreeMap<SocketAddr, u32>)| ServerState {
            server: server.clone(),
            destinations: all.iter().map(destination).collect(),
        };
        self.0.values().map(state).collect()
    }
}

/// Sends all pending changes, and returns them in the notation of ipvsadm.
#[track_caller]
fn send(servers: &mut Servers, ipvs: &mut Ipvs) -> String {
    let mut script = String::new();
    let steps: [fn(&Servers) -> Vec<Change>; 4] = [
        Servers::deletions,
        Servers::first_destinations,
        |servers| servers.additions(|_| true),
        |servers| servers.removals(|_| true, &BTreeSet::new()),
    ];
    for step in steps {
        let changes = step(servers);
        ipvs.apply(&changes);
        assert_eq!(servers.applied(&changes, &[]), []);
        script += &localnet_linux::ipvs::script(&changes);
    }
    servers.settle();
    script
}

#[test]
fn each_change_sends_only_the_difference() {
    let (mut servers, mut ipvs) = (Servers::default(), Ipvs::default());
    servers.adopt([]);
    let (tcp, udp) = (frontend(Protocol::Tcp, 80), frontend(Protocol::Udp, 53));
    let sticky = |hosts| {
        let mut plan = plan(tcp, hosts);
        plan.server.persistence = Some(Persistence::of_addresses(Family::V4, 10_800));
        plan
    };
    for (plan, expected) in [
        (
            plan(tcp, &[1, 2]),
            "-A -t 172.30.0.1:80 -s rr\n-a -t 172.30.0.1:80 -r 10.0.0.1:8080 -m -w 1\n-a -t 172.30.0.1:80 -r 10.0.0.2:8080 -m -w 1\n",
        ),
        (plan(tcp, &[1, 2]), ""),
        (plan(udp, &[1]), "-A -u 172.30.0.1:53 -s rr\n-a -u 172.30.0.1:53 -r 10.0.0.1:8080 -m -w 1\n"),
        // TCP destinations drain, UDP destinations do not.
        (plan(tcp, &[2]), "-e -t 172.30.0.1:80 -r 10.0.0.1:8080 -m -w 0\n"),
        (plan(udp, &[2]), "-a -u 172.30.0.1:53 -r 10.0.0.2:8080 -m -w 1\n-d -u 172.30.0.1:53 -r 10.0.0.1:8080\n"),
        (plan(tcp, &[2]), ""),
        (sticky(&[2]), "-E -t 172.30.0.1:80 -s rr -p 10800\n"),
        // A destination that returns while it drains keeps its connections, because it is not deleted in between.
        (sticky(&[1, 2]), "-e -t 172.30.0.1:80 -r 10.0.0.1:8080 -m -w 1\n"),
    ] {
        servers.set(plan);
        assert_eq!(send(&mut servers, &mut ipvs), expected);
    }
    servers.remove(&tcp);
    assert_eq!(send(&mut servers, &mut ipvs), "-D -t 172.30.0.1:80\n");
}

#[test]
fn a_destination_is_deleted_after_its_last_connection_or_its_time_limit() {
    let tcp = frontend(Protocol::Tcp, 80);
    let seconds = Duration::from_secs;
    for (limit, checks, expected) in [
        (None, &[(10, 2), (1_000_000, 1), (1_000_001, 0)][..], 3),
        (Some(60), &[(10, 2), (69, 2), (70, 2)], 3),
        (None, &[(10, 0)], 1),
    ] {
        let (mut servers, mut ipvs) = (Servers::default(), Ipvs::default());
        servers.adopt([]);
        servers.set(plan(tcp, &[1, 2]));
        send(&mut servers, &mut ipvs);
        servers.set(plan(tcp, &[2]));
        send(&mut servers, &mut ipvs);
        assert_eq!(servers.draining(), [tcp].into());
        let mut looked = 0;
        for (at, active) in checks {
            looked += 1;
            let found = [(endpoint(1), Connections { active: *active, ..Connections::default() })];
            let changes = servers.drained(&tcp, seconds(*at), limit.map(seconds), &found);
            ipvs.apply(&changes);
            assert_eq!(servers.applied(&changes, &[]), []);
            if servers.draining().is_empty() {
                break;
            }
        }
        assert_eq!((looked, servers.draining()), (expected, BTreeSet::new()));
        assert_eq!(ipvs.0[&tcp].1, [(endpoint(2), 1)].into());
    }
}

#[test]
fn draining_destinations_are_found_after_a_restart() {
    let tcp = frontend(Protocol::Tcp, 80);
    let (mut servers, mut ipvs) = (Servers::default(), Ipvs::default());
    servers.adopt([]);
    for hosts in [&[1, 2, 3][..], &[2]] {
        servers.set(plan(tcp, hosts));
        send(&mut servers, &mut ipvs);
    }
    let mut after = Servers::default();
    after.set(plan(tcp, &[2, 3]));
    after.adopt(ipvs.states());
    assert_eq!(send(&mut after, &mut ipvs), "-e -t 172.30.0.1:80 -r 10.0.0.3:8080 -m -w 1\n");
    let changes = after.drained(&tcp, Duration::ZERO, None, &[]);
    assert_eq!(changes, [Change::DeleteDestination(tcp, endpoint(1))]);
}

#[test]
fn changes_to_our_servers_are_noticed_and_foreign_servers_ignored() {
    let tcp = frontend(Protocol::Tcp, 80);
    let (mut servers, mut ipvs) = (Servers::default(), Ipvs::default());
    assert!(!servers.are(&[]), "the live state is unknown");
    servers.adopt([]);
    servers.set(plan(tcp, &[1]));
    send(&mut servers, &mut ipvs);
    let ours = plan(tcp, &[1]).server;
    let foreign = VirtualServer::new(frontend(Protocol::Tcp, 81), "wlc".parse().unwrap());
    let other = VirtualServer { scheduler: "sh".parse().unwrap(), ..ours.clone() };
    for (found, expected) in [
        (vec![ours.clone()], true),
        (vec![ours, foreign.clone()], true),
        (vec![foreign], false),
        (vec![other], false),
        (vec![], false),
    ] {
        assert_eq!(servers.are(&found), expected, "{found:?}");
    }
}

#[test]
fn destinations_are_compared_with_the_applied_state() {
    let tcp = frontend(Protocol::Tcp, 80);
    let (mut servers, mut ipvs) = (Servers::default(), Ipvs::default());
    assert!(!servers.has(&tcp, &[]), "the live state is unknown");
    servers.adopt([]);
    servers.set(plan(tcp, &[1, 2]));
    send(&mut servers, &mut ipvs);
    let found = |all: &[(u8, u32)]| {
        let one = |(host, weight): &(u8, u32)| DestinationState {
            destination: Destination::masqueraded(endpoint(*host), *weight),
            connections: Connections { active: 7, ..Connections::default() },
        };
        all.iter().map(one).collect::<Vec<_>>()
    };
    for (all, expected) in [
        (&[(1, 1), (2, 1)][..], true),
        (&[(2, 1), (1, 1)], true),
        (&[(1, 1)], false),
        (&[], false),
        (&[(1, 1), (2, 0)], false),
        (&[(1, 1), (3, 1)], false),
        (&[(1, 1), (2, 1), (3, 1)], false),
    ] {
        assert_eq!(servers.has(&tcp, &found(all)), expected, "{all:?}");
    }
}

#[test]
fn all_servers_are_checked_in_turn() {
    let (mut servers, mut ipvs) = (Servers::default(), Ipvs::default());
    assert_eq!(servers.after(None, 9), []);
    servers.adopt([]);
    for port in [1, 3, 5, 7] {
        servers.set(plan(frontend(Protocol::Tcp, port), &[1]));
    }
    send(&mut servers, &mut ipvs);
    for (last, count, expected) in [
        (None, 2, &[1, 3][..]),
        (Some(3), 2, &[5, 7]),
        (Some(5), 2, &[7, 1]),
        (Some(7), 9, &[1, 3, 5, 7]),
        (Some(3), 9, &[5, 7, 1, 3]),
        // The last virtual server was deleted in the meantime.
        (Some(4), 9, &[5, 7, 1, 3]),
        (Some(9), 1, &[1]),
    ] {
        let last = last.map(|port| frontend(Protocol::Tcp, port));
        let ports: Vec<u16> = servers.after(last, count).iter().map(|one| one.address.port()).collect();
        assert_eq!(ports, expected, "{last:?} {count}");
    }
}

#[test]
fn addresses_bound_each_other() {
    assert!(FIRST < address("0.0.0.0:1") && address("255.255.255.255:65535") < LAST && address("[fd00::1]:1") < LAST);
}

#[derive(Clone, Debug)]
enum Step {
    Set(u16, bool, BTreeSet<u8>),
    Remove(u16, bool),
    Restart,
    Drain,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let hosts = proptest::collection::btree_set(1..5_u8, 0..4);
    vec(
        prop_oneof![
            4 => (1..4_u16, any::<bool>(), hosts).prop_map(|(port, tcp, hosts)| Step::Set(port, tcp, hosts)),
            1 => (1..4_u16, any::<bool>()).prop_map(|(port, tcp)| Step::Remove(port, tcp)),
            1 => Just(Step::Restart),
            1 => Just(Step::Drain),
        ],
        0..30,
    )
}

proptest! {
    /// After any history, IPVS has accepted each change, and exactly the desired endpoints get new connections.
    #[test]
    fn any_history_ends_in_the_desired_state(steps in steps()) {
        let (mut servers, mut ipvs) = (Servers::default(), Ipvs::default());
        servers.adopt([]);
        let of = |tcp, port| frontend(if tcp { Protocol::Tcp } else { Protocol::Udp }, port);
        for step in steps {
            match step {
                Step::Set(port, tcp, hosts) => {
                    servers.set(plan(of(tcp, port), &hosts.into_iter().collect::<Vec<_>>()));
                }
                Step::Remove(port, tcp) => servers.remove(&of(tcp, port)),
                Step::Restart => {
                    let mut after = Servers::default();
                    servers.wanted().for_each(|plan| after.set(plan.clone()));
                    after.adopt(ipvs.states());
                    servers = after;
                }
                Step::Drain => for frontend in servers.draining() {
                    let changes = servers.drained(&frontend, Duration::ZERO, None, &[]);
                    ipvs.apply(&changes);
                    servers.applied(&changes, &[]);
                }
            }
            send(&mut servers, &mut ipvs);
            prop_assert_eq!(send(&mut servers, &mut ipvs), "");
        }
        let serving: BTreeMap<_, _> = ipvs.0.iter().map(|(frontend, (server, all))| {
            let serving: Vec<_> = all.iter().filter(|(_, weight)| **weight > 0).map(|(address, _)| *address).collect();
            (*frontend, (server.clone(), serving))
        }).collect();
        let wanted: BTreeMap<_, _> =
            servers.wanted().map(|plan| (plan.server.frontend, (plan.server.clone(), plan.destinations.to_vec()))).collect();
        prop_assert_eq!(serving, wanted);
        // Every destination with weight 0 drains.
        let held: BTreeSet<_> = ipvs.0.iter().filter(|(_, (_, all))| all.values().any(|weight| *weight == 0)).map(|(f, _)| *f).collect();
        prop_assert_eq!(servers.draining(), held);
    }
}
