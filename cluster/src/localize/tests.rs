//! The tables of kube-proxy's own tests, applied to whole Services, and properties that hold for all objects.

mod skipped;

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use localnet_core::Code;
use localnet_proto::{Family, Protocol, Scopes, Service, ServiceKey, Verdict};

use super::{Here, Lost, Mode, Owner, Reason, Topology, service, topology};
use crate::{
    objects::{Conditions, Extensions, Parsed, ServiceObject, ServiceType, SliceEndpoint, SliceObject},
    testing::{addresses, endpoint, service as object, slice},
};

const READY: Conditions = Conditions::READY;

/// An endpoint in the notation of the tables: the last octet, zone hints and flags. `L`: on this node, `NR`: not ready, `ST`:
/// serving while terminating, `S`: only serving, `T`: only terminating, `nN`: hinted for a node.
pub(super) fn row(last: u8, words: &str) -> SliceEndpoint {
    let mut endpoint = endpoint(&format!("10.1.2.{last}"));
    let (mut zones, mut nodes): (Vec<Arc<str>>, Vec<Arc<str>>) = (Vec::new(), Vec::new());
    endpoint.node = Some("node-far".into());
    for word in words.split_whitespace() {
        match word {
            "L" => endpoint.node = Some("node-1".into()),
            "NR" => endpoint.conditions = Conditions { ready: false, serving: false, ..READY },
            "S" => endpoint.conditions = Conditions { ready: false, ..READY },
            "T" => endpoint.conditions = Conditions { ready: false, serving: false, terminating: true },
            "ST" => endpoint.conditions = Conditions { ready: false, terminating: true, ..READY },
            node if node.starts_with('n') => nodes.push(format!("node-{}", &node[1..]).into()),
            zone => zones.push(format!("zone-{zone}").into()),
        }
    }
    (endpoint.zone_hints, endpoint.node_hints) = (zones.into(), nodes.into());
    endpoint
}

/// The traffic policies of a row.
#[derive(Clone, Copy, Debug)]
pub(super) enum Policy {
    Cluster,
    ExternalLocal,
    InternalLocal,
    /// Internal policy Local, with a NodePort.
    InternalLocalExternal,
}

pub(super) fn with_policy(policy: Policy) -> ServiceObject {
    let mut object = object("10.96.0.1", &[(80, "TCP")]);
    if matches!(policy, Policy::ExternalLocal | Policy::InternalLocalExternal) {
        object.kind = ServiceType::NodePort;
        object.ports[0].node_port = 30001;
    }
    object.external_local = matches!(policy, Policy::ExternalLocal);
    object.internal_local = matches!(policy, Policy::InternalLocal | Policy::InternalLocalExternal);
    object
}

pub(super) fn here(node: u8, zone: &str) -> Here {
    Here { zone: zone.into(), ..Here::new(&format!("node-{node}")) }
}

fn localized(object: &ServiceObject, slices: &[SliceObject], here: &Here) -> Service {
    service(object, slices, here, &[]).0.expect("the service is served")
}

/// The last octets of the endpoints in a scope.
fn in_scope(service: &Service, scope: fn(&Scopes) -> bool) -> Vec<u8> {
    let last = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.octets()[3],
        IpAddr::V6(ip) => ip.octets()[15],
    };
    service.endpoints_of(&service.ports[0], Family::V4, scope).map(|endpoint| last(endpoint.ip())).collect()
}

/// The endpoints of a Service with weights: the last octet, the scopes and the weight.
fn weighed(policy: Policy, zones: &[(&str, u32)], slices: &[(u32, &[(u8, &str)])]) -> Vec<String> {
    let zones = zones.iter().map(|(zone, weight)| ((*zone).into(), *weight));
    let zone_weights = Some(Parsed::Good(zones.collect()));
    let extensions = Some(Box::new(Extensions { zone_weights, ..Extensions::default() }));
    let object = ServiceObject { extensions, ..with_policy(policy) };
    let slices = (0..).zip(slices).map(|(number, (weight, rows))| {
        let rows = rows.iter().map(|(last, words)| {
            let words: Vec<&str> = words.split_whitespace().collect();
            let (zone, words): (Vec<&str>, Vec<&str>) = words.iter().partition(|word| word.starts_with("in-"));
            SliceEndpoint { zone: zone.first().map(|zone| zone[3..].into()), ..row(*last, &words.join(" ")) }
        });
        let slice = slice(&format!("web-{number}"), &[("p80", 80)], rows.collect());
        SliceObject { weight: Some(Parsed::Good(*weight)), ..slice }
    });
    let service = localized(&object, &slices.collect::<Vec<_>>(), &here(1, "zone-a"));
    let shown = service.endpoints.iter().map(|endpoint| {
        let Scopes { internal, external, short_circuit, established } = endpoint.scopes;
        let scopes = [(internal, "i"), (external, "e"), (short_circuit, "s"), (established, "+")];
        let scopes: String = scopes.iter().filter(|(on, _)| *on).map(|(_, name)| *name).collect();
        let weight = endpoint.weight.map_or(1, std::num::NonZeroU32::get);
        format!("{} {scopes} {weight}", endpoint.address.to_string().trim_start_matches("10.1.2."))
    });
    shown.collect()
}

/// An endpoint of weight 0 only serves existing connections, unless all endpoints that could serve a scope have weight 0.
#[test]
fn weights_come_from_slices_and_zones_and_zero_excludes() {
    use Policy::{Cluster, ExternalLocal};
    let none: &[(&str, u32)] = &[];
    assert_eq!(weighed(Cluster, none, &[(3, &[(1, "")]), (1, &[(2, "")])]), ["1 i+ 3", "2 i+ 1"]);
    assert_eq!(weighed(Cluster, none, &[(0, &[(1, "")]), (1, &[(2, "")])]), ["1 + 1", "2 i+ 1"]);
    assert_eq!(weighed(Cluster, none, &[(0, &[(1, "")]), (0, &[(2, "")])]), ["1 i+ 1", "2 i+ 1"]);
    assert_eq!(weighed(Cluster, none, &[(0, &[(1, "")]), (1, &[(2, "NR")])]), ["1 i+ 1"]);
    let zones = [("a", 4), ("b", 0)];
    let rows: &[(u8, &str)] = &[(1, "in-a"), (2, "in-b"), (3, "in-c"), (4, "")];
    assert_eq!(weighed(Cluster, &zones, &[(2, rows)]), ["1 i+ 8", "2 + 1", "3 i+ 2", "4 i+ 2"]);
    // Another node has an endpoint of a positive weight, but external traffic stays on this node.
    assert_eq!(weighed(ExternalLocal, none, &[(0, &[(1, "L")]), (5, &[(2, "")])]), ["1 e+ 1", "2 is+ 5"]);
}

/// Checks one row: the zone of the node, the policy and the endpoints; the cluster set, the local set, and whether there are any
/// endpoints. `None` is a set that the Service never uses.
#[track_caller]
fn check(
    here: &Here,
    policy: Policy,
    endpoints: &[(u8, &str)],
    cluster: Option<&[u8]>,
    local: Option<&[u8]>,
    any: bool,
) {
    let slice = slice("web-1", &[("p80", 80)], endpoints.iter().map(|(last, words)| row(*last, words)).collect());
    let service = localized(&with_policy(policy), &[slice], here);
    let (internal, external) = (in_scope(&service, |s| s.internal), in_scope(&service, |s| s.external));
    let short_circuit = in_scope(&service, |s| s.short_circuit);
    let found = match policy {
        Policy::Cluster => [Some(internal), None],
        Policy::InternalLocal => [None, Some(internal)],
        Policy::ExternalLocal => {
            assert_eq!(internal, short_circuit, "both are the cluster set");
            [Some(internal), Some(external)]
        }
        Policy::InternalLocalExternal => [Some(external), Some(internal)],
    };
    assert_eq!(found, [cluster.map(<[u8]>::to_vec), local.map(<[u8]>::to_vec)]);
    let verdict = |set: Option<&[u8]>| match set {
        Some([]) if any => Verdict::Drop,
        _ => Verdict::Reject,
    };
    let when_empty = service.ports[0].when_empty(Family::V4);
    let (internal_set, external_set) = match policy {
        Policy::Cluster => (cluster, None),
        Policy::InternalLocal => (local, None),
        Policy::ExternalLocal => (cluster, local),
        Policy::InternalLocalExternal => (local, cluster),
    };
    assert_eq!((when_empty.internal, when_empty.external), (verdict(internal_set), verdict(external_set)));
}

#[test]
fn endpoints_are_categorized_like_in_kube_proxy() {
    use Policy::{Cluster, ExternalLocal, InternalLocal, InternalLocalExternal};
    let a = &here(1, "zone-a");
    let hinted: &[(u8, &str)] = &[(3, "a"), (4, "b"), (5, "c"), (6, "a")];
    let two_local: &[(u8, &str)] = &[(3, "a L"), (4, "b L"), (5, "c"), (6, "a")];
    let node_hints: &[(u8, &str)] = &[(3, "a n1"), (4, "b n2"), (5, "c n3"), (6, "a n4")];
    // The numbers are those of TestCategorizeEndpoints, in its order.
    check(a, Cluster, hinted, Some(&[3, 6]), None, true); // 1
    check(a, ExternalLocal, two_local, Some(&[3, 6]), Some(&[3, 4]), true); // 2
    check(a, InternalLocalExternal, two_local, Some(&[3, 6]), Some(&[3, 4]), true); // 3
    check(&Here::new("node-1"), Cluster, &[(3, "a")], Some(&[3]), None, true); // 4
    check(&here(1, ""), Cluster, &[(3, "a")], Some(&[3]), None, true); // 5
    check(&here(1, "zone-b"), Cluster, &[(3, "a")], Some(&[3]), None, true); // 6
    check(a, Cluster, &[(3, "a"), (4, "b"), (5, "c"), (6, "a NR")], Some(&[3]), None, true); // 7
    check(a, Cluster, &[(3, "a NR"), (4, "b"), (5, "c"), (6, "a NR")], Some(&[4, 5]), None, true); // 8
    check(a, Cluster, &[(3, "a"), (4, "b"), (5, ""), (6, "a")], Some(&[3, 4, 5, 6]), None, true); // 9
    let shared: &[(u8, &str)] = &[(3, "a b c"), (4, "b c"), (5, "b d"), (6, "c")];
    check(&here(1, "zone-c"), Cluster, shared, Some(&[3, 4, 6]), None, true); // 10
    // Row 11 is row 12 with the feature gate off, which Kubernetes no longer allows. Row 14 has node hints that do not name this
    // node.
    check(&here(9, "zone-a"), Cluster, node_hints, Some(&[3, 6]), None, true); // 11
    check(a, Cluster, node_hints, Some(&[3]), None, true); // 12
    let one_bare: &[(u8, &str)] = &[(3, "a n1"), (4, ""), (5, "c n3"), (6, "a n4")];
    check(a, Cluster, one_bare, Some(&[3, 4, 5, 6]), None, true); // 13
    check(&here(0, "zone-a"), Cluster, node_hints, Some(&[3, 6]), None, true); // 14
    let both: &[(u8, &str)] = &[(0, "a L"), (1, "b L"), (2, "a"), (3, "b")];
    check(a, ExternalLocal, both, Some(&[0, 2]), Some(&[0, 1]), true); // 15
    check(a, InternalLocal, &[], None, Some(&[]), false); // 16
    check(a, InternalLocal, &[(0, ""), (1, "")], None, Some(&[]), true); // 17
    check(a, InternalLocal, &[(0, "L"), (1, "L")], None, Some(&[0, 1]), true); // 18
    check(a, InternalLocal, &[(0, "L"), (1, "")], None, Some(&[0]), true); // 19
    check(a, Cluster, &[(0, "NR"), (1, "NR")], Some(&[]), None, false); // 20
    check(a, Cluster, &[(0, "NR"), (1, "")], Some(&[1]), None, true); // 21
}

#[test]
fn terminating_endpoints_are_eligible_if_none_is_ready() {
    use Policy::{Cluster, ExternalLocal, InternalLocal};
    let a = &here(1, "zone-a");
    check(a, Cluster, &[(1, "ST"), (2, "")], Some(&[2]), None, true);
    check(a, Cluster, &[(1, "ST"), (2, "NR")], Some(&[1]), None, true);
    check(a, Cluster, &[(1, "ST"), (2, "S"), (3, "T")], Some(&[1]), None, true);
    check(a, Cluster, &[(2, "S"), (3, "T")], Some(&[]), None, false);
    check(a, InternalLocal, &[(1, "ST"), (2, "L S"), (3, "L T")], None, Some(&[]), true);
    // Hints narrow only ready endpoints. Terminating endpoints are used in every zone.
    check(a, Cluster, &[(1, "b ST"), (2, "a ST")], Some(&[1, 2]), None, true);
    // Each set falls back independently.
    check(a, ExternalLocal, &[(1, "L ST"), (2, "")], Some(&[2]), Some(&[1]), true);
    check(a, ExternalLocal, &[(1, "L ST"), (2, "L")], Some(&[2]), Some(&[2]), true);
    check(a, ExternalLocal, &[(1, "L ST"), (2, "ST")], Some(&[1, 2]), Some(&[1]), true);
    check(a, InternalLocal, &[(1, "L NR"), (2, "ST")], None, Some(&[]), true);
    check(a, InternalLocal, &[(1, "L ST"), (2, "")], None, Some(&[1]), true);
}

/// Checks one row: the hints that apply, and why hints for nodes and for zones are ignored.
#[track_caller]
fn explained(here: &Here, policy: Policy, endpoints: &[(u8, &str)], mode: Mode, reasons: [Option<Reason>; 2]) {
    let slice = slice("web-1", &[("p80", 80)], endpoints.iter().map(|(last, words)| row(*last, words)).collect());
    let [not_same_node, not_same_zone] = reasons;
    let expected = Topology { port: "p80".into(), family: Family::V4, mode, not_same_node, not_same_zone };
    assert_eq!(topology(&with_policy(policy), &[slice], here, &[]), [expected]);
}

#[test]
fn ignored_hints_have_a_reason() {
    use Mode::{Everywhere, SameNode, SameZone};
    use Policy::{Cluster, ExternalLocal, InternalLocal, InternalLocalExternal};
    use Reason::{
        EndpointWithoutHint, NoHintForNode, NoHintForZone, NoHints, NoReadyEndpoint, NodeHasNoZone, PolicyLocal,
    };
    let a = &here(1, "zone-a");
    let both = |reason: Reason| [Some(reason.clone()), Some(reason)];
    let ip = |last: u8| IpAddr::from([10, 1, 2, last]);
    explained(a, Cluster, &[(3, "a n1"), (4, "b n2")], SameNode, [None, None]);
    explained(a, Cluster, &[(3, "a"), (4, "b")], SameZone, [Some(NoHints), None]);
    explained(a, ExternalLocal, &[(3, "a"), (4, "b")], SameZone, [Some(NoHints), None]);
    explained(a, InternalLocalExternal, &[(3, "a"), (4, "b")], SameZone, [Some(NoHints), None]);
    explained(a, Cluster, &[(3, "a n2"), (4, "b n2")], SameZone, [Some(NoHintForNode("node-1".into())), None]);
    explained(a, Cluster, &[(3, "a n1"), (4, "b")], SameZone, [Some(EndpointWithoutHint(ip(4))), None]);
    explained(a, Cluster, &[(3, ""), (4, "")], Everywhere, both(NoHints));
    explained(a, Cluster, &[(3, "a n1"), (5, ""), (4, "")], Everywhere, both(EndpointWithoutHint(ip(4))));
    let no_zone = [Some(NoHints), Some(NoHintForZone("zone-a".into()))];
    explained(a, Cluster, &[(3, "b"), (4, "c")], Everywhere, no_zone);
    explained(&here(1, ""), Cluster, &[(3, "b"), (4, "c")], Everywhere, [Some(NoHints), Some(NodeHasNoZone)]);
    // The hints of an endpoint that is not ready are ignored, and it needs none.
    explained(a, Cluster, &[(3, "a"), (4, "NR"), (5, "ST")], SameZone, [Some(NoHints), None]);
    explained(a, Cluster, &[(3, "a NR"), (4, "b ST")], Everywhere, both(NoReadyEndpoint));
    explained(a, Cluster, &[], Everywhere, both(NoReadyEndpoint));
    explained(a, InternalLocal, &[(3, "a n1 L")], Everywhere, both(PolicyLocal));
}

#[test]
fn hints_are_explained_for_each_port_and_family() {
    let mut object = object("10.96.0.1", &[(80, "TCP"), (443, "TCP")]);
    object.cluster_ips = addresses(&["10.96.0.1", "fd00::1"]);
    let slices =
        [slice("web-1", &[("p80", 8080)], vec![row(3, "a")]), slice("web-2", &[("p443", 8443)], vec![row(4, "")])];
    let explained = topology(&object, &slices, &here(1, "zone-a"), &[]);
    let found: Vec<_> = explained.iter().map(|of| (&*of.port, of.family, of.mode, of.not_same_zone.clone())).collect();
    let expected = [
        ("p443", Family::V4, Mode::Everywhere, Some(Reason::NoHints)),
        ("p443", Family::V6, Mode::Everywhere, Some(Reason::NoReadyEndpoint)),
        ("p80", Family::V4, Mode::SameZone, None),
        ("p80", Family::V6, Mode::Everywhere, Some(Reason::NoReadyEndpoint)),
    ];
    assert_eq!(found, expected);
    assert_eq!(Reason::EndpointWithoutHint([10, 1, 2, 4].into()).to_string(), "the endpoint 10.1.2.4 has no hint");
}

#[test]
fn established_connections_follow_serving() {
    let words = [(1, ""), (2, "NR"), (3, "ST")];
    let mut endpoints: Vec<SliceEndpoint> = words.iter().map(|(last, words)| row(*last, words)).collect();
    // A pod that is published although it is not ready.
    endpoints.push(row(4, ""));
    endpoints[3].conditions.serving = false;
    let service = localized(&with_policy(Policy::Cluster), &[slice("s", &[("p80", 80)], endpoints)], &here(1, ""));
    assert_eq!(in_scope(&service, |scopes| scopes.established), [1, 3, 4]);
    assert_eq!(in_scope(&service, |scopes| scopes.internal), [1, 4]);
    assert_eq!(service.endpoints.len(), 3, "an endpoint that is not eligible is not sent");
}

#[test]
fn external_policy_local_needs_external_traffic() {
    let slices = [slice("s", &[("p80", 80)], vec![row(1, "L"), row(2, "")])];
    let mut object = with_policy(Policy::Cluster);
    object.external_local = true;
    let plain = localized(&object, &slices, &here(1, ""));
    assert!(!plain.external_traffic_to_local);
    assert_eq!((in_scope(&plain, |s| s.external), in_scope(&plain, |s| s.short_circuit)), (vec![], vec![]));
    object.external_ips = addresses(&["203.0.113.1"]);
    let external = localized(&object, &slices, &here(1, ""));
    assert!(external.external_traffic_to_local);
    assert_eq!((in_scope(&external, |s| s.external), in_scope(&external, |s| s.short_circuit)), (vec![1], vec![1, 2]));
}

#[test]
fn health_check_node_ports_are_for_load_balancers_with_local_policy() {
    let port = |kind, local, number| {
        let mut object = with_policy(Policy::Cluster);
        (object.kind, object.external_local, object.health_check_node_port) = (kind, local, number);
        let (service, skipped) = service(&object, &[], &here(1, ""), &[]);
        (service.unwrap().health_check_node_port, skipped.len())
    };
    assert_eq!(port(ServiceType::LoadBalancer, true, 30000), (Some(30000), 0));
    assert_eq!(port(ServiceType::LoadBalancer, true, 0), (None, 1));
    assert_eq!(port(ServiceType::LoadBalancer, false, 30000), (None, 0));
    assert_eq!(port(ServiceType::NodePort, true, 30000), (None, 0));
}

/// Checks the endpoints of a Service with ports 80 and 443: `address:port` for each port.
#[track_caller]
fn check_endpoints(slices: &[SliceObject], expected: [&[&str]; 2]) {
    let object = object("10.96.0.1", &[(80, "TCP"), (443, "TCP")]);
    let mut forwards = None;
    for turned in [false, true] {
        let mut slices: Vec<&SliceObject> = slices.iter().collect();
        if turned {
            slices.reverse();
        }
        let (service, _) = service(&object, slices, &here(1, ""), &[]);
        let service = service.unwrap();
        let reached = |name: &str| -> Vec<String> {
            let port = service.ports.iter().find(|port| &*port.name == name).unwrap();
            service.endpoints_of(port, Family::V4, |scopes| scopes.internal).map(|at| at.to_string()).collect()
        };
        assert_eq!(
            [reached("p80"), reached("p443")],
            expected.map(|list| list.iter().map(ToString::to_string).collect::<Vec<_>>())
        );
        assert_eq!(*forwards.get_or_insert_with(|| service.clone()), service, "the order of slices has no effect");
    }
}

#[test]
fn slices_are_merged_by_port_name() {
    let (one, two) = (|| endpoint("10.0.0.1"), || endpoint("10.0.0.2"));
    let both: &[(&str, i32)] = &[("p80", 8080), ("p443", 8443)];
    check_endpoints(&[], [&[], &[]]);
    check_endpoints(&[slice("a", both, vec![one()])], [&["10.0.0.1:8080"], &["10.0.0.1:8443"]]);
    check_endpoints(
        &[slice("a", both, vec![one()]), slice("b", &[("p80", 9090)], vec![two()])],
        [&["10.0.0.1:8080", "10.0.0.2:9090"], &["10.0.0.1:8443"]],
    );
    check_endpoints(
        &[slice("a", both, vec![one(), two()]), slice("b", both, vec![two()])],
        [&["10.0.0.1:8080", "10.0.0.2:8080"], &["10.0.0.1:8443", "10.0.0.2:8443"]],
    );
    // If an address has two numbers for one port, both are endpoints.
    check_endpoints(
        &[slice("a", &[("p80", 8080)], vec![one()]), slice("b", &[("p80", 9090)], vec![one()])],
        [&["10.0.0.1:8080", "10.0.0.1:9090"], &[]],
    );
    check_endpoints(&[slice("a", &[("other", 8080), ("p443", 0)], vec![one()])], [&[], &[]]);
    let mut unnamed = slice("a", &[("p80", 8080), ("p443", 8443)], vec![one()]);
    (unnamed.ports[0].name, unnamed.ports[1].port) = (None, None);
    check_endpoints(&[unnamed], [&[], &[]]);
    let mut udp = slice("a", &[("p80", 8080)], vec![one()]);
    udp.ports[0].protocol = Parsed::Good(Protocol::Udp);
    check_endpoints(&[udp], [&[], &[]]);
    let mut headless = slice("a", &[("p80", 8080)], vec![one()]);
    headless.headless = true;
    check_endpoints(&[headless], [&[], &[]]);
    let mut other_family = slice("a", &[("p80", 8080)], vec![endpoint("fd00::1")]);
    other_family.family = Parsed::Good(Family::V6);
    check_endpoints(&[other_family], [&[], &[]]);
    let mut names = slice("a", &[("p80", 8080)], vec![endpoint("example.com")]);
    names.family = Parsed::Bad("FQDN".into());
    check_endpoints(&[names], [&[], &[]]);
}

#[test]
fn only_one_of_two_duplicates_counts() {
    let with = |slice_name: &str, conditions: (bool, bool, bool), node: &str| {
        let mut endpoint = endpoint("10.1.2.1");
        let (ready, serving, terminating) = conditions;
        endpoint.conditions = Conditions { ready, serving, terminating };
        endpoint.node = Some(node.into());
        slice(slice_name, &[("p80", 80)], vec![endpoint])
    };
    let local = |a: &SliceObject, b: &SliceObject| {
        let object = with_policy(Policy::Cluster);
        let local = |slices: [&SliceObject; 2]| {
            let service = service(&object, slices, &here(1, ""), &[]).0.unwrap();
            assert_eq!(service.endpoints.len(), 1);
            service.endpoints[0].local
        };
        assert_eq!(local([a, b]), local([b, a]), "the order of slices has no effect");
        local([a, b])
    };
    let ready = (true, true, false);
    let new = (false, false, false);
    for old in [(true, true, true), (false, true, true)] {
        let object = with_policy(Policy::Cluster);
        let slices = [with("a", new, "node-1"), with("b", old, "node-2")];
        for slices in [[&slices[0], &slices[1]], [&slices[1], &slices[0]]] {
            let service = service(&object, slices, &here(1, ""), &[]).0.unwrap();
            assert_eq!(service.endpoints, [], "the address of {old:?} is a new pod's, which is not ready");
        }
    }
    assert!(local(&with("a", ready, "node-1"), &with("b", (true, true, true), "node-2")), "not terminating first");
    assert!(local(&with("a", ready, "node-1"), &with("b", (false, true, false), "node-2")), "then ready");
    assert!(local(&with("a", ready, "node-1"), &with("b", (true, false, false), "node-2")), "then serving");
    assert!(local(&with("b", ready, "node-1"), &with("a", ready, "node-2")), "then the slice that sorts last");
}

#[test]
fn ports_with_different_conclusions_have_separate_entries() {
    let object = object("10.96.0.1", &[(80, "TCP"), (443, "TCP")]);
    let both: &[(&str, i32)] = &[("p80", 8080), ("p443", 8443)];
    let same = localized(&object, &[slice("a", both, vec![endpoint("10.0.0.1")])], &here(1, ""));
    assert_eq!(same.endpoints.len(), 1);
    assert_eq!(same.endpoints[0].ports.iter().map(|port| &*port.name).collect::<Vec<_>>(), ["p443", "p80"]);
    // Port 443 has a ready remote endpoint. Port 80 has only this one, which is terminating.
    let mut going = endpoint("10.0.0.1");
    going.conditions = Conditions { ready: false, terminating: true, ..READY };
    let slices = [slice("a", both, vec![going]), slice("b", &[("p443", 443)], vec![endpoint("10.0.0.2")])];
    let differ = localized(&object, &slices, &here(1, ""));
    let entries: Vec<_> =
        differ.endpoints.iter().map(|e| (e.address.to_string(), &*e.ports[0].name, e.scopes.internal)).collect();
    let expected = [("10.0.0.1", "p443", false), ("10.0.0.1", "p80", true), ("10.0.0.2", "p443", true)]
        .map(|(a, p, i)| (a.to_owned(), p, i));
    assert_eq!(entries, expected);
}

mod any_object {
    use proptest::prelude::*;

    use super::*;
    use crate::objects::{ServicePort, SlicePort};

    fn address() -> impl Strategy<Value = Parsed<IpAddr>> {
        let near = (0u8..4).prop_map(|last| Parsed::Good(IpAddr::from([10, 0, 0, last])));
        let v6 = (0u16..4).prop_map(|last| Parsed::Good(IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, last])));
        let any = any::<IpAddr>().prop_map(Parsed::Good);
        prop_oneof![4 => near, 2 => v6, 1 => any, 1 => Just(Parsed::Bad("odd".into()))]
    }

    fn number() -> impl Strategy<Value = i32> {
        prop_oneof![8 => 80..84i32, 1 => any::<i32>(), 1 => Just(0)]
    }

    fn protocol() -> impl Strategy<Value = Parsed<Protocol>> {
        prop_oneof![
            4 => Just(Parsed::Good(Protocol::Tcp)),
            2 => Just(Parsed::Good(Protocol::Udp)),
            1 => Just(Parsed::Bad("odd".into()))
        ]
    }

    fn few<T: std::fmt::Debug>(of: impl Strategy<Value = T>) -> impl Strategy<Value = Box<[T]>> {
        prop::collection::vec(of, 0..4).prop_map(Into::into)
    }

    fn port_name() -> impl Strategy<Value = Arc<str>> {
        prop_oneof!["", "a", "b"].prop_map(Into::into)
    }

    prop_compose! {
        fn any_service()(
            cluster_ips in few(address()),
            families in few(prop_oneof![Just(Family::V4), Just(Family::V6)]),
            external_ips in few(address()),
            load_balancer_ips in few(address()),
            ports in few((port_name(), protocol(), number(), number()).prop_map(|(name, protocol, port, node_port)| ServicePort { name, protocol, port, node_port })),
            internal_local: bool, external_local: bool, named: bool,
            kind in prop_oneof![Just(ServiceType::ClusterIp), Just(ServiceType::NodePort), Just(ServiceType::LoadBalancer)],
            health_check_node_port in number(),
            zone_weight in prop::option::of(0..3_u32),
        ) -> ServiceObject {
            ServiceObject {
                cluster_ips, external_ips, load_balancer_ips, ports, internal_local, external_local, kind, health_check_node_port,
                extensions: zone_weight.map(|weight| {
                    let zone_weights = Some(Parsed::Good([("zone-a".into(), weight)].into()));
                    Box::new(Extensions { zone_weights, ..Extensions::default() })
                }),
                families: if named { families } else { [].into() },
                source_ranges: ["10.0.0.0/30", "x", "::/0"].map(crate::objects::reduce::parsed_cidr).into(),
                ..object("10.96.0.1", &[])
            }
        }
    }

    prop_compose! {
        fn any_endpoint()(
            address in prop::option::weighted(0.9, address()),
            (ready, serving, terminating) in any::<(bool, bool, bool)>(),
            node in prop_oneof![Just(None), Just(Some("node-1".into())), Just(Some("".into()))],
            zone_hints in few(prop_oneof!["", "zone-a", "zone-b"].prop_map(Into::into)),
            node_hints in few(prop_oneof!["node-1", "node-2"].prop_map(Into::into)),
            zone in prop::option::of(prop_oneof!["zone-a", "zone-b"].prop_map(Into::into)),
        ) -> SliceEndpoint {
            let conditions = Conditions { ready, serving, terminating };
            SliceEndpoint { address, hostname: None, node, zone, conditions, zone_hints, node_hints, target: None }
        }
    }

    prop_compose! {
        fn any_slice()(
            name in "[ab]{1,2}",
            family in prop_oneof![4 => Just(Parsed::Good(Family::V4)), 2 => Just(Parsed::Good(Family::V6)), 1 => Just(Parsed::Bad("FQDN".into()))],
            ports in few((prop::option::weighted(0.9, port_name()), protocol(), prop::option::weighted(0.9, number())).prop_map(|(name, protocol, port)| SlicePort { name, protocol, port })),
            endpoints in few(any_endpoint()),
            weight in prop::option::of((0..3_u32).prop_map(Parsed::Good)),
        ) -> SliceObject {
            SliceObject { family, ports, endpoints, weight, ..slice(&name, &[], vec![]) }
        }
    }

    proptest! {
        /// Localizing never panics. The result keeps the contract and does not depend on the order of slices.
        #[test]
        fn gives_a_sound_service(object in any_service(), mut slices in prop::collection::vec(any_slice(), 0..4), zone in "(zone-a)?") {
            // Names of slices are unique.
            slices.sort_by(|a, b| a.name.cmp(&b.name));
            slices.dedup_by(|a, b| a.name == b.name);
            let here = Here { addresses: vec![IpAddr::from([10, 0, 0, 1])], ..here(1, &zone) };
            let (service, _) = service(&object, &slices, &here, &[]);
            slices.reverse();
            prop_assert_eq!(&service, &super::service(&object, &slices, &here, &[]).0);
            let Some(service) = service else { return Ok(()) };
            prop_assert!(!service.cluster_ips.is_empty() && !service.ports.is_empty());
            let names: BTreeSet<_> = service.ports.iter().map(|port| &port.name).collect();
            prop_assert_eq!(names.len(), service.ports.len());
            let mut seen = BTreeSet::new();
            for endpoint in &service.endpoints {
                prop_assert!(endpoint.scopes != Scopes::default());
                prop_assert!(service.has_family(Family::of(endpoint.address)));
                prop_assert!(super::super::special::reserved_for(endpoint.address).is_none());
                prop_assert!(!endpoint.scopes.short_circuit || service.external_traffic_to_local);
                for port in &endpoint.ports {
                    prop_assert!(names.contains(&port.name));
                    prop_assert!(seen.insert((endpoint.address, port.name.clone(), port.port)));
                }
            }
            for ip in service.external_ips.iter().chain(&service.load_balancer_ips) {
                prop_assert!(service.has_family(Family::of(*ip)));
            }
            // Decoding the encoded Service gives the same Service.
            let mut assembler = localnet_proto::decode::Assembler::default();
            assembler.push(localnet_proto::encode::next_item(Default::default(), true)).unwrap();
            for item in localnet_proto::encode::service_items(&service) {
                assembler.push(item).unwrap();
            }
            let localnet_proto::Update::Delta { changes, .. } = assembler.finish().unwrap() else { panic!() };
            prop_assert_eq!(changes, vec![localnet_proto::Change::Service(Arc::new(service))]);
        }
    }
}
