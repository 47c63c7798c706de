//! The addresses of the lab's networks. They are fixed, so that Cases can use them.
//!
//! | owner | IPv4 | IPv6 |
//! |---|---|---|
//! | node, its first (uplink) address | 192.168.0.2 | 2001:db8::2 |
//! | node, further addresses | as configured, such as 192.168.1.2 | as configured, such as 2001:db8:1::2 |
//! | pod number N of the node | 10.180.0.N | fd00:10:180::N |
//! | the node, on the links to these pods | 10.180.0.254 | fd00:10:180::fe |
//! | other node, if the network has one | 192.168.0.3 | 2001:db8::3 |
//! | pod number N of the other node | 10.180.1.N | fd00:10:180:1::N |
//! | the other node (or the router), on the links to these pods | 10.180.1.254 | fd00:10:180:1::fe |
//! | all pods | 10.180.0.0/16 | fd00:10:180::/48 |
//! | external client | 203.0.113.2, 203.0.113.130 | 2001:db8:2::2, 2001:db8:2::82 |
//! | Services | 172.30.0.0/16 | fd00:172:30::/112 |
//! | any other address | the outside world, behind the router | |
//!
//! A pod has both families, and the same number N (1 to 253) in both: 10.180.0.10 is fd00:10:180::a.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Context, bail};

/// The node's first address in each family: for NodePorts, and for masquerading packets to other machines.
pub const NODE: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(192, 168, 0, 2)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2))];
/// The other node's address in each family.
pub const OTHER_NODE: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(192, 168, 0, 3)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 3))];
/// The node's addresses on the links to its pods.
pub const NODE_TO_PODS: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(10, 180, 0, GATEWAY_NUMBER)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0x10, 0x180, 0, 0, 0, 0, GATEWAY_NUMBER as u16)),
];
/// The loopback addresses.
pub const LOOPBACK: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
/// The router's address on the node's side.
pub const ROUTER: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(192, 168, 0, 1)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1))];
/// The external client's first address.
pub const CLIENT: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(203, 0, 113, 2)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 2, 0, 0, 0, 0, 2))];
/// The external client's second address, for source ranges that contain only the first one.
pub const CLIENT_TWO: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(203, 0, 113, 130)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 2, 0, 0, 0, 0, 0x82))];
/// The router's address on the client's side.
pub const CLIENT_GATEWAY: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(203, 0, 113, 1)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 2, 0, 0, 0, 0, 1))];
/// The pods of all nodes.
pub const CLUSTER_CIDRS: [&str; 2] = ["10.180.0.0/16", "fd00:10:180::/48"];
/// The pods of the node under test.
pub const POD_CIDRS: [&str; 2] = ["10.180.0.0/24", "fd00:10:180::/64"];
/// The ClusterIPs of Services.
pub const SERVICE_CIDRS: [&str; 2] = ["172.30.0.0/16", "fd00:172:30::/112"];

const GATEWAY_NUMBER: u8 = 254;

/// A node of the lab.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// The node under test.
    #[default]
    Local,
    /// The other node, reached through the router. A network without this node has only its pods.
    Remote,
}

impl Place {
    /// Both nodes.
    pub const BOTH: [Self; 2] = [Self::Local, Self::Remote];

    /// The node's first address in each family.
    pub fn addresses(self) -> [IpAddr; 2] {
        match self {
            Self::Local => NODE,
            Self::Remote => OTHER_NODE,
        }
    }

    /// The addresses of the node on the links to its pods. Without the other node, the router has those of [`Place::Remote`].
    pub fn gateways(self) -> [IpAddr; 2] {
        Pod::subnet_addresses(self, GATEWAY_NUMBER)
    }
}

/// A pod, identified by its node and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pod {
    /// The node.
    pub place: Place,
    /// The number, from 1 to 253.
    pub number: u8,
}

impl Pod {
    /// The pod that has `address`; `None` if no pod can have it.
    pub fn at(address: IpAddr) -> Option<Self> {
        let (place, number) = match address {
            IpAddr::V4(address) => match address.octets() {
                [10, 180, 0, number] => (Place::Local, u16::from(number)),
                [10, 180, 1, number] => (Place::Remote, u16::from(number)),
                _ => return None,
            },
            IpAddr::V6(address) => match address.segments() {
                [0xfd00, 0x10, 0x180, 0, 0, 0, 0, number] => (Place::Local, number),
                [0xfd00, 0x10, 0x180, 1, 0, 0, 0, number] => (Place::Remote, number),
                _ => return None,
            },
        };
        let number = u8::try_from(number).ok()?;
        (1..GATEWAY_NUMBER).contains(&number).then_some(Self { place, number })
    }

    /// The pod's addresses: IPv4, IPv6.
    pub fn addresses(self) -> [IpAddr; 2] {
        Self::subnet_addresses(self.place, self.number)
    }

    fn subnet_addresses(place: Place, number: u8) -> [IpAddr; 2] {
        let subnet = match place {
            Place::Local => 0,
            Place::Remote => 1,
        };
        [
            Ipv4Addr::new(10, 180, subnet, number).into(),
            Ipv6Addr::new(0xfd00, 0x10, 0x180, subnet.into(), 0, 0, 0, number.into()).into(),
        ]
    }
}

/// The variable part of a network. Every network also has a node, a router, a client and an outside world.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// The pods to create.
    pub pods: BTreeSet<Pod>,
    /// Addresses of the node beyond [`NODE`].
    pub node_addresses: Vec<IpAddr>,
    /// Whether the other node exists. Otherwise the router stands for it, and translates nothing.
    pub other_node: bool,
}

impl Topology {
    /// A topology with pods, each given by one of its addresses.
    ///
    /// # Errors
    /// Returns an error if a text is not the address of a pod.
    pub fn with_pods<'a>(addresses: impl IntoIterator<Item = &'a str>) -> anyhow::Result<Self> {
        let mut topology = Self::default();
        for text in addresses {
            let address = text.parse::<IpAddr>().with_context(|| format!("reading the pod address {text:?}"))?;
            topology.add_pod(address)?;
        }
        Ok(topology)
    }

    /// Adds the pod that has `address`.
    ///
    /// # Errors
    /// Returns an error if no pod can have the address.
    pub fn add_pod(&mut self, address: IpAddr) -> anyhow::Result<()> {
        let Some(pod) = Pod::at(address) else {
            bail!(
                "{address} is not a pod address of the lab: use 10.180.0.N, 10.180.1.N, fd00:10:180::N or fd00:10:180:1::N"
            );
        };
        self.pods.insert(pod);
        Ok(())
    }

    /// Whether the node itself has `address`.
    pub fn node_has(&self, address: IpAddr) -> bool {
        NODE.contains(&address) || NODE_TO_PODS.contains(&address) || self.node_addresses.contains(&address)
    }

    /// Whether the other node itself has `address`.
    pub fn other_node_has(&self, address: IpAddr) -> bool {
        let [uplink, to_pods] = [Place::Remote.addresses(), Place::Remote.gateways()];
        self.other_node && (uplink.contains(&address) || to_pods.contains(&address))
    }

    /// Whether the node at `place` itself has `address`.
    pub fn is_of(&self, place: Place, address: IpAddr) -> bool {
        match place {
            Place::Local => self.node_has(address),
            Place::Remote => self.other_node_has(address),
        }
    }

    /// The pods of a node.
    pub fn pods_at(&self, place: Place) -> impl Iterator<Item = Pod> {
        self.pods.iter().copied().filter(move |pod| pod.place == place)
    }

    /// The node that has `address` itself or in one of its pods; `None` for an address elsewhere.
    pub fn home(&self, address: IpAddr) -> Option<Place> {
        match Pod::at(address) {
            Some(pod) => Some(pod.place),
            None if self.node_has(address) => Some(Place::Local),
            None => self.other_node_has(address).then_some(Place::Remote),
        }
    }
}

/// Of a pair (IPv4, IPv6), the address of the same family as `like`.
pub fn of_family(pair: [IpAddr; 2], like: IpAddr) -> IpAddr {
    if like.is_ipv4() { pair[0] } else { pair[1] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_has_the_same_number_in_both_families() {
        for (address, place, number) in [
            ("10.180.0.1", Place::Local, 1),
            ("10.180.0.253", Place::Local, 253),
            ("10.180.1.10", Place::Remote, 10),
            ("fd00:10:180::a", Place::Local, 10),
            ("fd00:10:180:1::2", Place::Remote, 2),
        ] {
            let address = address.parse().unwrap();
            let pod = Pod::at(address).unwrap();
            assert_eq!(pod, Pod { place, number });
            assert!(pod.addresses().contains(&address));
            assert_eq!(pod.addresses().map(Pod::at), [Some(pod), Some(pod)]);
        }
    }

    #[test]
    fn other_addresses_are_no_pods() {
        for address in
            ["10.180.0.254", "10.180.0.0", "10.180.2.1", "192.168.0.2", "fd00:10:180::fe", "fd00:10:180::101"]
        {
            assert_eq!(Pod::at(address.parse().unwrap()), None, "{address}");
        }
        assert!(Topology::with_pods(["10.181.0.1"]).is_err());
        assert!(Topology::with_pods(["pod"]).is_err());
    }
}
