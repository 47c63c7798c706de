//! Verifies that the programmed VIPs follow from the present state alone, whatever the history, and that each has one
//! owner.

use std::collections::BTreeMap;

use proptest::{collection::vec, prelude::*};

use super::*;

/// Records what is programmed, and checks that the calls are consistent.
#[derive(Debug, Default, PartialEq)]
struct Held {
    vips: BTreeMap<VipKey, Vip>,
    cluster_ips: BTreeSet<IpAddr>,
    hairpins: BTreeSet<Hairpin>,
}

impl Program for Held {
    fn program(&mut self, key: &VipKey, vip: &Vip, service: &Service) {
        assert_eq!(vip.service, service.key);
        assert_eq!(self.vips.insert(*key, vip.clone()), None, "{key} is programmed already");
    }

    fn unprogram(&mut self, key: &VipKey, vip: &Vip) {
        assert_eq!(self.vips.remove(key).as_ref(), Some(vip), "{key} had another content");
    }

    fn cluster_ip(&mut self, address: IpAddr, present: bool) {
        _ = if present { self.cluster_ips.insert(address) } else { self.cluster_ips.remove(&address) };
    }

    fn hairpin(&mut self, hairpin: &Hairpin, present: bool) {
        _ = if present { self.hairpins.insert(*hairpin) } else { self.hairpins.remove(hairpin) };
    }
}

fn state(yaml: &str) -> Snapshot {
    serde_saphyr::from_str(yaml).unwrap()
}

/// A Service with the node's address as an external one, and another Service with the same port as its NodePort.
const CLASH: &str = "{node: {name: n, addresses: [192.168.0.2]}, services: [
    {service: ns/a, type: LoadBalancer, clusterIPs: [172.30.0.1], externalIPs: [192.168.0.2],
     ports: [{name: http, protocol: TCP, port: 30080}]},
    {service: ns/0, type: NodePort, clusterIPs: [172.30.0.3], ports: [{name: http, protocol: TCP, port: 80, nodePort: 30080}]}]}";

fn owners(held: &Held) -> String {
    let of_external = held.vips.iter().filter(|(key, _)| key.address == IpAddr::from([192, 168, 0, 2]));
    of_external.map(|(key, vip)| format!("{key} {}", vip.service)).collect::<Vec<_>>().join(", ")
}

/// If a VIP is an own address of one Service and a NodePort of another, the first Service has it, whichever changes first.
#[test]
fn own_addresses_have_precedence_over_node_ports() {
    let mut state = state(CLASH);
    let (mut vips, mut held) = (Vips::new(Config::default()), Held::default());
    let settled = vips.update(&state, &Changes::everything(), &mut held);
    assert_eq!(owners(&held), "192.168.0.2:30080/tcp ns/a");
    let notices: Vec<String> = settled.notices.iter().map(ToString::to_string).collect();
    assert_eq!(
        notices,
        [
            "Service ns/0: 192.168.0.2:30080/tcp belongs to Service ns/a, whose own address has precedence over NodePorts",
        ]
    );
    assert_eq!(vips.skipped(), settled.notices, "reported for as long as it lasts");
    let (address, port) = (ServiceKey::new("ns", "a"), ServiceKey::new("ns", "0"));
    let changes = |key: &ServiceKey| Changes { services: [key.clone()].into(), ..Changes::default() };
    for key in [&address, &port] {
        Arc::make_mut(state.services.get_mut(key).unwrap()).ports[0].name = "other".into();
        assert_eq!(vips.update(&state, &changes(key), &mut held).notices, [], "reported once");
        assert_eq!(owners(&held), "192.168.0.2:30080/tcp ns/a");
    }
    let own = state.services.remove(&address).unwrap();
    assert_eq!(vips.update(&state, &changes(&address), &mut held).notices, []);
    assert_eq!((owners(&held).as_str(), vips.skipped()), ("192.168.0.2:30080/tcp ns/0", vec![]));
    state.services.insert(address.clone(), own);
    assert_eq!(vips.update(&state, &changes(&address), &mut held).notices, notices_of(&vips));
    assert_eq!(owners(&held), "192.168.0.2:30080/tcp ns/a");
    state.services.remove(&port);
    assert_eq!(vips.update(&state, &changes(&port), &mut held).notices, []);
    assert_eq!((owners(&held).as_str(), vips.skipped()), ("192.168.0.2:30080/tcp ns/a", vec![]));
}

fn notices_of(vips: &Vips) -> Vec<Diagnostic> {
    let skipped = vips.skipped();
    assert_eq!(skipped.len(), 1);
    skipped
}

/// The brain gives a VIP to one Service. If a state gives it to two, the second one is skipped.
#[test]
fn a_vip_of_two_services_is_programmed_once() {
    let mut state = state(CLASH);
    let (first, second) = (ServiceKey::new("ns", "a"), ServiceKey::new("ns", "b"));
    let mut twin = Service::clone(&state.services[&first]);
    twin.key = second.clone();
    state.services.insert(second.clone(), twin.into());
    let (mut vips, mut held) = (Vips::new(Config::default()), Held::default());
    let notices = vips.update(&state, &Changes::everything(), &mut held).notices;
    assert_eq!(owners(&held), "192.168.0.2:30080/tcp ns/a");
    let text = "Service ns/b: 192.168.0.2:30080/tcp belongs to Service ns/a";
    assert!(notices.iter().any(|notice| notice.to_string() == text), "{notices:?}");
    state.services.clear();
    vips.update(&state, &Changes::everything(), &mut held);
    assert_eq!((held, vips.skipped()), (Held::default(), vec![]));
}

#[test]
fn a_backend_reports_services_that_request_what_it_cannot_do() {
    let mut state = state(CLASH);
    let key = ServiceKey::new("ns", "a");
    let service = Arc::make_mut(state.services.get_mut(&key).unwrap());
    service.close_after = Some(0);
    service.hash = Some(localnet_proto::HashBy::Source);
    let endpoints = "[{address: 10.0.0.1, ports: [{name: http, port: 80}], scopes: {internal: true}},
        {address: 10.0.0.2, ports: [{name: http, port: 80}], scopes: {internal: true}, weight: 3}]";
    service.endpoints = serde_saphyr::from_str(endpoints).unwrap();
    for (vips, expected) in [
        (Vips::new(Config::default()), vec![]),
        (Vips::new(Config::default()).leaving_connections(), vec![Code::CloseUnsupported]),
        (Vips::new(Config::default()).spreading_evenly(), vec![Code::WeightsUnsupported]),
        (Vips::new(Config::default()).choosing_at_random("no hash"), vec![Code::HashUnsupported]),
    ] {
        let (mut vips, mut held) = (vips, Held::default());
        vips.update(&state, &Changes::everything(), &mut held);
        let codes: Vec<_> =
            vips.skipped().into_iter().map(|of| of.code).filter(|of| *of != Code::AddressTaken).collect();
        assert_eq!(codes, expected);
        let hashes = held.vips.values().filter(|vip| vip.service == key).all(|vip| vip.hash.is_some());
        assert_eq!(hashes, !expected.contains(&Code::HashUnsupported));
    }
}

#[test]
fn a_refused_service_is_skipped_until_it_changes_and_others_take_its_vips() {
    let mut state = state(CLASH);
    let (mut vips, mut held) = (Vips::new(Config::default()), Held::default());
    vips.update(&state, &Changes::everything(), &mut held);
    let key = ServiceKey::new("ns", "a");
    assert!(vips.refuse(&key, "no room".to_owned(), &mut held));
    assert_eq!(owners(&held), "192.168.0.2:30080/tcp ns/0");
    assert!(vips.skipped().contains(&refused(&key, "no room".to_owned())));
    vips.update(&state, &Changes::everything(), &mut held);
    assert_eq!(owners(&held), "192.168.0.2:30080/tcp ns/0", "it did not change");
    vips.retry_refused();
    vips.update(&state, &Changes::default(), &mut held);
    assert_eq!((owners(&held).as_str(), vips.refused().len()), ("192.168.0.2:30080/tcp ns/a", 0), "retried");
    assert!(!vips.refuse(&key, "no room".to_owned(), &mut held), "already reported");
    vips.retry_refused();
    vips.update(&state, &Changes::default(), &mut held);
    assert!(vips.refuse(&key, "no memory".to_owned(), &mut held), "for another reason");
    assert_eq!(vips.refused(), [key.clone()].into());
    vips.retry_refused();
    Arc::make_mut(state.services.get_mut(&key).unwrap()).ports[0].name = "other".into();
    vips.update(&state, &Changes::everything(), &mut held);
    assert_eq!(owners(&held), "192.168.0.2:30080/tcp ns/a");
    assert!(vips.refuse(&key, "no memory".to_owned(), &mut held), "the service has changed");
}

#[test]
fn node_ports_follow_the_nodes_addresses() {
    let mut state = state(CLASH);
    state.services.retain(|key, _| *key.name == *"0");
    let config = Config { node_port_addresses: NodePortAddresses::default(), ..Config::default() };
    let (mut vips, mut held) = (Vips::new(config), Held::default());
    vips.update(&state, &Changes::everything(), &mut held);
    assert_eq!(owners(&held), "");
    assert!(vips.set_local_addresses(vec![IpAddr::from([192, 168, 0, 2])]));
    assert!(vips.settle(&mut held).facts_changed);
    assert_eq!(owners(&held), "192.168.0.2:30080/tcp ns/0");
    assert!(!vips.set_local_addresses(vec![IpAddr::from([192, 168, 0, 2]), IpAddr::from([127, 0, 0, 1])]));
}

/// A change to one of a few Services, which share a few shapes and addresses, or its removal.
fn step() -> impl Strategy<Value = (u8, Option<(u8, u8, u8)>, Vec<u8>)> {
    let shape = (0..3_u8, 0..3_u8, 0..3_u8);
    (0..4_u8, proptest::option::weighted(0.8, shape), vec(1..4_u8, 0..2))
}

/// Own addresses have the ports 40 to 43, one for each name, and NodePorts of another name are among them.
fn service(name: u8, (external, node_port, endpoint): (u8, u8, u8)) -> Service {
    let mut yaml = format!("{{service: ns/{name}, type: NodePort, clusterIPs: [172.30.0.{}], ", name / 2);
    if external > 0 {
        yaml += &format!("externalIPs: [192.168.0.{external}], ");
    }
    let node_port = if node_port == 0 { 30 + name } else { 40 + (name + 1) % 4 };
    yaml += &format!("ports: [{{name: p, protocol: TCP, port: 4{name}, nodePort: {node_port}}}], ");
    yaml += &format!(
        "endpoints: [{{address: 10.0.0.{endpoint}, local: true, ports: [{{name: p, port: 8080}}], scopes: {{internal: true}}}}]}}"
    );
    serde_saphyr::from_str(&yaml).unwrap()
}

proptest! {
    #[test]
    fn any_history_ends_like_a_fresh_start(steps in vec(step(), 1..24)) {
        let config = Config { node_port_addresses: NodePortAddresses::default(), ..Config::default() };
        let (mut vips, mut held) = (Vips::new(config.clone()), Held::default());
        let mut state = Snapshot::default();
        for (name, shape, local) in steps {
            let key = ServiceKey::new("ns", name.to_string());
            match shape {
                Some(shape) => _ = state.services.insert(key.clone(), Arc::new(service(name, shape))),
                None => _ = state.services.remove(&key),
            }
            let local: Vec<IpAddr> = local.into_iter().map(|host| IpAddr::from([192, 168, 0, host])).collect();
            vips.set_local_addresses(local.clone());
            vips.update(&state, &Changes { services: [key].into(), ..Changes::default() }, &mut held);

            let (mut anew, mut expected) = (Vips::new(config.clone()), Held::default());
            anew.set_local_addresses(local);
            anew.update(&state, &Changes::everything(), &mut expected);
            prop_assert_eq!(&held, &expected);
            prop_assert_eq!(vips.skipped(), anew.skipped());
            let programmed: BTreeMap<_, _> = vips.programmed().map(|(_, key, vip)| (key, vip)).collect();
            prop_assert_eq!(&programmed, &held.vips);
        }
    }
}
