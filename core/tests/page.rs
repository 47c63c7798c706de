//! Tests that docs/diagnostics.md lists every code. UPDATE_EXPECT=1 rewrites the page.

use std::{env, fs, path::Path};

use localnet_core::Code;

const HEAD: &str = "# Diagnostics

<!-- `make bless` generates this page from core/src/diagnostic/code.rs. -->

This page explains each diagnostic that localnet reports. For people, a diagnostic is a text of the form `subject: field: problem; remedy`. The subject is what
has the problem, such as a Service, a file or a backend. For programs, a diagnostic has a **code**, whose meaning never changes. Programs should not compare
texts, because these may change in any release.

| a program that reads | finds the code in |
|---|---|
| `localnet explain --why-not … -o json` | `causes[].code` |
| `localnet doctor -o json` | `checks[].diagnostic.code` |
| `localnetv1.Reasons/Why` | `Findings[].Code` |
| `localnetv1.Reasons/Status` | `SourceProblems[].Code`, and each backend's `Skipped[].Code` and `Warnings[].Code` |
| the brain's log | the field `code` of the messages `skipped` and `suspicious` |

Programs must accept unknown codes from newer versions of localnet, and missing codes from older ones.

**Severity**: `error` means that something does not work, or that localnet does not use the subject. `warning` means that localnet uses the subject, but you
should check it. The table contains the usual severity. An individual diagnostic may have the other one: `field-unknown` is only a warning in a v1alpha1 file,
because kube-proxy ignores unknown fields in v1alpha1.

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
