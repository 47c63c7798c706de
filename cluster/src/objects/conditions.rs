//! The conditions of an endpoint.

use std::net::IpAddr;

use k8s_openapi::api::discovery::v1::EndpointConditions;
use localnet_proto::reasons::{self, Rule};

/// The conditions of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conditions {
    /// Whether the endpoint is ready for new connections.
    pub ready: bool,
    /// Whether the endpoint answers connections.
    pub serving: bool,
    /// Whether the endpoint is terminating.
    pub terminating: bool,
}

impl From<EndpointConditions> for Conditions {
    /// A missing condition has its default, and `ready: false` does not make `serving` false.
    fn from(conditions: EndpointConditions) -> Self {
        let missing = Self::READY;
        Self {
            ready: conditions.ready.unwrap_or(missing.ready),
            serving: conditions.serving.unwrap_or(missing.serving),
            terminating: conditions.terminating.unwrap_or(missing.terminating),
        }
    }
}

impl Conditions {
    /// The conditions of a ready endpoint, which are also Kubernetes' defaults for missing conditions.
    pub const READY: Self = Self { ready: true, serving: true, terminating: false };

    /// Of two endpoints with the same address, the one of the higher rank is used.
    pub(crate) fn rank(self) -> impl Ord {
        (!self.terminating, self.ready, self.serving)
    }

    /// Whether the endpoint serves while it terminates. If no endpoint is ready, these endpoints get the traffic.
    pub(crate) fn serves_while_terminating(self) -> bool {
        self.serving && self.terminating
    }

    /// The rule by which the conditions exclude the endpoint. `some_are_ready`: whether other endpoints are ready.
    pub(crate) fn excluded_by(self, some_are_ready: bool) -> Rule {
        match (some_are_ready, self.terminating) {
            (true, true) => Rule::Terminating,
            (true, false) => Rule::NotReady,
            (false, _) => Rule::NotServing,
        }
    }

    /// Explains a rule of [`Self::excluded_by`]: the name of the condition, the problem and the remedy.
    pub(crate) fn why(self, rule: Rule) -> (&'static str, &'static str, &'static str) {
        match rule {
            Rule::Terminating => (
                "terminating",
                "it is terminating, and other endpoints are ready",
                "no action is needed: the endpoint finishes its connections",
            ),
            Rule::NotReady => (
                "ready",
                "it is not ready, but other endpoints are",
                "see why the pod's readiness probe fails: kubectl describe pod",
            ),
            _ if self.terminating => (
                "serving",
                "it is terminating and no longer serving, and no endpoint is ready",
                "see why no pod becomes ready: kubectl describe pod",
            ),
            _ => ("ready", "neither it nor any other is ready", "see why no pod becomes ready: kubectl describe pod"),
        }
    }

    /// Converts the conditions to the API's message, for the endpoint with this address.
    pub(crate) fn of(self, address: IpAddr) -> reasons::EndpointConditions {
        let Self { ready, serving, terminating } = self;
        reasons::EndpointConditions { address: address.to_string(), ready, serving, terminating }
    }
}
