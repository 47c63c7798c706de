//! Creates and reads the table elements that several backends share.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use ipnet::IpNet;
use localnet_client::vips::{Hairpin, Vip, VipKey, hashing};
use localnet_linux::{
    conntrack::Frontend,
    nft::{
        Element, ElementData, ElementKey, LiveTable, TableDump, Tuple, Verdict,
        spread::{self, Choice},
    },
};
use localnet_proto::{Family, Protocol, Verdict as WhenEmpty};

use crate::sets::Sets;

/// The key of a VIP.
pub fn tuple(key: &VipKey) -> Tuple {
    Tuple::new().address(key.address).protocol(key.protocol).port(key.port)
}

/// The VIP in the key of an element; `None` if the key is too short or its protocol is unknown.
pub fn read_vip(key: &Tuple) -> Option<VipKey> {
    // Each field is padded to a multiple of four bytes.
    let (address, [number, _, _, _, high, low, _, _]) = key.as_bytes().split_last_chunk()?;
    let protocol = Protocol::from_number(*number)?;
    Some(VipKey { address: read_address(address)?, protocol, port: u16::from_be_bytes([*high, *low]) })
}

/// The VIP in the key of an element, and the number that follows it.
pub fn read_numbered(key: &Tuple) -> Option<(VipKey, u32)> {
    let (vip, number) = key.as_bytes().split_last_chunk()?;
    Some((read_vip(&Tuple::from_bytes(vip))?, u32::from_ne_bytes(*number)))
}

/// The endpoint in the value of an element.
pub fn read_endpoint(data: &ElementData) -> Option<SocketAddr> {
    let ElementData::Value(value) = data else { return None };
    let (address, [high, low, _, _]) = value.as_bytes().split_last_chunk()?;
    Some(SocketAddr::new(read_address(address)?, u16::from_be_bytes([*high, *low])))
}

fn read_address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

/// How the rules choose among these endpoints of a VIP. A single endpoint needs no hash.
pub fn choice(vip: &Vip, endpoints: &[SocketAddr]) -> Choice {
    match vip.hash.as_ref().filter(|_| endpoints.len() > 1) {
        Some(hashing) => Choice { by: Some(hashing.by), slots: hashing::slots(endpoints.len()) },
        None => Choice::random(vip.weights.count(endpoints)),
    }
}

/// The elements that map a VIP and each slot to one of its endpoints. `key`: the fields of the VIP.
pub fn of_slots(key: &Tuple, vip: &Vip, endpoints: &Arc<[SocketAddr]>, mut emit: impl FnMut(Element)) {
    if let Some(hashing) = vip.hash.as_ref().filter(|_| endpoints.len() > 1) {
        let slots = hashing.slots(endpoints, &vip.weights);
        (0..).zip(&*slots).for_each(|(slot, endpoint)| emit(of_slot(key, slot, endpoint)));
        return;
    }
    let picks = vip.weights.slots(endpoints);
    spread::place(&picks).into_iter().zip(&*picks).for_each(|(slot, endpoint)| emit(of_slot(key, slot, endpoint)));
}

/// The element that maps a VIP and a slot to an endpoint.
pub fn of_slot(vip: &Tuple, slot: u32, endpoint: &SocketAddr) -> Element {
    Element::value(vip.clone().index(slot), Tuple::new().address(endpoint.ip()).port(endpoint.port()))
}

/// The elements of the ranges from which packets may reach a VIP.
pub fn of_sources<'a>(vip: &'a Tuple, ranges: &'a [IpNet]) -> impl Iterator<Item = Element> + 'a {
    let bound = |address: IpAddr| vip.clone().address(address);
    ranges.iter().map(move |range| Element::new(ElementKey::range(bound(range.network()), bound(range.broadcast()))))
}

/// The element with this address as its key.
pub fn of_address(address: IpAddr) -> Element {
    Element::new(Tuple::new().address(address))
}

/// The element for connections of an endpoint to itself.
pub fn of_hairpin(hairpin: &Hairpin) -> Element {
    let address = hairpin.endpoint.ip();
    let key = Tuple::new().address(address).address(address).protocol(hairpin.protocol).port(hairpin.endpoint.port());
    Element::new(key)
}

/// The elements of `set` in tables that were read.
pub fn of_set<S: Sets>(tables: &[TableDump], set: S) -> impl Iterator<Item = &Element> {
    tables.iter().filter_map(move |table| table.set(set.name())).flat_map(|set| &set.elements)
}

/// The VIPs that are keys of `set` in tables that were read.
pub fn vips<S: Sets>(tables: &[TableDump], set: S) -> impl Iterator<Item = VipKey> {
    of_set(tables, set).filter_map(|element| read_vip(element.key.start()))
}

/// The verdicts for VIPs without endpoints, from `set` in tables that were read. `drops` are the names of the chains that
/// drop; a verdict that leads to another chain counts as reject.
pub fn verdicts<S: Sets>(tables: &[TableDump], set: S, drops: &[&str]) -> BTreeMap<VipKey, WhenEmpty> {
    let verdict = |data: &ElementData| match data {
        ElementData::Verdict(Verdict::Drop) => WhenEmpty::Drop,
        ElementData::Verdict(Verdict::Goto(chain)) if drops.contains(&&**chain) => WhenEmpty::Drop,
        _ => WhenEmpty::Reject,
    };
    let all = of_set(tables, set);
    all.filter_map(|element| Some((read_vip(element.key.start())?, verdict(&element.data)))).collect()
}

/// The VIP in the form that [`localnet_linux::conntrack`] uses.
pub fn frontend(vip: &VipKey) -> Frontend {
    Frontend::new(vip.protocol, vip.socket())
}

/// The VIPs in the sets `wanted` of a live table. Skips a set if another program has changed its type.
pub fn live_vips<S: Sets>(found: &LiveTable, wanted: &[S]) -> Vec<Frontend> {
    let is_wanted = |id: &S, key: &[_]| Family::BOTH.into_iter().any(|family| *key == *id.declaration(family, 1).key);
    let sets =
        found.sets.iter().flatten().filter(|(set, _)| {
            S::of_name(&set.name).is_some_and(|id| wanted.contains(&id) && is_wanted(&id, &set.key))
        });
    sets.flat_map(|(_, elements)| elements)
        .filter_map(|element| Some(frontend(&read_vip(element.key.start())?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vips_are_read_back_from_their_elements() {
        let key = |address: &str, protocol, port| VipKey { address: address.parse().unwrap(), protocol, port };
        for vip in [
            key("172.30.0.1", Protocol::Tcp, 80),
            key("0.0.0.0", Protocol::Sctp, 65_535),
            key("fd00::1", Protocol::Udp, 53),
        ] {
            assert_eq!(read_vip(&tuple(&vip)), Some(vip));
            assert_eq!(read_numbered(&tuple(&vip).index(7)), Some((vip, 7)));
        }
        let address: IpAddr = "172.30.0.1".parse().unwrap();
        for odd in [Tuple::new(), Tuple::new().address(address), Tuple::new().address(address).port(1).port(2).port(3)]
        {
            assert_eq!(read_vip(&odd), None);
        }
    }

    #[test]
    fn endpoints_are_read_back_from_their_elements() {
        for text in ["10.0.0.1:8080", "[fd00::1]:53"] {
            let endpoint: SocketAddr = text.parse().unwrap();
            assert_eq!(read_endpoint(&of_slot(&Tuple::new(), 3, &endpoint).data), Some(endpoint));
        }
        assert_eq!(read_endpoint(&ElementData::None), None);
    }
}
