//! What the ebpf backend does with connections of this node's processes: the differences from the oracle that
//! `docs/backends/ebpf.md` lists. The nft backend in its process serves all other senders and destinations. Pure.

use std::collections::BTreeSet;

use localnet_client::route::{self, Origin, Outcome, Packet};
use localnet_lab::Protocol;

use super::{ask::Asked, scene::Scene};

/// The question with the outcome that the programs cause. `None` if an endpoint is a VIP, too, because the nft backend then
/// translates the packets again (difference 7).
pub(crate) fn expected(asked: &Asked, scene: &Scene<'_>) -> Option<Asked> {
    let packet = scene.setup.packet(&asked.question);
    if !asked.question.is_from_this_node() || !is_ours(&packet, scene) {
        return Some(asked.clone());
    }
    // Every sender counts as a pod of this node (difference 3).
    let rules = scene.setup.rules(packet.destination);
    let outcome = route::route(scene.state, &rules, &Packet { origin: Origin::Pod, ..packet });
    let Outcome::Endpoints { choices, affinity, .. } = outcome else {
        return Some(Asked { expected: outcome, ..asked.clone() });
    };
    let is_vip =
        |packet: Packet| route::route(scene.state, &scene.setup.rules(packet.destination), &packet) != Outcome::NotOurs;
    let mut endpoints =
        choices.iter().map(|endpoint| Packet { destination: endpoint.ip(), port: endpoint.port(), ..packet });
    if endpoints.any(is_vip) {
        return None;
    }
    // Endpoints see the sender's own address (difference 1).
    let expected = Outcome::Endpoints { choices, masquerade: false, hairpin: BTreeSet::new(), affinity };
    Some(Asked { expected, ..asked.clone() })
}

/// Whether the programs serve the destination, if it belongs to a Service. Other Services with this address, but with other ports,
/// may have source ranges.
fn is_ours(packet: &Packet, scene: &Scene<'_>) -> bool {
    let target = route::target(scene.state, &scene.setup.rules(packet.destination), packet);
    let mut filters = target.iter().flat_map(|target| &target.service.source_filters);
    let is_restricted = filters.any(|filter| filter.targets.contains(&packet.destination));
    packet.protocol != Protocol::Sctp && !packet.destination.is_loopback() && !is_restricted
}
