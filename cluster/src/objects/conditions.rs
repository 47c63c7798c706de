//! The conditions of an endpoint.

use std::net::IpAddr;

use k8s_openapi::api::discovery::v1::EndpointConditions;
use localnet_proto::reasons;

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

    /// Converts the conditions to the API's message, for the endpoint with this address.
    pub(crate) fn of(self, address: IpAddr) -> reasons::EndpointConditions {
        let Self { ready, serving, terminating } = self;
        reasons::EndpointConditions { address: address.to_string(), ready, serving, terminating }
    }
}
