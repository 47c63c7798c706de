//! Comments in a form that nft can print and load again.

use std::borrow::Cow;

use super::Name;

/// The maximum length of a comment that nft can read, in bytes.
const COMMENT_MAX: usize = 128;

/// The comment in a form that nft can print and read: without quotes and control characters, at most 128 bytes.
pub(super) fn printable(comment: &str) -> Cow<'_, str> {
    let odd = |c: char| c == '"' || c.is_control();
    if comment.len() <= COMMENT_MAX && !comment.contains(odd) {
        return Cow::Borrowed(comment);
    }
    let mut clean: String = comment.chars().map(|c| if odd(c) { '\'' } else { c }).collect();
    let mut end = clean.len().min(COMMENT_MAX);
    while !clean.is_char_boundary(end) {
        end -= 1;
    }
    clean.truncate(end);
    Cow::Owned(clean)
}

/// As [`printable`], for an owned name.
pub(super) fn printable_name(comment: Name) -> Name {
    match printable(&comment) {
        Cow::Borrowed(_) => comment,
        Cow::Owned(clean) => clean.into(),
    }
}

/// `comment "x"`
pub(super) fn comment_text(comment: &str) -> String {
    format!("comment \"{}\"", printable(comment))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_that_nft_would_refuse_are_cleaned_and_truncated() {
        assert_eq!(printable("default/web:http"), "default/web:http");
        assert_eq!(printable("say \"hi\"\n"), "say 'hi''");
        assert_eq!(printable(&"x".repeat(200)), "x".repeat(128));
        assert_eq!(printable(&"é".repeat(65)), "é".repeat(64));
        assert_eq!(printable(&format!("x{}", "é".repeat(65))), format!("x{}", "é".repeat(63)));
    }
}
