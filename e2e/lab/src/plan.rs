//! Golden files of plans, each as its changes to another plan.
//!
//! | golden file | contains |
//! |---|---|
//! | `e2e/plans/cluster-cidr/NAME` | the complete plan of a node without Services |
//! | `e2e/plans/CONFIGURATION/NAME` | the changes to this plan in another configuration of the node |
//! | `e2e/cases/CASE/NAME` | the changes of the Case to the plan of its configuration |
//!
//! ```text
//! # changes to e2e/plans/cluster-cidr/nft.txt
//!  table ip localnet {
//!      set cluster-ips {
//! +        elements = { 172.30.0.41 }
//! ```
//! Lines with `+` and `-` are added and removed. The other lines show where a change is: the first line of every enclosing block,
//! and the line that follows the change. If no line follows, the change is at the end of its block.

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use similar::{Algorithm, DiffOp, capture_diff_slices};

use crate::{
    case::{self, Case},
    expect::expect_file,
    flow::{DetectLocal, Flows, NodeOptions},
    topology::Place,
};

/// Compares a plan with the golden file `name` of a Case, and the plans of a node without Services with those of its
/// configuration. `plan` returns the text for a configuration, which is part of the flows, and a state. With `UPDATE_EXPECT=1`
/// the files are written instead.
///
/// # Panics
/// Panics if one of the files differs.
pub fn expect_plan<State: DeserializeOwned>(case: &Case, name: &str, plan: impl Fn(&Flows, &State) -> String) {
    let mut former: Option<Planned> = None;
    for planned in plans_of(case, plan) {
        let file = planned.folder.join(name);
        let golden = match &former {
            None => planned.text.clone(),
            Some(base) => {
                let base_file = base.folder.join(name);
                format!("# changes to e2e/{}\n{}", base_file.display(), changes(&base.text, &planned.text))
            }
        };
        expect_file(&e2e().join(file), &golden);
        former = Some(planned);
    }
}

/// A plan.
struct Planned {
    /// The folder of the plan's golden file, in `e2e`.
    folder: PathBuf,
    text: String,
}

/// The plan of a node without Services, that of the Case's configuration if it differs, and that of the Case.
fn plans_of<State: DeserializeOwned>(case: &Case, plan: impl Fn(&Flows, &State) -> String) -> Vec<Planned> {
    let read = |case: &Case| case.read_state().unwrap_or_else(|error| panic!("{error:#}"));
    let empty = Case::load(&case::folder().join("empty")).unwrap_or_else(|error| panic!("{error:#}"));
    let nodes = [empty.flows.without_services(), case.flows.without_services()];
    let mut plans: Vec<_> = nodes
        .iter()
        .map(|node| Planned {
            folder: Path::new("plans").join(node.node.configuration()),
            text: plan(node, &read(&empty)),
        })
        .collect();
    plans.dedup_by(|one, other| one.folder == other.folder);
    plans.push(Planned { folder: Path::new("cases").join(&case.name), text: plan(&case.flows, &read(case)) });
    plans
}

/// The folder of all golden files of plans.
fn e2e() -> PathBuf {
    case::folder().parent().map_or_else(PathBuf::new, Path::to_owned)
}

impl Flows {
    /// The configuration alone: no packets, and the addresses of every node in the lab.
    fn without_services(&self) -> Self {
        let node = NodeOptions {
            detect_local: self.node.detect_local.clone(),
            masquerade_all: self.node.masquerade_all,
            ..NodeOptions::default()
        };
        Self { node, flows: Vec::new(), place: Place::Local }
    }
}

impl NodeOptions {
    /// A name for the options that shape the plan of a node without Services.
    fn configuration(&self) -> String {
        let detector = match &self.detect_local {
            None => "no-detector".to_owned(),
            Some(DetectLocal::ClusterCidr(cidrs)) if cidrs.len() > 1 => "cluster-cidr".to_owned(),
            Some(DetectLocal::ClusterCidr(_)) => "cluster-cidr-of-one-family".to_owned(),
            Some(DetectLocal::NodeCidr) => "node-cidr".to_owned(),
            Some(DetectLocal::BridgeInterface(name)) => format!("bridge-{name}"),
            Some(DetectLocal::InterfaceNamePrefix(prefix)) => format!("interface-{prefix}"),
        };
        if self.masquerade_all { format!("{detector}-masquerade-all") } else { detector }
    }
}

/// Verifies that golden files of changes find every mistake that whole plans would find. It makes three mistakes, one at a
/// time, at every `step`th line: it removes the line, repeats it, and swaps it with the next one.
///
/// # Panics
/// Panics if a mistake leaves the changes equal.
pub fn check_that_mistakes_show<State: DeserializeOwned>(
    case: &Case,
    step: usize,
    plan: impl Fn(&Flows, &State) -> String,
) {
    let plans = plans_of(case, plan);
    for (base, planned) in plans.iter().zip(&plans[1..]) {
        let golden = changes(&base.text, &planned.text);
        let lines: Vec<_> = planned.text.lines().collect();
        for at in (0..lines.len() - 1).step_by(step) {
            let (one, two) = (lines[at], lines[at + 1]);
            for middle in [vec![two], vec![one, one, two], vec![two, one]] {
                let mistaken = [&lines[..at], &middle, &lines[at + 2..]].concat().join("\n") + "\n";
                if mistaken != planned.text {
                    let changed = changes(&base.text, &mistaken);
                    assert_ne!(changed, golden, "{}, line {}: {middle:?}", planned.folder.display(), at + 1);
                }
            }
        }
    }
}

/// The lines that turn `base` into `text`, with their context.
fn changes(base: &str, text: &str) -> String {
    let (old, new): (Vec<_>, Vec<_>) = (base.lines().collect(), text.lines().collect());
    let mut shown = String::new();
    let mut push = |sign: char, line: &str| {
        shown.push(sign);
        shown.push_str(line);
        shown.push('\n');
    };
    let mut last_heads: Vec<usize> = Vec::new();
    for op in capture_diff_slices(Algorithm::Myers, &old, &new) {
        if matches!(op, DiffOp::Equal { .. }) {
            continue;
        }
        let (removed, added) = (op.old_range(), op.new_range());
        let heads = heads(&old, removed.start);
        let common = last_heads.iter().zip(&heads).take_while(|(one, other)| one == other).count();
        heads[common..].iter().for_each(|head| push(' ', old[*head]));
        let next = old[removed.end..].iter().find(|line| !line.is_empty());
        let next = next.filter(|next| !ends_block(next));
        if next.is_none() {
            // After the end of a table.
            let last = old[..removed.start].iter().rev().find(|line| !line.is_empty());
            last.filter(|last| ends_block(last) && level(last) == 1).into_iter().for_each(|last| push(' ', last));
        }
        old[removed.clone()].iter().for_each(|line| push('-', line));
        new[added].iter().for_each(|line| push('+', line));
        next.into_iter().for_each(|next| push(' ', next));
        last_heads = heads;
    }
    shown
}

/// The first lines of the blocks that surround a place, the outermost first.
fn heads(base: &[&str], at: usize) -> Vec<usize> {
    let mut heads = Vec::new();
    // A line that ends a block stands as deep as the one that begins it.
    let mut depth = base.get(at).map_or(1, |line| level(line) + usize::from(ends_block(line)));
    for (number, line) in base[..at].iter().enumerate().rev() {
        if level(line) < depth && !ends_block(line) {
            depth = level(line);
            heads.push(number);
        }
    }
    heads.reverse();
    heads
}

fn ends_block(line: &str) -> bool {
    line.trim() == "}" || line == "COMMIT"
}

/// The depth of a line: the heading of a part, a table, a chain or set, or its content. Empty lines belong to no block.
fn level(line: &str) -> usize {
    match line.chars().next() {
        None => usize::MAX,
        Some('#') => 0,
        Some('*' | 't' | 'C' | '}') => 1,
        Some('\t') => 1 + line.chars().take_while(|character| *character == '\t').count(),
        Some(_) => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: &str = "table ip t {\n\tset a {\n\t\tsize 1\n\t}\n\n\tchain x {\n\t\tone\n\t\ttwo\n\t}\n}\n";

    #[test]
    fn changes_name_their_blocks() {
        let with_element = BASE.replace("size 1\n", "size 1\n\t\telements = { e }\n");
        assert_eq!(changes(BASE, &with_element), " table ip t {\n \tset a {\n+\t\telements = { e }\n");
        let between = BASE.replace("\t\ttwo", "\t\tmiddle\n\t\ttwo");
        assert_eq!(changes(BASE, &between), " table ip t {\n \tchain x {\n+\t\tmiddle\n \t\ttwo\n");
        let both = between.replace("size 1", "size 2");
        assert_eq!(
            changes(BASE, &both),
            " table ip t {\n \tset a {\n-\t\tsize 1\n+\t\tsize 2\n \tchain x {\n+\t\tmiddle\n \t\ttwo\n"
        );
        let chain = BASE.replace("\ttwo\n\t}\n", "\ttwo\n\t}\n\n\tchain y {\n\t\tthree\n\t}\n");
        assert_eq!(changes(BASE, &chain), " table ip t {\n+\n+\tchain y {\n+\t\tthree\n+\t}\n");
        assert_eq!(changes(BASE, BASE), "");
    }

    #[test]
    fn the_first_and_the_last_place_of_a_block_differ() {
        let first = changes(BASE, &BASE.replace("\t\tone", "\t\tnew\n\t\tone"));
        let last = changes(BASE, &BASE.replace("\t\ttwo", "\t\ttwo\n\t\tnew"));
        assert_eq!(first, " table ip t {\n \tchain x {\n+\t\tnew\n \t\tone\n");
        assert_eq!(last, " table ip t {\n \tchain x {\n+\t\tnew\n");
    }
}
