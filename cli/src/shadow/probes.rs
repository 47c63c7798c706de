//! The packets that a comparison asks about: those to each VIP, from each kind of sender. Pure.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use localnet_client::{
    route::{Origin, Packet},
    vips::{PodSource, Vip, VipKey},
};
use localnet_proto::{Family, Protocol, Service, Snapshot};

use crate::{question, world::World};

/// An address that no node or pod has (RFC 5737, RFC 3849).
fn outside(family: Family) -> IpAddr {
    match family {
        Family::V4 => IpAddr::from([203, 0, 113, 200]),
        Family::V6 => IpAddr::from([0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 200]),
    }
}

/// The most endpoints of a VIP that are senders.
const MOST_OWN: usize = 8;

/// The packets to a VIP.
pub(super) fn of_vip(world: &World, key: &VipKey, vip: &Vip) -> Vec<Packet> {
    let ranges = vip.sources.iter().flat_map(|ranges| ranges.iter().map(ipnet::IpNet::network));
    // An endpoint may be sent to itself.
    let own = vip.endpoints.iter().chain(vip.local_endpoints.iter()).map(SocketAddr::ip).take(MOST_OWN);
    of_destination(world, (key.socket(), key.protocol), ranges.chain(own))
}

/// The packets to a destination, from the usual senders and from some others.
pub(super) fn of_destination(
    world: &World,
    to: (SocketAddr, Protocol),
    others: impl Iterator<Item = IpAddr>,
) -> Vec<Packet> {
    let family = Family::of(to.0.ip());
    let pod = match world.facts.pods(family) {
        Some(PodSource::Cidr(cidr)) => cidr.hosts().nth(1),
        Some(PodSource::Interface(_) | PodSource::InterfacePrefix(_)) | None => None,
    };
    let senders = [Some(outside(family)), pod].into_iter().flatten().chain(others);
    let here = question::Here { local: &world.local, interface: None };
    let packet = |from| question::packet(from, to, &world.state, &world.facts, here);
    let mut packets: Vec<Packet> = senders.map(|address| packet(question::From::Address(address))).collect();
    packets.push(packet(question::From::Node));
    packets.sort_by_key(|packet| (packet.source, packet.origin as u8));
    packets.dedup();
    // The node's address in this family may be unknown. An address of a bridge may be in the CIDR of the pods, so that the rules take
    // the node for a pod.
    let is_plain = |source| !matches!(world.facts.pods(family), Some(PodSource::Cidr(cidr)) if cidr.contains(&source));
    packets
        .retain(|packet| packet.origin != Origin::Node || !packet.source.is_unspecified() && is_plain(packet.source));
    packets
}

/// An unused port of each ClusterIP, and an unused address of each ServiceCIDR.
pub(super) fn unused(state: &Snapshot) -> Vec<(SocketAddr, Protocol)> {
    let services = || state.services.values();
    let free = |service: &Service| (1..u16::MAX).find(|number| service.ports.iter().all(|port| port.port != *number));
    let ports =
        services().flat_map(|service| service.cluster_ips.iter().filter_map(move |ip| Some((*ip, free(service)?))));
    let taken: BTreeSet<IpAddr> = services().flat_map(|service| service.cluster_ips.iter().copied()).collect();
    let address = |cidr: &ipnet::IpNet| cidr.hosts().find(|address| !taken.contains(address));
    let addresses = state.node.service_cidrs.iter().filter_map(address).map(|address| (address, 80));
    ports.chain(addresses).map(|(address, port)| (SocketAddr::new(address, port), Protocol::Tcp)).collect()
}
