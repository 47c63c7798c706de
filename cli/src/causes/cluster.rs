//! Causes in the cluster: the state does not contain the requested Service or port, or sends the packets to no endpoint.

use localnet_core::{Code, Diagnostic, Subject};
use localnet_proto::reasons::{Ineligible, Rule, Standing};

use super::Ranking;
use crate::{
    diagnostics::usual,
    evidence::{Evidence, Front},
};

/// Adds the causes that concern the Service as a whole, not the packets to one of its addresses.
pub(super) fn of_service(evidence: &Evidence, ranking: &mut Ranking) {
    let key = &evidence.service;
    let of = |code, problem: String| usual(code, Subject::service(key), problem);
    if let Some(not_its) = &evidence.not_its_address {
        ranking.push((0, 16, of(Code::NotItsAddress, not_its.clone())));
    }
    if let Some(family) = evidence.lacks_family {
        let problem = format!("Service {key} has no {family} ClusterIP, so it does not exist in {family}");
        ranking.push((0, 15, of(Code::FamilyMissing, problem)));
    }
    if let Some(ports) = &evidence.other_ports {
        ranking.push((0, 14, port_missing(evidence, ports)));
    }
    if evidence.is_served || evidence.no_state.is_some() {
        return;
    }
    let found = match evidence.why.as_ref().map(|why| why.standing) {
        None | Some(Standing::Absent) => {
            let names = evidence.namesakes.join(", ");
            let question = if names.is_empty() { String::new() } else { format!("; did you mean {names}?") };
            of(Code::ServiceAbsent, format!("the cluster has no Service {key}{question}"))
        }
        Some(Standing::Headless) => {
            let problem =
                "is headless (clusterIP: None): no proxy handles it, and clients connect to its endpoints directly";
            of(Code::ServiceHeadless, format!("Service {key} {problem}"))
        }
        Some(Standing::ExternalName) => {
            let problem = "is of type ExternalName: it stands for a DNS name, and no proxy handles it";
            of(Code::ServiceExternalName, format!("Service {key} {problem}"))
        }
        Some(Standing::WithoutClusterIp) => of(Code::ServiceWithoutAddress, format!("Service {key} has no ClusterIP")),
        Some(Standing::OfAnotherProxy) => {
            let label = "service.kubernetes.io/service-proxy-name";
            of(Code::ServiceOfAnotherProxy, format!("the label {label} assigns Service {key} to another proxy"))
        }
        Some(Standing::Unusable | Standing::Served | Standing::Unknown) => unusable(evidence),
    };
    ranking.push((0, 10, found));
}

/// Returns the reason why the state does not contain the Service.
fn unusable(evidence: &Evidence) -> Diagnostic {
    let key = &evidence.service;
    let errors = || evidence.errors();
    let taken = errors().find(|of| of.code == Code::AddressTaken);
    let code = taken.map_or(Code::ServiceUnusable, |of| of.code);
    let problem = format!("the brain skips every port of Service {key}");
    match taken.or_else(|| errors().next()) {
        None => usual(code, Subject::service(key), problem).remedy("add ports to the Service"),
        Some(of) => {
            let problem = format!("{problem}: {} {}: {}", of.subject, of.field, of.problem);
            Diagnostic { code, problem, ..of.clone() }
        }
    }
}

fn port_missing(evidence: &Evidence, ports: &str) -> Diagnostic {
    let Evidence { service, port, .. } = evidence;
    match evidence.errors().find(|of| of.field.starts_with("spec.ports[")) {
        Some(of) => {
            let problem = format!("the brain skips a port of Service {service}: {}: {}", of.field, of.problem);
            Diagnostic { code: Code::PortSkipped, problem, ..of.clone() }
        }
        None => {
            let problem = format!("Service {service} has no port {port}; it has {ports}");
            usual(Code::PortAbsent, Subject::service(service), problem)
        }
    }
}

/// Returns why the state sends the packet to no endpoint.
pub(super) fn of_outcome(evidence: &Evidence, front: &Front) -> Diagnostic {
    let of = |code, problem: String| usual(code, Subject::Vip(front.to), problem);
    if let Some(other) = &front.taken_by {
        let problem = format!(
            "{} belongs to Service {other}, which has precedence (its source is first, or else it is older, or else first by name)",
            front.to
        );
        return of(Code::AddressTaken, problem);
    }
    if let Some(filtered) = &front.filtered {
        return of(Code::SourceRanges, filtered.clone());
    }
    let service = &evidence.service;
    let Some(why) = &evidence.why else {
        let remedy = "query a brain for the reasons: localnet explain with --api";
        return of(Code::NoEndpointServes, front.because.clone()).remedy(remedy);
    };
    if why.endpoints == 0 {
        let problem = match why.slices {
            // The brain does not read headless EndpointSlices.
            0 => format!("Service {service} has no EndpointSlice without the label service.kubernetes.io/headless"),
            _ => format!("the EndpointSlices of Service {service} are empty"),
        };
        return of(Code::NoEndpoints, problem);
    }
    let concerns =
        |of: &&Ineligible| of.from.overlaps(front.scope) && of.port_name == front.port_name && of.is_of(front.family());
    let ineligible: Vec<&Ineligible> = why.ineligible.iter().filter(concerns).collect();
    if ineligible.is_empty() {
        let problem = format!("{}; the Service's {} endpoints are of another family", front.because, why.endpoints);
        let family = why.ineligible.iter().find(|of| of.rule == Rule::Family && of.port_name == front.port_name);
        let remedy = family.map_or("the pods must have addresses of the family of the VIP", |of| of.remedy.as_str());
        return of(code(Rule::Family), problem).remedy(remedy);
    }
    // If a policy excludes endpoints that are otherwise eligible, the policy is the cause. Otherwise the cause is the rule
    // that excludes the most endpoints; of several such rules, the first.
    let policy = ineligible.iter().find(|of| matches!(of.rule, Rule::InternalLocal | Rule::ExternalLocal));
    let count = |of: &Ineligible| ineligible.iter().filter(|other| other.rule == of.rule).count();
    let Some(found) = policy.or_else(|| ineligible.iter().rev().max_by_key(|of| count(of))) else {
        return of(Code::NoEndpointServes, front.because.clone());
    };
    let object = if found.field.starts_with("spec.") { "Service" } else { found.slice.as_str() };
    let (same, all) = (count(found), ineligible.len());
    let problem = format!("{same} of {all} endpoints: {} ({object} {})", found.problem, found.field);
    of(code(found.rule), problem).field(found.field.clone()).remedy(found.remedy.clone())
}

/// The code of the cause if this rule excludes the endpoints.
fn code(rule: Rule) -> Code {
    match rule {
        Rule::NotReady | Rule::NotServing | Rule::Terminating => Code::EndpointsNotReady,
        Rule::OtherNode | Rule::OtherZone => Code::Hints,
        Rule::InternalLocal => Code::InternalPolicyLocal,
        Rule::ExternalLocal => Code::ExternalPolicyLocal,
        Rule::Family => Code::EndpointsOfOtherFamily,
        Rule::PortName => Code::PortNameMismatch,
        Rule::PortProtocol => Code::PortProtocolMismatch,
        Rule::PortNumber => Code::PortNumberMissing,
        Rule::AddressType => Code::EndpointsWithoutAddress,
        Rule::Address | Rule::Reserved => Code::EndpointAddressRefused,
        Rule::Duplicate => Code::EndpointDuplicated,
        Rule::HeadlessSlice => Code::SliceOfHeadlessService,
        Rule::Weight | Rule::Unknown => Code::NoEndpointServes,
    }
}
