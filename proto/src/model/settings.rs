//! What kube-proxy's configuration means on a node, for readers of `localnet.v1`: `TrafficSettings`.

use std::{net::IpAddr, sync::Arc};

use ipnet::IpNet;

/// The settings of a node that, together with its Services, determine the verdict on a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrafficSettings {
    /// The addresses that serve NodePorts, sorted.
    pub node_port_addresses: Vec<IpAddr>,
    /// The addresses of the node's interfaces in these CIDRs serve NodePorts, too, except loopback addresses. Empty if the brain has
    /// resolved them into `node_port_addresses`.
    pub node_port_cidrs: Vec<IpNet>,
    /// How to recognize traffic from this node's pods.
    pub local_pods: LocalPods,
    /// Which traffic to ClusterIPs is masqueraded.
    pub cluster_ip_masquerade: ClusterIpMasquerade,
    /// The bit of the packet mark that requests masquerading, 0–31. `None`: the reader chooses.
    pub masquerade_mark_bit: Option<u8>,
}

/// How to recognize traffic from this node's pods (kube-proxy's `detectLocalMode`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LocalPods {
    /// No traffic is recognized.
    #[default]
    None,
    /// By the source address, before translation. In a family without a CIDR, no traffic is recognized.
    Source(Vec<IpNet>),
    /// By the interface on which the packet arrives.
    Interface(Arc<str>),
    /// By the first characters of the name of that interface.
    InterfacePrefix(Arc<str>),
}

/// Which traffic to ClusterIPs is masqueraded. Hairpin traffic always is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClusterIpMasquerade {
    /// None.
    #[default]
    None,
    /// All traffic except that of this node's pods. None in a family in which [`LocalPods::Source`] has no CIDR.
    ExceptLocalPods,
    /// All traffic.
    All,
}
