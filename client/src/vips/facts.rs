//! The inputs of a plan other than its Service. They are computed once for all Services.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
};

use ipnet::IpNet;
use localnet_proto::{ByFamily, Family, Node};

use super::{Config, Detector, node_ports};

/// The parts of the configuration and of the node that plans depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Whether to masquerade all traffic to ClusterIPs.
    pub masquerade_all: bool,
    /// The mark of packets to masquerade.
    pub masquerade_mark: u32,
    /// The addresses that answer NodePorts, sorted within each family. They include no loopback address, except
    /// 127.0.0.1 if [`super::NodePortAddresses::localhost`] is set.
    pub node_port_addresses: Vec<IpAddr>,
    /// How pods are recognized in each family; `None` if they are not recognized.
    pub pods: ByFamily<Option<PodSource>>,
    /// The CIDRs that ClusterIPs are assigned from, of both families.
    pub service_cidrs: Vec<IpNet>,
    /// An empty list, which all VIPs without local endpoints share. Most VIPs are of this kind.
    pub no_endpoints: Arc<[SocketAddr]>,
    /// Whether endpoints may be chosen by hashing.
    pub hashes: bool,
}

/// All loopback addresses of IPv4. NodePorts never answer on the loopback address of IPv6.
const LOOPBACK: IpNet = IpNet::new_assert(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), 8);

/// How packets from this node's pods are recognized.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodSource {
    /// By their source address, which is in this CIDR.
    Cidr(IpNet),
    /// By their incoming interface, which is this one.
    Interface(Arc<str>),
    /// By their incoming interface, whose name has this prefix.
    InterfacePrefix(Arc<str>),
}

impl Facts {
    /// Computes the facts. `local_addresses` has the addresses of the node's interfaces.
    pub fn new(config: &Config, node: &Node, local_addresses: &[IpAddr]) -> Self {
        Self {
            masquerade_all: config.masquerade_all,
            masquerade_mark: config.masquerade_mark(),
            node_port_addresses: node_ports::addresses(&config.node_port_addresses, node, local_addresses),
            pods: ByFamily::from_fn(|family| pod_source(&config.detector, node, family)),
            service_cidrs: node.service_cidrs.clone(),
            no_endpoints: Arc::new([]),
            hashes: true,
        }
    }

    /// The loopback addresses of a family if one of them answers NodePorts. With `route_localnet`, packets from other hosts
    /// reach these addresses unless a rule drops the packets.
    pub fn loopback(&self, family: Family) -> Option<IpNet> {
        let answers = |address: &IpAddr| address.is_loopback() && Family::of(*address) == family;
        self.node_port_addresses.iter().any(answers).then_some(LOOPBACK)
    }

    /// How pods are recognized in a family; `None` if they are not recognized.
    pub fn pods(&self, family: Family) -> Option<&PodSource> {
        self.pods[family].as_ref()
    }
}

/// As in kube-proxy, only the first CIDR of a family is used.
fn pod_source(detector: &Detector, node: &Node, family: Family) -> Option<PodSource> {
    let first = |cidrs: &[IpNet]| {
        cidrs.iter().find(|cidr| Family::of(cidr.addr()) == family).map(|cidr| PodSource::Cidr(cidr.trunc()))
    };
    match detector {
        Detector::None => None,
        Detector::ClusterCidr(cidrs) => first(cidrs),
        Detector::NodeCidr => first(&node.pod_cidrs),
        Detector::BridgeInterface(name) => Some(PodSource::Interface(name.clone())),
        Detector::InterfaceNamePrefix(prefix) => Some(PodSource::InterfacePrefix(prefix.clone())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_pod_cidr_of_a_family_counts() {
        let node = Node {
            pod_cidrs: ["fd00:1::/64", "10.0.0.0/24", "10.1.0.0/24"].map(|c| c.parse().unwrap()).into(),
            ..Node::default()
        };
        let source = |family| pod_source(&Detector::NodeCidr, &node, family);
        assert_eq!(source(Family::V4), Some(PodSource::Cidr("10.0.0.0/24".parse().unwrap())));
        assert_eq!(source(Family::V6), Some(PodSource::Cidr("fd00:1::/64".parse().unwrap())));
        assert_eq!(pod_source(&Detector::ClusterCidr(vec!["10.0.0.0/8".parse().unwrap()]), &node, Family::V6), None);
    }
}
