//! What is wrong with a document, and where.

use std::{
    fmt::{self, Write as _},
    path::PathBuf,
    sync::Arc,
};

use crate::cluster::Kind;

/// A document, or part of one, that cannot be used. Its text is one line: where, what, remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file.
    pub file: Arc<PathBuf>,
    /// The line in it, from 1; 0 when it is about the file as a whole.
    pub line: u64,
    /// The object: `Service default/web`; empty when it is not known.
    pub object: String,
    /// The field: `spec.ports[1].port`; empty when it is about the object as a whole.
    pub field: String,
    /// What is wrong.
    pub problem: String,
    /// What can be done; may be empty.
    pub remedy: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        shown(f, &self.file.display().to_string())?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        for part in [&self.object, &self.field].into_iter().filter(|part| !part.is_empty()) {
            f.write_str(": ")?;
            shown(f, part)?;
        }
        f.write_str(": ")?;
        shown(f, &self.problem)?;
        if !self.remedy.is_empty() {
            write!(f, "; {}", self.remedy)?;
        }
        Ok(())
    }
}

/// An object as it is spoken of: `Service default/web`.
pub(super) fn spoken(kind: Kind, namespace: &str, name: &str) -> String {
    let kind = kind.as_str();
    if namespace.is_empty() { format!("{kind} {name}") } else { format!("{kind} {namespace}/{name}") }
}

/// So many characters of a part are shown: a name in a broken file may have any length.
const SHOWN: usize = 500;

/// Shows a text as one line that leaves a terminal alone.
fn shown(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    let mut left = text.chars();
    for character in left.by_ref().take(SHOWN) {
        // Controls, line separators, and what turns the direction of writing.
        let tricky = matches!(character, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if character.is_control() || tricky {
            write!(f, "{}", character.escape_default())?;
        } else {
            f.write_char(character)?;
        }
    }
    if left.next().is_some() { f.write_str("…") } else { Ok(()) }
}
