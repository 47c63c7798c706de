//! One row for each rule, and a property: each endpoint is either eligible or explained.

use std::net::IpAddr;

use localnet_proto::{Family, Protocol, Scopes};
use proptest::prelude::*;

use super::{Ineligible, Reasons, Rule, Standing, reasons};
use crate::{
    localize::{
        Here, Lost, Owner, service,
        tests::{Policy, here, row, with_policy},
    },
    objects::{Parsed, ServiceObject, ServiceType, SliceEndpoint, SliceObject},
    testing::{addresses, endpoint, service as object, slice},
};

fn explained(object: &ServiceObject, slices: &[SliceObject], here: &Here) -> Reasons {
    reasons(object, slices, here, &[], None)
}

/// Formats an exclusion: `last octet: rule (scopes) field`
fn shown(of: &Ineligible) -> String {
    let Scopes { internal, external, short_circuit, .. } = of.from;
    let scopes: String = [(internal, 'i'), (external, 'e'), (short_circuit, 's')]
        .iter()
        .filter(|(on, _)| *on)
        .map(|(_, name)| *name)
        .collect();
    let last = of.address.rsplit(['.', ':']).next().unwrap_or_default();
    format!("{last}: {:?} {scopes} {}", of.rule, of.field)
}

/// Checks one row: the node, the policy and the endpoints, and the exclusions.
#[track_caller]
fn check(here: &Here, policy: Policy, endpoints: &[(u8, &str)], expected: &[&str]) {
    let slices = [slice("web-1", &[("p80", 80)], endpoints.iter().map(|(last, words)| row(*last, words)).collect())];
    let found = explained(&with_policy(policy), &slices, here);
    assert_eq!(found.ineligible.iter().map(shown).collect::<Vec<_>>(), expected);
    assert_eq!((found.standing, found.slices, found.endpoints), (Standing::Served, 1, endpoints.len()));
}

#[test]
fn endpoints_that_are_not_ready_are_reported_with_their_conditions() {
    let rows = [(1, ""), (2, "NR"), (3, "ST"), (4, "T")].map(|(last, words)| row(last, words));
    let slices = [slice("web-1", &[("p80", 80)], rows.into())];
    let unready = explained(&with_policy(Policy::Cluster), &slices, &here(1, "zone-a")).unready;
    let found: Vec<String> =
        unready.iter().map(|of| format!("{} {} {} {}", of.address, of.ready, of.serving, of.terminating)).collect();
    let last = |text: &str| text.split(' ').next().and_then(|address| address.rsplit('.').next()).map(str::to_owned);
    assert_eq!(found.iter().filter_map(|text| last(text)).collect::<Vec<_>>(), ["2", "3", "4"]);
    assert!(found[0].ends_with("false false false") && found[1].ends_with("false true true"), "{found:?}");
    assert!(found[2].ends_with("false false true"), "{found:?}");
}

#[test]
fn each_condition_hint_and_policy_is_a_rule() {
    use Policy::{Cluster, ExternalLocal, InternalLocal, InternalLocalExternal};
    let a = &here(1, "zone-a");
    check(a, Cluster, &[(1, ""), (2, "")], &[]);
    check(a, Cluster, &[(1, ""), (2, "NR")], &["2: NotReady i endpoints[1].conditions.ready"]);
    check(a, Cluster, &[(1, ""), (2, "ST")], &["2: Terminating i endpoints[1].conditions.terminating"]);
    check(
        a,
        Cluster,
        &[(1, "NR"), (2, "T")],
        &["1: NotServing i endpoints[0].conditions.ready", "2: NotServing i endpoints[1].conditions.serving"],
    );
    check(a, Cluster, &[(1, "ST"), (2, "NR")], &["2: NotServing i endpoints[1].conditions.ready"]);
    check(a, Cluster, &[(3, "a"), (4, "b")], &["4: OtherZone i endpoints[1].hints.forZones"]);
    check(a, Cluster, &[(3, "a n1"), (4, "a n2")], &["4: OtherNode i endpoints[1].hints.forNodes"]);
    check(a, InternalLocal, &[(1, "L"), (2, "")], &["2: InternalLocal i spec.internalTrafficPolicy"]);
    check(
        a,
        InternalLocal,
        &[(1, "L NR"), (2, "")],
        &["1: NotServing i endpoints[0].conditions.ready", "2: InternalLocal i spec.internalTrafficPolicy"],
    );
    check(
        a,
        InternalLocalExternal,
        &[(1, "a L"), (2, "b")],
        &["2: OtherZone e endpoints[1].hints.forZones", "2: InternalLocal i spec.internalTrafficPolicy"],
    );
    check(a, ExternalLocal, &[(1, "L"), (2, "")], &["2: ExternalLocal e spec.externalTrafficPolicy"]);
    check(a, ExternalLocal, &[(1, "L"), (2, "NR")], &["2: NotReady ies endpoints[1].conditions.ready"]);
}

#[test]
fn a_weight_of_zero_is_a_rule() {
    let of = |last, weight| SliceObject {
        weight: Some(Parsed::Good(weight)),
        ..slice(&format!("web-{last}"), &[("p80", 80)], vec![row(last, "")])
    };
    let found = explained(&with_policy(Policy::Cluster), &[of(1, 0), of(2, 1)], &here(1, "zone-a"));
    assert_eq!(
        found.ineligible.iter().map(shown).collect::<Vec<_>>(),
        ["1: Weight i metadata.annotations[localnet.dev/weight]"]
    );
}

#[test]
fn an_exclusion_names_the_node_of_the_endpoint() {
    let far = SliceEndpoint { node: None, ..row(3, "") };
    let slices = [slice("web-1", &[("p80", 80)], vec![row(1, "L"), row(2, ""), far, row(4, "L NR")])];
    let found = explained(&with_policy(Policy::InternalLocal), &slices, &here(1, "zone-a"));
    let shown: Vec<_> = found.ineligible.iter().map(|of| (&*of.node, of.local, &*of.problem)).collect();
    let policy = "the Service keeps internal traffic on the node, but the endpoint is";
    assert_eq!(
        shown,
        [
            ("node-far", false, &*format!("{policy} on node node-far")),
            ("", false, &*format!("{policy} on no node")),
            ("node-1", true, "it is not ready, but other endpoints are"),
        ]
    );
}

#[test]
fn the_topology_of_each_port_and_family_is_reported() {
    let slices = [slice("web-1", &[("p80", 80)], vec![row(3, "a"), row(4, "b")])];
    let found = explained(&with_policy(Policy::Cluster), &slices, &here(1, "zone-a"));
    let ports: Vec<_> = found.topology.iter().map(|topology| (&*topology.port_name, topology.family)).collect();
    assert_eq!(ports, [("p80", Family::V4)]);
}

/// A slice may have several ports of one name. One of them may be wrong.
#[test]
fn a_port_with_one_valid_number_excludes_no_endpoint() {
    let mut two = slice("web-1", &[("p80", 8080), ("p80", 9090)], vec![endpoint("10.1.2.1")]);
    two.ports[1].port = Some(70_000);
    assert_eq!(explained(&object("10.96.0.1", &[(80, "TCP")]), &[two], &here(1, "")).ineligible, []);
}

/// Checks the exclusion from `default/web`, which has a TCP port p80, after a change of its slice.
#[track_caller]
fn check_slice(change: impl FnOnce(&mut SliceObject), rule: Rule, field: &str, problem: &str) {
    let mut one = slice("web-1", &[("p80", 8080)], vec![endpoint("10.1.2.1")]);
    change(&mut one);
    let found = explained(&object("10.96.0.1", &[(80, "TCP")]), &[one], &here(1, ""));
    let [of] = &found.ineligible[..] else { panic!("{:?}", found.ineligible) };
    assert_eq!((of.rule, of.field.as_str()), (rule, field));
    assert!(of.problem.contains(problem), "{}", of.problem);
    assert!(!of.remedy.is_empty() && of.from.internal);
}

#[test]
fn each_mismatch_of_a_slice_is_a_rule() {
    check_slice(
        |slice| slice.ports[0].name = Some("http".into()),
        Rule::PortName,
        "ports[].name",
        "no port named \"p80\"; it has \"http\"",
    );
    check_slice(|slice| slice.ports = [].into(), Rule::PortName, "ports[].name", "it has none");
    let udp = |slice: &mut SliceObject| slice.ports[0].protocol = Parsed::Good(Protocol::Udp);
    check_slice(udp, Rule::PortProtocol, "ports[].protocol", "is UDP, the Service's is TCP");
    check_slice(|slice| slice.ports[0].port = None, Rule::PortNumber, "ports[].port", "all ports");
    check_slice(|slice| slice.ports[0].port = Some(70_000), Rule::PortNumber, "ports[].port", "70000");
    check_slice(|slice| slice.family = Parsed::Bad("FQDN".into()), Rule::AddressType, "addressType", "FQDN");
    check_slice(|slice| slice.family = Parsed::Good(Family::V6), Rule::Family, "addressType", "no IPv6 ClusterIP");
    let address = |text: &'static str| move |slice: &mut SliceObject| slice.endpoints = [endpoint(text)].into();
    let field = "endpoints[0].addresses[0]";
    check_slice(address("nonsense"), Rule::Address, field, "\"nonsense\" is not an IP address");
    check_slice(address("fd00::1"), Rule::Address, field, "not an IPv4 address");
    check_slice(address("169.254.169.254"), Rule::Reserved, field, "link-local");
    check_slice(|slice| slice.endpoints[0].address = None, Rule::Address, field, "no address");
    check_slice(
        |slice| slice.headless = true,
        Rule::HeadlessSlice,
        "metadata.labels[service.kubernetes.io/headless]",
        "headless",
    );
}

#[test]
fn a_duplicate_endpoint_is_skipped() {
    let one = |name: &str| slice(name, &[("p80", 8080)], vec![endpoint("10.1.2.1")]);
    let found = explained(&object("10.96.0.1", &[(80, "TCP")]), &[one("web-1"), one("web-2")], &here(1, ""));
    let [of] = &found.ineligible[..] else { panic!("{:?}", found.ineligible) };
    assert_eq!((of.rule, &*of.slice), (Rule::Duplicate, "web-1"));
    assert!(of.problem.contains("web-2"), "{}", of.problem);
}

#[test]
fn a_service_that_is_not_served_has_a_reason() {
    let standing = |change: fn(&mut ServiceObject)| {
        let mut object = object("10.96.0.1", &[(80, "TCP")]);
        change(&mut object);
        let lost = Lost {
            front: ("10.96.0.9".parse().unwrap(), Protocol::Tcp, 80),
            field: "spec.clusterIPs",
            to: Owner { service: localnet_proto::ServiceKey::new("default", "older"), is_of_earlier_source: false },
        };
        let reasons = reasons(&object, &[], &here(1, ""), &[lost], None);
        (reasons.standing, reasons.findings.len())
    };
    assert_eq!(standing(|_| {}), (Standing::Served, 0));
    assert_eq!(standing(|service| service.headless = true), (Standing::Headless, 0));
    assert_eq!(standing(|service| service.kind = ServiceType::ExternalName), (Standing::ExternalName, 0));
    assert_eq!(standing(|service| service.cluster_ips = [].into()), (Standing::WithoutClusterIp, 0));
    assert_eq!(standing(|service| service.proxy_name = Some("mesh".into())), (Standing::OfAnotherProxy, 0));
    assert_eq!(standing(|service| service.ports = [].into()), (Standing::Unusable, 0));
    assert_eq!(standing(|service| service.cluster_ips = addresses(&["127.0.0.1"])), (Standing::Unusable, 1));
    assert_eq!(standing(|service| service.cluster_ips = addresses(&["10.96.0.9"])), (Standing::Unusable, 1));
}

#[test]
fn a_long_list_of_reasons_is_counted_and_cut() {
    let many: Vec<SliceEndpoint> = (0..2000_u32)
        .map(|number| {
            let mut one = endpoint(&IpAddr::from((0x0a01_0000 + number).to_be_bytes()).to_string());
            one.conditions.ready = number == 0;
            one
        })
        .collect();
    let found = explained(&object("10.96.0.1", &[(80, "TCP")]), &[slice("web-1", &[("p80", 80)], many)], &here(1, ""));
    assert_eq!((found.ineligible.len(), found.ineligible_count), (super::MOST, 1999));
}

fn rows() -> impl Strategy<Value = Vec<(u8, String)>> {
    let words = proptest::sample::subsequence(vec!["L", "NR", "ST", "a", "b", "n1", "n2"], 0..4);
    proptest::collection::vec((0..5_u8, words.prop_map(|words| words.join(" "))), 0..8)
}

proptest! {
    #[test]
    fn an_endpoint_is_eligible_or_has_a_reason(
        rows in proptest::collection::vec(rows(), 1..4),
        policy in proptest::sample::select(vec![Policy::Cluster, Policy::ExternalLocal, Policy::InternalLocal, Policy::InternalLocalExternal]),
        names in proptest::collection::vec(proptest::sample::select(vec!["p80", "other"]), 4),
        weights in proptest::collection::vec(proptest::option::of(0..2_u32), 4),
    ) {
        let slices: Vec<SliceObject> = rows
            .iter()
            .zip(&names)
            .enumerate()
            .map(|(at, (rows, name))| {
                let rows = rows.iter().map(|(last, words)| row(*last, words)).collect();
                let weight = weights[at].map(Parsed::Good);
                SliceObject { weight, ..slice(&format!("web-{at}"), &[(name, 80)], rows) }
            })
            .collect();
        let (object, here) = (with_policy(policy), here(1, "zone-a"));
        let served = service(&object, &slices, &here, &[]).0.expect("the service is served");
        let found = explained(&object, &slices, &here);
        let external = !served.ports.iter().all(|port| port.node_port.is_none());
        for slice in &slices {
            for (position, endpoint) in slice.endpoints.iter().enumerate() {
                let Some(Parsed::Good(address)) = endpoint.address else { continue };
                let text = address.to_string();
                let scopes = |of: fn(&Scopes) -> bool| {
                    let serves = served.endpoints.iter().any(|endpoint| endpoint.address == address && of(&endpoint.scopes));
                    let mut out = found.ineligible.iter().filter(|out| *out.slice == *slice.name && *out.address == *text);
                    (serves, out.any(|out| of(&out.from)))
                };
                let (internal, not_internal) = scopes(|scopes| scopes.internal);
                prop_assert!(internal || not_internal, "{position} of {}: {found:?}", slice.name);
                if external {
                    let (serves, not) = scopes(|scopes| scopes.external);
                    prop_assert!(serves || not, "{position} of {}: {found:?}", slice.name);
                }
            }
        }
        // No excluded address is eligible through another of its entries.
        for out in &found.ineligible {
            let entries = slices.iter().flat_map(|slice| &slice.endpoints).filter(|of| {
                matches!(&of.address, Some(Parsed::Good(address)) if *address.to_string() == *out.address)
            });
            if entries.count() == 1 && out.from.internal {
                let serves = |endpoint: &localnet_proto::Endpoint| endpoint.address.to_string() == *out.address && endpoint.scopes.internal;
                prop_assert!(!served.endpoints.iter().any(serves), "{out:?}");
            }
        }
    }
}
