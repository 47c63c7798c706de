//! The addresses that answer NodePorts: kube-proxy's `nodePortAddresses`.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::model::{Family, Node};

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// The addresses of the node that answer NodePorts. If neither `primary` nor `cidrs` names an address of a family, or if
/// a CIDR of the family has prefix length 0, all of the node's addresses of that family answer, except link-local ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodePortAddresses {
    /// Whether the first address of each family in the Node object answers.
    pub primary: bool,
    /// The addresses in these CIDRs answer, except for loopback addresses.
    pub cidrs: Vec<IpNet>,
    /// Whether 127.0.0.1 answers, too. A backend sets this if the configuration asks for it and the kernel permits it.
    pub localhost: bool,
}

impl NodePortAddresses {
    /// Only the first address of each family in the Node object.
    pub const PRIMARY: Self = Self { primary: true, cidrs: Vec::new(), localhost: false };

    /// The addresses in these CIDRs.
    pub fn in_cidrs(cidrs: Vec<IpNet>) -> Self {
        Self { cidrs, ..Self::default() }
    }

    /// The CIDRs that select addresses of the node's interfaces in a family. If one of them has prefix length 0, all addresses answer,
    /// except loopback and link-local ones.
    pub fn cidrs_of(&self, family: Family, node: &Node) -> Vec<IpNet> {
        let cidrs: Vec<_> = self.cidrs.iter().copied().filter(|cidr| Family::of(cidr.addr()) == family).collect();
        if !cidrs.is_empty() || self.primary_of(family, node).is_some() {
            return cidrs;
        }
        vec![match family {
            Family::V4 => Ipv4Net::default().into(),
            Family::V6 => Ipv6Net::default().into(),
        }]
    }

    fn primary_of(&self, family: Family, node: &Node) -> Option<IpAddr> {
        node.primary_address(family).filter(|address| self.primary && is_usable(*address, family))
    }
}

/// The addresses that answer NodePorts, sorted within each family. `local` has the addresses of the node's interfaces.
pub fn addresses(config: &NodePortAddresses, node: &Node, local: &[IpAddr]) -> Vec<IpAddr> {
    Family::BOTH.into_iter().flat_map(|family| of_family(config, family, node, local)).collect()
}

fn of_family(config: &NodePortAddresses, family: Family, node: &Node, local: &[IpAddr]) -> BTreeSet<IpAddr> {
    let localhost = Some(LOCALHOST).filter(|_| config.localhost && family == Family::V4);
    let cidrs = config.cidrs_of(family, node);
    let all = cidrs.iter().any(|cidr| cidr.prefix_len() == 0);
    let is_chosen = |address: &IpAddr| match all {
        true => !is_link_local(*address),
        false => cidrs.iter().any(|cidr| cidr.contains(address)),
    };
    let chosen = local.iter().copied().filter(|address| is_usable(*address, family)).filter(is_chosen);
    chosen.chain(config.primary_of(family, node)).chain(localhost).collect()
}

/// As in kube-proxy's nftables mode, loopback addresses answer only if they are requested.
fn is_usable(address: IpAddr, family: Family) -> bool {
    Family::of(address) == family && !address.is_loopback()
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
            (Some("primary 192.168.0.3/32"), "10.0.0.9 fd00::7", "10.0.0.9 192.168.0.3 fd00::7"),
            (Some("primary 0.0.0.0/0 ::/0"), "10.0.0.9", &format!("{ALL_V4} fd00::2")),
            (Some("primary 127.0.0.0/8 ::1/128"), "10.0.0.9", "10.0.0.9"),
            (Some("localhost primary 127.0.0.0/8 ::1/128"), "192.168.0.2", "127.0.0.1 192.168.0.2"),
            (Some("localhost"), "", "10.0.0.9 127.0.0.1 192.168.0.2 192.168.0.3 fd00::2"),
        ] {
            let parse = |text: &str| text.split_whitespace().map(|one| one.parse().unwrap()).collect::<Vec<IpAddr>>();
            let config = cidrs.map_or(NodePortAddresses::PRIMARY, |words| NodePortAddresses {
                primary: words.contains("primary"),
                cidrs: words.split_whitespace().filter_map(|one| one.parse().ok()).collect(),
                localhost: words.contains("localhost"),
            });
            let node = Node { addresses: parse(primaries), ..Node::default() };
            assert_eq!(addresses(&config, &node, &parse(LOCAL)), parse(expected), "{config:?} {primaries}");
        }
    }
}
