//! The table in `docs/backends/README.md` compares the backends. Each cell names a test that exists, or a page, or gives a reason.

use std::fs;

use crate::root;

const PAGE: &str = "docs/backends/README.md";
const COLUMNS: [&str; 6] = ["the backend …", "nft", "iptables", "ipvs", "ebpf", "Windows"];

/// Returns what is wrong with a cell; `None` if it is right.
fn wrong(cell: &str) -> Option<String> {
    if let Some(reason) = cell.strip_prefix("no: ") {
        return (reason.split(' ').count() < 3).then(|| "no reason".to_owned());
    }
    let Some((text, target)) = cell.strip_prefix('[').and_then(|rest| rest.strip_suffix(')')?.split_once("](")) else {
        return Some("neither a link nor `no: `".to_owned());
    };
    let (file, test) = match target.split_once(' ') {
        Some((file, title)) => (file, Some(title.trim_matches('"'))),
        None => (target, None),
    };
    let file = file.split('#').next().unwrap_or(file);
    let Ok(content) = fs::read_to_string(root().join(PAGE).with_file_name(file)) else {
        return Some(format!("{file} does not exist"));
    };
    match test {
        None if text == "measured" && file.ends_with(".md") => None,
        None => Some("the link has no title with the name of the test".to_owned()),
        Some(test) => (!content.contains(&format!("fn {test}("))).then(|| format!("{file} has no test {test}")),
    }
}

#[test]
fn the_table_of_backends_names_existing_tests() {
    let text = fs::read_to_string(root().join(PAGE)).unwrap();
    let rows =
        text.lines().filter_map(|line| Some(line.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ").collect()));
    let rows: Vec<Vec<&str>> = rows.collect();
    assert_eq!(rows[0], COLUMNS);
    assert!(rows.len() > 15, "{} rows", rows.len());
    let mut found = Vec::new();
    for row in &rows[1..] {
        assert_eq!(row.len(), COLUMNS.len(), "{row:?}");
        for (column, cell) in COLUMNS.iter().zip(row).skip(1) {
            found.extend(wrong(cell).map(|wrong| format!("{}, {column}: {wrong}", row[0])));
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn a_cell_without_evidence_is_found() {
    let test = r#"[yes](../../e2e/tests/tests/tidy/backends.rs "a_cell_without_evidence_is_found")"#;
    for right in [test, "[measured](../conformance.md)", "no: HNS cannot reject"] {
        assert_eq!(wrong(right), None, "{right}");
    }
    for cell in [
        "yes",
        "no: never",
        "no",
        "[yes](../conformance.md)",
        &test.replace("backends.rs", "missing.rs"),
        &test.replace("_is_found", "_is_missed"),
        "[measured](../missing.md)",
    ] {
        assert!(wrong(cell).is_some(), "{cell}");
    }
}
