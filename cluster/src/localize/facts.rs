//! What only readers of the draft `localnet.v1` get of a Service.

use std::sync::Arc;

use localnet_proto::{Endpoint, Facts, Origin, Port};

use super::candidates::Candidates;
use crate::objects::{ServiceObject, SliceEndpoint};

/// The facts about a Service and its endpoints. `None` if nothing is known, or if the brain does not serve such readers.
/// `ports` are sorted by name, and `candidates` are the endpoints of each of them.
pub(super) fn facts(
    object: &ServiceObject,
    ports: &[Port],
    endpoints: &[Endpoint],
    candidates: &Candidates<'_>,
) -> Option<Arc<Facts>> {
    let mut facts = Facts::clone(object.facts.as_ref()?);
    let position = |name: &str| ports.binary_search_by(|port| (*port.name).cmp(name)).ok();
    facts.app_protocols.retain(|name, _| position(name).is_some());
    for endpoint in endpoints {
        for port in &endpoint.ports {
            let of_port = position(&port.name).and_then(|at| candidates.get(at));
            let Some(candidate) = of_port.and_then(|of| of.get(&(endpoint.address, port.port))) else { continue };
            let origin = origin(candidate.of);
            if origin != Origin::default() {
                facts.origins.insert((endpoint.address, port.clone()), origin);
            }
        }
    }
    facts.known()
}

/// Where an endpoint comes from.
pub(super) fn origin(of: &SliceEndpoint) -> Origin {
    Origin {
        node: of.node.clone().unwrap_or_default(),
        zone: of.zone.clone().unwrap_or_default(),
        target: of.target.clone(),
    }
}

#[cfg(test)]
mod tests {
    use localnet_proto::TargetRef;

    use super::super::{Here, service};
    use super::*;
    use crate::{
        objects::{Conditions, SliceObject},
        testing,
    };

    /// An endpoint that is the Pod `pod` on node `node`.
    fn endpoint(address: &str, pod: &str, node: &str, conditions: Conditions) -> SliceEndpoint {
        let target = TargetRef { kind: "Pod".into(), name: pod.into(), ..TargetRef::default() };
        let (node, target) = (Some(node.into()), Some(target.into()));
        SliceEndpoint { node, zone: Some("zone-a".into()), target, conditions, ..testing::endpoint(address) }
    }

    fn facts_of(object: &ServiceObject, slices: &[SliceObject]) -> Option<Arc<Facts>> {
        service(object, slices, &Here::new("node-1"), &[]).0.unwrap().facts
    }

    #[test]
    fn endpoints_have_the_origin_of_the_pod_that_is_used() {
        let ending = Conditions { ready: false, serving: true, terminating: true };
        let slices = [
            testing::slice("web-1", &[("p80", 8080)], vec![endpoint("10.1.0.1", "new", "node-b", Conditions::READY)]),
            testing::slice("web-2", &[("p80", 8080)], vec![endpoint("10.1.0.1", "old", "node-a", ending)]),
            testing::slice("web-3", &[("p80", 8080)], vec![testing::endpoint("10.1.0.2")]),
        ];
        let known = Facts {
            uid: "1".into(),
            app_protocols: [("p80".into(), "h2c".into()), ("p81".into(), "not served".into())].into(),
            ..Facts::default()
        };
        let object = ServiceObject { facts: Some(known.into()), ..testing::service("10.96.0.1", &[(80, "TCP")]) };
        let facts = facts_of(&object, &slices).unwrap();
        let texts: Vec<_> = facts
            .origins
            .iter()
            .map(|((address, port), Origin { node, zone, target })| {
                let pod = target.as_ref().map_or("", |target| &target.name);
                format!("{address} {}:{} {node} {zone} {pod}", port.name, port.port)
            })
            .collect();
        assert_eq!(texts, ["10.1.0.1 p80:8080 node-b zone-a new"]);
        assert_eq!(facts.app_protocols, [("p80".into(), "h2c".into())].into());
        assert_eq!(&*facts.uid, "1");
    }

    #[test]
    fn without_the_draft_there_are_no_facts() {
        let slices = [testing::slice("web-1", &[("p80", 80)], vec![endpoint("10.1.0.1", "a", "b", Conditions::READY)])];
        let object = testing::service("10.96.0.1", &[(80, "TCP")]);
        assert_eq!(facts_of(&object, &slices), None);
        let empty = ServiceObject { facts: Some(Arc::default()), ..object };
        assert_eq!(facts_of(&empty, &slices).unwrap().origins.len(), 1);
        assert_eq!(facts_of(&empty, &[]), None, "nothing is known");
    }
}
