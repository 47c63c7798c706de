//! Snapshot → what the kernel should hold. Pure: no I/O, no clock, no environment, no logging.
//!
//! ```text
//!  Node, Config ──► Facts ──┬─► chains   the chains and their rules; none of them depends on a service
//!                           │
//!  Service ─────────────────┴─► service  which VIPs it answers, and how ──► elements   what that is in each set and map
//! ```
//!
//! | object | what |
//! |---|---|
//! | [`sets`] | the sets and maps; a constant number |
//! | [`chains`] | the chains; a constant number, and one `lb-N` for each size N in use |
//! | [`affinity`], [`stable_slots`] | what session affinity adds to both, while a service has it |

pub mod affinity;
pub mod chains;
pub mod elements;
pub mod node_ports;
pub mod service;
pub mod sets;
pub mod stable_slots;

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use ipnet::IpNet;
use localnet_linux::nft::{self, Family, InterfacePattern, Name, Table};
use localnet_proto::Node;

use crate::config::{Config, Detector};

/// The name of both tables.
pub const TABLE: &str = "localnet";

/// The table of a family.
pub fn table(family: Family) -> Table {
    Table::new(family, TABLE)
}

/// The kernel's word for an address family of the model.
pub fn family_of(family: localnet_proto::Family) -> Family {
    match family {
        localnet_proto::Family::V4 => Family::V4,
        localnet_proto::Family::V6 => Family::V6,
    }
}

/// The kernel's word for a protocol of the model.
pub fn protocol_of(protocol: localnet_proto::Protocol) -> nft::Protocol {
    match protocol {
        localnet_proto::Protocol::Tcp => nft::Protocol::Tcp,
        localnet_proto::Protocol::Udp => nft::Protocol::Udp,
        localnet_proto::Protocol::Sctp => nft::Protocol::Sctp,
    }
}

/// What plans depend on beside services: the configuration and the node, worked out once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Masquerade everything that is sent to a ClusterIP.
    pub masquerade_all: bool,
    /// The mark of packets to masquerade.
    pub masquerade_mark: u32,
    /// The addresses on which NodePorts are answered.
    pub node_port_addresses: Vec<IpAddr>,
    /// How pods are recognised in IPv4.
    pub pods_v4: Option<PodSource>,
    /// How pods are recognised in IPv6.
    pub pods_v6: Option<PodSource>,
    /// Where the cluster's ClusterIPs come from, both families.
    pub service_cidrs: Vec<IpNet>,
    /// No endpoints: shared by all VIPs that have none, which is most.
    pub no_endpoints: Arc<[SocketAddr]>,
}

/// What a packet of one of this node's pods looks like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodSource {
    /// Its source address is in there.
    Cidr(IpNet),
    /// It came in through such an interface.
    Interface(InterfacePattern),
}

impl Facts {
    /// What plans need of the configuration, the node and the addresses of its interfaces.
    pub fn new(config: &Config, node: &Node, local_addresses: &[IpAddr]) -> Self {
        Self {
            masquerade_all: config.masquerade_all,
            masquerade_mark: config.masquerade_mark(),
            node_port_addresses: node_ports::addresses(&config.node_port_addresses, node, local_addresses),
            pods_v4: pod_source(&config.detector, node, Family::V4),
            pods_v6: pod_source(&config.detector, node, Family::V6),
            service_cidrs: node.service_cidrs.clone(),
            no_endpoints: Arc::new([]),
        }
    }

    /// How pods are recognised in a family; `None`: they are not.
    pub fn pods(&self, family: Family) -> Option<&PodSource> {
        match family {
            Family::V4 => self.pods_v4.as_ref(),
            Family::V6 => self.pods_v6.as_ref(),
        }
    }
}

/// Only the first CIDR of a family counts, as in kube-proxy.
fn pod_source(detector: &Detector, node: &Node, family: Family) -> Option<PodSource> {
    let first = |cidrs: &[IpNet]| {
        cidrs.iter().find(|cidr| Family::of(&cidr.addr()) == family).map(|cidr| PodSource::Cidr(cidr.trunc()))
    };
    let interface = |pattern| Some(PodSource::Interface(pattern));
    match detector {
        Detector::None => None,
        Detector::ClusterCidr(cidrs) => first(cidrs),
        Detector::NodeCidr => first(&node.pod_cidrs),
        Detector::BridgeInterface(name) => interface(InterfacePattern::Exact(name.clone())),
        Detector::InterfaceNamePrefix(prefix) => interface(InterfacePattern::Prefix(prefix.clone())),
    }
}

/// How many slots hold so many endpoints: exactly as many up to 16, beyond that the next power of two, so that at
/// least half of the slots are filled and few sizes exist.
pub fn slots(endpoints: usize) -> u32 {
    let endpoints = u32::try_from(endpoints).unwrap_or(u32::MAX >> 1);
    if endpoints <= EXACT_SLOTS { endpoints } else { endpoints.next_power_of_two() }
}

/// Up to here a size has exactly as many slots as endpoints.
pub const EXACT_SLOTS: u32 = 16;

/// The names of the chains that elements lead to, made once: elements repeat them.
#[derive(Clone, Debug)]
pub struct ChainNames {
    cluster: Vec<Name>,
    local: Vec<Name>,
    reject: Name,
}

impl Default for ChainNames {
    fn default() -> Self {
        let sizes = || (1..=EXACT_SLOTS).chain((5..32).map(|power| 1 << power));
        Self {
            cluster: sizes().map(|size| format!("lb-{size}").into()).collect(),
            local: sizes().map(|size| format!("lb-local-{size}").into()).collect(),
            reject: chains::names::REJECT_PORT.into(),
        }
    }
}

impl ChainNames {
    /// The chain that rejects.
    pub fn reject(&self) -> &Name {
        &self.reject
    }

    /// The chain that picks one of so many slots, as [`slots`] gives them.
    pub fn chain(&self, pool: sets::Pool, slots: u32) -> &Name {
        let index = if slots <= EXACT_SLOTS { slots.saturating_sub(1) } else { EXACT_SLOTS - 5 + slots.ilog2() };
        match pool {
            sets::Pool::Cluster => &self.cluster[index as usize],
            sets::Pool::Local => &self.local[index as usize],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_exact_then_powers_of_two_at_least_half_full() {
        for endpoints in 1..=2000_usize {
            let slots = slots(endpoints) as usize;
            assert!(
                slots >= endpoints && (slots == endpoints || endpoints > 16 && slots < 2 * endpoints),
                "{endpoints}"
            );
        }
        let sizes: std::collections::BTreeSet<u32> = (1..=65_536).map(slots).collect();
        assert_eq!(sizes.len(), 28);
    }

    #[test]
    fn every_size_has_its_chain() {
        let names = ChainNames::default();
        for endpoints in (1..100).chain([65_536, usize::MAX]) {
            let slots = slots(endpoints);
            assert_eq!(&**names.chain(sets::Pool::Cluster, slots), format!("lb-{slots}"));
            assert_eq!(&**names.chain(sets::Pool::Local, slots), format!("lb-local-{slots}"));
        }
    }

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
