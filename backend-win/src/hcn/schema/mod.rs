//! The documents of HCN, schema version 2.0: the fields that a backend writes and reads, by their exact names.
//!
//! Empty and zero fields are omitted, as in Microsoft's library. The documents of HNS are read leniently: unknown fields are
//! ignored, and `null` counts as missing. A document that cannot be parsed is an [`Odd`] error, never a panic.

mod endpoint;
mod load_balancer;
mod network;
mod query;

use std::net::IpAddr;

use serde::{Deserialize, Deserializer, Serialize, de, de::DeserializeOwned};

pub use endpoint::{Dns, Endpoint, Extra, Health, IpConfiguration, REMOTE};
pub use load_balancer::{Distribution, LoadBalancer, LoadBalancerFlags, PortMapping, PortMappingFlags};
pub use network::{Ipam, Network, NetworkType, RemoteSubnet, Subnet};
pub use query::{Query, answer};

use super::{Guid, Version};

/// The schema version of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct SchemaVersion {
    /// The major number.
    pub major: u32,
    /// The minor number.
    pub minor: u32,
}

impl Default for SchemaVersion {
    /// The version of all documents in this module.
    fn default() -> Self {
        Self { major: 2, minor: 0 }
    }
}

/// A policy of a network or endpoint. Its type determines its settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Policy {
    /// The type.
    #[serde(deserialize_with = "or_default")]
    pub r#type: String,
    /// The settings, of any shape.
    pub settings: serde_json::Value,
}

/// The error for a document that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot parse the {what} that HNS returned: {why}")]
pub struct Odd {
    /// The expected kind of document.
    pub what: &'static str,
    /// Why the document cannot be parsed.
    pub why: String,
}

/// Parses a document.
///
/// # Errors
/// Returns an error if the text is not a document of this type.
pub fn read<T: DeserializeOwned>(what: &'static str, json: &str) -> Result<T, Odd> {
    // serde would accept a list and take its items as the fields in order.
    if json.trim_start().starts_with('[') {
        return Err(Odd { what, why: "it is a list, not an object".to_owned() });
    }
    parse(what, json)
}

fn parse<T: DeserializeOwned>(what: &'static str, json: &str) -> Result<T, Odd> {
    serde_json::from_str(json).map_err(|error| Odd { what, why: error.to_string() })
}

/// Parses a list of identifiers, the answer to `enumerate`. Items that are not identifiers are skipped, and an empty answer is
/// an empty list.
///
/// # Errors
/// Returns an error if the text is not a list.
pub fn read_ids(json: &str) -> Result<Vec<Guid>, Odd> {
    if json.trim().is_empty() {
        return Ok(Vec::new());
    }
    let listed: Option<Vec<serde_json::Value>> = parse("list of identifiers", json)?;
    let ids = listed.unwrap_or_default();
    Ok(ids.iter().filter_map(|id| id.as_str()?.parse().ok()).collect())
}

/// Parses the version of HNS.
///
/// # Errors
/// Returns an error if the text is not a version.
pub fn read_version(json: &str) -> Result<Version, Odd> {
    read("version", json)
}

/// Serializes a document.
pub fn write(document: &impl Serialize) -> String {
    serde_json::to_string(document).expect("documents have strings as keys, and nothing else can fail")
}

/// Reads a field that may be `null`.
fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(deserializer: D) -> Result<T, D::Error> {
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// Reads an address. An empty string means none.
fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<IpAddr>, D::Error> {
    match Option::<String>::deserialize(deserializer)?.as_deref() {
        None | Some("") => Ok(None),
        Some(text) => {
            text.parse().map(Some).map_err(|_| de::Error::custom(format_args!("{text:?} is not an IP address")))
        }
    }
}

/// Reads a list of addresses.
fn addresses<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<IpAddr>, D::Error> {
    #[derive(Deserialize)]
    struct One(#[serde(deserialize_with = "address")] Option<IpAddr>);
    let all: Vec<One> = or_default(deserializer)?;
    Ok(all.into_iter().filter_map(|one| one.0).collect())
}

/// Reads a string. Any other value counts as an empty string.
fn text_or_nothing<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(match serde_json::Value::deserialize(deserializer)? {
        serde_json::Value::String(text) => text,
        _ => String::new(),
    })
}

/// Reads an identifier. Any other value counts as none.
fn id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Guid>, D::Error> {
    Ok(text_or_nothing(deserializer)?.parse().ok())
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[cfg(test)]
pub(crate) mod tests;
