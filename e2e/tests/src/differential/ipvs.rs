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

/// Whether nf_tables translates the packet to an endpoint that has the address and port of another Service's VIP. An endpoint of that
/// Service then answers or, if its virtual server has no destination, the connection is refused. Connections to the other endpoints
/// succeed.
fn translated_packet_meets_another_service(difference: &Difference<'_>) -> bool {
    let Difference { asked, seen, scene, topology, .. } = difference;
    let Outcome::Endpoints { choices, masquerade, hairpin, .. } = &asked.expected else { return false };
    let packet = scene.setup.packet(&asked.question);
    let (mut answers, mut meets, mut refuses) = (BTreeSet::new(), false, false);
    for choice in choices {
        // Whoever sends the packet, the destinations of a virtual server are the endpoints for traffic from outside.
        let translated = Packet { destination: choice.ip(), port: choice.port(), origin: Origin::Outside, ..packet };
        let outcome = route::route(scene.state, &scene.setup.rules(choice.ip()), &translated);
        meets |= outcome != Outcome::NotOurs;
        match outcome {
            Outcome::NotOurs => _ = answers.insert(*choice),
            Outcome::Endpoints { choices, .. } => answers.extend(choices),
            Outcome::Reject | Outcome::Drop => refuses = true,
        }
    }
    let is_refused =
        seen.others.iter().all(|outcome| matches!(outcome, probe::Outcome::Rejected | probe::Outcome::Dropped));
    let expected =
        Outcome::Endpoints { choices: answers, masquerade: *masquerade, hairpin: hairpin.clone(), affinity: None };
    let of_answers = Asked { expected, cover: false, ..(*asked).clone() };
    let answered = Seen { others: BTreeSet::new(), ..(*seen).clone() };
    let all_as_expected = if refuses { is_refused } else { seen.others.is_empty() };
    has_no_affinity(asked, scene) && meets && all_as_expected && judge(&of_answers, &answered, topology).is_none()
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

    /// Two Services: the NodePort 30030 of the first has an endpoint on the host network, whose address and port are an external IP and
    /// port of the second, which has that endpoint.
    fn state(of_second: &serde_json::Value) -> Snapshot {
        serde_json::from_value(serde_json::json!({
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
                    "endpoints": [of_second],
                },
            ],
        }))
        .unwrap()
    }

    /// The number that explains what a sender saw of connections to the NodePort.
    fn explained(state: &Snapshot, sender: Sender, by: &[SocketAddr], others: &[probe::Outcome]) -> Option<usize> {
        let (cluster, setup, topology) = (Cluster::default(), Setup::USUAL, pools::topology());
        let scene =
            Scene { seed: 0, changes: 0, cluster: &cluster, before: &cluster, state, setup: &setup, former: None };
        let to = "192.168.0.2:30030".parse().unwrap();
        let question = Question { sender, protocol: localnet_lab::Protocol::Tcp, to, about: String::new() };
        let packet = setup.packet(&question);
        let expected = route::route(state, &setup.rules(packet.destination), &packet);
        let asked = Asked { question, expected, cover: false };
        let answers = by.iter().map(|by| ((*by, asked.question.source()), 1)).collect();
        let seen = Seen { answers, others: others.iter().copied().collect(), ..Seen::default() };
        let (pair, side) = (Pair::IPVS, Side::Ours);
        explain(&Difference { pair, side, asked: &asked, seen: &seen, scene: &scene, topology: &topology })
    }

    /// Regressions: one of a pod's three connections met the external IP of another Service. That Service had no endpoint for traffic
    /// from outside, although it had one for pods (SEED=1602205645 after 2 changes), or it had one, which answered (SEED=3588187548).
    #[test]
    fn a_connection_that_nf_tables_translates_may_meet_the_virtual_server_of_another_service() {
        let refuses = state(
            &serde_json::json!({ "address": "198.18.0.1", "ports": [{ "name": "p", "port": 8080 }], "scopes": { "shortCircuit": true } }),
        );
        let answers = state(
            &serde_json::json!({ "address": "192.168.0.2", "ports": [{ "name": "p", "port": 8081 }], "scopes": { "external": true } }),
        );
        let (pod, node) = (Sender::Pod(pools::pod(Place::Local, 3)), Sender::Node);
        let [remote, host, other] =
            ["10.180.1.1:8080", "192.168.0.2:8080", "192.168.0.2:8081"].map(|address| address.parse().unwrap());
        let (rejected, unrouted) = (probe::Outcome::Rejected, probe::Outcome::NoRoute);
        for (state, sender, by, others, is_explained) in [
            (&refuses, pod, &[remote][..], &[rejected][..], true),
            (&refuses, pod, &[], &[rejected], true),
            (&refuses, node, &[], &[probe::Outcome::Dropped], true),
            (&refuses, pod, &[host], &[rejected], false),
            (&refuses, pod, &[other], &[], false),
            (&refuses, pod, &[], &[unrouted], false),
            // IPVS itself chooses for senders outside.
            (&refuses, Sender::Client, &[], &[rejected], false),
            (&answers, pod, &[remote, other], &[], true),
            (&answers, pod, &[host], &[rejected], false),
            (&answers, pod, &[remote], &[rejected], false),
            (&answers, Sender::Client, &[other], &[], false),
        ] {
            let found = explained(state, sender, by, others);
            assert_eq!(found, is_explained.then_some(7), "{sender:?} {by:?} {others:?}");
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
