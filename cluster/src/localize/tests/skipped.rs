//! What is not served, and the diagnostics that name it.

use super::*;

/// Checks the diagnostics of a Service after a change.
#[track_caller]
fn check_skipped(change: impl FnOnce(&mut ServiceObject), served: bool, expected: &[&str]) {
    let mut object = object("10.96.0.1", &[(80, "TCP"), (443, "TCP")]);
    change(&mut object);
    let (service, skipped) = service(&object, &[], &here(1, ""), &[]);
    let found: Vec<String> = skipped.iter().map(|s| format!("{}: {}: {}", s.subject, s.field, s.problem)).collect();
    assert_eq!(found, expected);
    assert_eq!(service.is_some(), served);
}

#[test]
fn invalid_ports_are_skipped_with_a_diagnostic() {
    check_skipped(|_| {}, true, &[]);
    check_skipped(
        |service| service.ports[1].port = 70000,
        true,
        &["Service default/web: spec.ports[1].port: 70000 is not a port"],
    );
    check_skipped(
        |service| service.ports[1].name = "p80".into(),
        true,
        &["Service default/web: spec.ports[1].name: the name \"p80\" is used twice"],
    );
    check_skipped(
        |service| service.ports[1].port = 80,
        true,
        &["Service default/web: spec.ports[1].port: 80/TCP is used twice"],
    );
    check_skipped(
        |service| service.ports.iter_mut().for_each(|port| port.protocol = Parsed::Bad("ICMP".into())),
        false,
        &[
            "Service default/web: spec.ports[0].protocol: \"ICMP\" is not a protocol",
            "Service default/web: spec.ports[1].protocol: \"ICMP\" is not a protocol",
        ],
    );
    check_skipped(
        |service| service.ports.iter_mut().for_each(|port| port.node_port = 30000),
        true,
        &["Service default/web: spec.ports[1].nodePort: 30000/TCP is used twice"],
    );
    check_skipped(
        |service| service.ports[0].node_port = -1,
        true,
        &["Service default/web: spec.ports[0].nodePort: -1 is not a port"],
    );
    check_skipped(
        |service| service.cluster_ips = addresses(&["x"]),
        false,
        &["Service default/web: spec.clusterIPs[0]: \"x\" is not an IP address"],
    );
    check_skipped(|service| service.ports = [].into(), false, &[]);
}

#[test]
fn an_invalid_annotation_is_ignored_with_a_diagnostic() {
    check_skipped(
        |service| service.extensions.get_or_insert_default().close_after = Some(Parsed::Bad("soon".into())),
        true,
        &["Service default/web: metadata.annotations[localnet.dev/close-connections-after]: \"soon\" is no duration"],
    );
    check_skipped(
        |service| service.extensions.get_or_insert_default().hash = Some(Parsed::Bad("ip".into())),
        true,
        &["Service default/web: metadata.annotations[localnet.dev/hash]: \"ip\" is neither source nor connection"],
    );
    check_skipped(
        |service| {
            service.extensions.get_or_insert_default().hash = Some(Parsed::Good(localnet_proto::HashBy::Source));
            service.affinity = Some(60.into());
        },
        true,
        &[
            "Service default/web: metadata.annotations[localnet.dev/hash]: source has no effect, because spec.sessionAffinity is ClientIP",
        ],
    );
    check_skipped(
        |service| service.extensions.get_or_insert_default().zone_weights = Some(Parsed::Bad("a:1".into())),
        true,
        &[
            "Service default/web: metadata.annotations[localnet.dev/zone-weights]: \"a:1\" is no list of zones and weights",
        ],
    );
    let slice = slice("web-1", &[("p80", 80)], vec![endpoint("10.1.2.1")]);
    let slice = SliceObject { weight: Some(Parsed::Bad("101".into())), ..slice };
    let (service, skipped) = service(&object("10.96.0.1", &[(80, "TCP")]), &[slice], &here(1, ""), &[]);
    let found: Vec<String> = skipped.iter().map(|s| format!("{}: {}: {}", s.subject, s.field, s.problem)).collect();
    let expected = "EndpointSlice default/web-1: metadata.annotations[localnet.dev/weight]: \"101\" is no weight";
    assert_eq!(found, [expected]);
    assert_eq!(service.unwrap().endpoints.len(), 1, "nothing else is skipped");
}

#[test]
fn endpoints_on_special_addresses_are_refused() {
    let object = with_policy(Policy::Cluster);
    let bad = ["127.0.0.1", "169.254.169.254", "224.0.0.1", "0.0.0.0", "x", "fd00::1"];
    let mut endpoints: Vec<SliceEndpoint> = bad.into_iter().map(endpoint).collect();
    endpoints.push(endpoint("10.0.0.1"));
    endpoints.push(SliceEndpoint { address: None, ..endpoint("10.0.0.2") });
    let (service, skipped) = service(&object, &[slice("web-1", &[("p80", 80)], endpoints)], &here(1, ""), &[]);
    assert_eq!(service.unwrap().endpoints.iter().map(|e| e.address.to_string()).collect::<Vec<_>>(), ["10.0.0.1"]);
    let fields: Vec<_> = skipped.iter().map(|s| (s.subject.to_string(), &*s.field)).collect();
    let expected: Vec<String> = (0..6).map(|position| format!("endpoints[{position}].addresses[0]")).collect();
    assert_eq!(
        fields,
        expected.iter().map(|field| ("EndpointSlice default/web-1".to_owned(), &**field)).collect::<Vec<_>>()
    );
}

#[test]
fn addresses_of_another_service_are_skipped() {
    let mut object = with_policy(Policy::ExternalLocal);
    object.external_ips = addresses(&["203.0.113.1", "203.0.113.2"]);
    let to = Owner { service: ServiceKey::new("default", "older"), is_of_earlier_source: false };
    let of_first = Owner { service: ServiceKey::new("default", "first"), is_of_earlier_source: true };
    let lost = [
        Lost { front: ("203.0.113.1".parse().unwrap(), Protocol::Tcp, 80), field: "spec.externalIPs", to: to.clone() },
        Lost {
            front: ("0.0.0.0".parse().unwrap(), Protocol::Tcp, 30001),
            field: "spec.ports[].nodePort",
            to: of_first,
        },
    ];
    let (service, skipped) = service(&object, &[], &here(1, ""), &lost);
    let service = service.unwrap();
    assert_eq!(service.external_ips, ["203.0.113.2".parse::<IpAddr>().unwrap()]);
    assert_eq!(service.ports[0].node_port, None);
    let found: BTreeSet<&str> = skipped.iter().map(|skipped| &*skipped.problem).collect();
    let expected = [
        "203.0.113.1 port 80/TCP belongs to Service default/older, which is older (or equally old and first by name)",
        "30001/TCP belongs to Service default/first, whose source has precedence",
    ];
    assert_eq!(found, BTreeSet::from(expected));
    assert!(skipped.iter().all(|skipped| skipped.code == Code::AddressTaken), "{skipped:?}");
    // The owner of an address and port, or of another NodePort, is not the owner of this NodePort.
    for front in
        [("203.0.113.1", Protocol::Tcp, 30001), ("0.0.0.0", Protocol::Tcp, 30002), ("0.0.0.0", Protocol::Udp, 30001)]
    {
        let (address, protocol, number) = front;
        let front = (address.parse().unwrap(), protocol, number);
        let lost = [Lost { front, field: "spec.ports[].nodePort", to: to.clone() }];
        let (service, _) = self::service(&object, &[], &here(1, ""), &lost);
        assert_eq!(service.unwrap().ports[0].node_port, Some(30001), "{front:?}");
    }
}

/// A message that exceeds the readers' limit would stop all readers.
#[test]
fn a_service_that_is_too_large_to_send_is_skipped_by_name() {
    let mut object = object("10.96.0.1", &[(80, "TCP")]);
    (object.kind, object.load_balancer_ips) = (ServiceType::LoadBalancer, addresses(&["192.0.2.1"]));
    let range = |number: u32| Parsed::Good(ipnet::IpNet::from(IpAddr::from(number.to_be_bytes())));
    object.source_ranges = (0xcb00_0000..0xcb00_0000 + 200_000).map(range).collect();
    assert!(service(&object, &[], &here(1, ""), &[]).0.is_some());
    object.source_ranges = (0xcb00_0000..0xcb00_0000 + 400_000).map(range).collect();
    let (none, skipped) = service(&object, &[], &here(1, ""), &[]);
    assert_eq!(none, None);
    let [skip] = &*skipped else { panic!("{skipped:?}") };
    let problem = "is too large: it needs a message of 7 MiB, and readers accept at most 4 MiB";
    assert_eq!((skip.subject.to_string(), &*skip.problem), ("Service default/web".to_owned(), problem));
}

/// Regression: a few objects that an API server accepts could fill the memory of every node, because their ports and endpoints
/// multiply.
#[test]
fn a_service_with_too_many_ports_and_endpoints_is_skipped_by_name() {
    let numbers = 1..=1024;
    let ports: Vec<(i32, &str)> = numbers.clone().map(|number| (number, "TCP")).collect();
    let object = object("10.96.0.1", &ports);
    let names: Vec<String> = numbers.clone().map(|number| format!("p{number}")).collect();
    let targets: Vec<(&str, i32)> = names.iter().map(String::as_str).zip(numbers).collect();
    // Endpoints without an address count toward the maximum, but use no memory.
    let endpoints = |count: usize| vec![SliceEndpoint { address: None, ..endpoint("10.1.0.1") }; count];
    let slices = |other: usize| [slice("a", &targets, endpoints(512)), slice("b", &targets, endpoints(other))];
    let served = |other: usize| service(&object, &slices(other), &here(1, ""), &[]);
    let (most, skipped) = served(512);
    assert_eq!((most.unwrap().ports.len(), skipped), (1024, vec![]));
    let (none, skipped) = served(513);
    assert_eq!(none, None);
    let [skip] = &*skipped else { panic!("{skipped:?}") };
    let problem = "its 1024 ports have more than 1048576 endpoints in total";
    assert_eq!((&*skip.field, &*skip.problem), ("spec.ports", problem));
    assert_eq!(topology(&object, &slices(513), &here(1, ""), &[]), []);
}
