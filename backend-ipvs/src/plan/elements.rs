//! Plans a VIP as elements of the sets and maps.

use std::net::IpAddr;

use ipnet::IpNet;
use localnet_client::vips::{Exposure, Vip, VipKey};
use localnet_linux::nft::{Element, Name, Verdict, spread::Choice};
use localnet_linux_backend::elements;
pub use localnet_linux_backend::elements::{of_address, of_hairpin, tuple};
use localnet_proto::Verdict as WhenEmpty;

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
            // This node's own traffic may go to any endpoint.
            if let Some((_, chain)) = picking_of(vip) {
                let verdict = Element::verdict(tuple.clone(), Verdict::Goto(chain)).comment(vip.comment.clone());
                emit(SetId::Services, verdict);
                elements::of_slots(&tuple, vip, &vip.endpoints, |element| emit(SetId::Endpoints, element));
            }
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
        let sources = allowed(key.address, sources, node);
        elements::of_sources(&tuple, &sources).for_each(|element| emit(SetId::AllowedSources, element));
    }
}

/// How this node's own traffic is spread, and the chain that does it; `None` if that traffic goes through IPVS.
pub fn picking_of(vip: &Vip) -> Option<(Choice, Name)> {
    let picks = vip.exposure == Exposure::ExternalLocal && !vip.endpoints.is_empty();
    let choice = elements::choice(vip, &vip.endpoints);
    picks.then(|| (choice, choice.chain("lb")))
}

/// The source ranges, and the VIP's own address if an address of the node is in one of them. Packets from the node to an
/// address on its own interface have that address as their source.
fn allowed(vip: IpAddr, ranges: &[IpNet], node: &[IpAddr]) -> Vec<IpNet> {
    let contains = |address: &IpAddr| ranges.iter().any(|range| range.contains(address));
    let mut allowed = ranges.to_vec();
    if node.iter().any(contains) && !contains(&vip) {
        allowed.push(IpNet::from(vip));
    }
    // The kernel refuses overlapping ranges, and merges adjacent ones.
    IpNet::aggregate(&allowed)
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
}
