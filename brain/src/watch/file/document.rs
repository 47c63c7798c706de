//! Splits a file into YAML documents, each with the line it begins on.

/// A YAML document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Document<'a> {
    /// Its text, with the `---` before it.
    pub(super) text: &'a str,
    /// How many lines of the file come before it.
    pub(super) lines_before: u64,
}

/// The documents of a file; those that say nothing are left out.
pub(super) fn split(text: &str) -> Vec<Document<'_>> {
    let mut documents = Vec::new();
    let (mut start, mut lines_before, mut position, mut lines) = (0, 0, 0, 0);
    for line in text.split_inclusive('\n') {
        // A marker at the beginning of a line is one even inside a block of text: YAML forbids it there.
        if is_marker(line) && position > start {
            documents.push(Document { text: &text[start..position], lines_before });
            (start, lines_before) = (position, lines);
        }
        position += line.len();
        lines += 1;
    }
    documents.push(Document { text: &text[start..], lines_before });
    documents.retain(|document| document.text.lines().any(says_something));
    documents
}

fn is_marker(line: &str) -> bool {
    line.strip_prefix("---").is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\n', '\r']))
}

fn says_something(line: &str) -> bool {
    let line = if is_marker(line) { &line[3..] } else { line };
    let line = line.trim_start_matches('\u{feff}').trim();
    !line.is_empty() && !line.starts_with(['#', '%']) && line != "..."
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &[(&str, u64)]) {
        let documents: Vec<_> = split(text).iter().map(|document| (document.text, document.lines_before)).collect();
        assert_eq!(documents, expected);
    }

    #[test]
    fn documents_know_their_lines() {
        check("", &[]);
        check("# nothing\n---\n---\n", &[]);
        check("a: 1\n", &[("a: 1\n", 0)]);
        check("a: 1\n---\nb: 2", &[("a: 1\n", 0), ("---\nb: 2", 1)]);
        check("---\na: 1\n---\n\n--- # c\nb: 2\n...\n", &[("---\na: 1\n", 0), ("--- # c\nb: 2\n...\n", 4)]);
        check("a: |\n  ---\n  x\nb: ----\n", &[("a: |\n  ---\n  x\nb: ----\n", 0)]);
        check("a: 1\r\n---\r\nb: 2\r\n", &[("a: 1\r\n", 0), ("---\r\nb: 2\r\n", 1)]);
    }
}
