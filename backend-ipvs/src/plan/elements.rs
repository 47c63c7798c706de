//! Plans a VIP as elements of the sets and maps.

use std::net::IpAddr;

use ipnet::IpNet;
use localnet_client::vips::{Exposure, Hairpin, Vip, VipKey};
use localnet_linux::nft::{Element, ElementKey, Name, Tuple, Verdict, spread};
use localnet_proto::{Protocol, Verdict as WhenEmpty};

use super::{chains, sets::SetId};

/// Calls `emit` with every element of a VIP. `node`: the addresses of the node.
pub fn of_vip(key: &VipKey, vip: &Vip, node: &[IpAddr], mut emit: impl FnMut(SetId, Element)) {
    let tuple = tuple(key);
    let member = || Element::new(tuple.clone()).comment(vip.comment.clone());
    emit(SetId::Vips, member());
    match vip.exposure {
        Exposure::Internal => {}
        Exposure::External if vip.endpoints.is_empty() => {}
        Exposure::External => emit(SetId::External, member()),
        Exposure::ExternalLocal => {
            emit(SetId::ExternalLocal, member());
            own_traffic(&tuple, vip, &mut emit);
        }
    }

    let from_outside = match vip.exposure {
        Exposure::Internal | Exposure::External => &vip.endpoints,
        Exposure::ExternalLocal => &vip.local_endpoints,
    };
    // With external policy Local, this node's own traffic was translated earlier and does not get here.
    if from_outside.is_empty() {
        let verdict = match vip.when_empty {
            WhenEmpty::Reject => Verdict::Goto(chains::names::REJECT_PORT.into()),
            WhenEmpty::Drop => Verdict::Drop,
        };
        emit(SetId::NoEndpoints, Element::verdict(tuple.clone(), verdict).comment(vip.comment.clone()));
    }

    if let Some(sources) = &vip.sources {
        emit(SetId::Firewalled, member());
        for range in allowed(key.address, sources, node) {
            let bound = |address: IpAddr| tuple.clone().address(address);
            let key = ElementKey::range(bound(range.network()), bound(range.broadcast()));
            emit(SetId::AllowedSources, Element::new(key));
        }
    }
}

/// Emits the elements for this node's own traffic to an external VIP with external policy Local.
fn own_traffic(tuple: &Tuple, vip: &Vip, emit: &mut impl FnMut(SetId, Element)) {
    let Some(chain) = chain_of(vip) else { return };
    emit(SetId::Services, Element::verdict(tuple.clone(), Verdict::Goto(chain)).comment(vip.comment.clone()));
    for (slot, endpoint) in (0..).zip(vip.endpoints.iter()) {
        let value = Tuple::new().address(endpoint.ip()).port(endpoint.port());
        emit(SetId::Endpoints, Element::value(tuple.clone().index(slot), value));
    }
}

/// The number of slots for this node's own traffic; `None` if that traffic goes through IPVS.
pub fn slots_of(vip: &Vip) -> Option<u32> {
    let picks = vip.exposure == Exposure::ExternalLocal && !vip.endpoints.is_empty();
    picks.then(|| spread::slots(vip.endpoints.len()))
}

fn chain_of(vip: &Vip) -> Option<Name> {
    slots_of(vip).map(chains::lb_name)
}

/// The source ranges, and the VIP itself if the node is in one of them. Packets from the node to an address on its own interface
/// have that address as their source.
fn allowed(vip: IpAddr, ranges: &[IpNet], node: &[IpAddr]) -> Vec<IpNet> {
    let contains = |address: &IpAddr| ranges.iter().any(|range| range.contains(address));
    let mut allowed = ranges.to_vec();
    if node.iter().any(contains) && !contains(&vip) {
        allowed.push(IpNet::from(vip));
    }
    // The kernel refuses overlapping ranges, and merges adjacent ones.
    IpNet::aggregate(&allowed)
}

/// The key of a VIP in sets and maps.
pub fn tuple(key: &VipKey) -> Tuple {
    Tuple::new().address(key.address).protocol(key.protocol).port(key.port)
}

/// Parses the VIP in the key of an element. `None` if the key is too short or has another protocol.
pub fn read_vip(key: &Tuple) -> Option<VipKey> {
    // The kernel pads each field to a multiple of four bytes.
    let (address, rest) = match key.as_bytes() {
        v4 if v4.len() == 12 => {
            let (address, rest) = v4.split_first_chunk::<4>()?;
            (IpAddr::from(*address), rest)
        }
        v6 => {
            let (address, rest) = v6.split_first_chunk::<16>()?;
            (IpAddr::from(*address), rest)
        }
    };
    let [number, _, _, _, high, low, _, _] = *rest else { return None };
    let protocol = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into_iter().find(|p| p.number() == number)?;
    Some(VipKey { address, protocol, port: u16::from_be_bytes([high, low]) })
}

/// The element of an address.
pub fn of_address(address: IpAddr) -> Element {
    Element::new(Tuple::new().address(address))
}

/// The element of an endpoint that may connect to itself.
pub fn of_hairpin(hairpin: &Hairpin) -> Element {
    let address = hairpin.endpoint.ip();
    let key = Tuple::new().address(address).address(address).protocol(hairpin.protocol).port(hairpin.endpoint.port());
    Element::new(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_of_the_node_has_the_vip_as_its_source() {
        let vip = "198.51.100.1".parse().unwrap();
        let node = ["192.168.0.2", "fd00::2"].map(|address| address.parse().unwrap());
        for (ranges, expected) in [
            ("203.0.113.0/24", "203.0.113.0/24"),
            ("192.168.0.0/24", "192.168.0.0/24 198.51.100.1/32"),
            ("192.168.0.2/32 198.51.100.0/24", "192.168.0.2/32 198.51.100.0/24"),
            ("192.168.0.2/32 198.51.100.0/32", "192.168.0.2/32 198.51.100.0/31"),
            ("", ""),
        ] {
            let parse = |text: &str| text.split_whitespace().map(|one| one.parse().unwrap()).collect::<Vec<IpNet>>();
            assert_eq!(allowed(vip, &parse(ranges), &node), parse(expected), "{ranges}");
        }
    }

    #[test]
    fn keys_are_read_back() {
        for (address, protocol, port) in
            [("172.30.0.1", Protocol::Tcp, 80), ("0.0.0.0", Protocol::Sctp, 65_535), ("fd00::1", Protocol::Udp, 53)]
        {
            let vip = VipKey { address: address.parse().unwrap(), protocol, port };
            assert_eq!(read_vip(&tuple(&vip)), Some(vip));
        }
        assert_eq!(read_vip(&Tuple::new()), None);
    }
}
