//! Expected files: compares with them, or rewrites them if `UPDATE_EXPECT=1`.

use std::io;
use std::path::Path;

use similar::TextDiff;

/// Lines shown before and after a difference.
const CONTEXT: usize = 3;

/// Compares `actual` with the content of the file. If `UPDATE_EXPECT=1` is in the environment, writes `actual` to the file instead.
///
/// # Panics
/// Panics if the two differ, or if the file does not exist. The message shows the lines that differ and how to accept them.
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
        let written = path.parent().map_or(Ok(()), std::fs::create_dir_all).and_then(|()| std::fs::write(path, actual));
        return written.map_err(|error| format!("failed to write {shown}: {error}"));
    }
    let what = match expected {
        Some(expected) => format!("{shown} (-) differs from the result (+):\n{}", diff(&expected, actual)),
        None => format!("{shown} does not exist; the result is:\n{actual}"),
    };
    Err(format!(
        "{what}\nif the result is right, accept it: run the same test with UPDATE_EXPECT=1 and review the change"
    ))
}

/// Lines that differ, with a few around them.
fn diff(expected: &str, actual: &str) -> String {
    TextDiff::from_lines(expected, actual).unified_diff().context_radius(CONTEXT).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_shown_with_its_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.yaml");
        let missing = compare(&path, "a\n", false).unwrap_err();
        assert!(missing.contains("does not exist") && missing.contains("UPDATE_EXPECT=1"), "{missing}");
        assert!(!path.exists());
        compare(&path, "a\nb\nc\n", true).unwrap();
        compare(&path, "a\nb\nc\n", false).unwrap();
        let changed = compare(&path, "a\nB\nc\n", false).unwrap_err();
        assert!(changed.contains(" a\n-b\n+B\n c\n"), "{changed}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "a\nb\nc\n");
        compare(&path, "a\nB\nc\n", true).unwrap();
        compare(&path, "a\nB\nc\n", false).unwrap();
    }

    #[test]
    fn a_missing_end_of_the_last_line_is_a_difference() {
        assert!(!diff("a\n", "a").is_empty());
    }
}
