//! Endpoints that are chosen by a consistent hash, with real packets.

use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    ops::Range,
    sync::Arc,
};

use localnet_client::vips::{Weights, hashing};
use localnet_lab::{
    Endpoint, Namespace, Network, Pod, Protocol, Servers, Topology,
    topology::{CLIENT, Place},
};
use localnet_linux::conntrack::{self, Conntrack as _, Selection};
use localnet_proto::{Family, HashBy, Service, Snapshot};

use super::{config, list, live::PATIENCE, sync};

/// The number of endpoints in each family.
const PODS: u8 = 10;
/// The number of ports from which a client sends.
const FLOWS: u16 = 1000;
const VIPS: [&str; 2] = ["172.30.0.53:53", "[fd00:172:30::53]:53"];

struct World {
    network: Network,
    _servers: Servers,
}

impl World {
    fn build(place: Place, other_node: bool) -> Self {
        let pods = (1..=PODS).map(|number| Pod { place, number });
        let network = Network::build(Topology { pods: pods.clone().collect(), other_node, ..Topology::default() });
        let network = network.unwrap();
        let address = |ip| SocketAddr::new(ip, 5353);
        let endpoints = pods.flat_map(Pod::addresses);
        let endpoints = endpoints.map(|ip| Endpoint { protocol: Protocol::Udp, address: address(ip) });
        let servers = Servers::start(&network, endpoints.collect::<Vec<_>>()).unwrap();
        Self { network, _servers: servers }
    }
}

/// A Service with endpoints at these pods. The first one has this weight.
fn state(by: HashBy, place: Place, numbers: impl IntoIterator<Item = u8>, weight: u32) -> Snapshot {
    let endpoint = |number| Pod { place, number }.addresses();
    let endpoints = numbers.into_iter().flat_map(endpoint).map(|address| {
        format!(
            "{{address: \"{address}\", ports: [{{name: dns, port: 5353}}], scopes: {{internal: true, external: true}}}}"
        )
    });
    let text = format!(
        "{{node: {{name: node-a, addresses: [\"192.168.0.2\", \"2001:db8::2\"]}}, services: [{{service: default/dns, type: NodePort,
         clusterIPs: [\"172.30.0.53\", \"fd00:172:30::53\"], hash: {by},
         ports: [{{name: dns, protocol: UDP, port: 53, nodePort: 30053}}], endpoints: [{}]}}]}}",
        endpoints.collect::<Vec<_>>().join(", ")
    );
    let mut state: Snapshot = serde_saphyr::from_str(&text).unwrap();
    let service: &mut Service = Arc::make_mut(state.services.values_mut().next().unwrap());
    service.endpoints.sort_unstable();
    let first = service.endpoints.iter_mut().filter(|of| Pod::at(of.address).is_some_and(|pod| pod.number == 1));
    first.for_each(|first| first.weight = localnet_proto::Endpoint::weighing(weight));
    state
}

/// The endpoint that the hash gives a client.
fn expected(state: &Snapshot, client: SocketAddr) -> SocketAddr {
    let service = state.services.values().next().unwrap();
    let of_family = service.endpoints.iter().filter(|of| of.address.is_ipv4() == client.is_ipv4());
    let address = |of: &localnet_proto::Endpoint| SocketAddr::new(of.address, 5353);
    let weights: Weights = of_family.clone().filter_map(|of| Some((address(of), of.weight?.get()))).collect();
    let mut endpoints: Vec<SocketAddr> = of_family.map(address).collect();
    endpoints.sort_unstable();
    let by = service.hash.unwrap();
    let slots = hashing::Hashing::new(by).slots(&endpoints.into(), &weights);
    slots[hashing::slot(by, client, slots.len() as u32) as usize]
}

/// The endpoint that answers a datagram from each port.
fn answers(from: &Namespace, to: SocketAddr, ports: Range<u16>) -> Vec<SocketAddr> {
    let any = if to.is_ipv4() { "0.0.0.0" } else { "::" };
    let ask = |port| {
        let socket = UdpSocket::bind((any, port))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.connect(to)?;
        socket.send(b"?")?;
        let mut answer = [0; 256];
        let length = socket.recv(&mut answer)?;
        let text = String::from_utf8_lossy(&answer[..length]).into_owned();
        Ok::<_, anyhow::Error>(text.split_whitespace().next().unwrap_or_default().parse::<SocketAddr>()?)
    };
    from.run(|| ports.map(ask).collect()).unwrap()
}

/// Ends all flows, so that the next datagram of a port is the first of a new one.
fn end_flows(node: &Namespace) {
    let end = || {
        let mut conntrack = conntrack::Kernel::open()?;
        for family in Family::BOTH {
            let mut flows = Vec::new();
            let udp = Selection { family, protocol: Protocol::Udp, established: false };
            conntrack.dump(udp, &mut |flow| flows.push(*flow))?;
            conntrack.delete(&flows)?;
        }
        Ok(())
    };
    node.run(end).unwrap();
}

/// The removal of one of ten endpoints moves its own flows, and at most 5 % of all others. They return with it.
#[test]
fn a_hash_of_the_connection_spreads_ports_and_few_move_with_a_removed_endpoint() {
    let world = World::build(Place::Local, false);
    let node = world.network.node();
    let all = state(HashBy::Connection, Place::Local, 1..=PODS, 1);
    let fewer = state(HashBy::Connection, Place::Local, (1..=PODS).filter(|number| *number != 4), 1);
    for (vip, client) in VIPS.into_iter().zip(CLIENT) {
        let asked = |state: &Snapshot| {
            end_flows(node);
            sync(node, &config(), state);
            let ports = 20_000..20_000 + FLOWS;
            let answers = answers(world.network.client(), vip.parse().unwrap(), ports.clone());
            let expected: Vec<_> = ports.map(|port| expected(state, (client, port).into())).collect();
            assert_eq!(answers, expected, "as predicted");
            answers
        };
        let (before, without, after) = (asked(&all), asked(&fewer), asked(&all));
        assert_eq!(before, after);
        let moved = before.iter().zip(&without).filter(|(before, without)| before != without).count();
        let share = f64::from(u32::try_from(moved).unwrap()) / f64::from(FLOWS);
        println!("{vip}: {share:.3} of the flows moved");
        assert!(share <= 1.0 / f64::from(PODS) + 0.05, "{share}");
    }
}

/// All ports of a sender reach one endpoint, which its address determines.
#[test]
fn a_hash_of_the_source_gives_each_sender_one_endpoint() {
    let world = World::build(Place::Local, false);
    let state = state(HashBy::Source, Place::Local, 1..=PODS, 3);
    sync(world.network.node(), &config(), &state);
    let pods = (1..=PODS).map(|number| Pod { place: Place::Local, number }.addresses());
    for addresses in pods.chain([CLIENT]) {
        for (vip, address) in VIPS.into_iter().zip(addresses) {
            let from = world.network.namespace_of(address).unwrap();
            let expected = expected(&state, (address, 0).into());
            if expected.ip() == address {
                // Endpoints that reach themselves have tests of their own.
                continue;
            }
            let answers = answers(from, vip.parse().unwrap(), 20_000..20_008);
            assert_eq!(answers, [expected; 8], "{address}");
        }
    }
    // The number of chains does not depend on the number of Services.
    let listing = list(world.network.node());
    assert_eq!(listing.matches("chain lb-").count(), 2, "one for each family");
}

/// Two nodes with the same endpoints choose alike, whatever happened on each before.
#[test]
fn two_nodes_choose_alike() {
    let world = World::build(Place::Remote, true);
    let nodes = Place::BOTH.map(|place| (place, world.network.node_at(place).unwrap()));
    for by in HashBy::ALL {
        let state = |place: Place, numbers: Vec<u8>| {
            let state = state(by, Place::Remote, numbers, 2);
            let node = localnet_proto::Node { addresses: place.addresses().into(), ..state.node };
            Snapshot { node, ..state }
        };
        for (place, node) in nodes {
            if place == Place::Remote {
                for numbers in [vec![7, 9], vec![2], (3..=PODS).collect()] {
                    sync(node, &config(), &state(place, numbers));
                }
            }
            sync(node, &config(), &state(place, (1..=PODS).collect()));
        }
        for family in [0, 1] {
            let chosen = nodes.map(|(place, node)| {
                end_flows(node);
                let to: IpAddr = place.addresses()[family];
                answers(world.network.client(), (to, 30053).into(), 20_000..20_200)
            });
            assert_eq!(chosen[0], chosen[1], "{by}");
            let state = state(Place::Local, (1..=PODS).collect());
            let client = CLIENT[family];
            let expected: Vec<_> = (20_000..20_200).map(|port| expected(&state, (client, port).into())).collect();
            assert_eq!(chosen[0], expected, "{by}");
        }
    }
}
