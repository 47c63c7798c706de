//! Reads a text into a [`Config`].
//!
//! ```text
//!  text ─► tree ─► shape ─► v1alpha1::Document ─► complete ─► convert ┐
//!          lines   strict │                                           ├─► resolve ─► Config
//!                         └► v1alpha2::Document ─► complete ──────────┘   rules
//! ```

use localnet_core::{
    Code, Diagnostic, Severity, Subject,
    yaml::{self, Node, Tree},
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_saphyr::options::DuplicateKeyPolicy;

use crate::{
    config::Config,
    convert::convert,
    fields, gates,
    problem::{Findings, Invalid},
    resolve::{Reader, resolve},
    sections::{GROUP, KIND},
    shape, v1alpha1, v1alpha2,
};

/// The maximum size of a text in bytes. Typical texts have a few thousand.
const LARGEST: usize = 1 << 20;
/// The maximum nesting depth. A configuration has five levels.
const DEEPEST: usize = 32;

/// A version of the documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// The version that kube-proxy v1.36 reads.
    V1alpha1,
    /// The version of KEP-784.
    V1alpha2,
}

impl Version {
    /// The name in `apiVersion`, without the group.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V1alpha1 => v1alpha1::VERSION,
            Self::V1alpha2 => v1alpha2::VERSION,
        }
    }
}

/// The contents of a text.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// The configuration.
    pub config: Config,
    /// The version of the text. Flags belong to v1alpha1.
    pub version: Version,
    /// Problems that do not invalidate the configuration. Report them once.
    pub warnings: Vec<Diagnostic>,
    /// Values of a v1alpha1 document that v1alpha2 cannot express. Report them when the document is converted.
    pub lost: Vec<Diagnostic>,
}

impl Reader {
    /// Reads a `KubeProxyConfiguration` of either version, in YAML or JSON.
    ///
    /// v1alpha2 is read strictly: an unknown or duplicate field is an error. v1alpha1 is read leniently, as in kube-proxy: such
    /// a field is a warning, and the last of two duplicates applies.
    ///
    /// # Errors
    /// Returns every problem of the text, each with field and line. Warnings alone are no error.
    pub fn read(self, text: &str) -> Result<Reading, Invalid> {
        let (text, next) = yaml::first_document(text);
        let tree = tree(text)?;
        let version = version(&tree)?;
        let more = next.map(another);
        match version {
            Version::V1alpha1 => self.read_v1alpha1(&tree, more),
            Version::V1alpha2 => self.read_v1alpha2(&tree, more),
        }
    }

    fn read_v1alpha1(self, tree: &Tree, more: Option<Diagnostic>) -> Result<Reading, Invalid> {
        let elsewhere = |path: &str| {
            fields::is_in_v1alpha2(path).then(|| "v1alpha2 has it: convert the file with --write-config-to".to_owned())
        };
        let pattern = serde_json::to_value(v1alpha1::Document::default());
        let misfits = shape::compare(tree, &pattern.unwrap_or_default(), &elsewhere);
        let old: v1alpha1::Document = decode(tree, misfits.mistyped)?;
        let section = fields::section_of_mode(&old.mode);
        let min_sync_period = is_min_sync_period_set(tree.field(section).map(|(_, section)| section), &old);
        let mut old = old.complete();
        let mut findings = Findings::default();
        leave_out_split_streams(&mut old, &mut findings);
        let (mut new, mut lost) = convert(&old);
        // An empty mode used to mean iptables, whose section also sets the periods and masqueradeAll. Its masquerade bit is
        // therefore as intentional.
        let is_default = old.nftables.masquerade_bit == v1alpha1::Nftables::default().masquerade_bit;
        if old.mode.is_empty() && is_default {
            new.nftables.masquerade_bit = old.iptables.masquerade_bit;
        }
        let mut config = resolve(&new, self, &mut findings);
        config.explicit.min_sync_period = min_sync_period;
        let mut warnings: Vec<_> = misfits.strict.into_iter().map(lenient).chain(more).collect();
        for found in findings.iter_mut() {
            found.field = fields::v1alpha1_path(&found.field, &old.mode);
        }
        for found in findings.iter_mut().chain(&mut lost) {
            found.subject = tree.place_of(&found.field);
        }
        warnings.extend(findings.finish()?);
        Ok(Reading { config, version: Version::V1alpha1, warnings, lost })
    }

    fn read_v1alpha2(self, tree: &Tree, more: Option<Diagnostic>) -> Result<Reading, Invalid> {
        let pattern = serde_json::to_value(v1alpha2::Document::default());
        let misfits = shape::compare(tree, &pattern.unwrap_or_default(), &fields::remedy_in_v1alpha2);
        let misfits = [misfits.strict, misfits.mistyped].into_iter().flatten().chain(more).collect();
        let document: v1alpha2::Document = decode(tree, misfits)?;
        let mut findings = Findings::default();
        let mut config = resolve(&document.complete(), self, &mut findings);
        config.explicit.min_sync_period = is_set(Some(tree), "minSyncPeriod");
        findings.iter_mut().for_each(|found| found.subject = tree.place_of(&found.field));
        Ok(Reading { config, version: Version::V1alpha2, warnings: findings.finish()?, lost: Vec::new() })
    }
}

/// Parses a text that contains one document.
fn tree(text: &str) -> Result<Tree, Diagnostic> {
    if text.len() > LARGEST {
        let unsuitable = Diagnostic::new(Code::FileUnsuitable, Subject::text(0), "is larger than 1 MiB");
        return Err(unsuitable.remedy("give a KubeProxyConfiguration"));
    }
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: DEEPEST,
            flow_nesting_limit: 2 * DEEPEST,
            max_nodes: 100_000,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: 10_000 },
        duplicate_keys: DuplicateKeyPolicy::PassThrough,
        // kube-proxy reads YAML 1.1.
        legacy_octal_numbers: true,
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| yaml::diagnose(&error, DEEPEST))
}

/// Whether a field is present and not null.
fn is_set(section: Option<&Tree>, name: &str) -> bool {
    section.and_then(|section| section.field(name)).is_some_and(|(_, value)| !matches!(value.node, Node::Null))
}

/// Whether a document sets the minimum time between two syncs. The document must not be complete yet, since zero counts as
/// missing.
fn is_min_sync_period_set(section: Option<&Tree>, old: &v1alpha1::Document) -> bool {
    let period = match fields::section_of_mode(&old.mode) {
        "ipvs" => old.ipvs.min_sync_period,
        "nftables" => old.nftables.min_sync_period,
        _ => old.iptables.min_sync_period,
    };
    is_set(section, "minSyncPeriod") && !period.is_zero()
}

/// Removes `splitStream` if its gate is disabled. kube-proxy overwrites it with a flag's default before it checks the gate, so
/// it starts with such a file.
fn leave_out_split_streams(document: &mut v1alpha1::Document, findings: &mut Findings) {
    if !gates::is_on(&document.feature_gates, gates::LOGGING_ALPHA_OPTIONS) {
        let options = &mut document.logging.options;
        for (name, routing) in [("text", &mut options.text), ("json", &mut options.json)] {
            if std::mem::take(&mut routing.split_stream) {
                let problem = format!("skipped: Feature {} is disabled", gates::LOGGING_ALPHA_OPTIONS);
                let remedy = "turn on that feature gate, or remove it";
                findings.unused(Code::GateDisabled, &format!("logging.options.{name}.splitStream"), problem, remedy);
            }
        }
    }
}

/// Warns about a document after the first one.
fn another(line: u64) -> Diagnostic {
    let problem = "another document begins here, but only the first is read";
    Diagnostic::new(Code::DocumentExtra, Subject::text(line), problem).remedy(format!("keep only the {KIND}"))
}

/// Returns the version of a document.
fn version(tree: &Tree) -> Result<Version, Diagnostic> {
    let remedy = format!("write kind: {KIND} and apiVersion: {GROUP}/v1alpha2 or {GROUP}/v1alpha1");
    let wrong = |code, line, field: &str, problem: &str| {
        Diagnostic::new(code, Subject::text(line), problem).field(field).remedy(&*remedy)
    };
    if !matches!(tree.node, Node::Map(_)) {
        let problem = format!("is {}, not a {KIND}", tree.describe());
        return Err(wrong(Code::KindUnknown, tree.line(), "", &problem));
    }
    let text = |name: &str| match tree.field(name).map(|(key, value)| (key.line, &value.node)) {
        Some((line, Node::Text(text))) if !text.is_empty() => Ok((line, text.as_str())),
        Some((line, Node::Null | Node::Text(_))) => Err(wrong(Code::FieldMissing, line, name, "is missing")),
        None => Err(wrong(Code::FieldMissing, 0, name, "is missing")),
        Some((line, _)) => Err(wrong(Code::FieldMistyped, line, name, "is not a text")),
    };
    let ((kind_line, kind), (version_line, version)) = (text("kind")?, text("apiVersion")?);
    let unknown = format!("no kind {kind:?} is registered for version {version:?}");
    if kind != KIND {
        return Err(wrong(Code::KindUnknown, kind_line, "kind", &unknown));
    }
    [Version::V1alpha1, Version::V1alpha2]
        .into_iter()
        .find(|supported| {
            version.strip_prefix(GROUP).and_then(|rest| rest.strip_prefix('/')) == Some(supported.as_str())
        })
        .ok_or_else(|| wrong(Code::KindUnknown, version_line, "apiVersion", &unknown))
}

fn decode<T: DeserializeOwned>(tree: &Tree, misfits: Vec<Diagnostic>) -> Result<T, Invalid> {
    if !misfits.is_empty() {
        return Err(Invalid(misfits));
    }
    let value: Value = tree.value();
    serde_path_to_error::deserialize(&value).map_err(|error| {
        let field = error.path().to_string();
        let (problem, remedy) = ranged(&error.inner().to_string());
        Diagnostic::new(Code::ValueInvalid, tree.place_of(&field), problem).field(field).remedy(remedy).into()
    })
}

/// Explains an error of serde about a value of the right type, which is either out of range or an unknown text.
fn ranged(message: &str) -> (String, String) {
    let of_number = message.strip_prefix("invalid value: integer `").or_else(|| {
        message
            .strip_prefix("invalid value: floating point `")
            .or_else(|| message.strip_prefix("number out of range: "))
    });
    if let Some(number) = of_number.and_then(|rest| rest.split('`').next()) {
        return (format!("{number} is out of range"), "use a number that is closer to zero".to_owned());
    }
    match message.split_once("; ") {
        Some((problem, remedy)) => (problem.to_owned(), remedy.to_owned()),
        None => (message.to_owned(), String::new()),
    }
}

/// Converts the error for a field into the warning that a lenient reader gives.
fn lenient(mut misfit: Diagnostic) -> Diagnostic {
    misfit.problem += match misfit.code {
        Code::FieldTwice => "; the last one applies, because v1alpha1 is parsed leniently",
        _ => "; skipped, because v1alpha1 is parsed leniently",
    };
    misfit.severity(Severity::Warning)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refused(text: &str, line: u64, problem: &str) {
        let error = tree(text).unwrap_err();
        assert_eq!((error.subject.clone(), error.problem.contains(problem)), (Subject::text(line), true), "{error}");
    }

    #[test]
    fn invalid_yaml_is_refused_with_its_line() {
        refused("a: 1\nb: [\n", 2, "unclosed bracket");
        refused("a: 1\n b: 2\n", 2, "");
        refused("bindAddress: ::\n", 1, "");
        refused("a: *nothing\n", 1, "");
        refused(&"x".repeat(LARGEST + 1), 0, "larger than 1 MiB");
        refused(&"[".repeat(100_000), 1, "");
        refused(&format!("a: {}{}", "[".repeat(1_000), "]".repeat(1_000)), 1, "");
    }
}
