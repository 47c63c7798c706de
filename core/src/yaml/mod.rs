//! Splits a YAML text into its documents, parses them into trees that contain the line of each field, and explains the
//! errors of the parser.

mod error;
mod tree;

pub use error::diagnose;
pub use tree::{Key, Node, Tree, Type};

/// A YAML document that has content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Document<'a> {
    /// The text of the document, including the `---` line before the document.
    pub text: &'a str,
    /// The number of lines before the document in the whole text.
    pub lines_before: u64,
    /// The end of the document in the whole text, in bytes.
    end: usize,
}

/// The documents of a text. Documents without content are skipped.
pub fn documents(text: &str) -> impl Iterator<Item = Document<'_>> {
    let mut lines = text.split_inclusive('\n').peekable();
    let (mut position, mut line) = (0, 0);
    let all = std::iter::from_fn(move || {
        let (start, lines_before) = (position, line);
        loop {
            position += lines.next()?.len();
            line += 1;
            // A line that begins with a marker (`---`) always starts a document, because YAML forbids such a line inside a
            // block scalar.
            if lines.peek().is_none_or(|next| is_marker(next)) {
                return Some(Document { text: &text[start..position], lines_before, end: position });
            }
        }
    });
    all.filter(|document| document.text.lines().any(has_content))
}

/// Returns the first document of a text, with everything before this document, so that line numbers stay the same. Also
/// returns the line on which a second document begins, if there is one. kube-proxy reads only the first document.
pub fn first_document(text: &str) -> (&str, Option<u64>) {
    let mut documents = documents(text);
    let end = documents.next().map_or(text.len(), |first| first.end);
    (&text[..end], documents.next().map(|next| next.lines_before + 1))
}

fn is_marker(line: &str) -> bool {
    line.strip_prefix("---").is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\n', '\r']))
}

fn has_content(line: &str) -> bool {
    let line = if is_marker(line) { &line[3..] } else { line };
    let line = line.trim_start_matches('\u{feff}').trim();
    !line.is_empty() && !line.starts_with(['#', '%']) && line != "..."
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_know_their_lines() {
        let cases: [(&str, &[(&str, u64)]); 7] = [
            ("", &[]),
            ("# nothing\n---\n---\n", &[]),
            ("a: 1\n", &[("a: 1\n", 0)]),
            ("a: 1\n---\nb: 2", &[("a: 1\n", 0), ("---\nb: 2", 1)]),
            ("---\na: 1\n---\n\n--- # c\nb: 2\n...\n", &[("---\na: 1\n", 0), ("--- # c\nb: 2\n...\n", 4)]),
            ("a: |\n  ---\n  x\nb: ----\n", &[("a: |\n  ---\n  x\nb: ----\n", 0)]),
            ("a: 1\r\n---\r\nb: 2\r\n", &[("a: 1\r\n", 0), ("---\r\nb: 2\r\n", 1)]),
        ];
        for (text, expected) in cases {
            let found: Vec<_> = documents(text).map(|document| (document.text, document.lines_before)).collect();
            assert_eq!(found, expected, "{text:?}");
        }
    }

    #[test]
    fn the_first_document_keeps_its_lines() {
        for (text, expected) in [
            ("", ("", None)),
            ("a: 1\n", ("a: 1\n", None)),
            ("# x\n---\na: 1\n", ("# x\n---\na: 1\n", None)),
            ("---\na: 1\n---\n# nothing\n...\n", ("---\na: 1\n", None)),
            ("a: 1\n---\nb: 2\n", ("a: 1\n", Some(2))),
            ("a: 1\n---\n# nothing\n---\nb: 2\n", ("a: 1\n", Some(4))),
            ("--- # x\na: 1\n\n--- {b: 2}\n---\nc: 3\n", ("--- # x\na: 1\n\n", Some(4))),
            ("---\r\na: 1\r\n---\r\nb: 2\r\n", ("---\r\na: 1\r\n", Some(3))),
            ("a: |\n  ---\n  x\nb: ----\n", ("a: |\n  ---\n  x\nb: ----\n", None)),
        ] {
            assert_eq!(first_document(text), expected, "{text:?}");
        }
    }
}
