//! HCN's documents, schema version 2.0: the fields that a backend writes and reads, by their exact names.
//!
//! Fields that are empty or zero are left out, as Microsoft's library does it. What HNS writes is read with patience: an unknown field is
//! ignored, `null` is as good as absent. What cannot be understood at all is an [`Odd`] document, never a panic.

mod endpoint;
mod load_balancer;
mod network;
mod query;

use std::net::IpAddr;

use serde::{Deserialize, Deserializer, Serialize, de, de::DeserializeOwned};

pub use endpoint::{Dns, Endpoint, Extra, Health, IpConfiguration, REMOTE};
pub use load_balancer::{Distribution, LoadBalancer, LoadBalancerFlags, PortMapping, PortMappingFlags};
pub use network::{Ipam, Network, NetworkType, RemoteSubnet, Subnet};
pub use query::Query;

use super::{Guid, Version};

/// The version of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct SchemaVersion {
    /// The first number.
    pub major: u32,
    /// The second number.
    pub minor: u32,
}

impl Default for SchemaVersion {
    /// That of all documents here.
    fn default() -> Self {
        Self { major: 2, minor: 0 }
    }
}

/// A policy of a network or endpoint: what its settings are depends on its type.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Policy {
    /// What kind it is.
    #[serde(deserialize_with = "or_default")]
    pub r#type: String,
    /// Anything.
    pub settings: serde_json::Value,
}

/// A document that cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("HNS says what is no {what}: {why}")]
pub struct Odd {
    /// What was expected.
    pub what: &'static str,
    /// Why it is none.
    pub why: String,
}

/// Reads a document.
///
/// # Errors
/// It cannot be understood.
pub fn read<T: DeserializeOwned>(what: &'static str, json: &str) -> Result<T, Odd> {
    // A list would be taken for the fields of a document, one after the other.
    if json.trim_start().starts_with('[') {
        return Err(Odd { what, why: "it is a list".to_owned() });
    }
    parse(what, json)
}

fn parse<T: DeserializeOwned>(what: &'static str, json: &str) -> Result<T, Odd> {
    serde_json::from_str(json).map_err(|error| Odd { what, why: error.to_string() })
}

/// Reads a list of identifiers, as `enumerate` answers. What in it is no identifier is no object, and left out; an empty answer is an
/// empty list.
///
/// # Errors
/// It is no list.
pub fn read_ids(json: &str) -> Result<Vec<Guid>, Odd> {
    if json.trim().is_empty() {
        return Ok(Vec::new());
    }
    let listed: Option<Vec<serde_json::Value>> = parse("list of identifiers", json)?;
    let ids = listed.unwrap_or_default();
    Ok(ids.iter().filter_map(|id| id.as_str()?.parse().ok()).collect())
}

/// Reads the version of HNS.
///
/// # Errors
/// It is none.
pub fn read_version(json: &str) -> Result<Version, Odd> {
    read("version", json)
}

/// Writes a document.
pub fn write(document: &impl Serialize) -> String {
    serde_json::to_string(document).expect("documents have texts for keys, and nothing else fails")
}

/// A field that may be `null`.
fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(deserializer: D) -> Result<T, D::Error> {
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// An address; an empty text is none.
fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<IpAddr>, D::Error> {
    match Option::<String>::deserialize(deserializer)?.as_deref() {
        None | Some("") => Ok(None),
        Some(text) => text.parse().map(Some).map_err(|_| de::Error::custom(format_args!("{text:?} is no address"))),
    }
}

/// Addresses.
fn addresses<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<IpAddr>, D::Error> {
    #[derive(Deserialize)]
    struct One(#[serde(deserialize_with = "address")] Option<IpAddr>);
    let all: Vec<One> = or_default(deserializer)?;
    Ok(all.into_iter().filter_map(|one| one.0).collect())
}

/// A text; anything else is an empty one.
fn text_or_nothing<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(match serde_json::Value::deserialize(deserializer)? {
        serde_json::Value::String(text) => text,
        _ => String::new(),
    })
}

/// An identifier; anything else is none.
fn id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Guid>, D::Error> {
    Ok(text_or_nothing(deserializer)?.parse().ok())
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[cfg(test)]
pub(crate) mod tests;
