//! `HostComputeNetwork`, as far as it is read: networks are made by the CNI plugin.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::{Guid, Policy, id, or_default, text_or_nothing};

/// A network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Network {
    /// Its identifier.
    #[serde(rename = "ID", deserialize_with = "id", skip_serializing_if = "Option::is_none")]
    pub id: Option<Guid>,
    /// Its name.
    #[serde(deserialize_with = "text_or_nothing")]
    pub name: String,
    /// `L2Bridge`, `Overlay` and so on, as HNS writes it.
    #[serde(deserialize_with = "text_or_nothing")]
    pub r#type: String,
    /// What else is said of it.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<Policy>,
    /// Where its addresses come from.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub ipams: Vec<Ipam>,
}

/// Where addresses come from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Ipam {
    /// Their subnets.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub subnets: Vec<Subnet>,
}

/// A subnet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Subnet {
    /// Its addresses, as HNS writes them.
    #[serde(deserialize_with = "text_or_nothing")]
    pub ip_address_prefix: String,
}

/// How a network carries packets to other nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkType {
    /// In packets of the nodes: it has to be said which node an endpoint is on.
    Overlay,
    /// As they are: L2Bridge, L2Tunnel and whatever else there is.
    Flat,
}

/// A subnet on another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RemoteSubnet {
    /// Its addresses.
    pub prefix: IpNet,
    /// The address of its node.
    pub provider: IpAddr,
}

impl Network {
    /// How it carries packets.
    pub fn kind(&self) -> NetworkType {
        if self.r#type.eq_ignore_ascii_case("Overlay") { NetworkType::Overlay } else { NetworkType::Flat }
    }

    /// Whether pods may be on it.
    pub fn is_for_pods(&self) -> bool {
        ["Overlay", "L2Bridge", "L2Tunnel"].iter().any(|kind| self.r#type.eq_ignore_ascii_case(kind))
    }

    /// The subnets on other nodes, sorted; what is none is left out.
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
