//! The brain's reasons and status as plain values that can be printed. Pure.

use std::{collections::BTreeMap, net::IpAddr};

use localnet_client::{
    Mode,
    vips::{Effective, Unreadable},
};
use localnet_core::{Code, Diagnostic, Object, Severity, Subject};
use localnet_proto::{Family, Revision, Scopes, ServiceKey, wire};
use serde::{Serialize, Serializer};

use crate::origin::Values;

/// The brain's reasons about a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Why {
    /// Whether the node serves the Service, and why not.
    pub standing: Standing,
    /// The number of its EndpointSlices.
    pub slices: usize,
    /// The number of endpoints in them.
    pub endpoints: usize,
    /// Endpoints that are not eligible for some of its traffic.
    pub left_out: Vec<LeftOut>,
    /// The number of such endpoints; `left_out` may be shorter.
    pub left_out_count: usize,
    /// How topology hints narrow the endpoints.
    pub hints: Vec<Hints>,
    /// The diagnostics of the Service and its EndpointSlices.
    pub findings: Vec<Diagnostic>,
    /// The conditions of the endpoints that are not ready or are terminating.
    pub unready: Vec<Conditions>,
}

/// The conditions of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Conditions {
    /// The endpoint's address.
    pub address: String,
    /// Whether it receives new connections.
    pub ready: bool,
    /// Whether it answers.
    pub serving: bool,
    /// Whether it is shutting down.
    pub terminating: bool,
}

impl Conditions {
    /// Returns the conditions that are true, by their Kubernetes names.
    pub fn words(&self) -> &'static str {
        match (self.ready, self.serving, self.terminating) {
            (true, _, false) => "Ready",
            (true, _, true) => "Ready,Terminating",
            (false, true, false) => "NotReady,Serving",
            (false, true, true) => "Serving,Terminating",
            (false, false, true) => "Terminating",
            (false, false, false) => "NotReady",
        }
    }
}

/// Whether the node serves a Service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Standing {
    /// The node serves it.
    Served,
    /// The cluster has no such Service.
    Absent,
    /// It has no ClusterIP.
    WithoutClusterIp,
    /// It is headless.
    Headless,
    /// Its type is ExternalName.
    ExternalName,
    /// Another proxy serves it.
    OfAnotherProxy,
    /// It has no usable address or port.
    Unusable,
    /// A newer brain sent a value that this program does not know.
    #[default]
    Unknown,
}

/// An endpoint that is not eligible, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LeftOut {
    /// Its address, as written in the EndpointSlice.
    pub address: String,
    /// Its port number; 0 if there is none.
    pub number: u16,
    /// The name of the Service's port.
    pub port_name: String,
    /// The EndpointSlice that contains it.
    pub slice: String,
    /// The node that it runs on.
    pub node: String,
    /// Whether it is local, that is, runs on this node.
    pub local: bool,
    /// The traffic that it is not eligible for.
    pub from: Scopes,
    /// The name of the rule on the wire.
    pub rule: String,
    /// The field that decides.
    pub field: String,
    /// The rule in a sentence.
    pub problem: String,
    /// How to change that.
    pub remedy: String,
    #[serde(skip)]
    pub(crate) kind: wire::Rule,
}

/// How topology hints narrow the endpoints of one port in one family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Hints {
    /// The name of the port.
    pub port_name: String,
    /// The address family.
    pub family: Family,
    /// The endpoints in use: `everywhere`, `sameNode` or `sameZone`.
    pub nearness: &'static str,
    /// Why hints for nodes have no effect.
    pub not_same_node: String,
    /// Why hints for zones have no effect.
    pub not_same_zone: String,
}

fn count(number: i32) -> usize {
    usize::try_from(number).unwrap_or_default()
}

impl From<wire::ServiceReasons> for Why {
    fn from(reasons: wire::ServiceReasons) -> Self {
        Self {
            standing: match reasons.standing() {
                wire::Standing::Unknown => Standing::Unknown,
                wire::Standing::Served => Standing::Served,
                wire::Standing::Absent => Standing::Absent,
                wire::Standing::WithoutClusterIp => Standing::WithoutClusterIp,
                wire::Standing::Headless => Standing::Headless,
                wire::Standing::ExternalName => Standing::ExternalName,
                wire::Standing::OfAnotherProxy => Standing::OfAnotherProxy,
                wire::Standing::Unusable => Standing::Unusable,
            },
            slices: count(reasons.slices),
            endpoints: count(reasons.endpoints),
            left_out_count: count(reasons.left_out_count),
            hints: reasons.topology.into_iter().map(Into::into).collect(),
            findings: reasons.findings.into_iter().map(finding).collect(),
            left_out: reasons.left_out.into_iter().map(Into::into).collect(),
            unready: reasons.unready.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<wire::EndpointConditions> for Conditions {
    fn from(of: wire::EndpointConditions) -> Self {
        let wire::EndpointConditions { address, ready, serving, terminating } = of;
        Self { address, ready, serving, terminating }
    }
}

impl From<wire::LeftOut> for LeftOut {
    fn from(of: wire::LeftOut) -> Self {
        let from = of.from.unwrap_or_default();
        let kind = of.rule();
        Self {
            number: u16::try_from(of.number).unwrap_or_default(),
            local: of.local,
            from: Scopes {
                internal: from.internal,
                external: from.external,
                short_circuit: from.short_circuit,
                established: from.established,
            },
            rule: kind.as_str_name().trim_start_matches("Rule").to_owned(),
            kind,
            address: of.address,
            port_name: of.port_name,
            slice: of.slice,
            node: of.node,
            field: of.field,
            problem: of.problem,
            remedy: of.remedy,
        }
    }
}

impl From<wire::Topology> for Hints {
    fn from(of: wire::Topology) -> Self {
        let family = if of.family() == wire::IpFamily::IPv6 { Family::V6 } else { Family::V4 };
        let nearness = match of.nearness() {
            wire::Nearness::SameNode => "sameNode",
            wire::Nearness::SameZone => "sameZone",
            wire::Nearness::Everywhere | wire::Nearness::Unknown => "everywhere",
        };
        let (not_same_node, not_same_zone) = (of.not_same_node, of.not_same_zone);
        Self { port_name: of.port_name, family, nearness, not_same_node, not_same_zone }
    }
}

/// Reads the code of a diagnostic. An older program sends none, a newer one may send one that this program does not know.
fn code(text: &str) -> Code {
    text.parse().unwrap_or(Code::Unknown)
}

fn finding(of: wire::Finding) -> Diagnostic {
    let severity = if of.left_out { Severity::Error } else { Severity::Warning };
    let subject = Object::from(of.object.as_str());
    Diagnostic::new(code(&of.code), subject, of.problem).field(of.field).remedy(of.remedy).severity(severity)
}

fn skipped(of: wire::SkippedService) -> Diagnostic {
    let key = of.service.unwrap_or_default();
    let subject = Subject::service(&ServiceKey::new(key.namespace, key.name));
    // An older backend sends only the reason.
    let problem = if of.problem.is_empty() { of.reason } else { of.problem };
    Diagnostic::new(code(&of.code), subject, problem).field(of.field).remedy(of.remedy)
}

fn warning(of: wire::BackendWarning) -> Diagnostic {
    let problem = if of.problem.is_empty() { of.note } else { of.problem };
    let warning = Diagnostic::new(code(&of.code), Subject::Program, problem).remedy(of.remedy);
    warning.severity(Severity::Warning)
}

impl LeftOut {
    /// Whether the endpoint is of this family. An address that cannot be parsed counts for both.
    pub fn is_of(&self, family: Family) -> bool {
        self.address.parse::<IpAddr>().map_or(true, |address| Family::of(address) == family)
    }
}

/// The revision that the brain and each backend have reached, and their problems.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// The brain's instance ID.
    pub instance: u64,
    /// The number of its latest state; 0 if it has none.
    pub revision: u64,
    /// The number of Services in the state.
    pub services: usize,
    /// The brain's version.
    pub version: String,
    /// The backends that have sent reports.
    pub backends: Vec<Backend>,
    /// The problems that keep the brain from reading changes.
    pub source_problems: Vec<SourceProblem>,
    /// Whether no backend is connected to receive changes.
    pub unread: bool,
}

/// A problem that keeps the brain from reading changes. The state is as old as the problem.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceProblem {
    /// The diagnostic's code.
    pub code: Code,
    /// The files or resources that cannot be read; resources by the names that kubectl uses.
    pub of: Vec<String>,
    /// The cause and the remedy.
    pub problem: String,
    /// How long the problem has lasted, in milliseconds.
    pub age_millis: u64,
}

/// The last report of a backend.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Backend {
    /// Its name.
    pub name: String,
    /// The mode of kube-proxy that it corresponds to; `None` if there is none or an older backend does not report it.
    #[serde(skip)]
    pub mode: Option<Mode>,
    /// The report's age in milliseconds.
    pub age_millis: u64,
    /// The revision that each family has reached.
    pub families: Vec<FamilyStatus>,
    /// What the backend skips of Services.
    pub skipped: Vec<Diagnostic>,
    /// The number of skipped Services; `skipped` may be shorter.
    pub skipped_count: usize,
    /// The warnings of the backend.
    pub warnings: Vec<Diagnostic>,
    /// The configuration that the backend reports, or why it cannot be read; `None` if it reports none.
    #[serde(serialize_with = "values")]
    pub configuration: Option<Result<Effective, Unreadable>>,
}

/// Serializes a reported configuration: its values, or why it cannot be read.
fn values<S: Serializer>(of: &Option<Result<Effective, Unreadable>>, serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Fields {
        #[serde(flatten)]
        values: Values,
        node_port_addresses: Vec<IpAddr>,
    }
    match of {
        None => serializer.serialize_none(),
        Some(Ok(Effective { config, node_port_addresses })) => {
            let node_port_addresses = node_port_addresses.clone();
            Fields { values: Values::of(config), node_port_addresses }.serialize(serializer)
        }
        Some(Err(unreadable)) => BTreeMap::from([("error", unreadable.to_string())]).serialize(serializer),
    }
}

/// The revision that a backend has reached in one family.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FamilyStatus {
    /// The address family.
    pub family: Family,
    /// The revision that the kernel holds; 0 if none of this brain's.
    pub applied: u64,
    /// The number of revisions that are not applied yet.
    pub lag: u64,
    /// Why the latest revision could not be applied; empty if it was.
    pub error: String,
}

/// The versions of the programs.
#[derive(Debug, Serialize)]
pub struct Versions {
    /// The version of this command.
    pub localnet: &'static str,
    /// The brain's version, if it answered.
    pub brain: Option<String>,
}

impl Status {
    /// Whether each backend has applied the latest revision in each family and the brain can read changes.
    pub fn is_well(&self) -> bool {
        let mut families = self.backends.iter().flat_map(|backend| &backend.families);
        let all = families.all(|family| family.lag == 0 && family.error.is_empty());
        all && !self.backends.is_empty() && self.source_problems.is_empty() && !self.unread
    }

    /// The backend with the latest report. It programs the node.
    pub fn newest(&self) -> Option<&Backend> {
        self.backends.iter().min_by_key(|backend| backend.age_millis)
    }
}

impl From<wire::BrainStatus> for Status {
    fn from(status: wire::BrainStatus) -> Self {
        let state = status.state.unwrap_or_default();
        let at = Revision { instance: state.instance_id, rev: state.rev };
        let backends =
            status.backends.into_iter().filter_map(|received| Some(backend(received.report?, received.age_millis, at)));
        Self {
            instance: at.instance,
            revision: at.rev,
            services: count(status.services),
            backends: backends.collect(),
            version: status.version,
            source_problems: source_problems(status.troubles),
            unread: status.unread,
        }
    }
}

/// Merges problems that have the same cause: watches lose an API server at the same time.
fn source_problems(all: Vec<wire::SourceTrouble>) -> Vec<SourceProblem> {
    let mut problems: Vec<SourceProblem> = Vec::new();
    for wire::SourceTrouble { of, problem, age_millis, code: text } in all {
        match problems.iter_mut().find(|known| known.problem == problem) {
            Some(known) => {
                known.of.push(of);
                known.age_millis = known.age_millis.max(age_millis);
            }
            None => problems.push(SourceProblem { code: code(&text), of: vec![of], problem, age_millis }),
        }
    }
    problems
}

impl SourceProblem {
    /// Returns one line with the resources, the duration and the cause.
    pub fn line(&self) -> String {
        format!("{} cannot be read for {} s: {}", self.of.join(", "), self.age_millis / 1000, self.problem)
    }
}

fn backend(report: wire::BackendReport, age_millis: u64, at: Revision) -> Backend {
    let of_this_brain = report.instance_id == at.instance;
    let families = report.families.iter().map(|family| {
        let applied = if of_this_brain { family.applied_rev } else { 0 };
        FamilyStatus {
            family: if family.family() == wire::IpFamily::IPv6 { Family::V6 } else { Family::V4 },
            applied,
            lag: at.rev.saturating_sub(applied),
            error: family.error.clone(),
        }
    });
    let families = families.collect();
    Backend {
        configuration: report.configuration.as_ref().map(Effective::try_from),
        mode: Mode::named(&report.proxy_mode),
        name: report.backend,
        age_millis,
        families,
        skipped: report.skipped.into_iter().map(skipped).collect(),
        skipped_count: count(report.skipped_count),
        warnings: report.warnings.into_iter().map(warning).collect(),
    }
}

impl Backend {
    /// The status of one family, if the backend reports it.
    pub fn family(&self, family: Family) -> Option<&FamilyStatus> {
        self.families.iter().find(|of| of.family == family)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revision_of_another_brain_instance_does_not_count_as_applied() {
        let report = |instance_id, applied_rev| wire::BackendReport {
            backend: "nft".to_owned(),
            instance_id,
            families: vec![wire::FamilyReport {
                family: wire::IpFamily::IPv4.into(),
                applied_rev,
                ..wire::FamilyReport::default()
            }],
            ..wire::BackendReport::default()
        };
        let at = Revision { instance: 7, rev: 9 };
        let of = |instance, applied| {
            let backend = backend(report(instance, applied), 0, at);
            let family = backend.family(Family::V4).unwrap();
            (family.applied, family.lag)
        };
        assert_eq!((of(7, 9), of(7, 4), of(8, 9)), ((9, 0), (4, 5), (0, 9)));
    }

    #[test]
    fn problems_with_the_same_cause_are_merged() {
        let trouble = |of: &str, problem: &str, age_millis| wire::SourceTrouble {
            of: of.to_owned(),
            problem: problem.to_owned(),
            age_millis,
            code: "api-unreachable".to_owned(),
        };
        let all = vec![trouble("nodes", "away", 1_000), trouble("services", "away", 2_000), trouble("x", "no", 1)];
        let lines: Vec<String> = source_problems(all).iter().map(SourceProblem::line).collect();
        assert_eq!(lines, ["nodes, services cannot be read for 2 s: away", "x cannot be read for 0 s: no"]);
    }

    #[test]
    fn a_code_of_another_version_is_unknown() {
        for (text, expected) in [("address-taken", Code::AddressTaken), ("", Code::Unknown), ("new", Code::Unknown)] {
            let of =
                wire::Finding { code: text.to_owned(), object: "Service shop/web".to_owned(), ..Default::default() };
            let found = finding(of);
            assert_eq!((found.code, found.severity), (expected, Severity::Warning));
            assert_eq!(found.subject, Subject::service(&ServiceKey::new("shop", "web")));
        }
    }

    #[test]
    fn a_rule_is_named_as_the_wire_names_it() {
        let of = wire::LeftOut { rule: wire::Rule::PortName.into(), ..wire::LeftOut::default() };
        assert_eq!(LeftOut::from(of).rule, "PortName");
        let unknown = wire::LeftOut { rule: 99, ..wire::LeftOut::default() };
        assert_eq!(LeftOut::from(unknown).rule, "Unknown");
    }
}
