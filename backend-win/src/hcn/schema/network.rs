//! The fields of the document `HostComputeNetwork` that are read. The CNI plugin creates networks.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::{Guid, Policy, id, or_default, text_or_nothing};

/// A network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Network {
    /// The network's identifier.
    #[serde(rename = "ID", deserialize_with = "id", skip_serializing_if = "Option::is_none")]
    pub id: Option<Guid>,
    /// The network's name; may be empty.
    #[serde(deserialize_with = "text_or_nothing")]
    pub name: String,
    /// The type, such as `L2Bridge` or `Overlay`, as HNS writes it.
    #[serde(deserialize_with = "text_or_nothing")]
    pub r#type: String,
    /// Further settings.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<Policy>,
    /// The IPAM entries of the network, which contain its subnets.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub ipams: Vec<Ipam>,
}

/// An IPAM entry of a network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Ipam {
    /// The subnets from which addresses are assigned.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub subnets: Vec<Subnet>,
}

/// A subnet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Subnet {
    /// The prefix, as HNS writes it.
    #[serde(deserialize_with = "text_or_nothing")]
    pub ip_address_prefix: String,
}

/// How a network transports packets to other nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkType {
    /// Encapsulated in packets between nodes. HNS must know the node of each endpoint.
    Overlay,
    /// Without encapsulation: L2Bridge, L2Tunnel and all other types.
    Flat,
}

/// A subnet of another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RemoteSubnet {
    /// The prefix of the subnet.
    pub prefix: IpNet,
    /// The address of the node.
    pub provider: IpAddr,
}

impl Network {
    /// The type of the network.
    pub fn kind(&self) -> NetworkType {
        if self.r#type.eq_ignore_ascii_case("Overlay") { NetworkType::Overlay } else { NetworkType::Flat }
    }

    /// Whether the network can have pods.
    pub fn is_for_pods(&self) -> bool {
        ["Overlay", "L2Bridge", "L2Tunnel"].iter().any(|kind| self.r#type.eq_ignore_ascii_case(kind))
    }

    /// Returns the subnets of other nodes, sorted. Invalid ones are skipped.
    pub fn remote_subnets(&self) -> Vec<RemoteSubnet> {
        let routes = self.policies.iter().filter(|policy| policy.r#type == "RemoteSubnetRoute");
        let subnet = |policy: &Policy| {
            let text = |name| policy.settings.get(name)?.as_str();
            Some(RemoteSubnet {
                prefix: text("DestinationPrefix")?.parse().ok()?,
                provider: text("ProviderAddress")?.parse().ok()?,
            })
        };
        let mut subnets: Vec<_> = routes.filter_map(subnet).collect();
        subnets.sort_unstable();
        subnets
    }
}
