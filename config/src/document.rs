//! The first document of a text. Go's reader, and so kube-proxy, looks at no other.

/// The first YAML document that says something, and the line on which another one begins that does.
///
/// The text before it is kept: lines keep their numbers.
pub(crate) fn first(text: &str) -> (&str, Option<u64>) {
    let (mut end, mut next) = (text.len(), None);
    let (mut position, mut said) = (0, false);
    for (number, line) in (1..).zip(text.split_inclusive('\n')) {
        // A marker at the beginning of a line is one even inside a block of text: YAML forbids it there.
        if is_marker(line) && said && next.is_none() {
            (end, next) = (position, Some(number));
            said = false;
        }
        said |= says_something(line);
        position += line.len();
    }
    (&text[..end], next.filter(|_| said))
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

    #[test]
    fn only_the_first_document_counts() {
        for (text, expected) in [
            ("", ("", None)),
            ("a: 1\n", ("a: 1\n", None)),
            ("# x\n---\na: 1\n", ("# x\n---\na: 1\n", None)),
            ("---\na: 1\n---\n# nothing\n...\n", ("---\na: 1\n", None)),
            ("a: 1\n---\nb: 2\n", ("a: 1\n", Some(2))),
            ("--- # x\na: 1\n\n--- {b: 2}\n---\nc: 3\n", ("--- # x\na: 1\n\n", Some(4))),
            ("---\r\na: 1\r\n---\r\nb: 2\r\n", ("---\r\na: 1\r\n", Some(3))),
            ("a: |\n  ---\n  x\nb: ----\n", ("a: |\n  ---\n  x\nb: ----\n", None)),
        ] {
            assert_eq!(first(text), expected, "{text:?}");
        }
    }
}
