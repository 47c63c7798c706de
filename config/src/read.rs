//! From a text to [`Config`].
//!
//! ```text
//!  text ─► tree ─► shape ─► v1alpha1::Document ─► complete ─► convert ┐
//!          lines   strict │                                           ├─► resolve ─► Config
//!                         └► v1alpha2::Document ─► complete ──────────┘   rules
//! ```

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{
    config::Config,
    convert::convert,
    document, fields, gates,
    problem::{Findings, Problem, Problems},
    resolve::{Reader, resolve},
    sections::{GROUP, KIND},
    shape,
    tree::{Node, Tree},
    v1alpha1, v1alpha2,
};

/// A version of the documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// What kube-proxy v1.36 reads.
    V1alpha1,
    /// KEP-784's.
    V1alpha2,
}

impl Version {
    /// As in `apiVersion`, without the group.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V1alpha1 => v1alpha1::VERSION,
            Self::V1alpha2 => v1alpha2::VERSION,
        }
    }
}

/// What a text says.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// The configuration.
    pub config: Config,
    /// The version of the text; flags are of v1alpha1.
    pub version: Version,
    /// What is odd about it and can be done without: to be said once.
    pub warnings: Vec<Problem>,
    /// What a v1alpha1 document says and v1alpha2 has no place for: to be said when it is converted.
    pub lost: Vec<Problem>,
}

impl Reader {
    /// Reads a `KubeProxyConfiguration` of either version, in YAML or JSON.
    ///
    /// v1alpha2 is read strictly: a field that is not known or is there twice is an error. v1alpha1 is read leniently, as
    /// kube-proxy does: such fields are warnings, and of two the last one counts.
    ///
    /// # Errors
    /// All that is wrong with it, each with field and line. Nothing is wrong with a warning only.
    pub fn read(self, text: &str) -> Result<Reading, Problems> {
        let (text, next) = document::first(text);
        let tree = Tree::read(text).map_err(|problem| Problems(vec![problem]))?;
        let version = version(&tree).map_err(|problem| Problems(vec![problem]))?;
        let more = next.map(another);
        match version {
            Version::V1alpha1 => self.read_v1alpha1(&tree, more),
            Version::V1alpha2 => self.read_v1alpha2(&tree, more),
        }
    }

    fn read_v1alpha1(self, tree: &Tree, more: Option<Problem>) -> Result<Reading, Problems> {
        let elsewhere = |path: &str| {
            fields::is_in_v1alpha2(path).then(|| "v1alpha2 has it: convert the file with --write-config-to".to_owned())
        };
        let pattern = serde_json::to_value(v1alpha1::Document::default());
        let misfits = shape::compare(tree, &pattern.unwrap_or_default(), &elsewhere);
        let old: v1alpha1::Document = decode(tree, misfits.mistyped)?;
        let section = fields::section_of_mode(&old.mode);
        let min_sync_period = says_min_sync_period(tree.field(section).map(|(_, section)| section), &old);
        let mut old = old.complete();
        let split_streams = leave_out_split_streams(&mut old);
        let (mut new, mut lost) = convert(&old);
        // An empty mode was iptables, whose section also says periods and masqueradeAll. Its bit is as much the operator's.
        let is_default = old.nftables.masquerade_bit == v1alpha1::Nftables::default().masquerade_bit;
        if old.mode.is_empty() && is_default {
            new.nftables.masquerade_bit = old.iptables.masquerade_bit;
        }
        let mut findings = Findings::default();
        let mut config = resolve(&new, self, &mut findings);
        config.explicit.min_sync_period = min_sync_period;
        let mut warnings: Vec<_> = misfits.strict.into_iter().map(lenient).chain(more).collect();
        findings.warnings.extend(split_streams);
        for problem in findings.errors.iter_mut().chain(&mut findings.warnings) {
            problem.field = fields::v1alpha1_path(&problem.field, &old.mode);
        }
        for problem in findings.errors.iter_mut().chain(&mut findings.warnings).chain(&mut lost) {
            problem.line = tree.line_of(&problem.field);
        }
        if !findings.errors.is_empty() {
            return Err(Problems(unique(findings.errors)));
        }
        warnings.extend(unique(findings.warnings));
        Ok(Reading { config, version: Version::V1alpha1, warnings, lost })
    }

    fn read_v1alpha2(self, tree: &Tree, more: Option<Problem>) -> Result<Reading, Problems> {
        let pattern = serde_json::to_value(v1alpha2::Document::default());
        let misfits = shape::compare(tree, &pattern.unwrap_or_default(), &fields::remedy_in_v1alpha2);
        let misfits = [misfits.strict, misfits.mistyped].into_iter().flatten().chain(more).collect();
        let document: v1alpha2::Document = decode(tree, misfits)?;
        let mut findings = Findings::default();
        let mut config = resolve(&document.complete(), self, &mut findings);
        config.explicit.min_sync_period = says(Some(tree), "minSyncPeriod");
        for problem in findings.errors.iter_mut().chain(&mut findings.warnings) {
            problem.line = tree.line_of(&problem.field);
        }
        if !findings.errors.is_empty() {
            return Err(Problems(findings.errors));
        }
        Ok(Reading { config, version: Version::V1alpha2, warnings: findings.warnings, lost: Vec::new() })
    }
}

/// Whether a field is there, and not null.
fn says(section: Option<&Tree>, name: &str) -> bool {
    section.and_then(|section| section.field(name)).is_some_and(|(_, value)| !matches!(value.node, Node::Null))
}

/// Whether a document says how long there is between two syncs. Before it is complete: zero is the same as nothing there.
fn says_min_sync_period(section: Option<&Tree>, old: &v1alpha1::Document) -> bool {
    let said = match fields::section_of_mode(&old.mode) {
        "ipvs" => old.ipvs.min_sync_period,
        "nftables" => old.nftables.min_sync_period,
        _ => old.iptables.min_sync_period,
    };
    says(section, "minSyncPeriod") && !said.is_zero()
}

/// kube-proxy overwrites it with the default of a flag before it looks whether it is allowed: a file that says it starts.
fn leave_out_split_streams(document: &mut v1alpha1::Document) -> Vec<Problem> {
    let mut findings = Findings::default();
    if !gates::is_on(&document.feature_gates, gates::LOGGING_ALPHA_OPTIONS) {
        let options = &mut document.logging.options;
        for (name, routing) in [("text", &mut options.text), ("json", &mut options.json)] {
            if std::mem::take(&mut routing.split_stream) {
                let problem = format!("left out: Feature {} is disabled", gates::LOGGING_ALPHA_OPTIONS);
                let remedy = "turn that feature gate on, or remove it";
                findings.warning(&format!("logging.options.{name}.splitStream"), problem, remedy);
            }
        }
    }
    findings.warnings
}

/// A document that nobody reads.
fn another(line: u64) -> Problem {
    let problem = "another document begins here, and only the first is read".to_owned();
    Problem { line, field: String::new(), problem, remedy: format!("leave only the {KIND}") }
}

/// What version a document is of.
fn version(tree: &Tree) -> Result<Version, Problem> {
    let remedy = format!("write kind: {KIND} and apiVersion: {GROUP}/v1alpha2 or {GROUP}/v1alpha1");
    let whole = |line, field: &str, problem: &str| Problem {
        line,
        field: field.to_owned(),
        problem: problem.to_owned(),
        remedy: remedy.clone(),
    };
    if !matches!(tree.node, Node::Map(_)) {
        return Err(whole(tree.line, "", &format!("is {}, not a {KIND}", tree.spoken())));
    }
    let text = |name: &str| match tree.field(name).map(|(key, value)| (key.line, &value.node)) {
        Some((line, Node::Text(text))) if !text.is_empty() => Ok((line, text.as_str())),
        Some((line, Node::Null | Node::Text(_))) => Err(whole(line, name, "is missing")),
        None => Err(whole(0, name, "is missing")),
        Some((line, _)) => Err(whole(line, name, "is not a text")),
    };
    let ((kind_line, kind), (version_line, version)) = (text("kind")?, text("apiVersion")?);
    if kind != KIND {
        return Err(whole(kind_line, "kind", &format!("no kind {kind:?} is registered for version {version:?}")));
    }
    [Version::V1alpha1, Version::V1alpha2]
        .into_iter()
        .find(|known| version.strip_prefix(GROUP).and_then(|rest| rest.strip_prefix('/')) == Some(known.as_str()))
        .ok_or_else(|| {
            let problem = format!("no kind {kind:?} is registered for version {version:?}");
            whole(version_line, "apiVersion", &problem)
        })
}

fn decode<T: DeserializeOwned>(tree: &Tree, misfits: Vec<Problem>) -> Result<T, Problems> {
    if !misfits.is_empty() {
        return Err(Problems(misfits));
    }
    let value: Value = tree.value();
    serde_path_to_error::deserialize(&value).map_err(|error| {
        let field = error.path().to_string();
        let (problem, remedy) = ranged(&error.inner().to_string());
        Problems(vec![Problem { line: tree.line_of(&field), field, problem, remedy }])
    })
}

/// Values of the right kind can only be out of range, or texts that mean nothing.
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

/// A field that lenient reading leaves out.
fn lenient(mut problem: Problem) -> Problem {
    problem.problem += if problem.problem.starts_with("key ") {
        ": the last one counts, as v1alpha1 is read leniently"
    } else {
        ": left out, as v1alpha1 is read leniently"
    };
    problem
}

/// Two fields of v1alpha2 may come from one of v1alpha1.
fn unique(problems: Vec<Problem>) -> Vec<Problem> {
    let mut unique = Vec::new();
    for problem in problems {
        if !unique.contains(&problem) {
            unique.push(problem);
        }
    }
    unique
}
