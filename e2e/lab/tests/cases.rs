//! The Cases are sound in themselves, before any backend reads them.

use std::collections::BTreeSet;

use localnet_lab::flow::Expect;
use localnet_lab::{Case, Endpoint, Flow, Protocol, cases, check_case};

const FILES: [&str; 7] =
    ["cluster.yaml", "flows.yaml", "state.yaml", "nft.txt", "iptables.txt", "ipvs.txt", "win.json"];

fn case(name: &str) -> Case {
    cases().into_iter().find(|case| case.name == name).expect("the case exists")
}

#[test]
fn cases_have_known_files_only_and_say_why_they_exist() {
    for case in cases() {
        let files: Vec<_> = std::fs::read_dir(&case.dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(files.iter().all(|file| FILES.iter().any(|known| file == known)), "{}: {files:?}", case.name);
        let cluster = std::fs::read_to_string(case.cluster()).unwrap();
        assert!(cluster.starts_with("# "), "{}: no word on what it shows", case.name);
        assert!(
            cluster.contains(&format!("kind: Node\nmetadata:\n  name: {}\n", case.flows.node.name)),
            "{}",
            case.name
        );
        assert!(!case.flows.flows.is_empty(), "{}: no flows", case.name);
    }
}

#[test]
fn whoever_must_answer_is_in_a_slice_or_is_asked_directly() {
    for case in cases() {
        let known = case.slice_endpoints().unwrap();
        for flow in &case.flows.flows {
            let Expect::Answers { by, .. } = &flow.expect else { continue };
            for address in by.iter().filter(|address| **address != flow.to) {
                let endpoint = Endpoint { protocol: flow.protocol, address: *address };
                assert!(known.contains(&endpoint), "{}: {flow} must be answered by {endpoint}", case.name);
            }
        }
    }
}

#[test]
fn together_the_cases_cover_what_a_flow_can_be() {
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
fn a_node_that_nobody_programs_passes_what_is_untouched_alone() {
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
