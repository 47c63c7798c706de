//! `localnet.reasons.v1alpha1`: explanations of the state, from [`Reasons`].

use localnet_core::{Diagnostic, Severity};

use super::{encode::scopes, wire as v1};
use crate::{
    model::{Family, Revision, ServiceKey},
    reasons::{Ineligible, Reasons, Topology},
};

/// Types and services generated from `localnet/reasons/v1alpha1/reasons.proto`.
#[expect(clippy::allow_attributes, reason = "generated code; the proto file documents it")]
pub mod wire {
    include!("../generated/localnet.reasons.v1alpha1.rs");
}

impl Reasons {
    /// Converts the reasons to a message about `service` in the state of the revision `at`.
    pub fn to_v1(&self, service: &ServiceKey, at: Revision) -> wire::ExplainServiceResponse {
        wire::ExplainServiceResponse {
            service: Some(service.into()),
            revision: Some(at.into()),
            // localnetv1 has the same numbers.
            standing: self.standing.into(),
            findings: self.findings.iter().map(Into::into).collect(),
            ineligible_endpoints: self.ineligible.iter().map(Into::into).collect(),
            ineligible_count: count(self.ineligible_count),
            topologies: self.topology.iter().map(Into::into).collect(),
            slice_count: count(self.slices),
            endpoint_count: count(self.endpoints),
            unready_endpoints: self.unready.iter().map(Into::into).collect(),
        }
    }
}

fn count(count: usize) -> u32 {
    count.try_into().unwrap_or(u32::MAX)
}

impl From<&Diagnostic> for v1::Diagnostic {
    fn from(of: &Diagnostic) -> Self {
        let severity = match of.severity {
            Severity::Error => v1::Severity::Error,
            Severity::Warning => v1::Severity::Warning,
        };
        Self {
            code: of.code.to_string(),
            severity: severity.into(),
            field: of.field.clone(),
            problem: of.problem.clone(),
            remedy: of.remedy.clone(),
        }
    }
}

impl From<&Diagnostic> for wire::Finding {
    fn from(of: &Diagnostic) -> Self {
        Self { object: of.subject.to_string(), diagnostic: Some(of.into()) }
    }
}

impl From<&Ineligible> for wire::IneligibleEndpoint {
    fn from(of: &Ineligible) -> Self {
        Self {
            slice: of.slice.clone(),
            address: of.address.clone(),
            port_name: of.port_name.clone(),
            port_number: of.number.into(),
            node_name: of.node.clone(),
            local: of.local,
            excluded_from: scopes(of.from),
            rule: of.rule.into(),
            field: of.field.clone(),
            problem: of.problem.clone(),
            remedy: of.remedy.clone(),
        }
    }
}

impl From<&Topology> for wire::Topology {
    fn from(of: &Topology) -> Self {
        Self {
            port_name: of.port_name.clone(),
            family: v1::IpFamily::from(of.family).into(),
            nearness: of.nearness.into(),
            not_same_node: of.not_same_node.clone(),
            not_same_zone: of.not_same_zone.clone(),
            unhinted: of.unhinted,
        }
    }
}

impl From<Family> for v1::IpFamily {
    fn from(family: Family) -> Self {
        match family {
            Family::V4 => Self::Ipv4,
            Family::V6 => Self::Ipv6,
        }
    }
}

impl From<&crate::wire::EndpointConditions> for wire::EndpointConditions {
    fn from(of: &crate::wire::EndpointConditions) -> Self {
        Self { address: of.address.clone(), ready: of.ready, serving: of.serving, terminating: of.terminating }
    }
}

#[cfg(test)]
mod tests {
    use localnet_core::{Code, Object};

    use super::*;
    use crate::reasons::{EndpointConditions, Nearness, Rule, Standing};

    /// The name of a value without prefix and separators.
    fn plain(name: &str, prefix: &str) -> String {
        name.replace('_', "").to_lowercase().strip_prefix(prefix).unwrap().replace("unspecified", "unknown")
    }

    /// The names of all values of an enum, by their numbers.
    fn names(of: impl Fn(i32) -> Option<&'static str>, prefix: &str) -> Vec<String> {
        (0..).map_while(of).map(|name| plain(name, prefix)).collect()
    }

    #[test]
    fn values_have_the_numbers_of_localnetv1() {
        let rules = names(|rule| Some(wire::Rule::try_from(rule).ok()?.as_str_name()), "rule");
        assert_eq!(rules, names(|rule| Some(Rule::try_from(rule).ok()?.as_str_name()), "rule"));
        let standings = names(|of| Some(wire::Standing::try_from(of).ok()?.as_str_name()), "standing");
        assert_eq!(standings, names(|of| Some(Standing::try_from(of).ok()?.as_str_name()), "standing"));
        let near = names(|of| Some(wire::Nearness::try_from(of).ok()?.as_str_name()), "nearness");
        assert_eq!(near, names(|of| Some(Nearness::try_from(of).ok()?.as_str_name()), "nearness"));
        assert_eq!((rules.len(), standings.len(), near.len()), (18, 8, 4));
    }

    #[test]
    fn reasons_become_messages() {
        let finding = Diagnostic::new(Code::PortInvalid, Object::service("shop", "web"), "0 is not a port");
        let topology = Topology {
            port_name: "http".to_owned(),
            family: Family::V6,
            nearness: Nearness::SameZone,
            not_same_node: "no endpoint has a hint".to_owned(),
            not_same_zone: "-".to_owned(),
            unhinted: true,
        };
        let unready = EndpointConditions { address: "10.0.0.1".to_owned(), serving: true, ..Default::default() };
        let reasons = Reasons {
            standing: Standing::Unusable,
            findings: vec![finding.field("spec.ports[0].port").remedy("use another")],
            ineligible: vec![crate::reasons::tests::not_ready()],
            ineligible_count: 2,
            topology: vec![topology],
            slices: 1,
            endpoints: 3,
            unready: vec![unready],
        };
        let text = str::to_owned;
        let expected = wire::ExplainServiceResponse {
            service: Some(v1::ServiceKey { namespace: text("shop"), name: text("web") }),
            revision: Some(v1::Revision { instance: text("000000000000000a"), number: 9 }),
            standing: wire::Standing::Unusable.into(),
            findings: vec![wire::Finding {
                object: text("Service shop/web"),
                diagnostic: Some(v1::Diagnostic {
                    code: text("port-invalid"),
                    severity: v1::Severity::Error.into(),
                    field: text("spec.ports[0].port"),
                    problem: text("0 is not a port"),
                    remedy: text("use another"),
                }),
            }],
            ineligible_endpoints: vec![wire::IneligibleEndpoint {
                slice: text("web-1"),
                address: text("10.0.0.1"),
                port_name: text("http"),
                port_number: 8080,
                node_name: text("node-a"),
                local: true,
                excluded_from: vec![v1::Scope::Internal.into(), v1::Scope::Established.into()],
                rule: wire::Rule::NotReady.into(),
                field: text("endpoints[0].conditions.ready"),
                problem: text("it is not ready"),
                remedy: text("none"),
            }],
            ineligible_count: 2,
            topologies: vec![wire::Topology {
                port_name: text("http"),
                family: v1::IpFamily::Ipv6.into(),
                nearness: wire::Nearness::SameZone.into(),
                not_same_node: text("no endpoint has a hint"),
                not_same_zone: text("-"),
                unhinted: true,
            }],
            slice_count: 1,
            endpoint_count: 3,
            unready_endpoints: vec![wire::EndpointConditions {
                address: text("10.0.0.1"),
                serving: true,
                ..Default::default()
            }],
        };
        let at = Revision { instance: 10, rev: 9 };
        assert_eq!(reasons.to_v1(&ServiceKey::new("shop", "web"), at), expected);
    }
}
