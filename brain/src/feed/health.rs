//! What load balancers are told, and what tells where, beside the states: it may change when no state does, and readers of
//! states have no use for it. An endpoint that becomes terminating and serves on because no other is ready is an example.

use std::net::IpAddr;

use imbl::OrdMap;
use ipnet::IpNet;
use localnet_proto::{Family, ServiceKey};

use crate::localize::{HealthCheck, Localized};

/// What load balancers are told of the newest state. Cheap to clone.
#[derive(Clone, Debug, PartialEq)]
pub struct HealthFacts {
    /// Whether they may choose this node. Yes as long as nothing is known of its Node.
    pub node_eligible: bool,
    /// The services that they ask after.
    pub checks: OrdMap<ServiceKey, HealthCheck>,
    /// What is known of the node itself, as soon as there is a state.
    pub node: Option<NodeFacts>,
}

impl Default for HealthFacts {
    fn default() -> Self {
        Self { node_eligible: true, checks: OrdMap::new(), node: None }
    }
}

/// What decides where a node answers, and whether a configuration fits it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// Its addresses: the first of each family is the primary one.
    pub addresses: Vec<IpAddr>,
    /// The family of its first address; unknown without one.
    pub primary: Option<Family>,
    /// Its `spec.podCIDRs`.
    pub pod_cidrs: Vec<IpNet>,
}

impl HealthFacts {
    /// Folds the changes in; whether there are any.
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

    use super::*;
    use crate::{
        feed::Feed,
        localize::{Here, fixtures, service},
    };

    fn check(ready: usize) -> HealthCheck {
        HealthCheck { port: 30123, v4: Some(ready), v6: None }
    }

    fn localized(name: &str, check: Option<HealthCheck>) -> Localized {
        let key = ServiceKey::new("default", name);
        let (service, _) = service(&fixtures::service("10.96.0.1", &[(80, "TCP")]), [], &Here::new("n"), &[]);
        Localized {
            services: vec![(key.clone(), service.map(Arc::new))],
            health_checks: check.map(|check| (key, check)).into_iter().collect(),
            ..Localized::default()
        }
    }

    #[test]
    fn checks_come_and_go_with_their_services() {
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
    fn a_count_may_change_when_no_state_does() {
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
    fn the_node_is_eligible_until_it_says_otherwise() {
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
