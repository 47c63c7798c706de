//! The typed form of `ServiceReasons`, which explains how the brain localizes a Service.

use std::net::IpAddr;

use localnet_core::{Code, Diagnostic, Object, Severity};
use serde::{Serialize, Serializer};

use crate::{
    encode::next_filter,
    model::{Family, Revision, Scopes, ServiceKey},
    wire,
};
pub use wire::{EndpointConditions, Nearness, Rule, Standing};

/// How the brain localizes a Service, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reasons {
    /// Whether the node serves the Service, and the reason if it does not.
    pub standing: Standing,
    /// The diagnostics of the Service and its EndpointSlices.
    pub findings: Vec<Diagnostic>,
    /// The endpoints that are not eligible for at least one scope, sorted by port and address.
    pub ineligible: Vec<Ineligible>,
    /// The total number of ineligible endpoints. `ineligible` may contain only some of them.
    pub ineligible_count: usize,
    /// How topology hints narrow the endpoints of each port in each family.
    pub topology: Vec<Topology>,
    /// The number of the Service's EndpointSlices.
    pub slices: usize,
    /// The number of endpoints in these EndpointSlices.
    pub endpoints: usize,
    /// The conditions of the endpoints that are not ready or are terminating.
    pub unready: Vec<EndpointConditions>,
}

/// An endpoint that is not eligible for at least one scope, and the rule that excludes the endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Ineligible {
    /// The name of the EndpointSlice that contains the endpoint.
    pub slice: String,
    /// The endpoint's address as in the slice; empty if there is none.
    pub address: String,
    /// The name of the Service's port.
    pub port_name: String,
    /// The port number of the endpoint; 0 if there is none.
    pub number: u16,
    /// The name of the endpoint's node; empty if the slice has none.
    pub node: String,
    /// Whether the endpoint is on this node.
    pub local: bool,
    /// The scopes that the rule excludes the endpoint from.
    pub from: Scopes,
    /// The rule that excludes the endpoint.
    #[serde(serialize_with = "name")]
    pub rule: Rule,
    /// The field whose value caused the exclusion.
    pub field: String,
    /// A description of the rule, with the values that caused the exclusion.
    pub problem: String,
    /// What the operator can do about the problem.
    pub remedy: String,
}

/// How topology hints narrow the endpoints of one port in one family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Topology {
    /// The name of the Service's port; may be empty.
    pub port_name: String,
    /// The address family.
    pub family: Family,
    /// Which endpoints remain after the hints have been applied.
    #[serde(serialize_with = "nearness")]
    pub nearness: Nearness,
    /// Why hints for nodes do not apply; empty if they do.
    pub not_same_node: String,
    /// Why hints for zones do not apply; empty if they do, or if they are not needed.
    pub not_same_zone: String,
    /// Whether no endpoint has a hint.
    pub unhinted: bool,
}

impl Rule {
    /// The name of the rule, such as `NotReady`.
    pub fn name(self) -> &'static str {
        self.as_str_name().trim_start_matches("Rule")
    }
}

fn name<S: Serializer>(rule: &Rule, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(rule.name())
}

fn nearness<S: Serializer>(of: &Nearness, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(match of {
        Nearness::SameNode => "sameNode",
        Nearness::SameZone => "sameZone",
        Nearness::Everywhere | Nearness::Unknown => "everywhere",
    })
}

impl Ineligible {
    /// Whether the endpoint belongs to this family. An endpoint whose address cannot be parsed belongs to both families.
    pub fn is_of(&self, family: Family) -> bool {
        self.address.parse::<IpAddr>().map_or(true, |address| Family::of(address) == family)
    }
}

fn to_count(count: usize) -> i32 {
    count.try_into().unwrap_or(i32::MAX)
}

fn from_count(count: i32) -> usize {
    count.try_into().unwrap_or_default()
}

impl Reasons {
    /// Converts the reasons to a message about `service` in the state of the revision `at`.
    pub fn to_wire(&self, service: &ServiceKey, at: Revision) -> wire::ServiceReasons {
        wire::ServiceReasons {
            service: Some(service.into()),
            state: Some(next_filter(at, false)),
            standing: self.standing.into(),
            findings: self.findings.iter().map(Into::into).collect(),
            ineligible: self.ineligible.iter().cloned().map(Into::into).collect(),
            ineligible_count: to_count(self.ineligible_count),
            topology: self.topology.iter().cloned().map(Into::into).collect(),
            slices: to_count(self.slices),
            endpoints: to_count(self.endpoints),
            unready: self.unready.clone(),
        }
    }
}

impl From<wire::ServiceReasons> for Reasons {
    fn from(of: wire::ServiceReasons) -> Self {
        Self {
            standing: of.standing(),
            findings: of.findings.into_iter().map(Into::into).collect(),
            ineligible: of.ineligible.into_iter().map(Into::into).collect(),
            ineligible_count: from_count(of.ineligible_count),
            topology: of.topology.into_iter().map(Into::into).collect(),
            slices: from_count(of.slices),
            endpoints: from_count(of.endpoints),
            unready: of.unready,
        }
    }
}

impl From<&Diagnostic> for wire::Finding {
    fn from(of: &Diagnostic) -> Self {
        Self {
            skipped: of.severity == Severity::Error,
            object: of.subject.to_string(),
            field: of.field.clone(),
            problem: of.problem.clone(),
            remedy: of.remedy.clone(),
            code: of.code.to_string(),
            severity: wire::Severity::from(of.severity).into(),
        }
    }
}

impl From<wire::Finding> for Diagnostic {
    fn from(of: wire::Finding) -> Self {
        let severity = if of.skipped { Severity::Error } else { Severity::Warning };
        let subject = Object::from(of.object.as_str());
        Self::new(Code::received(&of.code), subject, of.problem).field(of.field).remedy(of.remedy).severity(severity)
    }
}

impl From<Ineligible> for wire::IneligibleEndpoint {
    fn from(of: Ineligible) -> Self {
        let Ineligible { slice, address, port_name, number, node, local, from, rule, field, problem, remedy } = of;
        let (number, from, rule) = (number.into(), Some(from.into()), rule.into());
        Self { slice, address, port_name, number, node, local, from, rule, field, problem, remedy }
    }
}

impl From<wire::IneligibleEndpoint> for Ineligible {
    fn from(of: wire::IneligibleEndpoint) -> Self {
        let rule = of.rule();
        let wire::IneligibleEndpoint {
            slice,
            address,
            port_name,
            number,
            node,
            local,
            from,
            field,
            problem,
            remedy,
            ..
        } = of;
        let number = number.try_into().unwrap_or_default();
        let from = from.unwrap_or_default().into();
        Self { slice, address, port_name, number, node, local, from, rule, field, problem, remedy }
    }
}

impl From<Topology> for wire::Topology {
    fn from(of: Topology) -> Self {
        let Topology { port_name, family, nearness, not_same_node, not_same_zone, unhinted } = of;
        let (family, nearness) = (wire::IpFamily::from(family).into(), nearness.into());
        Self { port_name, family, nearness, not_same_node, not_same_zone, unhinted }
    }
}

impl From<wire::Topology> for Topology {
    fn from(of: wire::Topology) -> Self {
        let (nearness, family) = (of.nearness(), of.family().known().unwrap_or(Family::V4));
        let wire::Topology { port_name, not_same_node, not_same_zone, unhinted, .. } = of;
        Self { port_name, family, nearness, not_same_node, not_same_zone, unhinted }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use localnet_core::Subject;

    use super::*;

    #[test]
    fn a_code_of_another_version_is_unknown() {
        for (text, expected) in [("address-taken", Code::AddressTaken), ("", Code::Unknown), ("new", Code::Unknown)] {
            let object = "Service shop/web".to_owned();
            let found = Diagnostic::from(wire::Finding { code: text.to_owned(), object, ..wire::Finding::default() });
            assert_eq!((found.code, found.severity), (expected, Severity::Warning));
            assert_eq!(found.subject, Subject::service(&ServiceKey::new("shop", "web")));
        }
    }

    #[test]
    fn a_rule_is_named_as_the_wire_names_it() {
        assert_eq!(Rule::PortName.name(), "PortName");
        let unknown = wire::IneligibleEndpoint { rule: 99, ..wire::IneligibleEndpoint::default() };
        assert_eq!(Ineligible::from(unknown).rule.name(), "Unknown");
    }

    pub(crate) fn not_ready() -> Ineligible {
        Ineligible {
            slice: "web-1".to_owned(),
            address: "10.0.0.1".to_owned(),
            port_name: "http".to_owned(),
            number: 8080,
            node: "node-a".to_owned(),
            local: true,
            from: Scopes { internal: true, established: true, ..Scopes::default() },
            rule: Rule::NotReady,
            field: "endpoints[0].conditions.ready".to_owned(),
            problem: "it is not ready".to_owned(),
            remedy: "none".to_owned(),
        }
    }

    #[test]
    fn reasons_survive_the_wire() {
        let finding = Diagnostic::new(Code::PortInvalid, Object::service("shop", "web"), "0 is not a port");
        let topology = Topology {
            port_name: "http".to_owned(),
            family: Family::V6,
            nearness: Nearness::SameZone,
            not_same_node: "no endpoint has a hint".to_owned(),
            not_same_zone: String::new(),
            unhinted: false,
        };
        let reasons = Reasons {
            standing: Standing::Served,
            findings: vec![finding.field("spec.ports[0].port").remedy("use another")],
            ineligible: vec![not_ready()],
            ineligible_count: 2,
            topology: vec![topology],
            slices: 1,
            endpoints: 3,
            unready: vec![EndpointConditions { address: "10.0.0.1".to_owned(), ..EndpointConditions::default() }],
        };
        let at = Revision { instance: 7, rev: 9 };
        assert_eq!(Reasons::from(reasons.to_wire(&ServiceKey::new("shop", "web"), at)), reasons);
    }
}
