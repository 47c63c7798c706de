//! What an operator chooses, as planners see it. Where it comes from is [`super::flags`].

use std::sync::Arc;

use ipnet::IpNet;
use localnet_config::DetectLocalMode;

/// How a backend programs the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Masquerade everything that is sent to a ClusterIP.
    pub masquerade_all: bool,
    /// Which bit of the packet mark asks for masquerading, 0–31.
    pub masquerade_bit: u8,
    /// How traffic of this node's pods is told from other traffic.
    pub detector: Detector,
    /// On which of the node's addresses NodePorts are answered.
    pub node_port_addresses: NodePortAddresses,
}

impl Default for Config {
    /// kube-proxy's defaults.
    fn default() -> Self {
        Self {
            masquerade_all: false,
            masquerade_bit: 14,
            detector: Detector::None,
            node_port_addresses: NodePortAddresses::Primary,
        }
    }
}

impl Config {
    /// What kube-proxy's configuration says.
    pub fn of(said: &localnet_config::Config) -> Self {
        let local = &said.detect_local;
        Self {
            masquerade_all: said.linux.masquerade_all,
            masquerade_bit: said.masquerade_bit(said.mode),
            detector: match local.mode {
                DetectLocalMode::ClusterCidr if local.cluster_cidrs.is_empty() => Detector::None,
                DetectLocalMode::ClusterCidr => Detector::ClusterCidr(local.cluster_cidrs.clone()),
                DetectLocalMode::NodeCidr => Detector::NodeCidr,
                DetectLocalMode::BridgeInterface => Detector::BridgeInterface(local.bridge_interface.as_str().into()),
                DetectLocalMode::InterfaceNamePrefix => {
                    Detector::InterfaceNamePrefix(local.interface_name_prefix.as_str().into())
                }
            },
            node_port_addresses: match &said.node_port_addresses {
                localnet_config::NodePortAddresses::All => NodePortAddresses::Cidrs(Vec::new()),
                localnet_config::NodePortAddresses::Primary => NodePortAddresses::Primary,
                localnet_config::NodePortAddresses::Cidrs(cidrs) => NodePortAddresses::Cidrs(cidrs.clone()),
            },
        }
    }

    /// The mark of packets to masquerade.
    pub fn masquerade_mark(&self) -> u32 {
        1 << (self.masquerade_bit & 31)
    }
}

/// How traffic of this node's pods is told from other traffic: what comes from elsewhere to a ClusterIP is masqueraded,
/// and pods reach external addresses under policy Local as if they were ClusterIPs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Detector {
    /// Not at all.
    None,
    /// Their addresses are in one of these.
    ClusterCidr(Vec<IpNet>),
    /// Their addresses are in the node's pod CIDR.
    NodeCidr,
    /// They come in through this bridge.
    BridgeInterface(Arc<str>),
    /// They come in through interfaces whose names start so.
    InterfaceNamePrefix(Arc<str>),
}

/// On which of the node's addresses NodePorts are answered. Never on loopback addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// On the first address of each family that the Node object has; where it has none, on all of the family.
    Primary,
    /// On those within; a family without CIDR, or with one of length 0, has all but link-local ones.
    Cidrs(Vec<IpNet>),
}
