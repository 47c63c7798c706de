//! The table of values in the chart's README is generated from `values.yaml`, in which a comment precedes each key.

use anyhow::Context as _;

use crate::{chart, expect, read};

const TITLE: &str = "## Values\n";

/// The table, with a row for each key of `values.yaml` that has a value on the same line.
fn table(values: &str) -> anyhow::Result<String> {
    let (mut path, mut comment, mut rows) = (Vec::<String>::new(), Vec::new(), Vec::new());
    for line in values.lines() {
        let text = line.trim_start();
        if text.is_empty() {
            comment.clear();
        } else if let Some(output) = text.strip_prefix("# ") {
            comment.push(output);
        } else {
            let (key, value) = text.split_once(':').with_context(|| format!("{line:?} is not a key"))?;
            path.truncate((line.len() - text.len()) / 2);
            path.push(key.to_owned());
            let (name, value) = (path.join("."), value.trim());
            if !value.is_empty() {
                anyhow::ensure!(!comment.is_empty(), "no comment describes {name}");
                rows.push(format!("| `{name}` | `{value}` | {} |\n", comment.join(" ")));
            }
            comment.clear();
        }
    }
    Ok(format!("| value | default | description |\n|---|---|---|\n{}", rows.concat()))
}

#[test]
fn readme_has_the_table_of_values() -> anyhow::Result<()> {
    let path = chart("README.md");
    let readme = read(&path)?;
    let (before, section) = readme.split_once(TITLE).context("the README has a section Values")?;
    let after = section.find("\n## ").map_or("", |end| &section[end..]);
    expect(&path, &format!("{before}{TITLE}\n{}{after}", table(&read(&chart("values.yaml"))?)?))
}

#[test]
fn a_missing_comment_is_detected() {
    let missing = table("# Of a.\na:\n  # Of b,\n  # and more.\n  b: 1\n  c: {}\n").expect_err("c has no comment");
    assert_eq!(missing.to_string(), "no comment describes a.c");
    let table = table("# No key's.\n\na:\n  # Of b,\n  # and more.\n  b: 1\n# Of d.\nd: [e]\n").unwrap();
    assert!(table.ends_with("| `a.b` | `1` | Of b, and more. |\n| `d` | `[e]` | Of d. |\n"), "{table}");
}
