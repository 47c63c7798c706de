//! The causes that follow from given evidence.

use std::net::IpAddr;

use localnet_core::{Object, Severity};
use localnet_linux::nft::foreign::{Fate, Stop};
use localnet_proto::{
    Family, Scopes, ServiceKey,
    reasons::{Ineligible, Reasons, Rule, Standing},
};

use super::*;
use crate::{
    answer::Answer,
    evidence::{Front, OnNode},
    explain::PathRow,
    flows::FlowRow,
    output::Show as _,
    status::{Backend, FamilyStatus, SourceProblem, Status},
    style::Style,
};

fn served() -> Evidence {
    Evidence {
        service: ServiceKey::new("shop", "web"),
        port: "http".to_owned(),
        is_served: true,
        why: Some(Reasons { standing: Standing::Served, slices: 1, endpoints: 2, ..Reasons::default() }),
        status: Some(Status { revision: 9, backends: vec![backend(9, "")], ..Status::default() }),
        fronts: vec![front("endpoints")],
        ..Evidence::default()
    }
}

fn backend(applied: u64, error: &str) -> Backend {
    let family = FamilyStatus {
        family: Family::V4,
        applied,
        digest: None,
        differs: false,
        lag: 9 - applied,
        error: error.to_owned(),
    };
    Backend { name: "nft".to_owned(), families: vec![family], ..Backend::default() }
}

fn front(outcome: &'static str) -> Front {
    Front {
        to: "10.96.0.1:80".parse().unwrap(),
        kind: "ClusterIP",
        port_name: "http".to_owned(),
        scope: Scopes { internal: true, ..Scopes::default() },
        outcome,
        because: "no endpoint serves it".to_owned(),
        filtered: None,
        taken_by: None,
        node: OnNode::default(),
    }
}

fn ineligible(rule: Rule) -> Ineligible {
    let text = str::to_owned;
    Ineligible {
        slice: text("web-1"),
        address: text("10.0.0.1"),
        port_name: text("http"),
        number: 8080,
        node: String::new(),
        local: false,
        from: Scopes { internal: true, ..Scopes::default() },
        rule,
        field: String::new(),
        problem: text("the reason"),
        remedy: text("kubectl describe pod"),
    }
}

/// A cause is recognized by the code of a finding, however its text reads.
fn finding(code: Code) -> Diagnostic {
    let finding = Diagnostic::new(code, Object::service("shop", "web"), "any text").field("spec.clusterIPs[0]");
    finding.remedy("correct it").severity(Severity::Error)
}

fn row(found: Option<&str>) -> PathRow {
    PathRow {
        place: "services".to_owned(),
        text: "10.96.0.1 . tcp . 80 : goto lb-2".to_owned(),
        handle: None,
        held: if found.is_some() { "other" } else { "no" },
        found: found.map(str::to_owned),
    }
}

fn stop(certain: bool) -> (String, Stop) {
    let stop = Stop {
        family: "inet",
        table: "firewall".into(),
        chain: "forward".into(),
        handle: Some(7),
        comment: None,
        fate: Fate::Dropped,
        certain,
    };
    ("to 10.0.0.1:8080".to_owned(), stop)
}

/// Changes the evidence of a healthy Service and compares the causes that follow.
#[track_caller]
fn check(change: impl FnOnce(&mut Evidence), expected: &[&str]) {
    let mut evidence = served();
    change(&mut evidence);
    let causes = rank(&evidence);
    let found: Vec<String> = causes
        .iter()
        .map(|cause| format!("{}{}", cause.code, if cause.severity == Severity::Error { "" } else { "?" }))
        .collect();
    assert_eq!(found, expected);
    assert!(causes.iter().all(|cause| !cause.problem.is_empty() && !cause.remedy.is_empty()));
}

#[test]
fn a_healthy_service_has_no_cause() {
    check(|_| {}, &[]);
}

#[test]
fn each_problem_in_the_cluster_is_a_cause() {
    let standing = |standing| {
        move |evidence: &mut Evidence| {
            evidence.is_served = false;
            evidence.fronts = Vec::new();
            evidence.why = Some(Reasons { standing, ..Reasons::default() });
        }
    };
    check(standing(Standing::Absent), &["service-absent"]);
    check(standing(Standing::Headless), &["service-headless"]);
    check(standing(Standing::ExternalName), &["service-external-name"]);
    check(standing(Standing::WithoutClusterIp), &["service-without-address"]);
    check(standing(Standing::OfAnotherProxy), &["service-of-another-proxy"]);
    check(standing(Standing::Unusable), &["service-unusable"]);
    check(
        |evidence| {
            standing(Standing::Unusable)(evidence);
            evidence.why.as_mut().unwrap().findings.push(finding(Code::AddressTaken));
        },
        &["address-taken"],
    );
    check(
        |evidence| {
            standing(Standing::Unusable)(evidence);
            evidence.why.as_mut().unwrap().findings.push(finding(Code::Unknown));
        },
        &["service-unusable"],
    );
    // Findings about a Service that the node serves.
    check(|evidence| evidence.why.as_mut().unwrap().findings.push(finding(Code::AddressTaken)), &["address-taken"]);
    check(|evidence| evidence.why.as_mut().unwrap().findings.push(finding(Code::PortInvalid)), &["port-invalid"]);
    check(
        |evidence| {
            evidence.other_ports = Some("dns".to_owned());
            let finding = finding(Code::PortInvalid).field("spec.ports[1].port");
            evidence.why.as_mut().unwrap().findings.push(finding);
        },
        &["port-skipped", "port-invalid"],
    );
    check(|evidence| evidence.other_ports = Some("dns".to_owned()), &["port-absent"]);
    check(|evidence| evidence.lacks_family = Some(Family::V6), &["family-missing"]);
    check(|evidence| evidence.not_its_address = Some("x".to_owned()), &["not-its-address"]);
}

#[test]
fn the_rule_that_excludes_endpoints_is_the_cause() {
    let rules = |rules: &'static [Rule]| {
        move |evidence: &mut Evidence| {
            evidence.fronts = vec![front("reject")];
            evidence.why.as_mut().unwrap().ineligible = rules.iter().map(|rule| ineligible(*rule)).collect();
        }
    };
    check(rules(&[Rule::NotReady, Rule::NotServing]), &["endpoints-not-ready"]);
    check(rules(&[Rule::PortName, Rule::PortName, Rule::NotServing]), &["port-name-mismatch"]);
    check(rules(&[Rule::PortProtocol]), &["port-protocol-mismatch"]);
    check(rules(&[Rule::Reserved]), &["endpoint-address-refused"]);
    check(
        |evidence| {
            rules(&[Rule::Family])(evidence);
            evidence.why.as_mut().unwrap().ineligible[0].address = "fd00::1".to_owned();
        },
        &["endpoints-of-other-family"],
    );
    // A policy is the cause, however many other endpoints are not ready.
    check(rules(&[Rule::NotServing, Rule::NotServing, Rule::InternalLocal]), &["internal-policy-local"]);
    check(
        |evidence| {
            evidence.fronts = vec![front("reject")];
            evidence.why = Some(Reasons::default());
        },
        &["no-endpoints"],
    );
    check(
        |evidence| {
            evidence.fronts = vec![front("drop")];
            evidence.fronts[0].filtered = Some("x".to_owned());
        },
        &["source-ranges"],
    );
    check(
        |evidence| {
            evidence.fronts = vec![front("reject")];
            evidence.why = None;
        },
        &["no-endpoint-serves"],
    );
}

#[test]
fn a_problem_of_the_backend_explains_missing_elements() {
    let with = |backends: Vec<Backend>, missing: bool| {
        move |evidence: &mut Evidence| {
            evidence.status.as_mut().unwrap().backends = backends;
            evidence.fronts[0].node.missing = if missing { vec![row(None)] } else { vec![] };
        }
    };
    check(with(vec![], true), &["backend-missing", "elements-missing"]);
    check(with(vec![backend(4, "")], true), &["backend-behind", "elements-missing"]);
    check(with(vec![backend(4, "no memory")], true), &["backend-fails", "elements-missing"]);
    check(with(vec![backend(9, "")], true), &["elements-missing"]);
    // If the kernel holds everything, a late report is no certain cause.
    check(with(vec![backend(4, "")], false), &["backend-behind?"]);
    check(with(vec![], false), &["backend-missing?"]);
}

#[test]
fn missing_elements_rank_before_foreign_rules() {
    check(|evidence| evidence.fronts[0].node.no_table = true, &["table-missing"]);
    check(|evidence| evidence.fronts[0].node.damaged = vec!["services".to_owned()], &["rules-differ"]);
    check(|evidence| evidence.fronts[0].node.missing = vec![row(Some("goto lb-3"))], &["elements-differ"]);
    check(
        |evidence| {
            let front = &mut evidence.fronts[0].node;
            front.stops = vec![stop(true), stop(false)];
            front.no_routes = vec![("10.0.0.1".parse().unwrap(), "unreachable".to_owned())];
            front.does_not_forward = true;
            front.missing = vec![row(None)];
        },
        &["elements-missing", "foreign-rule", "forwarding-off", "no-route", "foreign-rule?"],
    );
    // Six endpoints behind one missing route, at two addresses of the Service, are one cause.
    let mut evidence = served();
    for (front, first) in [(0, 1), (1, 4)] {
        if front == 1 {
            evidence.fronts.push(self::front("endpoints"));
        }
        let endpoint = |last| (IpAddr::from([10, 0, 0, last]), "Network is unreachable".to_owned());
        evidence.fronts[front].node.no_routes = (first..first + 3).map(endpoint).collect();
    }
    let causes = rank(&evidence);
    assert_eq!(causes.len(), 1, "{causes:?}");
    assert_eq!(
        causes[0].problem,
        "there is no route to the endpoints 10.0.0.1, 10.0.0.2, 10.0.0.3 and 3 more: Network is unreachable"
    );
    check(|evidence| evidence.tracking_is_full = true, &["tracking-full"]);
    let flow = || FlowRow {
        from: "10.0.0.9:1".parse().unwrap(),
        to: "10.96.0.1:80".parse().unwrap(),
        endpoint: "10.0.0.7:80".parse().unwrap(),
        answered: false,
        stale: true,
    };
    check(|evidence| evidence.fronts[0].node.stale = vec![flow()], &["stale-flow"]);
}

#[test]
fn causes_at_the_cluster_ip_rank_first_and_findings_last() {
    check(
        |evidence| {
            let mut outside = front("drop");
            (outside.to, outside.scope) =
                ("192.0.2.1:80".parse().unwrap(), Scopes { external: true, ..Scopes::default() });
            evidence.fronts.push(outside);
            evidence.fronts[0].node.missing = vec![row(None)];
            let why = evidence.why.as_mut().unwrap();
            let mut out = ineligible(Rule::ExternalLocal);
            out.from = Scopes { external: true, ..Scopes::default() };
            why.ineligible = vec![out];
            why.findings = vec![finding(Code::AddressInvalid)];
        },
        &["elements-missing", "external-policy-local", "address-invalid"],
    );
}

#[test]
fn an_unavailable_brain_ranks_first() {
    check(
        |evidence| (evidence.no_state, evidence.is_served) = (Some("refused".to_owned()), false),
        &["brain-unreachable"],
    );
}

#[test]
fn an_outdated_state_ranks_first_only_if_it_matters() {
    let troubled = |evidence: &mut Evidence| {
        let (code, of) = (Code::YamlInvalid, vec!["files".to_owned()]);
        let problem = SourceProblem { code, of, problem: "a.yaml:1: no".to_owned(), age_millis: 7_000 };
        evidence.status.as_mut().unwrap().source_problems.push(problem);
    };
    check(troubled, &["source-fails"]);
    check(
        |evidence| {
            troubled(evidence);
            evidence.fronts[0] = front("reject");
            evidence.why.as_mut().unwrap().ineligible = vec![ineligible(Rule::NotReady)];
        },
        &["source-fails", "endpoints-not-ready"],
    );
    check(
        |evidence| {
            troubled(evidence);
            (evidence.is_served, evidence.fronts) = (false, Vec::new());
            evidence.why = Some(Reasons { standing: Standing::Absent, ..Reasons::default() });
        },
        &["source-fails", "service-absent"],
    );
    check(
        |evidence| {
            troubled(evidence);
            (evidence.no_state, evidence.is_served) = (Some("no answer".to_owned()), false);
        },
        &["source-fails", "brain-unreachable"],
    );
    // A certain cause on the node ranks before an outdated state, a possible one after it.
    check(
        |evidence| {
            troubled(evidence);
            evidence.fronts[0].node.no_table = true;
            evidence.fronts[0].node.stops = vec![stop(false)];
        },
        &["table-missing", "source-fails", "foreign-rule?"],
    );
}

#[test]
fn an_answer_is_readable() {
    let mut evidence = served();
    assert!(Answer::of(&evidence).human(Style::default()).starts_with("no problem found on this node"));
    evidence.unanswered_node_port = Some(30080);
    let text = Answer::of(&evidence).human(Style::default());
    assert!(text.contains("   not checked NodePort 30080: no address of this node answers it"), "{text}");
    evidence.fronts[0].node.no_table = true;
    let text = Answer::of(&evidence).human(Style::default());
    assert!(text.starts_with("1. table-missing at 10.96.0.1:80\n   the kernel has no table"), "{text}");
    assert_eq!(Answer::of(&evidence).names(), ["table-missing"]);
}
