//! What is wrong with a configuration, and where. The words follow kube-proxy's `field: Invalid value: …`.

use std::{
    fmt::{self, Write as _},
    path::Path,
};

/// Something wrong with one field. Its text is one line: where, what, remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The line of the text, from 1; 0 when it is about no line: the text as a whole, or a flag.
    pub line: u64,
    /// The field as whoever wrote it calls it: `iptables.masqueradeBit`, `nodePortAddresses[1]`, `--cluster-cidr`; empty when it is
    /// about the whole.
    pub field: String,
    /// What is wrong.
    pub problem: String,
    /// What can be done; may be empty.
    pub remedy: String,
}

impl Problem {
    /// The problem with the name of its file before it: `config.yaml:7: mode: …`.
    pub fn in_file<'a>(&'a self, file: &'a Path) -> impl fmt::Display + 'a {
        InFile(self, file)
    }

    fn tail(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.field.is_empty() {
            shown(f, &self.field)?;
            f.write_str(": ")?;
        }
        shown(f, &self.problem)?;
        if !self.remedy.is_empty() {
            f.write_str("; ")?;
            shown(f, &self.remedy)?;
        }
        Ok(())
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line > 0 {
            write!(f, "line {}: ", self.line)?;
        }
        self.tail(f)
    }
}

struct InFile<'a>(&'a Problem, &'a Path);

impl fmt::Display for InFile<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        shown(f, &self.1.display().to_string())?;
        match self.0.line {
            0 => f.write_str(": ")?,
            line => write!(f, ":{line}: ")?,
        }
        self.0.tail(f)
    }
}

/// All that is wrong with a configuration; there is at least one problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, problem) in self.0.iter().enumerate() {
            if position > 0 {
                f.write_str("\n")?;
            }
            problem.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

/// So many characters of a part are shown: a text in a broken file may have any length.
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

/// What was found while a configuration was read.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// What it cannot be used with.
    pub(crate) errors: Vec<Problem>,
    /// What is said, and done without.
    pub(crate) warnings: Vec<Problem>,
}

impl Findings {
    /// `field: Invalid value: value: why; remedy`.
    pub(crate) fn invalid(&mut self, field: &str, value: impl fmt::Display, why: &str, remedy: &str) {
        self.error(field, format!("Invalid value: {value}: {why}"), remedy);
    }

    /// An error in words of its own.
    pub(crate) fn error(&mut self, field: &str, problem: String, remedy: &str) {
        push(&mut self.errors, field, problem, remedy);
    }

    /// What does no harm.
    pub(crate) fn warning(&mut self, field: &str, problem: String, remedy: &str) {
        push(&mut self.warnings, field, problem, remedy);
    }
}

fn push(list: &mut Vec<Problem>, field: &str, problem: String, remedy: &str) {
    let problem = Problem { line: 0, field: field.to_owned(), problem, remedy: remedy.to_owned() };
    // Two fields of the model may come from one of the file.
    if !list.contains(&problem) {
        list.push(problem);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_one_line_with_its_place() {
        let mut problem = Problem {
            line: 7,
            field: "mode".to_owned(),
            problem: "Invalid value: \"x\"".to_owned(),
            remedy: "use nftables".to_owned(),
        };
        assert_eq!(problem.to_string(), "line 7: mode: Invalid value: \"x\"; use nftables");
        let file = Path::new("/etc/a.yaml");
        assert_eq!(problem.in_file(file).to_string(), "/etc/a.yaml:7: mode: Invalid value: \"x\"; use nftables");
        (problem.line, problem.field, problem.remedy) = (0, String::new(), String::new());
        problem.problem = "a\u{1b}\nb".to_owned();
        assert_eq!(problem.to_string(), "a\\u{1b}\\nb");
        assert_eq!(problem.in_file(file).to_string(), "/etc/a.yaml: a\\u{1b}\\nb");
        problem.problem = "x".repeat(1_000_000);
        assert!(problem.to_string().len() < 2_000);
    }
}
