//! Tests that docs/diagnostics.md lists every code. UPDATE_EXPECT=1 rewrites the page.

use std::{env, fs, path::Path};

use localnet_core::Code;

const HEAD: &str = "# Diagnostics

<!-- Made from core/src/diagnostic/code.rs by `make bless`. -->

A diagnostic names a problem: `subject: field: problem; remedy`. Programs identify it by its **code**, which never changes its meaning. Texts may change in any
release, so no program should compare them.

| where | the code is in |
|---|---|
| `localnet explain --why-not … -o json` | `causes[].id` |
| `localnetv1.Reasons/Why` | `Findings[].Code` |
| `localnetv1.Reasons/Status` | `Troubles[].Code`, and each backend's `Skipped[].Code` and `Warnings[].Code` |
| the brain's log | `code` of `skipped` and `suspicious` |

**Severity**: after an `error`, localnet does not use or program the subject. After a `warning` it does, but check whether that is intended. The column has the usual
severity of a code. A single diagnostic may have another one: kube-proxy ignores unknown fields of v1alpha1, for example, so `field-unknown` is a warning there.

A program that reads codes must accept codes that it does not know: newer versions of localnet have more of them. Older versions send none.

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
