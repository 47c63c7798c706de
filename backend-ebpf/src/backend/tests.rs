//! Syncs with maps in memory.

use localnet_client::vips::{Config, NodePortAddresses};
use localnet_proto::{Changes, ServiceKey, Snapshot};
use proptest::prelude::*;

use super::*;
use crate::{
    kernel::Content,
    layout::EndpointKey,
    testing::{FakeKernel, Sizes},
};

/// Some Services of random shape. Several names, addresses and endpoints, so that states of one history overlap.
fn states() -> impl Strategy<Value = Snapshot> {
    let endpoint = (1..6_u8, any::<bool>(), any::<bool>());
    let service = (0..4_u8, any::<[bool; 5]>(), prop::collection::btree_set(endpoint, 0..4));
    prop::collection::btree_map(0..4_u8, service, 0..4).prop_map(|services| {
        let text = services.iter().map(|(name, (port, [udp, local, affinity, balancer, ranges], endpoints))| {
            let protocol = if *udp { "UDP" } else { "TCP" };
            let endpoints = endpoints.iter().map(|(last, internal, external)| {
                format!("{{address: 10.0.0.{last}, ports: [{{name: p, port: 80}}], scopes: {{internal: {internal}, external: {external}, shortCircuit: {external}}}}}")
            });
            let endpoints = endpoints.collect::<Vec<_>>().join(", ");
            let affinity = if *affinity { "clientIpAffinity: 60, " } else { "" };
            let balancers = if *balancer { format!("loadBalancerIPs: [1.2.3.{name}], ") } else { String::new() };
            let filters = if *ranges { format!("sourceFilters: [{{targets: [1.2.3.{name}], sourceRanges: [10.0.0.0/8]}}], ") } else { String::new() };
            format!("{{service: ns/s{name}, type: NodePort, clusterIPs: [172.30.0.{name}], {affinity}{balancers}{filters}externalTrafficToLocal: {local},
                ports: [{{name: p, protocol: {protocol}, port: 8{port}, nodePort: 3000{name}}}], endpoints: [{endpoints}]}}")
        });
        let services = text.collect::<Vec<_>>().join(", ");
        serde_saphyr::from_str(&format!("{{node: {{name: n, addresses: [192.168.0.2]}}, services: [{services}]}}")).unwrap()
    })
}

fn backend(kernel: FakeKernel) -> EbpfBackend<FakeKernel> {
    let config = Config { node_port_addresses: NodePortAddresses::PRIMARY, ..Config::default() };
    EbpfBackend::new(config, kernel)
}

fn synced(kernel: FakeKernel, state: &Snapshot) -> Content {
    let mut backend = backend(kernel);
    backend.apply(state, &Changes::everything()).unwrap().whole().unwrap();
    backend.kernel.content
}

/// Every VIP with endpoints finds the first one, to which the programs fall back.
fn check(content: &Content) {
    for (key, vip) in content.vips.iter().filter(|(_, vip)| vip.endpoints > 0) {
        let first = EndpointKey { port: vip.port, scope: vip.scope, group: 0 };
        assert!(content.endpoints.get(&first).is_some_and(|group| group[0].port != 0), "{key:?} has no endpoint");
    }
}

/// Every VIP finds an endpoint at each position that it counts.
fn check_all(content: &Content) {
    for (key, vip) in &content.vips {
        assert_eq!(content.endpoints_of(vip).len(), vip.endpoints as usize, "{key:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_history_ends_in_the_same_maps(history in prop::collection::vec(states(), 1..6), limit in prop::option::of(0..40_usize)) {
        let mut kernel = backend(FakeKernel { limit, ..FakeKernel::default() });
        let last = history.last().unwrap();
        for state in &history {
            // The limit interrupts a sync, and the next one succeeds.
            let result = kernel.apply(state, &Changes::everything());
            if result.is_err() {
                kernel.kernel.limit = None;
                kernel.apply(state, &Changes::everything()).unwrap().whole().unwrap();
            }
        }
        let fresh = synced(FakeKernel::default(), last);
        prop_assert_eq!(&kernel.kernel.content, &fresh);
        let applied = kernel.kernel.applied;
        let mut restarted = backend(kernel.kernel);
        restarted.kernel.limit = None;
        restarted.apply(last, &Changes::everything()).unwrap().whole().unwrap();
        prop_assert_eq!(restarted.kernel.applied, applied, "a restart writes nothing");
        let none = Snapshot { services: Default::default(), ..last.clone() };
        prop_assert_eq!(synced(restarted.kernel, &none), Content::default());
    }

    #[test]
    fn every_step_of_a_sync_leaves_the_endpoints_of_all_vips(before in states(), after in states()) {
        let kernel = FakeKernel { content: synced(FakeKernel::default(), &before), ..FakeKernel::default() };
        let mut desired = Desired::new(backend(FakeKernel::default()).desired.vips.effective().map_or_else(
            || Config { node_port_addresses: NodePortAddresses::PRIMARY, ..Config::default() },
            |effective| effective.config,
        ));
        desired.update(&after, &Changes::everything());
        desired.adopt(kernel.content.clone());
        // After a map was full, the deletions come first.
        for deletions in [Vec::new(), desired.deletions()] {
            let mut kernel = kernel.clone();
            for change in deletions.into_iter().chain(desired.changes()) {
                kernel.change(&change);
                check(&kernel.content);
            }
            check_all(&kernel.content);
        }
    }
}

/// A Service for each number, with one endpoint.
fn services(numbers: impl IntoIterator<Item = u8>) -> Snapshot {
    let service = |number: u8| {
        format!("{{service: ns/s{number}, type: ClusterIP, clusterIPs: [172.30.0.{number}], clientIpAffinity: 60,
            ports: [{{name: p, protocol: TCP, port: 80}}], endpoints: [{{address: 10.0.0.{number}, ports: [{{name: p, port: 80}}], scopes: {{internal: true}}}}]}}")
    };
    let text = numbers.into_iter().map(service).collect::<Vec<_>>().join(", ");
    serde_saphyr::from_str(&format!("{{node: {{name: n}}, services: [{text}]}}")).unwrap()
}

/// Regression: once a map was full, nothing was ever deleted, because deletions come last.
#[test]
fn a_full_map_has_room_again_when_services_are_deleted() {
    // Each Service has two VIPs, a group of endpoints and a member.
    let (vips, endpoints, members) = (8, 4, 4);
    for sizes in [
        Sizes { vips, ..Sizes::default() },
        Sizes { endpoints, ..Sizes::default() },
        Sizes { members, ..Sizes::default() },
    ] {
        let mut backend = backend(FakeKernel { sizes, ..FakeKernel::default() });
        let mut apply = |state| backend.apply(&state, &Changes::everything()).map(|synced| synced.whole().unwrap());
        apply(services(1..5)).unwrap();
        let error = format!("{:#}", apply(services(1..7)).unwrap_err());
        assert!(error.contains("is full"), "{error}");
        // The kernel still lacks Services 5 and 6.
        apply(services(3..7)).unwrap();
        apply(services(7..11)).unwrap();
        assert_eq!(backend.kernel.content, synced(FakeKernel::default(), &services(7..11)));
    }
}

#[test]
fn a_change_of_one_endpoint_writes_its_elements_only() {
    let text = |endpoint: &str| {
        let service = |name: u8, endpoint: &str| {
            format!("{{service: ns/s{name}, type: ClusterIP, clusterIPs: [172.30.0.{name}], ports: [{{name: p, protocol: TCP, port: 80}}],
                endpoints: [{{address: 10.0.0.1, ports: [{{name: p, port: 80}}], scopes: {{internal: true}}}}, {{address: {endpoint}, ports: [{{name: p, port: 80}}], scopes: {{internal: true}}}}]}}")
        };
        let services: Vec<String> =
            (1..100).map(|name| service(name, if name == 7 { endpoint } else { "10.0.0.2" })).collect();
        let text = format!("{{node: {{name: n}}, services: [{}]}}", services.join(", "));
        serde_saphyr::from_str::<Snapshot>(&text).unwrap()
    };
    let mut backend = backend(FakeKernel::default());
    backend.apply(&text("10.0.0.2"), &Changes::everything()).unwrap().whole().unwrap();
    assert_eq!(backend.kernel.applied, 99 * 3, "two VIPs and a group of endpoints of each Service");
    let changes = Changes { services: [ServiceKey::new("ns", "s7")].into(), ..Changes::default() };
    backend.apply(&text("10.0.0.3"), &changes).unwrap().whole().unwrap();
    assert_eq!(backend.kernel.applied, 99 * 3 + 1);
}

#[test]
fn udp_sockets_end_with_the_last_service_address_that_leads_them_to_their_endpoint() {
    let text = |endpoints: &str| {
        serde_saphyr::from_str::<Snapshot>(&format!(
            "{{node: {{name: n}}, services: [{{service: ns/dns, type: ClusterIP, clusterIPs: [172.30.0.1, 172.30.0.2], ports: [{{name: p, protocol: UDP, port: 53}}], endpoints: [{endpoints}]}}]}}"
        ))
        .unwrap()
    };
    let endpoint = |last: u8, scope: &str| {
        format!("{{address: 10.0.0.{last}, ports: [{{name: p, port: 53}}], scopes: {{{scope}: true}}}}")
    };
    let socket = |text: &str| crate::plan::socket(text.parse().unwrap());
    let [first, second] = ["10.0.0.1:53", "10.0.0.2:53"].map(socket);
    let vip = socket("172.30.0.1:53");
    let foreign = [socket("172.30.0.9:53"), first];
    let sockets = vec![[vip, first], [vip, second], foreign];
    let mut backend = backend(FakeKernel { sockets, ..FakeKernel::default() });
    let both = vec![[vip, first], [vip, second]];
    for (fails, endpoints, left) in [
        (false, [endpoint(1, "internal"), endpoint(2, "internal")].join(", "), both.clone()),
        (false, [endpoint(1, "established"), endpoint(2, "internal")].join(", "), both.clone()),
        (true, endpoint(2, "internal"), both),
        // Regression: after an attempt that had failed, the sockets kept their endpoint.
        (false, endpoint(2, "internal"), vec![[vip, second]]),
        (false, String::new(), vec![]),
    ] {
        backend.kernel.keeps_sockets = fails;
        backend.apply(&text(&endpoints), &Changes::everything()).unwrap().whole().unwrap();
        assert_eq!(backend.kernel.sockets, left, "{endpoints}");
    }
}
