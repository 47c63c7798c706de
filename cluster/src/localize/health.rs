//! The answers to load balancers' health checks: the number of a Service's ready endpoints on this node, and whether load
//! balancers may choose this node at all (KEP-3836).
//!
//! The count differs from the number of eligible endpoints. If no endpoint is ready, an endpoint that still serves while
//! it terminates gets traffic, but is not counted. Load balancers therefore choose other nodes while this endpoint can
//! still answer (KEP-1669).

use std::{collections::BTreeSet, net::IpAddr};

use localnet_proto::{ByFamily, Family, Service};

use super::{Here, Skips, candidates};
use crate::objects::{NodeObject, ServiceObject, ServiceType, SliceObject};

/// The taint that the cluster autoscaler adds to a Node before deleting the Node.
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// The field that contains the port for health checks.
pub const HEALTH_CHECK_NODE_PORT: &str = "spec.healthCheckNodePort";

/// Whether load balancers send health checks for the Service to each node. They do so only for a Service whose external
/// traffic needs a local endpoint.
pub(super) fn has_health_check(object: &ServiceObject) -> bool {
    object.kind == ServiceType::LoadBalancer && object.external_local
}

/// The port for health checks that the Service claims. Another Service may own it.
pub fn health_check_port(object: &ServiceObject) -> Option<u16> {
    let port = u16::try_from(object.health_check_node_port).ok().filter(|port| *port != 0);
    port.filter(|_| has_health_check(object))
}

/// The answer to load balancers' health checks of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// `spec.healthCheckNodePort`.
    pub port: u16,
    /// For each family, the number of addresses with a ready endpoint on this node. `None` if the Service does not have the
    /// family.
    pub ready: ByFamily<Option<usize>>,
}

/// The answer for `service`, the localized form of `object`. `None` if the Service has no port for health checks.
///
/// An address counts once, however many ports it serves.
pub fn health_check<'a>(
    object: &ServiceObject,
    service: &Service,
    slices: impl IntoIterator<Item = &'a SliceObject>,
    here: &Here,
) -> Option<HealthCheck> {
    let port = service.health_check_node_port?;
    let families: Vec<Family> = service.cluster_ips.iter().map(|ip| Family::of(*ip)).collect();
    // Problems with the slices were already reported when the Service was localized.
    let mut skips = Skips::new(object);
    let candidates = candidates::merge(&service.ports, &families, slices, here, &mut skips)?;
    let ready: BTreeSet<IpAddr> = candidates
        .iter()
        .flatten()
        .filter(|(_, candidate)| candidate.local && candidate.conditions.ready)
        .map(|((address, _), _)| *address)
        .collect();
    let count = |family| {
        let of_family = || ready.iter().filter(|address| Family::of(**address) == family).count();
        families.contains(&family).then(of_family)
    };
    Some(HealthCheck { port, ready: ByFamily::from_fn(count) })
}

/// Whether load balancers may choose the node. They must not choose a node that is about to be deleted.
pub fn is_eligible(node: &NodeObject) -> bool {
    !node.deleting && !node.taints.iter().any(|key| **key == *TO_BE_DELETED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        localize::service as localize,
        objects::{Conditions, Parsed, SliceEndpoint},
        testing::{addresses, endpoint, service, slice},
    };
    use k8s_openapi::api::core::v1::Node;

    const READY: Conditions = Conditions::READY;
    const UNREADY: Conditions = Conditions { ready: false, serving: false, ..READY };
    const TERMINATING: Conditions = Conditions { ready: false, terminating: true, ..READY };
    const GONE: Conditions = Conditions { ready: false, serving: false, terminating: true };
    const PUBLISHED: Conditions = Conditions { serving: false, terminating: true, ..READY };

    fn on(node: &str, address: &str, conditions: Conditions) -> SliceEndpoint {
        SliceEndpoint { node: Some(node.into()), conditions, ..endpoint(address) }
    }

    fn load_balancer() -> ServiceObject {
        ServiceObject {
            kind: ServiceType::LoadBalancer,
            external_local: true,
            health_check_node_port: 30123,
            ..service("10.96.0.1", &[(80, "TCP"), (443, "TCP")])
        }
    }

    fn both_ports(name: &str, endpoints: Vec<SliceEndpoint>) -> SliceObject {
        slice(name, &[("p80", 8080), ("p443", 8443)], endpoints)
    }

    #[track_caller]
    fn check(object: &ServiceObject, slices: &[SliceObject], expected: Option<HealthCheck>) {
        let here = Here::new("here");
        let localized = localize(object, slices, &here, &[]).0.unwrap();
        assert_eq!(health_check(object, &localized, slices, &here), expected);
    }

    #[track_caller]
    fn counts(endpoints: Vec<SliceEndpoint>, expected: usize) {
        let answer = HealthCheck { port: 30123, ready: ByFamily::new(Some(expected), None) };
        check(&load_balancer(), &[both_ports("a", endpoints)], Some(answer));
    }

    #[test]
    fn ready_endpoints_of_this_node_count_once_for_all_ports() {
        counts(vec![], 0);
        counts(vec![on("here", "10.1.0.1", READY)], 1);
        counts(vec![on("there", "10.1.0.1", READY), endpoint("10.1.0.2")], 0);
        counts(vec![on("here", "10.1.0.1", READY), on("here", "10.1.0.2", READY), on("there", "10.1.0.3", READY)], 2);
    }

    /// kube-proxy's `TestHealthCheckNodePortWhenTerminating`: the count is 3 if three of four are ready, and 0 if all terminate.
    #[test]
    fn terminating_endpoints_do_not_count_even_if_serving() {
        let ips = ["10.1.0.1", "10.1.0.2", "10.1.0.3"];
        let four = |conditions, last| {
            let three = ips.iter().map(|ip| on("here", ip, conditions));
            three.chain([on("here", "10.1.0.4", last)]).collect::<Vec<_>>()
        };
        counts(four(READY, UNREADY), 3);
        counts(four(TERMINATING, UNREADY), 0);
        counts(four(GONE, GONE), 0);
        counts(four(TERMINATING, READY), 1);
    }

    #[test]
    fn published_endpoints_count_even_if_not_ready() {
        counts(vec![on("here", "10.1.0.1", PUBLISHED)], 1);
    }

    #[test]
    fn the_serving_one_of_duplicates_counts() {
        let slices = |first, second| {
            let of = |name, node| both_ports(name, vec![on(node, "10.1.0.1", READY)]);
            [of("a", first), of("b", second)]
        };
        let answer = |count| Some(HealthCheck { port: 30123, ready: ByFamily::new(Some(count), None) });
        check(&load_balancer(), &slices("there", "here"), answer(1));
        check(&load_balancer(), &slices("here", "there"), answer(0));
    }

    #[test]
    fn each_family_has_its_count() {
        let mut object = load_balancer();
        object.cluster_ips = addresses(&["10.96.0.1", "fd00::1"]);
        let v4 = both_ports("a", vec![on("here", "10.1.0.1", READY), on("here", "10.1.0.2", READY)]);
        let mut v6 = both_ports("b", vec![on("here", "fd00:1::1", READY)]);
        v6.family = Parsed::Good(Family::V6);
        let slices = [v4, v6];
        check(&object, &slices, Some(HealthCheck { port: 30123, ready: ByFamily::new(Some(2), Some(1)) }));
        object.cluster_ips = addresses(&["fd00::1"]);
        check(&object, &slices, Some(HealthCheck { port: 30123, ready: ByFamily::new(None, Some(1)) }));
    }

    #[test]
    fn ports_without_a_service_port_do_not_count() {
        let other = slice("a", &[("other", 1)], vec![on("here", "10.1.0.1", READY)]);
        check(&load_balancer(), &[other], Some(HealthCheck { port: 30123, ready: ByFamily::new(Some(0), None) }));
    }

    #[test]
    fn only_load_balancers_with_external_policy_local_have_a_health_check() {
        check(&ServiceObject { external_local: false, ..load_balancer() }, &[], None);
        check(&ServiceObject { kind: ServiceType::NodePort, ..load_balancer() }, &[], None);
        check(&ServiceObject { health_check_node_port: 0, ..load_balancer() }, &[], None);
    }

    #[test]
    fn a_node_that_is_being_removed_is_not_eligible() {
        let rows = [
            (serde_json::json!({ "metadata": { "name": "n" } }), true),
            (serde_json::json!({ "spec": { "taints": [{ "key": "other", "effect": "NoSchedule" }] } }), true),
            (
                serde_json::json!({ "spec": { "taints": [{ "key": "x", "effect": "y" }, { "key": TO_BE_DELETED, "effect": "NoSchedule" }] } }),
                false,
            ),
            (serde_json::json!({ "spec": { "taints": [{ "key": TO_BE_DELETED, "effect": "NoExecute" }] } }), false),
            (serde_json::json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }), false),
        ];
        for (node, expected) in rows {
            let object = serde_json::from_value::<Node>(node.clone()).unwrap().into();
            assert_eq!(is_eligible(&object), expected, "{node}");
        }
    }
}
