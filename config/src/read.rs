//! Reads a text into a [`Config`].
//!
//! ```text
//!  text ─► Tree ─► shape ─► Document of v1alpha1 ─► complete ─► convert ┐
//!          lines   strict │                                             ├─► Check ─► Config
//!                         └► Document of v1alpha2 ─► complete ──────────┘   rules
//! ```

use localnet_core::{
    Code, Diagnostic, Severity, Subject,
    yaml::{self, Node, Tree},
};
use serde_json::json;
use serde_saphyr::options::DuplicateKeyPolicy;

use crate::{
    check::{Check, Reader},
    convert::convert,
    document::{Document, GROUP, KIND, Version},
    field::section_of_mode,
    gates::{FeatureGates, LOGGING_ALPHA_OPTIONS},
    paths,
    problem::{Findings, Invalid},
    shape,
    table::Config,
};

/// The maximum size of a text in bytes. Typical texts have a few thousand.
const LARGEST: usize = 1 << 20;
/// The maximum nesting depth. A configuration has five levels.
const DEEPEST: usize = 32;

/// A configuration that was read, with its version and problems.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// The configuration.
    pub config: Config,
    /// The version of the text; v1alpha1 if only flags were read.
    pub version: Version,
    /// Problems that do not invalidate the configuration. Report them once.
    pub warnings: Vec<Diagnostic>,
    /// Values of a v1alpha1 document that v1alpha2 cannot express. Report them when the document is converted.
    pub lost: Vec<Diagnostic>,
}

impl Reader {
    /// Reads a `KubeProxyConfiguration` of either version, in YAML or JSON.
    ///
    /// v1alpha2 is read strictly: an unknown or duplicate field is an error. v1alpha1 is read leniently, as in
    /// kube-proxy: an unknown or duplicate field is a warning, and the last of two duplicates applies.
    ///
    /// # Errors
    /// Returns every problem of the text, each with field and line. If there are only warnings, returns no error.
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
            paths::is_in_v1alpha2(path).then(|| "v1alpha2 has it: convert the file with --write-config-to".to_owned())
        };
        let misfits = shape::compare(tree, &Document::new(Version::V1alpha1).to_json(), &elsewhere);
        let old = decode(Version::V1alpha1, tree, misfits.mistyped)?;
        let mode = old.text("mode").to_owned();
        let min_sync_period = format!("{}.minSyncPeriod", section_of_mode(&mode));
        // This must be read before the document is completed, because completing it replaces zero with the default.
        let is_explicit = is_set(tree, &min_sync_period) && !old.duration(&min_sync_period).is_zero();
        let (mut old, mut findings) = (old.complete(), Findings::default());
        leave_out_split_streams(&mut old, &mut findings);
        let (mut new, mut lost) = convert(&old);
        // In v1alpha1, an empty mode means iptables, so `convert` took the sync periods and `masqueradeAll` from the section
        // `iptables`. Also take the masquerade bit from that section.
        let bit = "nftables.masqueradeBit";
        if mode.is_empty() && new.get(bit) == Document::new(Version::V1alpha2).get(bit) {
            new.set(bit, old.get("iptables.masqueradeBit").clone());
        }
        // The default of mode ipvs is 0s, which has to be written to v1alpha2, because its default is 1s.
        let is_explicit = is_explicit || new.duration("minSyncPeriod").is_zero();
        let config = resolve(&new, self, is_explicit, &mut findings);
        for found in findings.iter_mut() {
            found.field = paths::v1alpha1_path(&found.field, &mode);
        }
        for found in findings.iter_mut().chain(&mut lost) {
            found.subject = tree.place_of(&found.field);
        }
        let mut warnings: Vec<_> = misfits.strict.into_iter().map(lenient).chain(more).collect();
        warnings.extend(findings.finish()?);
        Ok(Reading { config, version: Version::V1alpha1, warnings, lost })
    }

    fn read_v1alpha2(self, tree: &Tree, more: Option<Diagnostic>) -> Result<Reading, Invalid> {
        let pattern = Document::new(Version::V1alpha2).to_json();
        let misfits = shape::compare(tree, &pattern, &paths::remedy_in_v1alpha2);
        let misfits = [misfits.strict, misfits.mistyped].into_iter().flatten().chain(more).collect();
        let document = decode(Version::V1alpha2, tree, misfits)?.complete();
        let mut findings = Findings::default();
        let config = resolve(&document, self, is_set(tree, "minSyncPeriod"), &mut findings);
        findings.iter_mut().for_each(|found| found.subject = tree.place_of(&found.field));
        Ok(Reading { config, version: Version::V1alpha2, warnings: findings.finish()?, lost: Vec::new() })
    }
}

/// Checks a complete document of v1alpha2. The result is valid only if the findings contain no errors. `min_sync_period`
/// tells whether `minSyncPeriod` is set explicitly, because a complete document does not show this.
pub(crate) fn resolve(document: &Document, reader: Reader, min_sync_period: bool, findings: &mut Findings) -> Config {
    let mut config = Config::read(&mut Check { document, reader, findings });
    config.explicit.min_sync_period = min_sync_period;
    config
}

/// Reads the fields of a text. Returns an error if `misfits` is not empty, or if a value is invalid.
fn decode(version: Version, tree: &Tree, misfits: Vec<Diagnostic>) -> Result<Document, Invalid> {
    if !misfits.is_empty() {
        return Err(Invalid(misfits));
    }
    Document::from_json(version, &tree.value()).map_err(|Invalid(mut problems)| {
        problems.iter_mut().for_each(|found| found.subject = tree.place_of(&found.field));
        Invalid(problems)
    })
}

/// Parses a text that contains one document.
fn tree(text: &str) -> Result<Tree, Diagnostic> {
    if text.len() > LARGEST {
        let unsuitable = Diagnostic::new(Code::FileUnsuitable, Subject::text(0), "is larger than 1 MiB");
        return Err(unsuitable.remedy("check that it is a KubeProxyConfiguration"));
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
fn is_set(tree: &Tree, path: &str) -> bool {
    let value = path.split('.').try_fold(tree, |tree, step| tree.field(step).map(|(_, value)| value));
    value.is_some_and(|value| !matches!(value.node, Node::Null))
}

/// If the gate of `splitStream` is disabled, removes the field. kube-proxy accepts such a file, because it replaces the
/// value with a flag's default before it checks the gate.
fn leave_out_split_streams(document: &mut Document, findings: &mut Findings) {
    let gate = LOGGING_ALPHA_OPTIONS;
    if FeatureGates::of(document.get("featureGates")).enabled(gate) {
        return;
    }
    for path in ["logging.options.text.splitStream", "logging.options.json.splitStream"] {
        if document.get(path) == true {
            document.set(path, json!(false));
            let problem = format!("skipped: Feature {gate} is disabled");
            findings.unused(Code::GateDisabled, path, problem, "turn on that feature gate, or remove the field");
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
        Some((line, _)) => Err(wrong(Code::FieldMistyped, line, name, "is not a string")),
    };
    let ((kind_line, kind), (version_line, version)) = (text("kind")?, text("apiVersion")?);
    let unknown = format!("no kind {kind:?} is registered for version {version:?}");
    if kind != KIND {
        return Err(wrong(Code::KindUnknown, kind_line, "kind", &unknown));
    }
    let supported = version.strip_prefix(GROUP).and_then(|rest| rest.strip_prefix('/')).and_then(Version::named);
    supported.ok_or_else(|| wrong(Code::KindUnknown, version_line, "apiVersion", &unknown))
}

/// Converts the error about a field into the warning that a lenient reader gives.
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
