//! States of `localnetv1`.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use localnet_proto::{
    Change, Endpoint, EndpointPort, Node, Port, Protocol, Revision, Scopes, Service, ServiceKey, Snapshot, Update,
    Verdict, WhenEmpty,
    decode::Assembler,
    encode::{self, ENDPOINTS_PER_ITEM, MAX_ITEM_BYTES},
    wire,
};
use proptest::{collection::vec, prelude::*};
use prost::Message as _;

use crate::snapshot;

fn items(snapshot: &Snapshot) -> Vec<wire::NextItem> {
    let head = [encode::next_item(snapshot.revision, false), encode::node_item(&snapshot.node)];
    head.into_iter().chain(snapshot.services.values().flat_map(|service| encode::service_items(service))).collect()
}

fn assembled(items: impl IntoIterator<Item = wire::NextItem>) -> Result<Update, String> {
    let mut assembler = Assembler::default();
    for item in items {
        assembler.push(item).map_err(|error| error.to_string())?;
    }
    assembler.finish().map_err(|error| error.to_string())
}

proptest! {
    #[test]
    fn full_states_round_trip(snapshot in snapshot()) {
        prop_assert_eq!(assembled(items(&snapshot)), Ok(Update::Full(snapshot)));
    }

    #[test]
    fn applying_a_delta_yields_the_full_state(before in snapshot(), after in snapshot()) {
        let sets = after.services.values().filter(|s| before.services.get(&s.key) != Some(*s));
        let removed = before.services.keys().filter(|key| !after.services.contains_key(key));
        let items = [encode::next_item(after.revision, true), encode::node_item(&after.node)].into_iter()
            .chain(sets.flat_map(|service| encode::service_items(service)))
            .chain(removed.map(encode::removed_item));
        let mut folded = before.clone();
        let by_delta = folded.apply(assembled(items).unwrap());
        prop_assert_eq!(&folded, &after);
        let mut replaced = before;
        prop_assert_eq!(replaced.apply(Update::Full(after)), by_delta);
        prop_assert_eq!(replaced, folded);
    }

    #[test]
    fn no_bytes_make_the_reader_panic(bytes in vec(vec(any::<u8>(), 0..64), 0..4), snapshot in snapshot(), cut in any::<prop::sample::Index>()) {
        let mut encoded: Vec<Vec<u8>> = items(&snapshot).iter().map(prost::Message::encode_to_vec).collect();
        let at = cut.index(encoded.len());
        encoded.splice(at..at, bytes);
        let _ = assembled(encoded.iter().filter_map(|bytes| wire::NextItem::decode(bytes.as_slice()).ok()));
    }

    #[test]
    fn the_text_form_contains_the_whole_snapshot(snapshot in snapshot()) {
        let text = serde_json::to_string(&snapshot).unwrap();
        let read: Snapshot = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(read, Snapshot { revision: Revision::default(), ..snapshot });
    }
}

#[test]
fn a_service_with_many_endpoints_is_sent_in_several_items() {
    let endpoint = |number: u16| Endpoint {
        address: IpAddr::from([10, 1, (number >> 8) as u8, number as u8]),
        ports: vec![EndpointPort { name: "http".into(), port: 80 }],
        local: false,
        hostname: None,
        scopes: Scopes { internal: true, ..Scopes::default() },
        weight: None,
    };
    let service = Service {
        endpoints: (0..u16::try_from(2 * ENDPOINTS_PER_ITEM + 1).unwrap()).map(endpoint).collect(),
        ..Service::new(ServiceKey::new("default", "big"), vec![IpAddr::from([10, 0, 0, 1])])
    };
    assert_eq!(encode::service_items(&service).len(), 3);
    let services = BTreeMap::from([(service.key.clone(), Arc::new(service))]);
    let snapshot = Snapshot { services, ..Snapshot::default() };
    assert_eq!(assembled(items(&snapshot)), Ok(Update::Full(snapshot.clone())));

    let torn = items(&snapshot).into_iter().filter(|item| item.endpoints.as_ref().is_none_or(|e| e.continues));
    assert_eq!(
        assembled(torn).unwrap_err(),
        "service default/big: Continues: does not follow an item of the service",
        "a continuation without its beginning"
    );
}

/// A service may have many ports, and each endpoint lists them.
#[test]
fn no_item_exceeds_the_limit_of_readers() {
    let ports = |count: u16| (0..count).map(|number| (Arc::<str>::from(format!("{number:0>63}")), number + 1));
    let service = |ports_of_it: u16, endpoints: u8| {
        let empty = WhenEmpty::default();
        let port = |(name, port)| Port {
            name,
            protocol: Protocol::Tcp,
            port,
            node_port: None,
            when_empty_v4: empty,
            when_empty_v6: empty,
        };
        let ports_of_endpoint: Vec<_> = ports(ports_of_it).map(|(name, port)| EndpointPort { name, port }).collect();
        let endpoint = |last: u8| Endpoint {
            address: IpAddr::from([10, 1, 0, last]),
            ports: ports_of_endpoint.clone(),
            local: false,
            hostname: Some("x".repeat(63).into()),
            scopes: Scopes { internal: true, ..Scopes::default() },
            weight: None,
        };
        Service {
            ports: ports(ports_of_it).map(port).collect(),
            endpoints: (0..endpoints).map(endpoint).collect(),
            ..Service::new(ServiceKey::new("default", "wide"), vec![IpAddr::from([10, 0, 0, 1])])
        }
    };
    for (ports, endpoints, items) in [(1, 200, 1), (100, 200, 3), (5_000, 20, 21), (20_000, 3, 4)] {
        let service = service(ports, endpoints);
        let encoded = encode::service_items(&service);
        assert_eq!(encoded.len(), items, "{ports} ports, {endpoints} endpoints");
        assert!(encoded.iter().all(|item| item.encoded_len() <= MAX_ITEM_BYTES));
        assert_eq!(encode::too_large(&service), None);
        let services = BTreeMap::from([(service.key.clone(), Arc::new(service))]);
        let snapshot = Snapshot { services, ..Snapshot::default() };
        assert_eq!(assembled(self::items(&snapshot)), Ok(Update::Full(snapshot)));
    }
    let too_large = service(65_000, 1);
    let largest = encode::service_items(&too_large).iter().map(prost::Message::encoded_len).max().unwrap();
    assert!(largest > MAX_ITEM_BYTES);
    assert_eq!(encode::too_large(&too_large), Some(largest));
}

#[test]
fn the_error_for_an_invalid_answer_names_the_field() {
    let service = |service: wire::Service| {
        let endpoints = Some(wire::ServiceEndpoints { service: Some(service), ..Default::default() });
        let item = wire::NextItem { endpoints, ..Default::default() };
        assembled([encode::next_item(Revision::default(), false), item]).unwrap_err()
    };
    let named = wire::Service { namespace: "ns".into(), name: "web".into(), ..Default::default() };
    assert_eq!(service(wire::Service::default()), r#"answer: Service: ""/"" lacks its namespace or name"#);
    assert_eq!(service(named.clone()), "service ns/web: IPs.ClusterIPs: must contain at least one address");
    let set = |text: &str| Some(wire::IpSet { v4: vec![text.into()], v6: vec![] });
    let with_ip = |text: &str| {
        let i_ps = Some(wire::ServiceIPs { cluster_i_ps: set(text), ..Default::default() });
        wire::Service { i_ps, ..named.clone() }
    };
    assert_eq!(service(with_ip("fd00::1")), "service ns/web: IPs.ClusterIPs: \"fd00::1\": invalid IPv4 address syntax");
    let ports = vec![wire::PortMapping { protocol: 1, port: 70_000, ..Default::default() }];
    let bad_port = wire::Service { ports, ..with_ip("10.0.0.1") };
    assert_eq!(service(bad_port), "service ns/web: Ports: 70000 is not a port (1-65535)");
    let ports = vec![wire::PortMapping { port: 80, ..Default::default() }];
    let no_protocol = wire::Service { ports, ..with_ip("10.0.0.1") };
    assert_eq!(service(no_protocol), "service ns/web: Ports: a port has no protocol");
    assert_eq!(assembled([]).unwrap_err(), "answer: Next: the answer is empty");
    assert_eq!(
        assembled([encode::next_item(Revision::default(), false)]).unwrap_err(),
        "answer: Node: is missing from a full state"
    );
    let changes = [encode::next_item(Revision::default(), true), encode::removed_item(&ServiceKey::new("a", "b"))];
    let removed =
        Update::Delta { revision: Revision::default(), changes: vec![Change::Removed(ServiceKey::new("a", "b"))] };
    assert_eq!(assembled(changes), Ok(removed));
}

#[test]
fn unknown_values_of_a_newer_brain_are_left_out() {
    let when_empty_v4 = Some(wire::WhenEmpty { internal: 1, external: 77 });
    let known = wire::PortMapping { name: "a".into(), protocol: 1, port: 80, when_empty_v4, ..Default::default() };
    let unknown = wire::PortMapping { name: "b".into(), protocol: 77, port: 81, ..Default::default() };
    let cluster_i_ps = Some(wire::IpSet { v4: vec!["10.0.0.1".into()], v6: vec![] });
    let i_ps = Some(wire::ServiceIPs { cluster_i_ps, ..Default::default() });
    let service = wire::Service {
        namespace: "ns".into(),
        name: "web".into(),
        i_ps,
        ports: vec![known, unknown],
        ..Default::default()
    };
    let endpoints = Some(wire::ServiceEndpoints { service: Some(service), ..Default::default() });
    let item = wire::NextItem { endpoints, ..Default::default() };
    let head = [encode::next_item(Revision::default(), false), encode::node_item(&Node::default())];
    let Ok(Update::Full(state)) = assembled(head.into_iter().chain([item])) else { panic!("a full state is expected") };
    let ports = &state.services[&ServiceKey::new("ns", "web")].ports;
    let expected = WhenEmpty { internal: Verdict::Drop, external: Verdict::Reject };
    assert_eq!(ports.len(), 1, "the port of an unknown protocol is left out");
    assert_eq!((&*ports[0].name, ports[0].when_empty_v4), ("a", expected));
}
