//! Converts documents between the versions, as KEP-784 specifies, and converts a [`Config`] to documents.

use localnet_core::{Code, Diagnostic};
use serde_json::{Value, json};

use crate::{
    address,
    document::{Document, Version},
    field::{Effect, Field, Formerly},
    kind::Kind,
    model::Mode,
    problem::Findings,
    table::{Config, FIELDS},
};

const API_VERSION: &str = "apiVersion";

/// Converts a [complete](Document::complete) document of v1alpha1 to v1alpha2, without changing its meaning. Also returns a
/// diagnostic for each value that v1alpha2 cannot express.
pub fn convert(old: &Document) -> (Document, Vec<Diagnostic>) {
    let (mut new, mut findings) = (Document::new(Version::V1alpha2), Findings::default());
    let mode = old.text("mode");
    for field in FIELDS.iter().filter(|field| field.path != API_VERSION) {
        let value = match (field.v1alpha1_path(mode), field.formerly) {
            (Some(path), Formerly::Text(_, kind)) => list(old.text(path), kind),
            (Some(path), _) => old.get(path).clone(),
            (None, _) => field.v1alpha1_default_value(),
        };
        new.set(field.path, value);
    }
    for section in ["iptables", "ipvs", "nftables"] {
        for field in FIELDS.iter() {
            lost(field, section, old, &new, &mut findings);
        }
    }
    if !old.text("portRange").is_empty() {
        let problem = format!("{} is not carried over", old.get("portRange"));
        findings.add(Code::FieldLost, "portRange", problem, "no mode has used it since the userspace mode was removed");
    }
    (new, findings.into_unique())
}

/// Converts a string of v1alpha1 to the list of v1alpha2. An empty string and an unspecified address become an empty list.
pub(crate) fn list(text: &str, kind: Kind) -> Value {
    match kind {
        _ if text.is_empty() => json!([]),
        Kind::Ip if address::ip(text).is_some_and(|ip| ip.is_unspecified()) => json!([]),
        Kind::Ip => json!([text]),
        _ => json!(text.split(',').collect::<Vec<_>>()),
    }
}

/// Adds a diagnostic if the conversion loses the value that `field` has in `section`. This value is lost if it differs both
/// from its default and from the value of `field` in `new`.
fn lost(field: &Field, section: &str, old: &Document, new: &Document, findings: &mut Findings) {
    let Formerly::InModes(paths) = field.formerly else { return };
    for (path, default) in paths.iter().filter(|(path, _)| path.starts_with(section)) {
        let (given, carried, name) = (old.get(path), new.get(field.path), field.name());
        if *given != field.kind.value(default) && given != carried {
            let mode = Some(old.text("mode")).filter(|mode| !mode.is_empty()).unwrap_or("\"\"");
            let problem = format!(
                "{given} is not carried over: v1alpha2 has only one {name}, and mode {mode} sets it to {carried}"
            );
            findings.add(Code::FieldLost, path, problem, &format!("to use {given} instead, set {}", field.path));
        }
    }
}

impl From<&Config> for Document {
    /// Returns the configuration as a document of v1alpha2.
    fn from(config: &Config) -> Self {
        let mut document = Self::new(Version::V1alpha2);
        config.write(&mut document);
        document
    }
}

impl Config {
    /// Returns the configuration as a document of v1alpha2, the latest version. It contains every field, with one
    /// exception: a `minSyncPeriod` that is not set explicitly is omitted, so that it is still not explicit when the
    /// document is read again.
    pub fn to_yaml(&self) -> String {
        let mut document = Document::from(self);
        if !self.explicit.min_sync_period {
            document.values.remove("minSyncPeriod");
        }
        document.to_yaml()
    }

    /// Returns the document of v1alpha1 that kube-proxy shows at `/configz`. If several modes have a field (such as
    /// `syncPeriod`), it is zero or false in the sections of all modes but the configured one. Values that v1alpha1 cannot
    /// express are omitted.
    pub fn to_v1alpha1(&self) -> Document {
        let (mut new, mut old) = (Document::from(self), Document::new(Version::V1alpha1));
        let mode = self.mode.as_str();
        new.set("mode", json!(mode));
        // In mode nftables, an empty list would mean `primary`.
        if self.node_port_addresses.0.is_empty() && self.mode == Mode::Nftables {
            new.set("nodePortAddresses", json!(["0.0.0.0/0", "::/0"]));
        }
        // Two fields of v1alpha2 are written to `iptables.masqueradeBit`, and the last write applies. The loop runs in reverse
        // order, so that the field that comes first in the table is written last.
        for field in FIELDS.iter().rev() {
            if let Formerly::InModes(paths) = field.formerly {
                paths.iter().for_each(|(path, _)| old.set(path, field.kind.zero()));
            }
            let value = match (field.formerly, new.get(field.path)) {
                (Formerly::Text(_, kind), _) => {
                    one_text(&new.texts(field.path), kind, self.metrics_bind_address.is_ipv6())
                }
                (_, value) => value.clone(),
            };
            if let Some(path) = field.v1alpha1_path(mode) {
                old.set(path, value);
            }
        }
        old.set(API_VERSION, Document::new(Version::V1alpha1).get(API_VERSION).clone());
        old
    }

    /// Returns the fields of v1alpha2 that differ between the two configurations and take effect only when a program starts.
    pub fn at_start(&self, other: &Self) -> Vec<&'static str> {
        let [before, after] = [self, other].map(Document::from);
        let differs =
            |field: &&Field| field.effect == Effect::AtStart && before.get(field.path) != after.get(field.path);
        FIELDS.iter().filter(differs).map(|field| field.path).collect()
    }
}

/// Converts a list of v1alpha2 to the string of v1alpha1. An empty list of addresses becomes the unspecified address of
/// the family.
fn one_text(texts: &[&str], kind: Kind, is_v6: bool) -> Value {
    match (kind, texts.first()) {
        (Kind::Ip, Some(ip)) => json!(ip),
        (Kind::Ip, None) => json!(if is_v6 { "::" } else { "0.0.0.0" }),
        _ => json!(texts.join(",")),
    }
}
