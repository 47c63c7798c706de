//! Tests that the bytes are those of KPNG's messages, that the order is KPNG's, and that replaying the items gives the state.

use std::{collections::BTreeMap, sync::Arc};

use localnet_proto::{
    Endpoint, EndpointPort, Node, Port, Scopes, Service, ServiceKey, Snapshot, Update,
    decode::Assembler,
    encode,
    wire::{self, OpItem, Set, op_item::Op},
};
use proptest::prelude::*;
use prost::Message as _;

use super::*;
use crate::feed::{Feed, State};
use localnet_cluster::localize::Localized;

const ALL: Scopes = Scopes { internal: true, external: true, short_circuit: false, established: true };
/// An endpoint that terminates while others are ready.
const OLD: Scopes = Scopes { internal: false, external: false, short_circuit: false, established: true };

fn service(namespace: &str, name: &str, port: &str, endpoints: &[(&str, bool, Scopes, u16)]) -> Service {
    let ports = vec![Port { name: port.into(), port: 80, ..Port::default() }];
    let mut endpoints: Vec<Endpoint> = endpoints
        .iter()
        .map(|(address, local, scopes, number)| Endpoint {
            address: address.parse().unwrap(),
            ports: vec![EndpointPort { name: port.into(), port: *number }],
            local: *local,
            hostname: None,
            scopes: *scopes,
            weight: None,
        })
        .collect();
    endpoints.sort();
    let key = ServiceKey::new(namespace, name);
    Service { ports, endpoints, ..Service::new(key, vec!["10.96.0.10".parse().unwrap()]) }
}

fn changed(services: impl IntoIterator<Item = Service>, gone: &[(&str, &str)]) -> Localized {
    let set = services.into_iter().map(|service| (service.key.clone(), Some(Arc::new(service))));
    let gone = gone.iter().map(|(namespace, name)| (ServiceKey::new(*namespace, *name), None));
    Localized { services: set.chain(gone).collect(), ..Localized::default() }
}

fn with_node(name: &str, localized: Localized) -> Localized {
    Localized { node: Some(Node { name: name.into(), ..Node::default() }), ..localized }
}

/// The states of a node after each of these steps.
fn states(steps: impl IntoIterator<Item = Localized>) -> Vec<State> {
    let feed = Feed::new(7);
    steps
        .into_iter()
        .map(|localized| {
            feed.publish(localized);
            feed.state()
        })
        .collect()
}

fn hex(items: impl IntoIterator<Item = bytes::Bytes>) -> Vec<String> {
    items.into_iter().map(|item| item.iter().map(|byte| format!("{byte:02x}")).collect()).collect()
}

/// Written by hand from KPNG's messages. Each line is a field, preceded by its number and type.
#[test]
fn the_bytes_equal_those_of_kpng() {
    let web = |endpoints: &[_]| service("default", "web", "http", endpoints);
    let both = [("10.1.0.1", true, ALL, 8080), ("fd00:1::1", true, ALL, 8080)];
    let steps = [
        with_node("node-a", changed([web(&both)], &[])),
        changed([web(&both[..1])], &[]),
        changed([], &[("default", "web")]),
    ];
    let states = states(steps);

    assert_eq!(hex([reset()]), ["2200"], "OpItem.Reset");
    let node = concat!(
        "1216",                 // OpItem.Set, 22 bytes
        "0a08081f12046e6f6465", // Value.Ref: Set 31, Path "node"
        "120a",                 // Value.Bytes, 10 bytes
        "0a066e6f64652d61",     // NodeState.Name "node-a"
        "1200",                 // NodeState.IPs
    );
    let service = concat!(
        "124a",                             // OpItem.Set, 74 bytes
        "0a0f0801",                         // Value.Ref: Set ServicesSet
        "120b64656661756c742f776562",       // Ref.Path "default/web"
        "1237",                             // Value.Bytes, 55 bytes
        "0a0764656661756c74",               // Service.Namespace "default"
        "1203776562",                       // Service.Name "web"
        "1a09436c75737465724950",           // Service.Type "ClusterIP"
        "22100a0c0a0a31302e39362e302e3130", // Service.IPs.ClusterIPs.V4 "10.96.0.10"
        "1200",                 // Service.IPs.ExternalIPs: empty, but there: MapIPsByIPFamily dereferences it
        "320a0a04687474701001", // Service.Ports: Name "http", Protocol TCP
        "1850",                 // Port 80
    );
    let v4 = concat!(
        "1246",                                                         // OpItem.Set, 70 bytes
        "0a200802",                                                     // Value.Ref: Set EndpointsSet
        "121c64656661756c742f7765622f66306138653562346637333563656639", // "default/web/f0a8e5b4f735cef9"
        "1222",                                                         // Value.Bytes, 34 bytes
        "120a0a0831302e312e302e31",                                     // Endpoint.IPs.V4 "10.1.0.1"
        "1801",                                                         // Endpoint.Local
        "22090a046874747010903f",                                       // Endpoint.PortOverrides: "http", 8080
        "2a0708011001f80101",                                           // Scopes: Internal, External, Established (31)
    );
    let v6 = concat!(
        "1247",
        "0a200802",
        "121c64656661756c742f7765622f39333039306538613739646364306164", // "default/web/93090e8a79dcd0ad"
        "1223",
        "120b1209666430303a313a3a31", // Endpoint.IPs.V6 "fd00:1::1"
        "1801",
        "22090a046874747010903f",
        "2a0708011001f80101",
    );
    // The two addresses of a pod have separate paths. 9… sorts before f….
    assert_eq!(hex(changes(None, &states[0])), [node, service, v6, v4, "0a00"]);
    let v6_is_gone = concat!(
        "1a20", // OpItem.Delete, 32 bytes
        "0802",
        "121c64656661756c742f7765622f39333039306538613739646364306164",
    );
    assert_eq!(hex(changes(Some(&states[0]), &states[1])), [v6_is_gone, "0a00"]);
    let v4_is_gone = concat!("1a20", "0802", "121c64656661756c742f7765622f66306138653562346637333563656639");
    let service_is_gone = concat!("1a0f", "0801", "120b64656661756c742f776562");
    assert_eq!(hex(changes(Some(&states[1]), &states[2])), [v4_is_gone, service_is_gone, "0a00"]);
    assert_eq!(hex(changes(Some(&states[2]), &states[2])), ["0a00"]);
}

/// The steps as text: `+` for set or `-` for deleted, the kind, and the path without its hash.
fn steps(items: impl IntoIterator<Item = bytes::Bytes>) -> Vec<String> {
    let words = |sign: &str, of: wire::Ref| {
        let path: Vec<_> = of.path.split('/').take(2).collect();
        format!("{sign}{} {}", of.set, path.join("/"))
    };
    let word = |item: bytes::Bytes| match OpItem::decode(item).unwrap().op.unwrap() {
        Op::Set(value) => words("+", value.r#ref.unwrap()),
        Op::Delete(gone) => words("-", gone),
        Op::Sync(_) => "sync".to_owned(),
        Op::Reset(_) => "reset".to_owned(),
    };
    items.into_iter().map(word).collect()
}

#[test]
fn the_order_equals_that_of_kpng() {
    let one = |number| [("10.1.0.1", true, ALL, number)];
    // "-" and "." sort before "/".
    let names = [("a", "web"), ("a-b", "web"), ("a", "web-1"), ("b", "web")];
    let all = |number| names.map(|(namespace, name)| service(namespace, name, "", &one(number)));
    let states = states([
        with_node("node-a", changed(all(8080), &[])),
        with_node("node-b", changed(all(9090), &[])),
        changed([], &[("a", "web"), ("a-b", "web"), ("a", "web-1")]),
    ]);
    let set_all = [
        "+31 node",
        "+1 a-b/web",
        "+1 a/web",
        "+1 a/web-1",
        "+1 b/web",
        "+2 a-b/web",
        "+2 a/web-1",
        "+2 a/web",
        "+2 b/web",
        "sync",
    ];
    assert_eq!(steps(changes(None, &states[0])), set_all);
    let other_numbers = [
        "+31 node",
        "+1 a-b/web",
        "+1 a/web",
        "+1 a/web-1",
        "+1 b/web",
        "-2 b/web",
        "-2 a/web",
        "-2 a/web-1",
        "-2 a-b/web",
        "+2 a-b/web",
        "+2 a/web-1",
        "+2 a/web",
        "+2 b/web",
        "sync",
    ];
    assert_eq!(steps(changes(Some(&states[0]), &states[1])), other_numbers);
    let gone = ["-2 a/web", "-2 a/web-1", "-2 a-b/web", "-1 a/web-1", "-1 a/web", "-1 a-b/web", "sync"];
    assert_eq!(steps(changes(Some(&states[1]), &states[2])), gone);
}

#[test]
fn kpngs_clients_get_only_endpoints_for_new_connections() {
    let endpoints = [("10.1.0.1", true, ALL, 8080), ("10.1.0.9", false, OLD, 8080)];
    let states = states([changed([service("a", "web", "http", &endpoints)], &[])]);
    assert_eq!(steps(changes(None, &states[0])), ["+31 node", "+1 a/web", "+30 a/web", "+2 a/web", "sync"]);
}

/// KPNG's clients read the number of an unnamed port from the Service.
#[test]
fn a_port_without_a_name_has_its_number_in_the_service() {
    let target = |port: &str, endpoints: &[_]| {
        let states = states([changed([service("a", "web", port, endpoints)], &[])]);
        let ops = changes(None, &states[0]).map(|item| OpItem::decode(item).unwrap().op.unwrap());
        let mut services = ops.filter_map(|op| match op {
            Op::Set(value) if value.r#ref.as_ref()?.set() == Set::ServicesSet => {
                Some(wire::Service::decode(&*value.bytes).unwrap())
            }
            _ => None,
        });
        services.next().unwrap().ports[0].target_port
    };
    let at = |address, number| (address, true, ALL, number);
    assert_eq!(target("", &[at("10.1.0.1", 8080), at("10.1.0.2", 8080)]), 8080);
    assert_eq!(target("", &[at("10.1.0.1", 8080), at("10.1.0.2", 9090)]), 0);
    assert_eq!(target("", &[]), 0);
    assert_eq!(target("http", &[at("10.1.0.1", 8080)]), 0);
}

/// The objects of a client that reads all sets.
#[derive(Default)]
struct Replay(BTreeMap<String, (i32, Vec<u8>)>);

impl Replay {
    fn take(&mut self, items: impl IntoIterator<Item = bytes::Bytes>) {
        for item in items {
            match OpItem::decode(item).unwrap().op.unwrap() {
                Op::Reset(_) => self.0.clear(),
                Op::Set(wire::Value { r#ref: Some(of), bytes }) => {
                    if of.set() == Set::EndpointsSet {
                        let service = of.path.rsplit_once('/').unwrap().0;
                        assert!(self.0.contains_key(service), "{} exists before its service", of.path);
                    }
                    _ = self.0.insert(of.path, (of.set, bytes));
                }
                Op::Delete(of) => assert!(self.0.remove(&of.path).is_some(), "{} was never set", of.path),
                Op::Set(_) => panic!("a value without a name"),
                Op::Sync(_) => {}
            }
        }
    }

    /// The state of the client, decoded like an answer of `Next`.
    fn snapshot(&self, state: &State) -> Snapshot {
        let mut assembler = Assembler::default();
        assembler.push(encode::next_item(state.revision(), false)).unwrap();
        for (path, (set, bytes)) in &self.0 {
            match Set::try_from(*set).unwrap() {
                Set::NodeStateSet => {
                    let node = Some(wire::NodeState::decode(&**bytes).unwrap());
                    assembler.push(wire::NextItem { node, ..wire::NextItem::default() }).unwrap();
                }
                Set::ServicesSet => {
                    let inside = format!("{path}/");
                    let endpoints = self.0.iter().filter(|(path, _)| path.starts_with(&inside));
                    let mut endpoints: Vec<_> =
                        endpoints.map(|(_, (_, bytes))| wire::Endpoint::decode(&**bytes).unwrap()).collect();
                    endpoints.sort_by_key(prost::Message::encode_to_vec);
                    let service = Some(wire::Service::decode(&**bytes).unwrap());
                    let endpoints = Some(wire::ServiceEndpoints { service, endpoints, continues: false });
                    assembler.push(wire::NextItem { endpoints, ..wire::NextItem::default() }).unwrap();
                }
                _ => {}
            }
        }
        let Update::Full(mut snapshot) = assembler.finish().unwrap() else { panic!("it is a full state") };
        sort(&mut snapshot);
        snapshot
    }
}

fn sort(snapshot: &mut Snapshot) {
    for service in snapshot.services.values_mut() {
        Arc::make_mut(service).endpoints.sort();
    }
}

fn endpoint() -> impl Strategy<Value = (&'static str, bool, Scopes, u16)> {
    let address = prop::sample::select(vec!["10.1.0.1", "10.1.0.2", "10.1.0.3"]);
    let scopes = prop::sample::select(vec![ALL, OLD, Scopes { internal: true, ..OLD }]);
    (address, any::<bool>(), scopes, prop::sample::select(vec![80, 8080]))
}

fn change() -> impl Strategy<Value = Localized> {
    let endpoints = prop::collection::btree_map(prop::sample::select(vec![1, 2, 3]), endpoint(), 0..3);
    let name = prop::sample::select(vec!["a", "a-b", "a.b", "b"]);
    let port = prop::sample::select(vec!["", "http"]);
    prop_oneof![
        4 => (name.clone(), port, endpoints).prop_map(|(name, port, endpoints)| {
            let mut endpoints: Vec<_> = endpoints.into_values().collect();
            endpoints.sort();
            endpoints.dedup_by_key(|(address, ..)| *address);
            changed([service(name, name, port, &endpoints)], &[])
        }),
        2 => name.prop_map(|name| changed([], &[(name, name)])),
        1 => "[a-c]".prop_map(|name| with_node(&name, Localized::default())),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// In whatever steps a client gets from one state to the next, it ends with the state of `Next`.
    #[test]
    fn the_changes_replay_to_the_state_of_next(history in prop::collection::vec((change(), any::<bool>()), 1..40)) {
        let feed = Feed::new(7);
        let mut client = Replay::default();
        let mut held: Option<State> = None;
        for (localized, read) in history {
            feed.publish(localized);
            if !read {
                continue;
            }
            let state = feed.state();
            client.take(changes(held.as_ref(), &state));
            let mut fresh = Replay::default();
            fresh.take(changes(None, &state));
            prop_assert_eq!(&client.0, &fresh.0);
            let mut snapshot = state.snapshot().unwrap();
            sort(&mut snapshot);
            prop_assert_eq!(client.snapshot(&state), snapshot);
            held = Some(state);
        }
    }

    /// Covers states of two nodes, which share no memory even if their Services are equal.
    #[test]
    fn from_one_view_to_another(here in prop::collection::vec(change(), 1..10), there in prop::collection::vec(change(), 1..10)) {
        let (here, there) = (states(here).pop().unwrap(), states(there).pop().unwrap());
        let mut client = Replay::default();
        client.take(changes(None, &here));
        client.take(changes(Some(&here), &there));
        let mut fresh = Replay::default();
        fresh.take(changes(None, &there));
        prop_assert_eq!(client.0, fresh.0);
    }
}
