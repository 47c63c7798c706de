//! Which endpoints of a port serve which traffic: kube-proxy's `CategorizeEndpoints` (KEP-1669, KEP-1864, KEP-2086).
//!
//! Two sets are formed, each on its own: the *cluster* set for traffic that may go anywhere, the *local* set for traffic that
//! must stay on this node. Each has the ready endpoints, or, when it has none, those that serve while they terminate.
//! Hints narrow the ready part of the cluster set alone.

use localnet_proto::{Scopes, Verdict, WhenEmpty};

use super::{
    Here,
    candidates::Candidate,
    reasons::Rule,
    topology::{self, Mode},
};
use crate::cluster::{ServiceObject, ServiceType};

/// The traffic policies of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Policy {
    /// `internalTrafficPolicy: Local`.
    pub(super) internal_local: bool,
    /// `externalTrafficPolicy: Local`, where it applies.
    pub(super) external_local: bool,
}

impl Policy {
    /// The policies of a service.
    pub(super) fn of(object: &ServiceObject) -> Self {
        Self { internal_local: object.internal_local, external_local: external_policy_local(object) }
    }

    /// Whether some traffic may go to other nodes. Even under external policy Local, traffic from this node to external
    /// addresses may (KEP-1864).
    pub(super) fn uses_cluster(self, external: bool) -> bool {
        !self.internal_local || external
    }
}

/// `externalTrafficPolicy` applies to Services that are made for external traffic.
fn external_policy_local(object: &ServiceObject) -> bool {
    let external = match object.kind {
        ServiceType::NodePort | ServiceType::LoadBalancer => true,
        ServiceType::ClusterIp => !object.external_ips.is_empty(),
        ServiceType::ExternalName => false,
    };
    object.external_local && external
}

/// How the endpoints of one port in one family are used.
#[derive(Debug)]
pub(super) struct Usage {
    policy: Policy,
    external: bool,
    cluster: Choice,
    local: Choice,
    mode: Mode,
    /// Some endpoint could serve, here or elsewhere.
    any: bool,
}

/// Which endpoints form a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    /// The set is not needed, or there are none.
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
            if endpoint.serves_while_terminating() {
                choice = Self::ServingTerminating;
            }
        }
        choice
    }

    fn has(self, endpoint: &Candidate<'_>) -> bool {
        match self {
            Self::None => false,
            Self::Ready => endpoint.conditions.ready,
            Self::ServingTerminating => endpoint.serves_while_terminating(),
        }
    }
}

/// Decides how the endpoints of one port in one family are used. `external`: the port is reached in other ways than through
/// its ClusterIP.
pub(super) fn categorize<'a>(
    endpoints: impl Iterator<Item = &'a Candidate<'a>> + Clone,
    policy: Policy,
    external: bool,
    here: &Here,
) -> Usage {
    let uses_cluster = policy.uses_cluster(external);
    let cluster = Choice::of(endpoints.clone());
    Usage {
        policy,
        external,
        mode: topology::mode(endpoints.clone(), here),
        any: cluster != Choice::None,
        cluster: if uses_cluster { cluster } else { Choice::None },
        local: Choice::of(endpoints.filter(|endpoint| endpoint.local)),
    }
}

impl Usage {
    /// Whether the endpoint is in the cluster set.
    fn in_cluster(&self, endpoint: &Candidate<'_>, here: &Here) -> bool {
        let near = self.cluster != Choice::Ready || topology::admits(self.mode, endpoint, here);
        self.cluster.has(endpoint) && near
    }

    /// Whether the endpoint is in the local set.
    fn in_local(&self, endpoint: &Candidate<'_>) -> bool {
        endpoint.local && self.local.has(endpoint)
    }

    /// What the endpoint serves.
    pub(super) fn scopes(&self, endpoint: &Candidate<'_>, here: &Here) -> Scopes {
        let (cluster, local) = (self.in_cluster(endpoint, here), self.in_local(endpoint));
        Scopes {
            internal: if self.policy.internal_local { local } else { cluster },
            external: self.external && if self.policy.external_local { local } else { cluster },
            short_circuit: self.external && self.policy.external_local && cluster,
            // An endpoint published although it is not ready gets new connections, so it may keep them.
            established: endpoint.conditions.serving || endpoint.conditions.ready,
        }
    }

    /// The traffic that there is: what an endpoint would serve that nothing leaves out.
    pub(super) fn traffic(&self) -> Scopes {
        let short_circuit = self.external && self.policy.external_local;
        Scopes { internal: true, external: self.external, short_circuit, established: false }
    }

    /// Explains [`Self::scopes`]: the rules that leave the endpoint out, each with the traffic that it does not serve for it.
    pub(super) fn left_out(&self, endpoint: &Candidate<'_>, here: &Here) -> Vec<(Rule, Scopes)> {
        let (served, traffic) = (self.scopes(endpoint, here), self.traffic());
        let of_cluster = || self.not_in_cluster(endpoint);
        let of = |local: bool, policy| if local { self.not_in_local(endpoint, policy) } else { of_cluster() };
        let mut rules: Vec<(Rule, Scopes)> = Vec::new();
        let mut add = |rule, scope: Scopes| match rules.iter_mut().find(|(known, _)| *known == rule) {
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

    /// Why an endpoint is not in the cluster set.
    fn not_in_cluster(&self, endpoint: &Candidate<'_>) -> Rule {
        match (self.cluster.has(endpoint), self.mode) {
            (true, Mode::SameNode) => Rule::OtherNode,
            (true, Mode::SameZone | Mode::Everywhere) => Rule::OtherZone,
            (false, _) => not_ready(self.cluster, endpoint),
        }
    }

    /// Why an endpoint is not in the local set, which `policy` asks for.
    fn not_in_local(&self, endpoint: &Candidate<'_>, policy: Rule) -> Rule {
        let could_serve = endpoint.conditions.ready || endpoint.serves_while_terminating();
        if !endpoint.local && could_serve { policy } else { not_ready(self.local, endpoint) }
    }

    /// What happens to traffic that no endpoint serves: silence when a policy keeps it from endpoints that exist, since a
    /// client should try again elsewhere; refusal when there are none.
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

/// Which condition leaves an endpoint out of a set.
fn not_ready(set: Choice, endpoint: &Candidate<'_>) -> Rule {
    match set {
        Choice::Ready if endpoint.conditions.terminating => Rule::Terminating,
        Choice::Ready => Rule::NotReady,
        Choice::ServingTerminating | Choice::None => Rule::NotServing,
    }
}
