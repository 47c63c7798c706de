//! What is wrong with a document, and where.

use std::{fmt, path::PathBuf, sync::Arc};

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
        write!(f, "{}", self.file.display())?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        for part in [&self.object, &self.field].into_iter().filter(|part| !part.is_empty()) {
            write!(f, ": {part}")?;
        }
        write!(f, ": {}", self.problem)?;
        if !self.remedy.is_empty() {
            write!(f, "; {}", self.remedy)?;
        }
        Ok(())
    }
}
