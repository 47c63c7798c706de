//! The document `HostComputeEndpoint`.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{Guid, Policy, SchemaVersion, id, is_default, or_default, text_or_nothing};

/// The flag of a remote endpoint.
pub const REMOTE: u32 = 1;

/// An endpoint: an address on a network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Endpoint {
    /// The endpoint's identifier; `None` in a document that creates the endpoint.
    #[serde(rename = "ID", deserialize_with = "id", skip_serializing_if = "Option::is_none")]
    pub id: Option<Guid>,
    /// The endpoint's name, which the CNI plugin uses; may be empty.
    #[serde(deserialize_with = "text_or_nothing", skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The identifier of the network that the endpoint belongs to.
    #[serde(deserialize_with = "id", skip_serializing_if = "Option::is_none")]
    pub host_compute_network: Option<Guid>,
    /// Further settings.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<Policy>,
    /// The endpoint's addresses.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub ip_configurations: Vec<IpConfiguration>,
    /// Always written, without content.
    #[serde(skip_deserializing)]
    pub dns: Dns,
    /// The hardware address, such as `02-11-0a-b4-01-02`.
    #[serde(deserialize_with = "text_or_nothing", skip_serializing_if = "String::is_empty")]
    pub mac_address: String,
    /// The flags; see [`REMOTE`].
    #[serde(deserialize_with = "or_default", skip_serializing_if = "is_default")]
    pub flags: u32,
    /// Always written, without content.
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
    /// The length of the network prefix in bits.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "is_default")]
    pub prefix_length: u8,
}

/// An empty document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Dns {}

/// A document that contains an empty document.
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
    /// Creates the document of a remote endpoint.
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

    /// Creates the document of a local endpoint.
    pub fn local(network: Guid, address: IpAddr, mac: String) -> Self {
        let configuration = IpConfiguration { ip_address: address.to_string(), prefix_length: 0 };
        Self {
            host_compute_network: Some(network),
            ip_configurations: vec![configuration],
            mac_address: mac,
            ..Self::default()
        }
    }

    /// Whether the endpoint is remote.
    pub fn is_remote(&self) -> bool {
        self.flags & REMOTE != 0
    }

    /// The hardware address in lower case and with hyphens. HNS also returns other notations.
    pub fn mac(&self) -> String {
        self.mac_address.to_ascii_lowercase().replace(':', "-")
    }

    /// The endpoint's addresses. Strings that are not addresses are skipped.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.ip_configurations.iter().filter_map(|configuration| configuration.ip_address.parse().ok())
    }

    /// The address of the endpoint's node, if the document contains it.
    pub fn provider(&self) -> Option<IpAddr> {
        let policy = self.policies.iter().find(|policy| policy.r#type == PROVIDER_ADDRESS)?;
        policy.settings.get(PROVIDER_ADDRESS)?.as_str()?.parse().ok()
    }
}
