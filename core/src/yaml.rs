//! Splits a YAML text into its documents, and shortens the messages of a YAML parser.

/// A YAML document that has content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Document<'a> {
    /// The text of the document, with the `---` before it.
    pub text: &'a str,
    /// The number of lines of the whole text before the document.
    pub lines_before: u64,
    /// The end of the document in the whole text, in bytes.
    end: usize,
}

/// The documents of a text that have content.
pub fn documents(text: &str) -> impl Iterator<Item = Document<'_>> {
    let mut lines = text.split_inclusive('\n').peekable();
    let (mut position, mut line) = (0, 0);
    let all = std::iter::from_fn(move || {
        let (start, lines_before) = (position, line);
        loop {
            position += lines.next()?.len();
            line += 1;
            // A line that begins with a marker starts a document even inside a block scalar, where YAML forbids such lines.
            if lines.peek().is_none_or(|next| is_marker(next)) {
                return Some(Document { text: &text[start..position], lines_before, end: position });
            }
        }
    });
    all.filter(|document| document.text.lines().any(has_content))
}

/// The first document of a text, with everything before it, so that line numbers stay the same. Also the line where a second
/// document begins, if there is one. Go's reader, and so kube-proxy, reads only the first document.
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

/// A parser's message without its position, for a diagnostic that names the line itself.
pub fn without_place(message: &str) -> &str {
    let message = message.lines().next().unwrap_or_default();
    let message = message.strip_prefix("error: ").unwrap_or(message);
    let message = match message.strip_prefix("line ").and_then(|rest| rest.split_once(": ")) {
        Some((place, rest)) if place.chars().all(|c| c.is_ascii_digit() || " column".contains(c)) => rest,
        _ => message,
    };
    let end = message.rfind(" at line ").filter(|end| !message[*end..].contains(':'));
    end.map_or(message, |end| &message[..end])
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

    #[test]
    fn a_parsers_message_keeps_its_text() {
        for (message, expected) in [
            ("error: line 3 column 7: unclosed bracket\n  |\n", "unclosed bracket"),
            ("unknown anchor at line 3, column 2", "unknown anchor"),
            ("line of text: no place", "line of text: no place"),
            ("", ""),
        ] {
            assert_eq!(without_place(message), expected);
        }
    }
}
