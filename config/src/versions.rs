//! The two versions of a [`Document`]: their fields and defaults, as in the [table](crate::table).

use std::sync::LazyLock;

use localnet_core::Code;
use serde::{Serialize, Serializer, ser::SerializeMap as _};
use serde_json::{Value, json};

use crate::{
    address,
    document::{Document, Version},
    field::{Field, field},
    problem::{Findings, Invalid},
    table::{DROPPED, FIELDS},
};

/// The default port for health checks.
const HEALTHZ_PORT: u16 = 10256;
/// The default port for metrics.
const METRICS_PORT: u16 = 10249;

/// The fields of a version, in the order in which documents are written.
fn fields(version: Version) -> &'static [Field] {
    static V1ALPHA1: LazyLock<Vec<Field>> = LazyLock::new(|| {
        let mut fields: Vec<Field> = Vec::new();
        let dropped = DROPPED.iter().map(|(path, _)| field(path));
        for field in FIELDS.iter().flat_map(Field::in_v1alpha1).chain(dropped) {
            // Two fields of v1alpha2 may correspond to the same field of v1alpha1.
            if !fields.iter().any(|other| other.path == field.path) {
                fields.push(field);
            }
        }
        fields
    });
    match version {
        Version::V1alpha1 => &V1ALPHA1,
        Version::V1alpha2 => &FIELDS,
    }
}

impl Document {
    /// The document with the defaults that do not depend on other fields.
    pub fn new(version: Version) -> Self {
        let values = fields(version).iter().map(|field| (field.path, field.default_value())).collect();
        Self { version, values }
    }

    /// Reads the fields of a version from JSON, and skips all other fields. The types of the values must already have been
    /// checked.
    ///
    /// # Errors
    /// Returns each value that is out of range or does not have the notation of its type.
    pub fn from_json(version: Version, json: &Value) -> Result<Self, Invalid> {
        let (mut document, mut findings) = (Self::new(version), Findings::default());
        for Field { path, kind, .. } in fields(version) {
            let Some(given) = path.split('.').try_fold(json, |value, step| value.get(step)) else { continue };
            match kind.normal(given) {
                Ok(value) => document.set(path, value),
                Err((inside, problem, remedy)) => {
                    findings.add(Code::ValueInvalid, &format!("{path}{inside}"), problem, remedy);
                }
            }
        }
        findings.finish().map(|_| document)
    }

    /// Fills in the values that depend on other fields. Also fills in the defaults for zero or empty values that count as
    /// missing.
    #[must_use]
    pub fn complete(mut self) -> Self {
        for field in fields(self.version).iter().filter(|field| field.empty_is_default) {
            if *self.get(field.path) == field.kind.zero() {
                self.set(field.path, field.default_value());
            }
        }
        self.complete_addresses();
        self
    }

    /// Adds missing addresses, and adds a port to each address without one. The address of the node determines the family.
    pub(crate) fn complete_addresses(&mut self) {
        let node = match self.version {
            Version::V1alpha1 => Some(self.text("bindAddress")),
            Version::V1alpha2 => self.texts("nodeIPOverride").first().copied(),
        };
        let is_v4 = node.and_then(address::ip).is_none_or(|ip| ip.is_ipv4());
        let (every, loopback) = if is_v4 { ("0.0.0.0", "127.0.0.1") } else { ("::", "::1") };
        for (path, default, port) in
            [("healthzBindAddress", every, HEALTHZ_PORT), ("metricsBindAddress", loopback, METRICS_PORT)]
        {
            let given = Some(self.text(path)).filter(|address| !address.is_empty());
            self.set(path, json!(address::with_port(given.unwrap_or(default), port)));
        }
    }

    /// Returns the document as JSON.
    pub fn to_json(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    /// Returns the document as YAML, with its fields in the order of the table.
    pub fn to_yaml(&self) -> String {
        // This cannot fail: a document contains only maps, lists, strings and numbers, and the length of a string is not
        // limited.
        serde_saphyr::to_string(self).expect("YAML can express every document")
    }
}

impl Serialize for Document {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let values = fields(self.version).iter().filter_map(|field| Some((field.path, self.values.get(field.path)?)));
        Fields(values.collect()).serialize(serializer)
    }
}

/// Values by path, which are written as nested maps.
struct Fields<'a>(Vec<(&'a str, &'a Value)>);

impl Serialize for Fields<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        let mut written = Vec::new();
        for (path, value) in &self.0 {
            let Some((section, _)) = path.split_once('.') else {
                map.serialize_entry(path, value)?;
                continue;
            };
            if !written.contains(&section) {
                written.push(section);
                let inside = self.0.iter().filter_map(|(path, value)| {
                    let rest = path.strip_prefix(section)?.strip_prefix('.')?;
                    Some((rest, *value))
                });
                map.serialize_entry(section, &Fields(inside.collect()))?;
            }
        }
        map.end()
    }
}
