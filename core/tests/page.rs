//! Tests that docs/diagnostics.md lists every code. UPDATE_EXPECT=1 rewrites the page.

use std::{env, fs, path::Path};

use localnet_core::Code;

const HEAD: &str = "# Diagnostics

<!-- `make bless` generates this page from core/src/diagnostic/code.rs. -->

This page explains each diagnostic that localnet reports. A diagnostic has the form `subject: field: problem; remedy`, and a **code** for programs. The
meaning of a code never changes. Texts may change in any release, so programs should compare codes only.

| source | field with the code |
|---|---|
| `localnet explain --why-not … -o json` | `causes[].code` |
| `localnet doctor -o json` | `checks[].diagnostic.code` |
| `localnetv1.Reasons/Why` | `Findings[].Code` |
| `localnetv1.Reasons/Status` | `SourceProblems[].Code`, and each backend's `Skipped[].Code` and `Warnings[].Code` |
| the brain's log | `code` of `skipped` and `suspicious` |

**Severity**: if it is `error`, localnet does not use or program the subject. If it is `warning`, localnet does, but you should check whether this is
intended. The table has the usual severity of each code. A single diagnostic may have another severity. For example, `field-unknown` is a warning for
v1alpha1, because kube-proxy ignores unknown fields there.

Newer versions of localnet may have further codes, and older versions send none. Programs must accept both.

| code | severity | meaning | remedy |
|---|---|---|---|
";

#[test]
fn the_page_lists_every_code() {
    let mut codes = Code::ALL.to_vec();
    codes.sort_by_key(|code| code.as_str());
    let row =
        |code: &Code| format!("| `{code}` | {} | {} | {} |\n", code.severity().as_str(), code.meaning(), code.remedy());
    let page = HEAD.to_owned() + &codes.iter().map(row).collect::<String>();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/diagnostics.md");
    if env::var_os("UPDATE_EXPECT").is_some() {
        fs::write(&path, &page).unwrap();
    }
    assert_eq!(fs::read_to_string(path).unwrap_or_default(), page, "make bless rewrites docs/diagnostics.md");
}
