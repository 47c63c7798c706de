//! Expected files: compare, or with `UPDATE_EXPECT=1` rewrite.

use std::io;
use std::path::Path;

const CONTEXT: usize = 3;

/// Compares `actual` with the contents of the file; with `UPDATE_EXPECT=1` in the environment writes it there instead.
///
/// # Panics
/// If they differ, or the file does not exist: the message shows the lines that differ and how to accept them.
#[track_caller]
pub fn expect_file(path: &Path, actual: &str) {
    let update = std::env::var_os("UPDATE_EXPECT").is_some_and(|value| value == "1");
    if let Err(message) = compare(path, actual, update) {
        panic!("{message}");
    }
}

fn compare(path: &Path, actual: &str, update: bool) -> Result<(), String> {
    let shown = path.display();
    let expected = match std::fs::read_to_string(path) {
        Ok(expected) => Some(expected),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(format!("failed to read {shown}: {error}")),
    };
    if expected.as_deref() == Some(actual) {
        return Ok(());
    }
    if update {
        return std::fs::write(path, actual).map_err(|error| format!("failed to write {shown}: {error}"));
    }
    let what = match expected {
        Some(expected) => format!("{shown} (-) is not what came out (+):\n{}", diff(&expected, actual)),
        None => format!("{shown} does not exist; this came out:\n{actual}"),
    };
    Err(format!(
        "{what}\nif that is right, accept it by running the same test with UPDATE_EXPECT=1 and read the change"
    ))
}

#[derive(Clone, Copy, PartialEq)]
enum Line<'a> {
    Same(&'a str),
    Gone(&'a str),
    New(&'a str),
}

/// Lines that differ, with a few around them.
fn diff(expected: &str, actual: &str) -> String {
    let lines = edits(&expected.split('\n').collect::<Vec<_>>(), &actual.split('\n').collect::<Vec<_>>());
    let near = |at: usize| {
        let around = &lines[at.saturating_sub(CONTEXT)..(at + CONTEXT + 1).min(lines.len())];
        around.iter().any(|line| !matches!(line, Line::Same(_)))
    };
    let mut shown = String::new();
    let mut skipping = false;
    for (at, line) in lines.iter().enumerate() {
        if !near(at) {
            if !skipping {
                shown.push_str("  ⋮\n");
            }
            skipping = true;
            continue;
        }
        skipping = false;
        let (sign, text) = match line {
            Line::Same(text) => (' ', text),
            Line::Gone(text) => ('-', text),
            Line::New(text) => ('+', text),
        };
        shown.push_str(&format!("{sign} {text}\n"));
    }
    shown
}

/// The shortest way from `old` to `new`, by the longest common subsequence of what remains between equal ends.
fn edits<'a>(old: &[&'a str], new: &[&'a str]) -> Vec<Line<'a>> {
    let start = old.iter().zip(new).take_while(|(old, new)| old == new).count();
    let (old_rest, new_rest) = (&old[start..], &new[start..]);
    let end = old_rest.iter().rev().zip(new_rest.iter().rev()).take_while(|(old, new)| old == new).count();
    let (old_middle, tail) = old_rest.split_at(old_rest.len() - end);
    let new_middle = &new_rest[..new_rest.len() - end];

    let width = new_middle.len() + 1;
    let mut common = vec![0u32; (old_middle.len() + 1) * width];
    for i in (0..old_middle.len()).rev() {
        for j in (0..new_middle.len()).rev() {
            common[i * width + j] = if old_middle[i] == new_middle[j] {
                common[(i + 1) * width + j + 1] + 1
            } else {
                common[(i + 1) * width + j].max(common[i * width + j + 1])
            };
        }
    }
    let mut lines: Vec<_> = old[..start].iter().map(|text| Line::Same(text)).collect();
    let (mut i, mut j) = (0, 0);
    while i < old_middle.len() || j < new_middle.len() {
        let (old_left, new_left) = (i < old_middle.len(), j < new_middle.len());
        if old_left && new_left && old_middle[i] == new_middle[j] {
            lines.push(Line::Same(old_middle[i]));
            (i, j) = (i + 1, j + 1);
        } else if old_left && (!new_left || common[(i + 1) * width + j] >= common[i * width + j + 1]) {
            lines.push(Line::Gone(old_middle[i]));
            i += 1;
        } else {
            lines.push(Line::New(new_middle[j]));
            j += 1;
        }
    }
    lines.extend(tail.iter().map(|text| Line::Same(text)));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_text_passes_and_other_text_shows_the_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.yaml");
        let missing = compare(&path, "a\n", false).unwrap_err();
        assert!(missing.contains("does not exist") && missing.contains("UPDATE_EXPECT=1"), "{missing}");
        assert!(!path.exists());
        compare(&path, "a\nb\nc\n", true).unwrap();
        compare(&path, "a\nb\nc\n", false).unwrap();
        let changed = compare(&path, "a\nB\nc\n", false).unwrap_err();
        assert!(changed.contains("  a\n- b\n+ B\n  c\n"), "{changed}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "a\nb\nc\n");
        compare(&path, "a\nB\nc\n", true).unwrap();
        compare(&path, "a\nB\nc\n", false).unwrap();
    }

    #[test]
    fn only_what_is_near_a_difference_is_shown() {
        let old: String = (0..40).map(|n| format!("{n}\n")).collect();
        let new = old.replace("20\n", "").replace("39\n", "39\nend\n");
        let expected = "  ⋮\n  17\n  18\n  19\n- 20\n  21\n  22\n  23\n  ⋮\n  37\n  38\n  39\n+ end\n  \n";
        assert_eq!(diff(&old, &new), expected);
    }

    #[test]
    fn a_missing_last_line_end_is_a_difference() {
        assert_eq!(diff("a\n", "a"), "  a\n- \n");
    }

    #[test]
    fn edits_lead_from_old_to_new() {
        for (old, new) in [("", "a b"), ("a b", ""), ("a b c d", "b x d y"), ("a a b", "a b a"), ("a", "a")] {
            let split = |text: &'static str| text.split_whitespace().collect::<Vec<_>>();
            let lines = edits(&split(old), &split(new));
            let side = |dropped: fn(&Line<'_>) -> bool| {
                let text = |line: &Line<'static>| match *line {
                    Line::Same(text) | Line::Gone(text) | Line::New(text) => text,
                };
                lines.iter().filter(|line| !dropped(line)).map(text).collect::<Vec<_>>()
            };
            assert_eq!(side(|line| matches!(line, Line::New(_))), split(old));
            assert_eq!(side(|line| matches!(line, Line::Gone(_))), split(new));
        }
    }
}
