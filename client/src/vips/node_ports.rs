//! The addresses that answer NodePorts: kube-proxy's `nodePortAddresses`.

use std::net::IpAddr;

use ipnet::IpNet;
use localnet_proto::{Family, Node};

use super::NodePortAddresses;

/// The addresses that answer NodePorts, sorted within each family. `local` has the addresses of the node's interfaces.
pub fn addresses(config: &NodePortAddresses, node: &Node, local: &[IpAddr]) -> Vec<IpAddr> {
    Family::BOTH.into_iter().flat_map(|family| of_family(config, family, node, local)).collect()
}

fn of_family(config: &NodePortAddresses, family: Family, node: &Node, local: &[IpAddr]) -> Vec<IpAddr> {
    // As in kube-proxy's nftables mode, loopback addresses never answer NodePorts.
    let usable = |address: &IpAddr| Family::of(*address) == family && !address.is_loopback();
    let chosen = match config {
        NodePortAddresses::Primary => match node.primary_address(family).filter(usable) {
            Some(primary) => return vec![primary],
            None => Vec::new(),
        },
        NodePortAddresses::Cidrs(cidrs) => {
            cidrs.iter().filter(|cidr| Family::of(cidr.addr()) == family).collect::<Vec<&IpNet>>()
        }
    };
    let all = chosen.is_empty() || chosen.iter().any(|cidr| cidr.prefix_len() == 0);
    let is_chosen = |address: &IpAddr| match all {
        true => !is_link_local(*address),
        false => chosen.iter().any(|cidr| cidr.contains(address)),
    };
    let mut addresses: Vec<IpAddr> = local.iter().copied().filter(usable).filter(is_chosen).collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}

/// Whether an address is link-local. Each pod's interface on the node has such an address, but no client uses it for
/// NodePorts. If link-local addresses answered NodePorts, most elements for NodePorts would contain such an address, and
/// would change whenever a pod starts or ends.
fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_port_addresses_are_selected_in_each_family() {
        const LOCAL: &str = "10.0.0.9 127.0.0.1 169.254.1.1 192.168.0.2 192.168.0.3 192.168.0.2 ::1 fd00::2 fe80::1";
        const ALL_V4: &str = "10.0.0.9 192.168.0.2 192.168.0.3";
        for (cidrs, primaries, expected) in [
            (None, "192.168.0.2 192.168.0.3 fd00::2", "192.168.0.2 fd00::2"),
            (None, "192.168.0.2", "192.168.0.2 fd00::2"),
            (None, "", &format!("{ALL_V4} fd00::2")),
            (None, "127.0.0.1 fd00::7", &format!("{ALL_V4} fd00::7")),
            (Some("192.168.0.0/24"), "10.0.0.9", "192.168.0.2 192.168.0.3 fd00::2"),
            (Some("192.168.0.3/32 10.0.0.0/8 fd01::/16"), "10.0.0.9", "10.0.0.9 192.168.0.3"),
            (Some("0.0.0.0/0 192.168.0.3/32"), "10.0.0.9", &format!("{ALL_V4} fd00::2")),
            (Some("0.0.0.0/0 ::/0"), "", &format!("{ALL_V4} fd00::2")),
            (Some("fd00::/8"), "", &format!("{ALL_V4} fd00::2")),
            (Some("127.0.0.0/8 ::1/128"), "10.0.0.9", ""),
            (Some("169.254.0.0/16 fe80::/10"), "10.0.0.9", "169.254.1.1 fe80::1"),
        ] {
            let parse = |text: &str| text.split_whitespace().map(|one| one.parse().unwrap()).collect::<Vec<IpAddr>>();
            let config = cidrs.map_or(NodePortAddresses::Primary, |cidrs| {
                NodePortAddresses::Cidrs(cidrs.split_whitespace().map(|one| one.parse().unwrap()).collect())
            });
            let node = Node { addresses: parse(primaries), ..Node::default() };
            assert_eq!(addresses(&config, &node, &parse(LOCAL)), parse(expected), "{config:?} {primaries}");
        }
    }
}
