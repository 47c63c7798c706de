//! The errors and warnings of a configuration. Their texts have kube-proxy's form `field: Invalid value: …`.

use std::{error::Error, fmt};

use localnet_core::{Code, Diagnostic, Severity, Subject};

/// The error for an invalid configuration: all of its problems, at least one. The text has one line for each problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid(pub Vec<Diagnostic>);

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, diagnostic) in self.0.iter().enumerate() {
            write!(f, "{}{diagnostic}", if position == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl Error for Invalid {}

impl From<Diagnostic> for Invalid {
    fn from(diagnostic: Diagnostic) -> Self {
        Self(vec![diagnostic])
    }
}

/// The diagnostics that are found while a configuration is read.
#[derive(Debug, Default)]
pub(crate) struct Findings(Vec<Diagnostic>);

impl Findings {
    /// Adds an error: `field: Invalid value: value: why; remedy`.
    pub(crate) fn invalid(&mut self, field: &str, value: impl fmt::Display, why: &str, remedy: &str) {
        self.add(Code::ValueInvalid, field, format!("Invalid value: {value}: {why}"), remedy);
    }

    /// Adds a diagnostic with the usual severity of `code`.
    pub(crate) fn add(&mut self, code: Code, field: &str, problem: impl Into<String>, remedy: &str) {
        self.0.push(Diagnostic::new(code, Subject::text(0), problem).field(field).remedy(remedy));
    }

    /// Adds a warning that the value of a field is not used.
    pub(crate) fn unused(&mut self, code: Code, field: &str, problem: String, remedy: &str) {
        let diagnostic = Diagnostic::new(code, Subject::text(0), problem).field(field).remedy(remedy);
        self.0.push(diagnostic.severity(Severity::Warning));
    }

    /// Mutable references to all diagnostics, whose fields and lines the caller sets.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Diagnostic> {
        self.0.iter_mut()
    }

    /// Returns the diagnostics without duplicates. There may be duplicates because two fields of the model can come from
    /// one field of the file.
    pub(crate) fn into_unique(self) -> Vec<Diagnostic> {
        let mut unique = Vec::new();
        for diagnostic in self.0 {
            if !unique.contains(&diagnostic) {
                unique.push(diagnostic);
            }
        }
        unique
    }

    /// Returns the warnings without duplicates, or the errors if there are any.
    pub(crate) fn finish(self) -> Result<Vec<Diagnostic>, Invalid> {
        let is_error = |diagnostic: &Diagnostic| diagnostic.severity == Severity::Error;
        let (errors, warnings): (Vec<_>, Vec<_>) = self.into_unique().into_iter().partition(is_error);
        if errors.is_empty() { Ok(warnings) } else { Err(Invalid(errors)) }
    }
}
