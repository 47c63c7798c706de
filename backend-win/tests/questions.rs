//! The open questions about HNS are the same in `docs/backends/windows.md`, in `docs/backends/windows.ps1` and in the contract, and
//! the script gives a verdict for each.

use std::{collections::BTreeSet, fs, io};

use localnet_win::hcn::contract::QUESTIONS;

/// The names of questions, each with its text.
type Questions = Vec<(String, String)>;

fn page(name: &str) -> io::Result<String> {
    fs::read_to_string(format!("{}/../docs/backends/{name}", env!("CARGO_MANIFEST_DIR")))
}

/// The questions of the page's table.
fn of_page(page: &str) -> Option<Questions> {
    let (_, section) = page.split_once("\n## What no Linux machine can show\n")?;
    let (section, _) = section.split_once("\n## ")?;
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    let question = |row: &str| {
        let (name, rest) = row.split_once("` | ")?;
        Some((name.to_owned(), rest.split_once(" | ")?.0.to_owned()))
    };
    rows.map(question).collect()
}

/// The questions of the script's table.
fn of_script(script: &str) -> Option<Questions> {
    let (_, table) = script.split_once("$questions = [ordered]@{\n")?;
    let (table, _) = table.split_once("\n}\n")?;
    let question = |line: &str| {
        let (name, text) = line.trim().split_once("' = '")?;
        Some((name.strip_prefix('\'')?.to_owned(), text.strip_suffix('\'')?.to_owned()))
    };
    table.lines().map(question).collect()
}

#[test]
fn the_page_and_the_script_have_the_same_questions() {
    let page = of_page(&page("windows.md").unwrap()).unwrap();
    let script = of_script(&self::page("windows.ps1").unwrap()).unwrap();
    assert_eq!(page, script);
    assert_eq!(page.iter().map(|(name, _)| name).collect::<BTreeSet<_>>().len(), page.len());
    // `localnet-win check` answers the questions of the contract in the same words, which the script searches in its output.
    let checked: Vec<_> = QUESTIONS.iter().map(|one| (one.name.to_owned(), one.behaviour.to_owned())).collect();
    assert_eq!(page.into_iter().filter(|one| checked.contains(one)).collect::<Vec<_>>(), checked);
    for (_, text) in &script {
        let same_start = script.iter().filter(|(_, other)| text.starts_with(other.as_str())).count();
        let is_checked = checked.iter().any(|(_, behaviour)| behaviour == text);
        assert!(!is_checked || same_start == 1, "{text} begins with another question");
    }
}

#[test]
fn the_script_gives_a_verdict_for_each_question() {
    let script = page("windows.ps1").unwrap();
    let questions = of_script(&script).unwrap();
    for (name, _) in &questions {
        let checked = QUESTIONS.iter().any(|one| one.name == name.as_str());
        assert!(checked || script.contains(&format!("Set-Verdict '{name}' ")), "{name}");
    }
    // No verdict has an unknown name.
    let known: BTreeSet<String> = questions.into_iter().map(|(name, _)| name).collect();
    for given in script.split("Set-Verdict '").skip(1) {
        let (name, _) = given.split_once('\'').unwrap();
        assert!(known.contains(name), "{name}");
    }
    for bracket in [['{', '}'], ['(', ')'], ['[', ']']] {
        let [open, close] = bracket.map(|bracket| script.matches(bracket).count());
        assert_eq!(open, close, "{bracket:?}");
    }
}
