//! Properties that hold for all states.

use proptest::prelude::*;

use super::*;

pub(super) fn any_scopes() -> impl Strategy<Value = Scopes> {
    any::<[bool; 4]>().prop_map(|[internal, external, short_circuit, established]| Scopes {
        internal,
        external,
        short_circuit,
        established,
    })
}

fn any_endpoint(v6: bool) -> impl Strategy<Value = Endpoint> {
    let weight = prop_oneof![4 => Just(1_u32), 1 => 1..30_u32].prop_map(Endpoint::weighing);
    let parts = (1..40_u8, any::<bool>(), any_scopes(), any::<bool>(), weight);
    parts.prop_map(move |(host, local, scopes, second_port, weight)| {
        let address = if v6 { format!("fd00:10:180::{host}") } else { format!("10.180.0.{host}") };
        let mut ports = vec![EndpointPort { name: "http".into(), port: 8080 }];
        if second_port {
            ports.push(EndpointPort { name: "dns".into(), port: 53 });
        }
        Endpoint { address: address.parse().unwrap(), ports, local, hostname: None, scopes, weight }
    })
}

/// Services whose NodePorts are sometimes ports that another Service has at an address of the node.
fn any_service() -> impl Strategy<Value = Service> {
    let endpoints =
        (proptest::collection::vec(any_endpoint(false), 0..24), proptest::collection::vec(any_endpoint(true), 0..4));
    let addresses = (1..6_u8, 0..4_u8, 0..4_u8, proptest::option::of(any::<bool>()));
    let affinity = proptest::option::weighted(0.3, prop::sample::select(vec![60_u32, 10_800]));
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), affinity);
    (0..6_u8, addresses, flags, endpoints).prop_map(|(name, addresses, flags, (v4, v6))| {
        let (cluster, external, balancer, node_port) = addresses;
        let (dual, to_local, drops, filtered, affinity) = flags;
        let ip = |text: String| text.parse::<IpAddr>().unwrap();
        let verdict = if drops { Verdict::Drop } else { Verdict::Reject };
        let when_empty = WhenEmpty { internal: Verdict::Reject, external: verdict };
        let mut dns = Port { protocol: Protocol::Udp, ..port("dns", 53, None) };
        (dns.when_empty_v4, dns.when_empty_v6) = (when_empty, when_empty);
        let mut service = service(&format!("s{name}"), &format!("172.30.0.{cluster}"), &[]);
        if dual {
            service.cluster_ips.push(ip(format!("fd00:172:30::{cluster}")));
        }
        let own_port = |name: u8| 80 + u16::from(name);
        let node_port =
            node_port.map(|clashes| if clashes { own_port((name + 1) % 6) } else { 30_000 + u16::from(name) });
        dns.port += u16::from(name);
        service.ports = vec![dns, port("http", own_port(name), node_port)];
        let addresses = ["192.168.99.0", "192.168.0.2", "192.168.99.1"];
        service.external_ips =
            addresses.iter().take(external.into()).map(|address| ip((*address).to_owned())).collect();
        service.load_balancer_ips = (0..balancer).map(|i| ip(format!("192.168.99.{}", i + 2))).collect();
        if filtered {
            let source_ranges =
                ["10.0.0.0/8", "10.1.0.0/16", "203.0.113.7/32"].map(|cidr| cidr.parse().unwrap()).into();
            service.source_filters = vec![SourceFilter { targets: service.load_balancer_ips.clone(), source_ranges }];
        }
        service.external_traffic_to_local = to_local;
        service.client_ip_affinity = affinity.map(Into::into);
        service.endpoints = v4.into_iter().chain(v6).collect();
        service.endpoints.sort();
        service
    })
}

pub(super) fn any_state() -> impl Strategy<Value = Snapshot> {
    proptest::collection::vec(any_service(), 0..6).prop_map(state)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn any_history_ends_in_the_same_kernel(history in proptest::collection::vec((any_state(), any::<bool>(), proptest::option::of(0..5_usize)), 1..6), portion in 1..60_usize) {
        let mut backend = backend();
        backend.limits = Limits { entered: portion, filled: portion };
        let mut before = Snapshot::default();
        let mut changes = Changes::everything();
        for (state, restart, interrupted) in &history {
            changes.merge(difference(&before, state));
            before = state.clone();
            if *restart {
                backend = restarted(&backend);
                backend.limits = Limits { entered: portion, filled: portion };
                changes = Changes::everything();
            }
            backend.kernel.denied_after = *interrupted;
            if backend.apply(state, &changes).is_ok() {
                changes = Changes::default();
            }
            backend.kernel.denied_after = None;
        }
        let (last, ..) = history.last().unwrap();
        backend.apply(last, &changes).unwrap().whole().unwrap();
        let mut fresh = self::backend();
        fresh.apply(last, &Changes::everything()).unwrap().whole().unwrap();
        prop_assert_eq!(normal(backend.kernel()), normal(fresh.kernel()));
        prop_assert_eq!(planned(&backend), planned(&fresh));

        let from = backend.kernel.log.len();
        backend.apply(last, &Changes::everything()).unwrap().whole().unwrap();
        prop_assert_eq!(backend.kernel.log.len(), from);
    }

    #[test]
    fn services_may_come_in_any_order(state in any_state(), seed in any::<u64>()) {
        let mut at_once = backend();
        at_once.apply(&state, &Changes::everything()).unwrap().whole().unwrap();
        let mut one_by_one = backend();
        one_by_one.apply(&self::state([]), &Changes::everything()).unwrap().whole().unwrap();
        let mut keys: Vec<_> = state.services.keys().cloned().collect();
        let len = keys.len().max(1);
        keys.rotate_left(seed as usize % len);
        let mut partial = Snapshot { services: BTreeMap::new(), ..state.clone() };
        for key in keys {
            partial.services.insert(key.clone(), state.services[&key].clone());
            let changes = Changes { services: BTreeSet::from([key]), ..Changes::default() };
            one_by_one.apply(&partial, &changes).unwrap().whole().unwrap();
        }
        prop_assert_eq!(normal(at_once.kernel()), normal(one_by_one.kernel()));
        prop_assert_eq!(planned(&at_once), planned(&one_by_one));
    }
}
