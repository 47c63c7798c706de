//! Queries to HNS.

use serde::{Serialize, Serializer, ser};
use serde_json::Value;

use super::{Guid, Odd, SchemaVersion, read, write};

/// A query: the document `HostComputeQuery`. Its filter is a document within a string.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Query {
    schema_version: SchemaVersion,
    #[serde(skip_serializing_if = "Filter::is_empty", serialize_with = "as_text")]
    filter: Filter,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Filter {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    virtual_network: Option<Guid>,
}

impl Filter {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Query {
    /// Matches all objects.
    pub fn all() -> Self {
        Self::default()
    }

    /// Matches the objects with this name.
    pub fn named(name: &str) -> Self {
        Self { filter: Filter { name: Some(name.to_owned()), ..Filter::default() }, ..Self::default() }
    }

    /// Matches the endpoints of a network.
    pub fn of_network(network: Guid) -> Self {
        Self { filter: Filter { virtual_network: Some(network), ..Filter::default() }, ..Self::default() }
    }
}

/// Answers a query as HNS does, with the identifiers of the matching documents in upper case.
///
/// # Errors
/// Returns an error if the query or its filter is not a document.
pub fn answer<'a>(query: &str, documents: impl Iterator<Item = (Guid, &'a Value)>) -> Result<String, Odd> {
    let query: Value = read("query", query)?;
    let filter: Value = match query.get("Filter").and_then(Value::as_str) {
        Some(filter) => read("filter", filter)?,
        None => Value::Null,
    };
    let matches = |document: &Value, field: &str, key: &str| match filter.get(key).and_then(Value::as_str) {
        Some(wanted) => document[field].as_str().is_some_and(|is| is.eq_ignore_ascii_case(wanted)),
        None => true,
    };
    let found = documents.filter(|(_, document)| {
        matches(document, "Name", "Name") && matches(document, "HostComputeNetwork", "VirtualNetwork")
    });
    Ok(write(&found.map(|(id, _)| id.to_string().to_uppercase()).collect::<Vec<_>>()))
}

fn as_text<S: Serializer>(filter: &Filter, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&serde_json::to_string(filter).map_err(ser::Error::custom)?)
}
