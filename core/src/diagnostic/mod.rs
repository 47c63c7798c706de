//! [`Diagnostic`]: a problem with its code, subject, field and remedy.
//!
//! Programs recognize a diagnostic by its [`Code`]. Codes are part of the wire protocol and never change. The texts are for
//! people and may change at any time, so programs must not depend on them.

mod code;
mod subject;

use std::{
    fmt::{self, Write as _},
    path::Path,
};

use serde::Serialize;

pub use code::Code;
pub use subject::{Object, Subject};

crate::names! {
    /// The severity of a diagnostic.
    #[derive(Serialize)]
    #[serde(rename_all = "lowercase")]
    Severity {
        /// The value or object is not used: the program does not start with an invalid configuration, and skips an invalid
        /// object.
        Error = "error",
        /// The program uses the value or object, but an operator should check whether it is intended.
        Warning = "warning",
    }
}

/// A problem. It is printed as one line without control characters: `subject: field: problem; remedy`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Diagnostic {
    /// What the diagnostic concerns.
    pub subject: Subject,
    /// The path of the field at fault, such as `spec.ports[1].port`. Empty if the diagnostic concerns the whole subject.
    pub field: String,
    /// The kind of problem, for programs.
    pub code: Code,
    /// The severity of the problem.
    pub severity: Severity,
    /// The problem, for people.
    pub problem: String,
    /// The remedy, for people; may be empty.
    pub remedy: String,
}

impl Diagnostic {
    /// A diagnostic without field and remedy, with the usual severity of its code.
    pub fn new(code: Code, subject: impl Into<Subject>, problem: impl Into<String>) -> Self {
        Self {
            subject: subject.into(),
            field: String::new(),
            code,
            severity: code.severity(),
            problem: problem.into(),
            remedy: String::new(),
        }
    }

    /// Sets the field.
    #[must_use]
    pub fn field(self, field: impl Into<String>) -> Self {
        Self { field: field.into(), ..self }
    }

    /// Sets the remedy.
    #[must_use]
    pub fn remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: remedy.into(), ..self }
    }

    /// Sets the severity.
    #[must_use]
    pub fn severity(self, severity: Severity) -> Self {
        Self { severity, ..self }
    }

    /// Sets the file of the text to `name`, if the subject is a place in a text.
    #[must_use]
    pub fn in_file(self, name: &Path) -> Self {
        Self { subject: self.subject.in_file(name), ..self }
    }

    /// The problem and the remedy without the subject: `field: problem; remedy`.
    pub fn reason(&self) -> impl fmt::Display + '_ {
        Reason(self)
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.subject.is_unnamed() {
            write!(f, "{}: ", self.subject)?;
        }
        self.reason().fmt(f)
    }
}

struct Reason<'a>(&'a Diagnostic);

impl fmt::Display for Reason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Diagnostic { field, problem, remedy, .. } = self.0;
        if !field.is_empty() {
            write!(f, "{}: ", shown(field))?;
        }
        shown(problem).fmt(f)?;
        if remedy.is_empty() { Ok(()) } else { write!(f, "; {}", shown(remedy)) }
    }
}

/// The maximum number of characters that [`shown`] prints. A text in a broken file may have any length.
const SHOWN: usize = 500;

/// Formats any text as one line that is safe to print to a terminal.
pub fn shown(text: &str) -> impl fmt::Display + '_ {
    Shown(text)
}

struct Shown<'a>(&'a str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut left = self.0.chars();
        for character in left.by_ref().take(SHOWN) {
            // Control characters, line separators, and characters that change the direction of writing.
            let tricky =
                matches!(character, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
            if character.is_control() || tricky {
                write!(f, "{}", character.escape_default())?;
            } else {
                f.write_char(character)?;
            }
        }
        if left.next().is_some() { f.write_str("…") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ServiceKey;

    #[test]
    fn a_diagnostic_is_one_line_that_names_its_subject() {
        let about = |subject: Subject| Diagnostic::new(Code::PortInvalid, subject, "0 is not a port");
        let full = |subject| about(subject).field("spec.port").remedy("use a number from 1 to 65535").to_string();
        let rest = "spec.port: 0 is not a port; use a number from 1 to 65535";
        let web = Subject::service(&ServiceKey::new("shop", "web"));
        assert_eq!(full(web.clone()), format!("Service shop/web: {rest}"));
        assert_eq!(full(Subject::node("node-a")), format!("Node node-a: {rest}"));
        assert_eq!(full(Subject::text(0)), rest);
        assert_eq!(full(Subject::text(7)), format!("line 7: {rest}"));
        assert_eq!(full(Subject::text(7).in_file(Path::new("/a.yaml"))), format!("/a.yaml:7: {rest}"));
        let object = Subject::in_file_of(Path::new("/a.yaml").into(), 0, Some(Object::service("shop", "web")));
        assert_eq!(full(object), format!("/a.yaml: Service shop/web: {rest}"));
        assert_eq!(about(Subject::Flag("port")).to_string(), "--port: 0 is not a port");
        assert_eq!(about(web.clone()).reason().to_string(), "0 is not a port");
        assert_eq!(web.service_key(), Some(ServiceKey::new("shop", "web")));
    }

    #[test]
    fn no_text_reaches_a_terminal_as_more_than_text() {
        let mut diagnostic = Diagnostic::new(Code::PortInvalid, Subject::text(1), "a\u{1b}\nb").remedy("c\u{202e}");
        assert_eq!(diagnostic.to_string(), "line 1: a\\u{1b}\\nb; c\\u{202e}");
        diagnostic.subject = Subject::text(1).in_file(Path::new("/a\n.yaml"));
        assert_eq!(diagnostic.to_string(), "/a\\n.yaml:1: a\\u{1b}\\nb; c\\u{202e}");
        diagnostic.problem = "x".repeat(1_000_000);
        assert!(diagnostic.to_string().len() < 2_000);
    }
}
