//! The values of a [`Config`](crate::Config) that have types of their own.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use clap::ValueEnum;
use ipnet::IpNet;
pub use localnet_core::Mode;
use serde::{Serialize, Serializer};

localnet_core::names! {
    /// The version of a document, as in `apiVersion` after the group.
    Version {
        /// The version that kube-proxy v1.37 reads.
        V1alpha1 = "v1alpha1",
        /// The version of KEP-784.
        V1alpha2 = "v1alpha2",
    }

    /// `logging.format`: the format of log lines.
    #[derive(Default, ValueEnum)]
    LogFormat {
        /// Lines for people.
        #[default]
        Text = "text",
        /// One JSON object per line.
        Json = "json",
    }

    /// `ipFamilyPolicy`: the address families that a node's primary addresses have.
    IpFamilyPolicy {
        /// The family of the node's first address.
        SingleStack = "SingleStack",
        /// Both families, if the node has addresses of both.
        PreferDualStack = "PreferDualStack",
        /// Both families. If the node lacks addresses of one family, this is an error.
        RequireDualStack = "RequireDualStack",
    }

    /// `detectLocalMode`: the method that recognizes the node's own pods.
    #[derive(Default)]
    DetectLocalMode {
        /// The source is in `clusterCIDRs`.
        #[default]
        ClusterCidr = "ClusterCIDR",
        /// The source is in the Node's `spec.podCIDRs`.
        NodeCidr = "NodeCIDR",
        /// The packet arrives through `bridgeInterface`.
        BridgeInterface = "BridgeInterface",
        /// The packet arrives through an interface whose name begins with `interfaceNamePrefix`.
        InterfaceNamePrefix = "InterfaceNamePrefix",
    }
}

/// Serializes the values of these types as their text.
macro_rules! serialize_as_text {
    ($($name:ident)*) => { $(
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    )* };
}

serialize_as_text! { Version LogFormat IpFamilyPolicy DetectLocalMode MinorVersion }

/// The operating system of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Platform {
    /// Linux
    Linux,
    /// Windows
    Windows,
}

impl Platform {
    /// The modes that exist on this platform.
    pub fn modes(self) -> &'static [Mode] {
        match self {
            Self::Linux => &[Mode::Iptables, Mode::Ipvs, Mode::Nftables],
            Self::Windows => &[Mode::Kernelspace],
        }
    }
}

/// An item of `logging.vmodule`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VModule {
    /// The name of a source file without its extension, or a pattern of such names. It contains neither `=` nor `,`.
    pub file_pattern: String,
    /// The verbosity in these files; at most `i32::MAX`.
    pub verbosity: u32,
}

/// A minor version of Kubernetes, such as 1.35.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MinorVersion {
    /// The major number, 1.
    pub major: u16,
    /// The minor number, such as 35.
    pub minor: u16,
}

impl fmt::Display for MinorVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// `nodePortAddresses`: the node's addresses that answer NodePorts. If no item covers a family, all of the
/// node's addresses of that family answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NodePortAddresses(pub Vec<NodePortAddress>);

/// An item of `nodePortAddresses`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NodePortAddress {
    /// The Node's primary address of each family.
    Primary,
    /// The loopback addresses of both families.
    Localhost,
    /// All addresses of both families.
    All,
    /// The addresses in this CIDR.
    #[serde(untagged)]
    Cidr(IpNet),
}

impl NodePortAddresses {
    /// Whether the Node's primary addresses are listed.
    pub fn primary(&self) -> bool {
        self.0.contains(&NodePortAddress::Primary)
    }

    /// The listed CIDRs, including those of the words `localhost` and `all`.
    pub fn cidrs(&self) -> Vec<IpNet> {
        const LOOPBACK: [IpNet; 2] = [
            IpNet::new_assert(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), 8),
            IpNet::new_assert(IpAddr::V6(Ipv6Addr::LOCALHOST), 128),
        ];
        const ALL: [IpNet; 2] = [
            IpNet::new_assert(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
            IpNet::new_assert(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0),
        ];
        let of = |item: &NodePortAddress| match *item {
            NodePortAddress::Primary => Vec::new(),
            NodePortAddress::Localhost => LOOPBACK.to_vec(),
            NodePortAddress::All => ALL.to_vec(),
            NodePortAddress::Cidr(cidr) => vec![cidr],
        };
        self.0.iter().flat_map(of).collect()
    }
}

/// Whether the configuration sets certain values explicitly. For these values, a missing value does not have the same
/// effect as an explicit default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Explicit {
    /// Whether `mode` is not empty.
    pub mode: bool,
    /// Whether the mode's `minSyncPeriod` is present and has a value that kube-proxy does not treat as missing.
    pub min_sync_period: bool,
}
