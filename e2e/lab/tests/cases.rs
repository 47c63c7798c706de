//! The Cases are consistent in themselves, without any backend.
#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use localnet_lab::flow::Expect;
use localnet_lab::{Case, Endpoint, Flow, Protocol, cases, check_between_nodes, check_case};

const FILES: [&str; 10] = [
    "cluster.yaml",
    "flows.yaml",
    "state.yaml",
    "nft.txt",
    "iptables.txt",
    "ipvs.txt",
    "ebpf.txt",
    "win.txt",
    "between-nodes.yaml",
    "other-state.yaml",
];

fn case(name: &str) -> Case {
    cases().into_iter().find(|case| case.name == name).expect("the case exists")
}

#[test]
fn cases_contain_only_known_files_and_a_reason() {
    for case in cases() {
        let files: Vec<_> = std::fs::read_dir(&case.dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(files.iter().all(|file| FILES.iter().any(|allowed| file == allowed)), "{}: {files:?}", case.name);
        let cluster = std::fs::read_to_string(case.cluster()).unwrap();
        assert!(cluster.starts_with("# "), "{}: the first line does not describe the Case", case.name);
        let node = format!("kind: Node\nmetadata: {{name: {}", case.flows.node.name);
        assert!(["}", ","].iter().any(|end| cluster.contains(&(node.clone() + end))), "{}: no Node", case.name);
        assert!(!case.flows.flows.is_empty(), "{}: no flows", case.name);
    }
}

#[test]
fn expected_endpoints_are_in_a_slice_or_probed_directly() {
    for case in cases() {
        let endpoints = case.slice_endpoints().unwrap();
        for flow in &case.flows.flows {
            let Expect::Answers { by, .. } = &flow.expect else { continue };
            for address in by.iter().filter(|address| **address != flow.to) {
                let endpoint = Endpoint { protocol: flow.protocol, address: *address };
                assert!(endpoints.contains(&endpoint), "{}: {flow} must be answered by {endpoint}", case.name);
            }
        }
    }
}

#[test]
fn the_cases_cover_every_kind_of_flow() {
    let mut seen = BTreeSet::new();
    for flow in cases().iter().flat_map(|case| &case.flows.flows) {
        let expect = match &flow.expect {
            Expect::Answers { .. } => "answers",
            Expect::Reject => "reject",
            Expect::Untouched => "untouched",
            Expect::Drop => continue,
        };
        seen.insert((flow.protocol, flow.to.is_ipv4(), expect));
    }
    for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
        for ipv4 in [true, false] {
            for expect in ["answers", "reject"] {
                assert!(seen.contains(&(protocol, ipv4, expect)), "no case has {protocol}, ipv4 {ipv4}, {expect}");
            }
        }
    }
    for ipv4 in [true, false] {
        assert!(seen.contains(&(Protocol::Tcp, ipv4, "untouched")), "no case leaves anything untouched, ipv4 {ipv4}");
    }
}

#[test]
fn an_unprogrammed_node_passes_only_untouched_flows() {
    check_case(&case("empty"), |_| Ok(())).unwrap();
    for name in ["cluster-ip", "no-endpoints-reject"] {
        let case = case(name);
        let (flows, untouched) = (&case.flows.flows, |flow: &&Flow| match &flow.expect {
            Expect::Answers { by, .. } => by.contains(&flow.to),
            Expect::Untouched => true,
            Expect::Reject | Expect::Drop => false,
        });
        let wrong = flows.len() - flows.iter().filter(untouched).count();
        let text = format!("{:#}", check_case(&case, |_| Ok(())).unwrap_err());
        let expected = format!("{wrong} of {} flows are wrong", flows.len());
        assert!(text.contains(&format!("case {name}")) && text.contains(&expected), "{expected}, not {text}");
    }
}

#[test]
fn between_unprogrammed_nodes_all_flows_are_wrong() {
    let case = case("two-nodes");
    let all = case.on_other_node().unwrap().flows.flows.len();
    let text = format!("{:#}", check_between_nodes(&case, |_, _| Ok(())).unwrap_err());
    assert!(text.contains(&format!("{all} of {all} flows are wrong")), "{text}");
}

/// The texts between backticks in the last column of the tables in `docs/cases.md`, by row.
fn listed() -> Vec<(String, Vec<String>)> {
    let text = std::fs::read_to_string(root().join("docs/cases.md")).unwrap();
    let rows = text.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    rows.map(|row| {
        let cells: Vec<_> = row.split(" | ").collect();
        let names = cells[cells.len() - 1].split('`').skip(1).step_by(2);
        (cells[0].to_owned(), names.map(str::to_owned).collect())
    })
    .collect()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

fn rust_sources(dir: &Path, sources: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            rust_sources(&path, sources);
        } else if name.ends_with(".rs") {
            sources.push(path);
        }
    }
}

#[test]
fn every_case_is_listed_and_every_listed_case_exists() {
    let listed: BTreeSet<String> = listed().into_iter().flat_map(|(_, names)| names).collect();
    let (tests, listed): (BTreeSet<_>, BTreeSet<_>) = listed.into_iter().partition(|name| name.contains("::"));
    let exist: BTreeSet<String> = cases().into_iter().map(|case| case.name).collect();
    let missing: Vec<_> = exist.difference(&listed).collect();
    let absent: Vec<_> = listed.difference(&exist).collect();
    assert!(missing.is_empty() && absent.is_empty(), "docs/cases.md lacks {missing:?} and names {absent:?}");

    let mut sources = Vec::new();
    rust_sources(&root(), &mut sources);
    for test in tests {
        let (file, function) = test.split_once("::").unwrap();
        let contains_test = |path: &PathBuf| {
            path.to_str().unwrap().contains(file)
                && std::fs::read_to_string(path).unwrap().contains(&format!("fn {function}("))
        };
        assert!(sources.iter().any(contains_test), "{test}, named in docs/cases.md, does not exist");
    }
}

#[test]
fn every_expected_row_is_listed() {
    let listed = listed();
    let has_entry = |row: &str| listed.iter().any(|(of, names)| of == row && !names.is_empty());
    let endpoints = (1..=21).map(|row| row.to_string());
    let reported = (1..=8).chain(13..=16).chain(30..=40).map(|row| format!("B-{row:02}"));
    let missing: Vec<_> = endpoints.chain(reported).filter(|row| !has_entry(row)).collect();
    assert!(missing.is_empty(), "docs/cases.md has nothing for {missing:?}");
}
