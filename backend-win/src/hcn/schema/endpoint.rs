//! `HostComputeEndpoint`

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{Guid, Policy, SchemaVersion, id, is_default, or_default, text_or_nothing};

/// The flag of an endpoint that is on another node.
pub const REMOTE: u32 = 1;

/// An endpoint: an address on a network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Endpoint {
    /// Its identifier; none in a document that is to make it.
    #[serde(rename = "ID", deserialize_with = "id", skip_serializing_if = "Option::is_none")]
    pub id: Option<Guid>,
    /// Its name, by which the CNI plugin knows it; may be empty.
    #[serde(deserialize_with = "text_or_nothing", skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Its network.
    #[serde(deserialize_with = "id", skip_serializing_if = "Option::is_none")]
    pub host_compute_network: Option<Guid>,
    /// What else is said of it.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<Policy>,
    /// Its addresses.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub ip_configurations: Vec<IpConfiguration>,
    /// Nothing that matters here; always written.
    #[serde(skip_deserializing)]
    pub dns: Dns,
    /// `02-11-0a-b4-01-02`
    #[serde(deserialize_with = "text_or_nothing", skip_serializing_if = "String::is_empty")]
    pub mac_address: String,
    /// Bits; see [`REMOTE`].
    #[serde(deserialize_with = "or_default", skip_serializing_if = "is_default")]
    pub flags: u32,
    /// Nothing that matters here; always written.
    #[serde(skip_deserializing)]
    pub health: Health,
    /// Always 2.0.
    #[serde(skip_deserializing)]
    pub schema_version: SchemaVersion,
}

/// An address of an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct IpConfiguration {
    /// The address, as HNS writes it.
    #[serde(deserialize_with = "text_or_nothing", skip_serializing_if = "String::is_empty")]
    pub ip_address: String,
    /// How many bits of it name the network.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "is_default")]
    pub prefix_length: u8,
}

/// An empty document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Dns {}

/// A document that holds an empty document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Health {
    /// An empty document.
    pub extra: Extra,
}

/// An empty document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Extra {}

const PROVIDER_ADDRESS: &str = "ProviderAddress";

impl Endpoint {
    /// The document of an endpoint on another node.
    pub fn remote(network: Guid, address: IpAddr, mac: String, provider: Option<IpAddr>) -> Self {
        let policy = |provider: IpAddr| Policy {
            r#type: PROVIDER_ADDRESS.to_owned(),
            settings: serde_json::json!({ PROVIDER_ADDRESS: provider }),
        };
        Self {
            policies: provider.map(policy).into_iter().collect(),
            flags: REMOTE,
            ..Self::local(network, address, mac)
        }
    }

    /// The document of an endpoint on this node.
    pub fn local(network: Guid, address: IpAddr, mac: String) -> Self {
        let configuration = IpConfiguration { ip_address: address.to_string(), prefix_length: 0 };
        Self {
            host_compute_network: Some(network),
            ip_configurations: vec![configuration],
            mac_address: mac,
            ..Self::default()
        }
    }

    /// Whether it is on another node.
    pub fn is_remote(&self) -> bool {
        self.flags & REMOTE != 0
    }

    /// Its addresses; what is none is left out.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.ip_configurations.iter().filter_map(|configuration| configuration.ip_address.parse().ok())
    }

    /// The address of the node that it is on, if that is said.
    pub fn provider(&self) -> Option<IpAddr> {
        let policy = self.policies.iter().find(|policy| policy.r#type == PROVIDER_ADDRESS)?;
        policy.settings.get(PROVIDER_ADDRESS)?.as_str()?.parse().ok()
    }
}
