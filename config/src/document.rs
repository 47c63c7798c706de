//! [`Document`]: the values of a document of either version, by path.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::duration::GoDuration;
pub use crate::model::Version;

/// The API group of the documents.
pub(crate) const GROUP: &str = "kubeproxy.config.k8s.io";
/// The kind of the documents.
pub(crate) const KIND: &str = "KubeProxyConfiguration";

/// A `KubeProxyConfiguration` of either version: a value in [normal form](crate::Kind) for each field of the version.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    pub(crate) version: Version,
    pub(crate) values: BTreeMap<&'static str, Value>,
}

impl Document {
    /// Returns the value of a field.
    pub fn get(&self, path: &str) -> &Value {
        self.values.get(path).unwrap_or(&Value::Null)
    }

    pub(crate) fn set(&mut self, path: &'static str, value: Value) {
        self.values.insert(path, value);
    }

    /// Returns the value of a field that contains a string.
    pub(crate) fn text(&self, path: &str) -> &str {
        self.get(path).as_str().unwrap_or_default()
    }

    /// Returns the value of a field that contains a list of strings.
    pub(crate) fn texts(&self, path: &str) -> Vec<&str> {
        self.get(path).as_array().into_iter().flatten().filter_map(Value::as_str).collect()
    }

    /// Returns the value of a field that contains a duration.
    pub(crate) fn duration(&self, path: &str) -> GoDuration {
        self.text(path).parse().unwrap_or_default()
    }
}
