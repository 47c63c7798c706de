//! The intended differences of the ipvs backend from the oracle: those that `docs/backends/ipvs.md` lists, by number.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use localnet_client::route::{self, Origin, Outcome, Packet};
use localnet_lab::probe;
use localnet_proto::Protocol;

use crate::Backend;

use super::{
    ask::{Asked, Seen},
    cluster::Cluster,
    differences::Difference,
    judge::judge,
    pair::Side,
    scene::Scene,
    write::must_move,
};

struct Entry {
    number: usize,
    matches: fn(&Difference<'_>) -> bool,
}

/// The difference about connections that end with their virtual server.
const WITH_SERVER: usize = 5;
/// The difference about flows that end because their endpoint is no longer a destination.
const WITH_DESTINATION: usize = 6;

const ENTRIES: [Entry; 3] = [
    Entry { number: 1, matches: address_is_of_services },
    Entry { number: 4, matches: is_spread_without_affinity },
    Entry { number: 7, matches: translated_packet_meets_another_service },
];

/// The number of the difference that explains an outcome of the ipvs backend.
pub(crate) fn explain(difference: &Difference<'_>) -> Option<usize> {
    let is_ours = difference.side == Side::Ours && difference.pair.backend == Backend::Ipvs;
    let entry = ENTRIES.iter().find(|entry| is_ours && (entry.matches)(difference));
    entry.map(|entry| entry.number)
}

/// Whether each address and port of a Service remembers its own clients (difference 3).
pub(crate) fn keeps_clients_apart(backend: Backend, side: Side) -> bool {
    backend == Backend::Ipvs && side == Side::Ours
}

/// Whether the packet is to another port of an address that a Service has, and is rejected.
fn address_is_of_services(difference: &Difference<'_>) -> bool {
    let Difference { asked, seen, scene, topology, .. } = difference;
    let to = asked.question.to.ip();
    let is_of_services = has_external(scene, to) && !topology.node_has(to);
    let rejected = Asked { expected: Outcome::Reject, ..(*asked).clone() };
    asked.expected == Outcome::NotOurs && is_of_services && judge(&rejected, seen, topology).is_none()
}

fn has_external(scene: &Scene<'_>, ip: IpAddr) -> bool {
    let mut services = scene.state.services.values();
    services.any(|service| service.external_ips.contains(&ip) || service.load_balancer_ips.contains(&ip))
}

/// Whether nf_tables spreads the packet over the endpoints before IPVS sees it, and nothing but the affinity is wrong.
fn is_spread_without_affinity(difference: &Difference<'_>) -> bool {
    let Difference { asked, seen, scene, topology, .. } = difference;
    let mut asked = (*asked).clone();
    if let Outcome::Endpoints { affinity, .. } = &mut asked.expected {
        *affinity = None;
    }
    // The original expectation determined the number of packets, so not every endpoint must be seen.
    asked.cover = false;
    has_no_affinity(&asked, scene) && judge(&asked, seen, topology).is_none()
}

/// Whether nf_tables translates the packet to an endpoint that has the address and port of another Service's VIP, and the virtual
/// server of that VIP has no destination. Connections to the other endpoints succeed.
fn translated_packet_meets_another_service(difference: &Difference<'_>) -> bool {
    let Difference { asked, seen, scene, topology, .. } = difference;
    let Outcome::Endpoints { choices, masquerade, hairpin, .. } = &asked.expected else { return false };
    let packet = scene.setup.packet(&asked.question);
    let meets = |choice: &&SocketAddr| {
        // Whoever sends the packet, the destinations of a virtual server are the endpoints for traffic from outside.
        let translated = Packet { destination: choice.ip(), port: choice.port(), origin: Origin::Outside, ..packet };
        let outcome = route::route(scene.state, &scene.setup.rules(choice.ip()), &translated);
        matches!(outcome, Outcome::Reject | Outcome::Drop)
    };
    let (met, others): (BTreeSet<SocketAddr>, BTreeSet<SocketAddr>) = choices.iter().partition(|choice| meets(choice));
    let is_refused = !seen.others.is_empty()
        && seen.others.iter().all(|outcome| matches!(outcome, probe::Outcome::Rejected | probe::Outcome::Dropped));
    let expected =
        Outcome::Endpoints { choices: others, masquerade: *masquerade, hairpin: hairpin.clone(), affinity: None };
    let of_others = Asked { expected, cover: false, ..(*asked).clone() };
    let answered = Seen { others: BTreeSet::new(), ..(*seen).clone() };
    has_no_affinity(asked, scene) && !met.is_empty() && is_refused && judge(&of_others, &answered, topology).is_none()
}

/// The number of the difference that ends a flow to the endpoint `by`, which the oracle expects to continue. `expected`: the outcome
/// for a new flow.
pub(crate) fn flow_ends(packet: &Packet, by: SocketAddr, expected: &Outcome, scene: &Scene<'_>) -> Option<usize> {
    let is_destination = matches!(expected, Outcome::Endpoints { choices, .. } if choices.contains(&by));
    if server_was_deleted(packet, scene) {
        Some(WITH_SERVER)
    } else if packet.protocol != Protocol::Tcp && !is_destination {
        Some(WITH_DESTINATION)
    } else {
        None
    }
}

/// Whether the virtual server of the packet's destination was deleted in the last change: no Service claims the destination any
/// more, or a Service that was created in the change.
fn server_was_deleted(packet: &Packet, scene: &Scene<'_>) -> bool {
    let Some(found) = route::target(scene.state, &scene.setup.rules(packet.destination), packet) else { return true };
    let named = |cluster: &Cluster| {
        let mut services = cluster.services.values();
        services.find(|service| *service.name == *found.service.key.name).cloned()
    };
    match (named(scene.before), named(scene.cluster)) {
        (Some(old), Some(new)) => must_move(&old, &new),
        _ => true,
    }
}

/// Whether the packet is the node's own traffic, or that of its pods, to an external address with policy Local.
pub(crate) fn has_no_affinity(asked: &Asked, scene: &Scene<'_>) -> bool {
    let packet = scene.setup.packet(&asked.question);
    let found = route::target(scene.state, &scene.setup.rules(packet.destination), &packet);
    let is_external_local = found.is_some_and(|found| !found.internal && found.service.external_traffic_to_local);
    is_external_local && packet.origin != Origin::Outside
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use localnet_client::Snapshot;
    use localnet_lab::topology::Place;

    use super::{
        super::{
            pair::Pair,
            pools,
            question::{Question, Sender},
            setup::Setup,
        },
        *,
    };

    /// Regression (SEED=1602205645 after 2 changes): one of a pod's three connections met the external IP of a Service that has no
    /// endpoint for traffic from outside, although it has one for pods. The other connections reached the other endpoint.
    #[test]
    fn a_connection_that_nf_tables_translates_may_meet_a_virtual_server_without_destinations() {
        let state: Snapshot = serde_json::from_value(serde_json::json!({
            "node": { "name": "node-a" },
            "services": [
                {
                    "service": "diff/one", "type": "NodePort", "clusterIPs": ["172.30.2.11"],
                    "ports": [{ "name": "p", "protocol": "TCP", "port": 80, "nodePort": 30030 }],
                    "externalTrafficToLocal": true,
                    "endpoints": [
                        { "address": "10.180.1.1", "ports": [{ "name": "p", "port": 8080 }], "scopes": { "shortCircuit": true } },
                        {
                            "address": "192.168.0.2", "local": true, "ports": [{ "name": "p", "port": 8080 }],
                            "scopes": { "external": true, "shortCircuit": true },
                        },
                    ],
                },
                {
                    "service": "diff/two", "type": "ClusterIP", "clusterIPs": ["172.30.1.18"], "externalIPs": ["192.168.0.2"],
                    "ports": [{ "name": "p", "protocol": "TCP", "port": 8080, "whenEmptyIPv4": { "internal": "reject", "external": "drop" } }],
                    "externalTrafficToLocal": true,
                    "endpoints": [
                        { "address": "198.18.0.1", "ports": [{ "name": "p", "port": 8080 }], "scopes": { "shortCircuit": true } },
                    ],
                },
            ],
        }))
        .unwrap();
        let (cluster, setup, topology) = (Cluster::default(), Setup::USUAL, pools::topology());
        let scene = Scene {
            seed: 0,
            changes: 0,
            cluster: &cluster,
            before: &cluster,
            state: &state,
            setup: &setup,
            former: None,
        };
        let (pod, node) = (Sender::Pod(pools::pod(Place::Local, 3)), Sender::Node);
        let (remote, host) = ("10.180.1.1:8080".parse().unwrap(), "192.168.0.2:8080".parse().unwrap());
        let (rejected, unrouted) = (probe::Outcome::Rejected, probe::Outcome::NoRoute);
        for (sender, by, others, is_explained) in [
            (pod, vec![remote], vec![rejected], true),
            (pod, vec![], vec![rejected], true),
            (node, vec![], vec![probe::Outcome::Dropped], true),
            (pod, vec![host], vec![rejected], false),
            (pod, vec![], vec![unrouted], false),
            // IPVS itself chooses for senders outside.
            (Sender::Client, vec![], vec![rejected], false),
        ] {
            let to = "192.168.0.2:30030".parse().unwrap();
            let question = Question { sender, protocol: localnet_lab::Protocol::Tcp, to, about: String::new() };
            let packet = setup.packet(&question);
            let expected = route::route(&state, &setup.rules(packet.destination), &packet);
            let asked = Asked { question, expected, cover: false };
            let answers = by.into_iter().map(|by| ((by, asked.question.source()), 1)).collect();
            let seen = Seen { answers, others: others.into_iter().collect(), ..Seen::default() };
            let (pair, side) = (Pair::IPVS, Side::Ours);
            let difference = Difference { pair, side, asked: &asked, seen: &seen, scene: &scene, topology: &topology };
            assert_eq!(explain(&difference), is_explained.then_some(7), "{}: {seen}", asked.question);
        }
    }

    #[test]
    fn every_difference_that_is_named_is_described() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().join("docs/backends/ipvs.md");
        let page = fs::read_to_string(page).unwrap();
        let list = page.split("\n## Differences from the nft backend\n").nth(1).unwrap();
        for number in ENTRIES.iter().map(|entry| entry.number).chain([WITH_SERVER, WITH_DESTINATION]) {
            assert!(list.contains(&format!("\n{number}. ")), "{number}");
        }
    }
}
