//! Decides which endpoints of a port are eligible for which traffic: kube-proxy's `CategorizeEndpoints` (KEP-1669, KEP-1864,
//! KEP-2086).
//!
//! There are two independent sets of endpoints. Traffic that may go to any node uses the *cluster* set; traffic that must
//! stay on this node uses the *local* set. Each set contains the ready endpoints. If no endpoint is ready, the set
//! contains the endpoints that serve while they terminate. Hints narrow only the ready endpoints of the cluster set. An
//! endpoint of weight 0 is in a set only if all endpoints of the set have weight 0.

use localnet_proto::{Scopes, Verdict, WhenEmpty};

use super::{
    Here, Rule,
    candidates::Candidate,
    topology::{self, Mode},
};
use crate::objects::{ServiceObject, ServiceType};

/// The traffic policies of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Policy {
    /// Whether `internalTrafficPolicy` is `Local`.
    pub(super) internal_local: bool,
    /// Whether `externalTrafficPolicy` is `Local` and applies to the Service.
    pub(super) external_local: bool,
}

impl Policy {
    /// The traffic policies of a Service.
    pub(super) fn of(object: &ServiceObject) -> Self {
        Self { internal_local: object.internal_local, external_local: external_policy_local(object) }
    }

    /// Whether some traffic may go to other nodes. Traffic from this node to external addresses may do so even under
    /// external policy Local (KEP-1864).
    pub(super) fn uses_cluster(self, external: bool) -> bool {
        !self.internal_local || external
    }
}

/// Whether `externalTrafficPolicy` is `Local` and applies to the Service. The policy applies only to Services that accept
/// external traffic.
fn external_policy_local(object: &ServiceObject) -> bool {
    let external = match object.kind {
        ServiceType::NodePort | ServiceType::LoadBalancer => true,
        ServiceType::ClusterIp => !object.external_ips.is_empty(),
        ServiceType::ExternalName => false,
    };
    object.external_local && external
}

/// Which endpoints of one port are used in one family.
#[derive(Debug)]
pub(super) struct Usage {
    policy: Policy,
    external: bool,
    cluster: Choice,
    local: Choice,
    mode: Mode,
    /// Whether the cluster set has endpoints of a positive weight.
    cluster_weighs: bool,
    /// Whether the local set has endpoints of a positive weight.
    local_weighs: bool,
    /// Whether there is any endpoint, local or remote, that could serve.
    any: bool,
}

/// The endpoints that form a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    /// The set is not needed, or is empty.
    None,
    Ready,
    ServingTerminating,
}

impl Choice {
    fn of<'a>(endpoints: impl Iterator<Item = &'a Candidate<'a>>) -> Self {
        let mut choice = Self::None;
        for endpoint in endpoints {
            if endpoint.conditions.ready {
                return Self::Ready;
            }
            if endpoint.conditions.serves_while_terminating() {
                choice = Self::ServingTerminating;
            }
        }
        choice
    }

    fn has(self, endpoint: &Candidate<'_>) -> bool {
        match self {
            Self::None => false,
            Self::Ready => endpoint.conditions.ready,
            Self::ServingTerminating => endpoint.conditions.serves_while_terminating(),
        }
    }
}

/// Chooses the cluster set and the local set for one port in one family. `external`: whether the port has VIPs other than
/// its ClusterIP.
pub(super) fn categorize<'a>(
    endpoints: impl Iterator<Item = &'a Candidate<'a>> + Clone,
    policy: Policy,
    external: bool,
    here: &Here,
) -> Usage {
    let uses_cluster = policy.uses_cluster(external);
    let cluster = Choice::of(endpoints.clone());
    let mut usage = Usage {
        policy,
        external,
        mode: topology::mode(endpoints.clone(), here),
        any: cluster != Choice::None,
        cluster: if uses_cluster { cluster } else { Choice::None },
        local: Choice::of(endpoints.clone().filter(|endpoint| endpoint.local)),
        cluster_weighs: false,
        local_weighs: false,
    };
    let mut weighing = endpoints.filter(|endpoint| endpoint.weight > 0);
    usage.cluster_weighs = weighing.clone().any(|endpoint| usage.in_cluster(endpoint, here));
    usage.local_weighs = usage.local != Choice::None && weighing.any(|endpoint| usage.in_local(endpoint));
    usage
}

impl Usage {
    /// Whether the endpoint is in the cluster set.
    fn in_cluster(&self, endpoint: &Candidate<'_>, here: &Here) -> bool {
        let near = self.cluster != Choice::Ready || topology::admits(self.mode, endpoint, here);
        self.cluster.has(endpoint) && near && !(self.cluster_weighs && endpoint.weight == 0)
    }

    /// Whether the endpoint is in the local set.
    fn in_local(&self, endpoint: &Candidate<'_>) -> bool {
        endpoint.local && self.local.has(endpoint) && !(self.local_weighs && endpoint.weight == 0)
    }

    /// The scopes that the endpoint is eligible for.
    pub(super) fn scopes(&self, endpoint: &Candidate<'_>, here: &Here) -> Scopes {
        let (cluster, local) = (self.in_cluster(endpoint, here), self.in_local(endpoint));
        Scopes {
            internal: if self.policy.internal_local { local } else { cluster },
            external: self.external && if self.policy.external_local { local } else { cluster },
            short_circuit: self.external && self.policy.external_local && cluster,
            // A Service may publish endpoints that are ready but not serving. Such endpoints get new connections, so they
            // may also keep existing connections.
            established: endpoint.conditions.serving || endpoint.conditions.ready,
        }
    }

    /// The scopes for which an endpoint is eligible if no rule excludes it.
    pub(super) fn traffic(&self) -> Scopes {
        let short_circuit = self.external && self.policy.external_local;
        Scopes { internal: true, external: self.external, short_circuit, established: false }
    }

    /// Explains [`Self::scopes`]: the rules that exclude the endpoint, each with the scopes that it affects.
    pub(super) fn exclusions(&self, endpoint: &Candidate<'_>, here: &Here) -> Vec<(Rule, Scopes)> {
        let (served, traffic) = (self.scopes(endpoint, here), self.traffic());
        let of_cluster = || self.not_in_cluster(endpoint, here);
        let of = |local: bool, policy| if local { self.not_in_local(endpoint, policy) } else { of_cluster() };
        let mut rules: Vec<(Rule, Scopes)> = Vec::new();
        let mut add = |rule, scope: Scopes| match rules.iter_mut().find(|(other, _)| *other == rule) {
            Some((_, scopes)) => {
                scopes.external |= scope.external;
                scopes.short_circuit |= scope.short_circuit;
            }
            None => rules.push((rule, scope)),
        };
        if !served.internal {
            let rule = of(self.policy.internal_local, Rule::InternalLocal);
            add(rule, Scopes { internal: true, ..Scopes::default() });
        }
        if traffic.external && !served.external {
            let rule = of(self.policy.external_local, Rule::ExternalLocal);
            add(rule, Scopes { external: true, ..Scopes::default() });
        }
        if traffic.short_circuit && !served.short_circuit {
            add(of_cluster(), Scopes { short_circuit: true, ..Scopes::default() });
        }
        rules
    }

    /// The rule that excludes an endpoint from the cluster set.
    fn not_in_cluster(&self, endpoint: &Candidate<'_>, here: &Here) -> Rule {
        match (self.cluster.has(endpoint), self.mode) {
            (true, mode) if self.cluster != Choice::Ready || topology::admits(mode, endpoint, here) => Rule::Weight,
            (true, Mode::SameNode) => Rule::OtherNode,
            (true, Mode::SameZone | Mode::Everywhere) => Rule::OtherZone,
            (false, _) => endpoint.conditions.excluded_by(self.cluster == Choice::Ready),
        }
    }

    /// The rule that excludes an endpoint from the local set. If the endpoint could serve but is not on this node, the
    /// traffic policy `Local` excludes it, and the rule is `policy`.
    fn not_in_local(&self, endpoint: &Candidate<'_>, policy: Rule) -> Rule {
        let could_serve = endpoint.conditions.ready || endpoint.conditions.serves_while_terminating();
        if !endpoint.local && could_serve {
            policy
        } else if endpoint.local && self.local.has(endpoint) {
            Rule::Weight
        } else {
            endpoint.conditions.excluded_by(self.local == Choice::Ready)
        }
    }

    /// The verdicts for traffic without eligible endpoints. If a policy excludes all existing endpoints, packets are dropped, so
    /// that the client retries on another node. If there are no endpoints, packets are rejected.
    pub(super) fn when_empty(&self) -> WhenEmpty {
        let verdict = |set: Choice| if set == Choice::None && self.any { Verdict::Drop } else { Verdict::Reject };
        WhenEmpty {
            internal: verdict(if self.policy.internal_local { self.local } else { self.cluster }),
            external: match self.external {
                true => verdict(if self.policy.external_local { self.local } else { self.cluster }),
                false => Verdict::Reject,
            },
        }
    }
}
