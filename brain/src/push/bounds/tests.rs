//! Tests of the rules for pushed Services.

use localnet_proto::source::{EndpointPort, PushedEndpoint, ServiceAddress};
use proptest::prelude::*;
use prost::Message as _;

use super::*;
use crate::push::grants::Grants;

fn grant() -> Arc<Grant> {
    let text = "
grants:
- name: mesh
  peer: {uid: 1}
  namespaces: [mesh]
  clusterIPs: [10.97.0.0/24, 'fd00::/112']
  externalIPs: [203.0.113.0/28]
  nodePorts: 30500-30509
  endpoints: [10.0.0.0/8, 'fd01::/64']
  maxEndpoints: 50
";
    Grants::parse(text).unwrap().grants.remove(0)
}

fn address(address: &str, kind: AddressKind) -> ServiceAddress {
    ServiceAddress { address: address.into(), kind: kind.into() }
}

fn endpoint(address: &str, port: (&str, u32)) -> PushedEndpoint {
    let ports = vec![EndpointPort { name: port.0.into(), number: port.1 }];
    PushedEndpoint { address: address.into(), ports, ..PushedEndpoint::default() }
}

/// A Service that the grant contains completely.
fn web() -> PushedService {
    let port = wire::ServicePort { name: "http".into(), number: 80, node_port: 30500, ..wire::ServicePort::default() };
    PushedService {
        key: Some(wire::ServiceKey { namespace: "mesh".into(), name: "web".into() }),
        addresses: vec![
            address("10.97.0.1", AddressKind::ClusterIp),
            address("fd00::1", AddressKind::ClusterIp),
            address("203.0.113.1", AddressKind::ExternalIp),
            address("203.0.113.2", AddressKind::LoadBalancerIp),
        ],
        ports: vec![port],
        endpoints: vec![endpoint("10.1.0.1", ("http", 8080)), endpoint("fd01::1", ("http", 8080))],
        ..PushedService::default()
    }
}

/// The problems of a changed Service, each as `field: code`, and the objects.
fn changed(change: impl FnOnce(&mut PushedService)) -> (Vec<String>, Option<Objects>) {
    let mut pushed = web();
    change(&mut pushed);
    let text = |of: &Diagnostic| format!("{}: {}", of.field, of.code.as_str());
    match objects(&grant(), &pushed, None) {
        Ok(objects) => (objects.service.skipped.iter().map(text).collect(), Some(objects)),
        Err(problem) => (vec![format!("whole {}", text(&problem))], None),
    }
}

#[test]
fn a_service_within_the_grant_is_converted_completely() {
    let (problems, objects) = changed(|pushed| {
        pushed.external_policy = TrafficPolicy::Local.into();
        pushed.client_ip_affinity = Some(wire::ClientIpAffinity { timeout_seconds: 0 });
        pushed.endpoints[0].node_name = "node-1".into();
        pushed.endpoints[1].condition = EndpointCondition::Terminating.into();
    });
    assert_eq!(problems, [""; 0]);
    let Objects { service, slices } = objects.unwrap();
    assert_eq!(service.key(), ServiceKey::new("mesh", "web"));
    assert_eq!((service.created, service.pushed, service.kind), (0, true, ServiceType::NodePort));
    assert_eq!((service.internal_local, service.external_local, service.affinity), (false, true, Some(10_800.into())));
    assert_eq!(service.cluster_ips.len() + service.external_ips.len() + service.load_balancer_ips.len(), 4);
    let of = |slice: &SliceObject| (slice.name.to_string(), slice.family.clone(), slice.endpoints.len());
    let expected = [("web/0", Family::V4), ("web/1", Family::V6)];
    assert_eq!(
        slices.iter().map(of).collect::<Vec<_>>(),
        expected.map(|(name, of)| (name.into(), Parsed::Good(of), 1))
    );
    assert_eq!(slices[0].endpoints[0].node.as_deref(), Some("node-1"));
    assert_eq!(slices[1].endpoints[0].conditions, Conditions { ready: false, serving: true, terminating: true });
    let named = super::objects(&grant(), &web(), Some(&"mine".into())).unwrap();
    assert_eq!(named.service.proxy_name.as_deref(), Some("mine"), "this proxy serves it");
}

#[test]
fn what_the_grant_does_not_contain_is_left_out() {
    type Change = fn(&mut PushedService);
    let rows: [(Change, &[&str]); 22] = [
        (|of| of.key.as_mut().unwrap().namespace = "kube-system".into(), &["whole key.namespace: push-not-granted"]),
        (|of| of.key.as_mut().unwrap().namespace = "Mesh".into(), &["whole key.namespace: name-invalid"]),
        (|of| of.key.as_mut().unwrap().name = "a/b".into(), &["whole key.name: name-invalid"]),
        (|of| of.key.as_mut().unwrap().name = "x".repeat(3_000_000), &["whole key.name: name-invalid"]),
        (|of| of.key = None, &["whole key.namespace: name-invalid"]),
        (|of| of.addresses[0].address = "10.96.0.1".into(), &["addresses[0].address: push-not-granted"]),
        (|of| of.addresses[0].address = "203.0.113.1".into(), &["addresses[0].address: push-not-granted"]),
        (|of| of.addresses[2].address = "10.97.0.2".into(), &["addresses[2].address: push-not-granted"]),
        (|of| of.addresses[3].address = "203.0.113.16".into(), &["addresses[3].address: push-not-granted"]),
        // The same address in another notation.
        (|of| of.addresses[0].address = "::ffff:10.96.0.1".into(), &["addresses[0].address: push-not-granted"]),
        (|of| of.addresses[0].address = "web.example".into(), &["addresses[0].address: address-invalid"]),
        (|of| of.addresses[0].kind = 0, &["addresses[0].kind: value-unsupported"]),
        (|of| of.addresses[0].kind = 9, &["addresses[0].kind: value-unsupported"]),
        (|of| of.ports[0].node_port = 30510, &["ports[0].node_port: push-not-granted"]),
        (|of| of.ports[0].node_port = u32::MAX, &["ports[0].node_port: push-not-granted"]),
        (|of| of.endpoints[0].address = "192.168.0.1".into(), &["endpoints[0].address: push-not-granted"]),
        (|of| of.endpoints[0].address = "10.1".into(), &["endpoints[0].address: address-invalid"]),
        (|of| of.endpoints[0].ports[0].name = "dns".into(), &["endpoints[0].ports[0].name: port-absent"]),
        (|of| of.endpoints[0].condition = 9, &["endpoints[0].condition: value-unsupported"]),
        (|of| of.endpoints = vec![endpoint("10.1.0.1", ("http", 1)); 51], &["whole endpoints: push-not-granted"]),
        (|of| of.external_policy = 9, &["whole external_policy: value-unsupported"]),
        (|of| of.ports = vec![of.ports[0].clone(); 257], &["whole ports: service-too-large"]),
    ];
    for (row, (change, expected)) in rows.into_iter().enumerate() {
        assert_eq!(changed(change).0, expected, "row {row}");
    }
}

#[test]
fn a_problem_leaves_out_only_its_part() {
    let (_, objects) = changed(|of| {
        of.addresses[0].address = "10.96.0.1".into();
        of.ports[0].node_port = 1;
        of.endpoints[0].address = "192.168.0.1".into();
    });
    let Objects { service, slices } = objects.unwrap();
    assert_eq!(*service.cluster_ips, [Parsed::Good("fd00::1".parse().unwrap())]);
    assert_eq!((service.ports[0].port, service.ports[0].node_port), (80, 0));
    assert_eq!(slices.len(), 1);
    let problem = service.skipped[1].to_string();
    assert_eq!(
        problem,
        "Service mesh/web: addresses[0].address: the grant \"mesh\" does not contain 10.96.0.1; use another value, or add it to clusterIPs of the grant"
    );
}

#[test]
fn long_texts_and_many_problems_are_limited() {
    type Change = fn(&mut PushedService);
    let long: [Change; 5] = [
        |of| of.addresses[0].address = "1".repeat(65),
        |of| of.ports[0].name = "a".repeat(64),
        |of| of.endpoints[0].address = "1".repeat(65),
        |of| of.endpoints[0].node_name = "n".repeat(254),
        |of| of.source_ranges = vec!["1".repeat(1_000_000)],
    ];
    for (row, change) in long.into_iter().enumerate() {
        let (problems, _) = changed(change);
        assert!(problems[0].starts_with("whole ") && problems[0].ends_with("value-invalid"), "row {row}: {problems:?}");
    }
    let (problems, objects) = changed(|of| of.endpoints = vec![endpoint("192.168.0.1", ("http", 1)); 50]);
    assert_eq!(problems.len(), PROBLEMS);
    let last = &objects.unwrap().service.skipped[PROBLEMS - 1].problem;
    assert!(last.ends_with("(and 30 more problems of this Service)"), "{last}");
}

/// Addresses inside and outside of the grant, and other texts.
fn texts() -> impl Strategy<Value = String> {
    let known = prop::sample::select(vec![
        "10.97.0.1",
        "10.97.1.1",
        "fd00::1",
        "fd00::1:0:1",
        "203.0.113.1",
        "203.0.113.99",
        "10.1.0.1",
        "192.168.0.1",
        "fd01::1",
        "::ffff:10.97.0.1",
        "::ffff:10.96.0.1",
        "010.096.0.1",
        "127.0.0.1",
        "::",
        "x",
        "",
    ]);
    prop_oneof![4 => known.prop_map(str::to_owned), 1 => ".{0,70}"]
}

fn services() -> impl Strategy<Value = PushedService> {
    let key = (prop::sample::select(vec!["mesh", "mesh", "default", ""]), "[a-z/]{0,3}");
    let addresses = prop::collection::vec((texts(), 0..5_i32), 0..6);
    let ports =
        prop::collection::vec(("[ab]", -1..4_i32, any::<u32>(), prop_oneof![30498..30512_u32, any::<u32>()]), 0..4);
    let of_endpoint = prop::collection::vec(("[abc]", any::<u32>()), 0..3);
    let endpoints = prop::collection::vec((texts(), of_endpoint, 0..5_i32), 0..12);
    (key, addresses, ports, endpoints, prop::collection::vec(texts(), 0..3)).prop_map(
        |((namespace, name), addresses, ports, endpoints, source_ranges)| PushedService {
            key: Some(wire::ServiceKey { namespace: namespace.into(), name }),
            addresses: addresses.into_iter().map(|(address, kind)| ServiceAddress { address, kind }).collect(),
            ports: ports
                .into_iter()
                .map(|(name, protocol, number, node_port)| wire::ServicePort { name, protocol, number, node_port })
                .collect(),
            endpoints: endpoints
                .into_iter()
                .map(|(address, ports, condition)| PushedEndpoint {
                    address,
                    ports: ports.into_iter().map(|(name, number)| EndpointPort { name, number }).collect(),
                    condition,
                    ..PushedEndpoint::default()
                })
                .collect(),
            source_ranges,
            ..PushedService::default()
        },
    )
}

proptest! {
    #[test]
    fn no_object_is_outside_of_the_grant(pushed in services()) {
        let grant = grant();
        let Ok(Objects { service, slices }) = objects(&grant, &pushed, None) else { return Ok(()) };
        prop_assert_eq!(&*service.namespace, "mesh");
        prop_assert!(service.pushed && service.created == 0 && service.proxy_name.is_none());
        let within = |all: &[Parsed<IpAddr>], contain: &dyn Fn(IpAddr) -> bool| {
            all.iter().all(|of| matches!(of, Parsed::Good(address) if contain(*address)))
        };
        prop_assert!(within(&service.cluster_ips, &|address| grant.cluster_ips.contain(address)));
        prop_assert!(within(&service.external_ips, &|address| grant.external_ips.contain(address)));
        prop_assert!(within(&service.load_balancer_ips, &|address| grant.external_ips.contain(address)));
        for port in &service.ports {
            prop_assert!(port.node_port == 0 || (30500..=30509).contains(&port.node_port));
        }
        for (position, slice) in slices.iter().enumerate() {
            prop_assert!(slice.pushed && slice.owner() == Some(service.key()));
            prop_assert_eq!((&*slice.namespace, &slice.name), ("mesh", &slice_name(&service.key(), position).name));
            for endpoint in &slice.endpoints {
                let Some(Parsed::Good(address)) = endpoint.address else { panic!("{endpoint:?}") };
                prop_assert!(grant.endpoints.contain(address));
                prop_assert_eq!(&slice.family, &Parsed::Good(Family::of(address)));
            }
        }
        prop_assert!(service.skipped.len() <= PROBLEMS);
    }
}

#[test]
fn fuzz_pushed_services() {
    let grant = grant();
    localnet_fuzz::target("pushed-services", &[&web().encode_to_vec()], |bytes| match PushedService::decode(bytes) {
        Ok(pushed) => match objects(&grant, &pushed, None) {
            Ok(Objects { service, slices }) => format!("{} problems, {} slices", service.skipped.len(), slices.len()),
            Err(problem) => problem.code.as_str().to_owned(),
        },
        Err(_) => "no message".to_owned(),
    });
}
