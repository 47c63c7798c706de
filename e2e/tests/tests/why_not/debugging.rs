//! Verifies `docs/debugging.md`: each of its commands runs on a node with the described problem, and prints the output on the
//! page. `UPDATE_EXPECT=1` rewrites the page.

use std::{fs, path::Path};

use localnet_lab::expect_file;

use localnet_e2e::scenario::{self, Scenario, named};

/// The line before the first command about a problem. It names a fault of `e2e/faults` or a Case of `e2e/cases`.
const FAULT: &str = "<!-- fault: ";
const CASE: &str = "<!-- case: ";

/// Replaces numbers from the kernel, and ages, which differ between runs.
fn steady(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let mut words = Vec::new();
        for word in line.split(' ') {
            let is_handle =
                word.len() > 1 && word.starts_with('#') && word[1..].bytes().all(|byte| byte.is_ascii_digit());
            words.push(if is_handle { format!("#{}", "N".repeat(word.len() - 1)) } else { word.to_owned() });
        }
        for at in 1..words.len().saturating_sub(1) {
            if words[at..=at + 1] == ["s", "ago"] && words[at - 1].bytes().all(|byte| byte.is_ascii_digit()) {
                words[at - 1] = "N".to_owned();
            }
        }
        out.push_str(&words.join(" "));
        out.push('\n');
    }
    out
}

/// The page with the current output of the commands.
fn played(page: &str) -> String {
    let mut out = String::new();
    let mut scenario: Option<Scenario> = None;
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let fault = line.strip_prefix(FAULT).map(|name| named(name.trim_end_matches(" -->")));
        let case = line.strip_prefix(CASE).map(|name| scenario::case(name.trim_end_matches(" -->")));
        if let Some(folder) = fault.or(case) {
            // Remove the previous scenario first.
            drop(scenario.take());
            scenario = Some(Scenario::build(&folder, &scenario::steps(&folder).unwrap()).unwrap());
        }
        out.push_str(line);
        out.push('\n');
        if line != "```console" {
            continue;
        }
        let node = scenario.as_ref().expect("a trouble names its fault before its first command");
        for line in lines.by_ref().take_while(|line| *line != "```") {
            let Some(command) = line.strip_prefix("$ localnet ") else { continue };
            let words: Vec<&str> = command.split_whitespace().collect();
            out.push_str(&format!("{line}\n{}", steady(&node.localnet(&words).unwrap().out)));
        }
        out.push_str("```\n");
    }
    out
}

#[test]
fn the_five_examples_of_the_page_are_correct() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().join("docs/debugging.md");
    let page = fs::read_to_string(&path).unwrap();
    assert!(page.matches(FAULT).count() + page.matches(CASE).count() >= 5);
    expect_file(&path, &played(&page));
}

#[test]
fn handles_and_ages_do_not_matter() {
    assert_eq!(steady("held  services  #12  x\n"), "held  services  #NN  x\n");
    assert_eq!(steady("it reported 12 s ago\n"), "it reported N s ago\n");
    assert_eq!(steady("- # heading #a1\n"), "- # heading #a1\n");
}
