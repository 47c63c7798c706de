//! The facts behind the health answers to load balancers. The feed keeps them separate from the states, because backends
//! do not need them, and because they may change while the state does not. For example, if the only ready endpoint starts
//! to terminate, it continues to serve, but no longer counts as ready.

use std::net::IpAddr;

use imbl::OrdMap;
use ipnet::IpNet;
use localnet_proto::{Family, ServiceKey};

use localnet_cluster::localize::{HealthCheck, Localized};

/// The facts that health answers need, as of the newest state. Cheap to clone.
#[derive(Clone, Debug, PartialEq)]
pub struct HealthFacts {
    /// Whether load balancers may choose this node. True until the Node has been received.
    pub node_eligible: bool,
    /// The Services that have a health check port.
    pub checks: OrdMap<ServiceKey, HealthCheck>,
    /// The facts about the node. `None` before the first state.
    pub node: Option<NodeFacts>,
}

impl Default for HealthFacts {
    fn default() -> Self {
        Self { node_eligible: true, checks: OrdMap::new(), node: None }
    }
}

/// The facts about the node that determine which addresses the health servers listen on, and whether a configuration
/// suits the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// The node's addresses. The first of each family is the primary one.
    pub addresses: Vec<IpAddr>,
    /// The family of the node's first address. `None` if it has no address.
    pub primary: Option<Family>,
    /// The Node's `spec.podCIDRs`.
    pub pod_cidrs: Vec<IpNet>,
}

impl HealthFacts {
    /// Applies the changes. Returns whether any fact has changed.
    pub(super) fn fold(&mut self, localized: &Localized) -> bool {
        let mut differs = false;
        if let Some(eligible) = localized.node_eligible {
            differs = std::mem::replace(&mut self.node_eligible, eligible) != eligible;
        }
        if let Some(node) = &localized.node {
            let (addresses, pod_cidrs) = (node.addresses.clone(), node.pod_cidrs.clone());
            let facts = Some(NodeFacts { addresses, primary: localized.primary, pod_cidrs });
            differs |= std::mem::replace(&mut self.node, facts.clone()) != facts;
        }
        let mut checks = localized.health_checks.iter().peekable();
        for (key, _) in &localized.services {
            differs |= match checks.next_if(|(of, _)| of == key) {
                Some((_, check)) => self.checks.insert(key.clone(), *check) != Some(*check),
                None => self.checks.remove(key).is_some(),
            };
        }
        differs
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use localnet_proto::{Node, Revision};

    use localnet_proto::ByFamily;

    use super::*;
    use crate::feed::Feed;
    use localnet_cluster::{
        localize::{Here, service},
        testing,
    };

    fn check(ready: usize) -> HealthCheck {
        HealthCheck { port: 30123, ready: ByFamily::new(Some(ready), None) }
    }

    fn localized(name: &str, check: Option<HealthCheck>) -> Localized {
        let key = ServiceKey::new("default", name);
        let (service, _) = service(&testing::service("10.96.0.1", &[(80, "TCP")]), [], &Here::new("n"), &[]);
        Localized {
            services: vec![(key.clone(), service.map(Arc::new))],
            health_checks: check.map(|check| (key, check)).into_iter().collect(),
            ..Localized::default()
        }
    }

    #[test]
    fn health_checks_follow_their_services() {
        let feed = Feed::new(1);
        let mut facts = feed.health_facts();
        let names = |facts: &HealthFacts| facts.checks.keys().map(|key| key.name.to_string()).collect::<Vec<_>>();
        for (name, with, expected) in [
            ("b", Some(check(1)), vec!["b"]),
            ("a", Some(check(0)), vec!["a", "b"]),
            ("c", None, vec!["a", "b"]),
            ("b", None, vec!["a"]),
        ] {
            feed.publish(localized(name, with));
            assert_eq!(names(&facts.borrow_and_update()), expected);
        }
        let key = ServiceKey::new("default", "a");
        feed.publish(Localized { services: vec![(key, None)], ..Localized::default() });
        assert_eq!(names(&facts.borrow_and_update()), Vec::<String>::new());
    }

    #[test]
    fn a_ready_count_may_change_without_a_new_revision() {
        let feed = Feed::new(1);
        let mut facts = feed.health_facts();
        assert_eq!(feed.publish(localized("a", Some(check(1)))), Some(Revision { instance: 1, rev: 1 }));
        facts.mark_unchanged();
        assert_eq!(feed.publish(localized("a", Some(check(1)))), None);
        assert!(!facts.has_changed().unwrap());
        assert_eq!(feed.publish(localized("a", Some(check(0)))), None);
        assert!(facts.has_changed().unwrap());
        assert_eq!(facts.borrow().checks.values().collect::<Vec<_>>(), [&check(0)]);
    }

    #[test]
    fn the_node_is_eligible_until_the_cluster_excludes_it() {
        let feed = Feed::new(1);
        let facts = feed.health_facts();
        let mut rows = [(None, true), (Some(false), false), (None, false), (Some(true), true)].into_iter();
        assert!(facts.borrow().node_eligible);
        assert!(rows.all(|(node_eligible, expected)| {
            feed.publish(Localized { node: Some(Node::default()), node_eligible, ..Localized::default() });
            facts.borrow().node_eligible == expected
        }));
    }
}
