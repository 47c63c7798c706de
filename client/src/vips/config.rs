//! The operator's choices, in the form that backends need to compute a plan. [`super::flags`] reads them.

use std::sync::Arc;

use ipnet::IpNet;
#[cfg(feature = "program")]
use localnet_config::DetectLocalMode;
pub use localnet_proto::node_ports::NodePortAddresses;

/// How a backend programs the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Whether to masquerade all traffic to ClusterIPs.
    pub masquerade_all: bool,
    /// The bit of the packet mark that requests masquerading, 0–31.
    pub masquerade_bit: u8,
    /// How traffic of this node's pods is recognized.
    pub detector: Detector,
    /// The addresses of the node that answer NodePorts.
    pub node_port_addresses: NodePortAddresses,
}

impl Default for Config {
    /// kube-proxy's defaults in mode nftables. In its other modes, all addresses answer NodePorts.
    fn default() -> Self {
        Self {
            masquerade_all: false,
            masquerade_bit: 14,
            detector: Detector::None,
            node_port_addresses: NodePortAddresses::PRIMARY,
        }
    }
}

impl Config {
    /// The values of kube-proxy's configuration.
    #[cfg(feature = "program")]
    pub fn of(config: &localnet_config::Config) -> Self {
        let local = &config.detect_local;
        Self {
            masquerade_all: config.linux.masquerade_all,
            masquerade_bit: config.masquerade_bit(config.mode),
            detector: match local.mode {
                DetectLocalMode::ClusterCidr if local.cluster_cidrs.is_empty() => Detector::None,
                DetectLocalMode::ClusterCidr => Detector::ClusterCidr(local.cluster_cidrs.clone()),
                DetectLocalMode::NodeCidr => Detector::NodeCidr,
                DetectLocalMode::BridgeInterface => Detector::BridgeInterface(local.bridge_interface.as_str().into()),
                DetectLocalMode::InterfaceNamePrefix => {
                    Detector::InterfaceNamePrefix(local.interface_name_prefix.as_str().into())
                }
            },
            node_port_addresses: NodePortAddresses {
                primary: config.node_port_addresses.primary(),
                cidrs: config.node_port_addresses.cidrs(),
                localhost: false,
            },
        }
    }

    /// The mark of packets to masquerade.
    pub fn masquerade_mark(&self) -> u32 {
        1 << (self.masquerade_bit & 31)
    }
}

/// How the backend recognizes traffic of this node's pods. Unless it is `None`, traffic from all other senders to a ClusterIP is
/// masqueraded. Under external policy Local, this node's pods reach external addresses as if the addresses were ClusterIPs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Detector {
    /// No traffic is recognized as traffic of pods.
    None,
    /// By its source address, which is in one of these CIDRs.
    ClusterCidr(Vec<IpNet>),
    /// By its source address, which is in the node's pod CIDR.
    NodeCidr,
    /// By its incoming interface, which is this bridge.
    BridgeInterface(Arc<str>),
    /// By its incoming interface, whose name has this prefix.
    InterfaceNamePrefix(Arc<str>),
}
