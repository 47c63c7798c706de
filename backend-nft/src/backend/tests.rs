//! The backend on the fake kernel: what it sends, and what the kernel holds afterwards.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use localnet_client::vips::{Detector, NodePortAddresses, VipKey};
use localnet_linux::nft::{self, Element, ElementData, LiveTable, Tuple};
use localnet_proto::{Endpoint, EndpointPort, Node, Port, Protocol, Scopes, Service, SourceFilter, Verdict, WhenEmpty};

use super::*;
use crate::testing::FakeKernel;

fn config() -> Config {
    Config {
        masquerade_all: false,
        masquerade_bit: 14,
        detector: Detector::ClusterCidr(vec!["10.180.0.0/16".parse().unwrap(), "fd00:10:180::/48".parse().unwrap()]),
        node_port_addresses: NodePortAddresses::PRIMARY,
    }
}

fn backend() -> NftBackend<FakeKernel> {
    NftBackend::new(config(), FakeKernel::default())
}

/// Another process on the same kernel.
fn restarted(backend: &NftBackend<FakeKernel>) -> NftBackend<FakeKernel> {
    NftBackend::new(config(), backend.kernel().clone())
}

const ALL_SCOPES: Scopes = Scopes { internal: true, external: true, short_circuit: false, established: true };

fn endpoint(address: &str, scopes: Scopes) -> Endpoint {
    let address: IpAddr = address.parse().unwrap();
    let ports = vec![EndpointPort { name: "http".into(), port: 8080 }];
    Endpoint { address, ports, local: address.to_string().ends_with('1'), hostname: None, scopes, weight: None }
}

fn port(name: &str, number: u16, node_port: Option<u16>) -> Port {
    Port { name: name.into(), port: number, node_port, ..Port::default() }
}

fn service(name: &str, cluster_ip: &str, endpoints: &[&str]) -> Service {
    Service {
        key: ServiceKey::new("default", name),
        kind: "ClusterIP".into(),
        cluster_ips: vec![cluster_ip.parse().unwrap()],
        ports: vec![port("http", 80, None)],
        endpoints: endpoints.iter().map(|address| endpoint(address, ALL_SCOPES)).collect(),
        ..Service::default()
    }
}

fn node() -> Node {
    Node {
        name: "node".to_owned(),
        addresses: vec!["192.168.0.2".parse().unwrap(), "fd00:192::2".parse().unwrap()],
        service_cidrs: vec!["172.30.0.0/16".parse().unwrap()],
        ..Node::default()
    }
}

fn state(services: impl IntoIterator<Item = Service>) -> Snapshot {
    let services = services.into_iter().map(|service| (service.key.clone(), Arc::new(service))).collect();
    Snapshot { node: node(), services, ..Snapshot::default() }
}

fn changed(names: &[&str]) -> Changes {
    let services = names.iter().map(|name| ServiceKey::new("default", *name)).collect();
    Changes { services, ..Changes::default() }
}

fn difference(before: &Snapshot, after: &Snapshot) -> Changes {
    before.clone().apply(localnet_proto::Update::Full(after.clone()))
}

/// The numbers of added elements, deleted elements and other changes that a sync sends.
#[track_caller]
fn sent(backend: &mut NftBackend<FakeKernel>, state: &Snapshot, changes: &Changes) -> (usize, usize, usize) {
    let from = backend.kernel.log.len();
    backend.apply(state, changes).unwrap().whole().unwrap();
    backend.kernel.sent_since(from)
}

fn has(backend: &NftBackend<FakeKernel>, set: SetId, vip: (&str, u16)) -> Option<Element> {
    let address: IpAddr = vip.0.parse().unwrap();
    let key = Tuple::new().address(address).protocol(Protocol::Tcp).port(vip.1);
    let (_, elements) = &backend.kernel.tables[&plan::table(Family::of(address))].sets[set.name()];
    elements.get(&key.into()).cloned()
}

/// The tables without what depends on history: the declared sizes of sets, and the slots of endpoints.
fn normal(kernel: &FakeKernel) -> BTreeMap<Table, crate::testing::FakeTable> {
    let mut tables = kernel.tables.clone();
    for table in tables.values_mut() {
        without_slots(table);
        for (set, _) in table.sets.values_mut() {
            *set = Arc::new(localnet_linux::nft::Set { size: None, ..localnet_linux::nft::Set::clone(set) });
        }
    }
    tables
}

/// The plan, applied to an empty kernel.
fn planned(backend: &NftBackend<FakeKernel>) -> BTreeMap<Table, crate::testing::FakeTable> {
    let mut kernel = FakeKernel::default();
    let mut transaction = Transaction::new();
    backend.plan().into_iter().for_each(|content| _ = transaction.add_content(content));
    kernel.apply(&transaction).unwrap();
    normal(&kernel)
}

/// Checks that a new plan that adopts the kernel's slots equals what the kernel holds, so that `localnet diff` reports nothing.
#[track_caller]
fn assert_new_plan_equals_kernel(state: &Snapshot, kernel: &FakeKernel) {
    let mut desired = Desired::new(config());
    for family in Family::BOTH {
        let sets = kernel.tables[&plan::table(family)].sets.values();
        let sets = sets.filter(|(set, _)| SetId::of_name(&set.name).is_some_and(SetId::is_optional));
        let sets = sets.map(|(set, elements)| Some((set.clone(), elements.values().cloned().collect())));
        desired.adopt(family, Some(LiveTable { sets: sets.collect(), chains: vec![] }));
    }
    desired.update(state, &Changes::everything());
    for planned in desired.content() {
        let held = &kernel.tables[&planned.table];
        let chains: BTreeMap<_, _> = planned.chains.into_iter().map(|chain| (chain.name.clone(), chain)).collect();
        assert_eq!(chains, held.chains);
        let names: BTreeSet<_> = planned.sets.iter().map(|(set, _)| &set.name).collect();
        assert_eq!(names, held.sets.keys().collect());
        for (set, elements) in planned.sets.iter().filter(|(set, _)| SetId::of_name(&set.name).is_some()) {
            let planned: BTreeMap<_, _> = elements.iter().map(|of| (of.key.clone(), of.clone())).collect();
            assert_eq!(planned, held.sets[&set.name].1, "{}", set.name);
        }
    }
}

/// Replaces each slot in the elements by its endpoint.
fn without_slots(table: &mut crate::testing::FakeTable) {
    let Some((_, endpoints)) = table.sets.get(SetId::AffinityEndpoints.name()).cloned() else { return };
    let endpoint = |key: &Tuple, slot: &[u8]| {
        let vip = key.as_bytes().split_last_chunk::<4>().unwrap().0;
        endpoints[&Tuple::from_bytes(&[vip, slot].concat()).into()].data.clone()
    };
    let resolved = |element: &Element| {
        let (vip, number) = element.key.start().as_bytes().split_last_chunk::<4>().unwrap();
        let slot = match &element.data {
            ElementData::Verdict(nft::Verdict::Jump(chain)) => {
                chain.strip_prefix("slot-").unwrap().parse::<u32>().unwrap().to_ne_bytes()
            }
            _ => *number,
        };
        let ElementData::Value(endpoint) = endpoint(element.key.start(), &slot) else { panic!("a map to endpoints") };
        // The numbers of picks are complete, but follow the order of slots.
        let numbered = matches!(element.data, ElementData::Verdict(_)).then(|| element.key.start().clone());
        [Some(Tuple::from_bytes(&[vip, endpoint.as_bytes()].concat())), numbered]
    };
    let ids = [
        SetId::AffinitySlots,
        SetId::AffinityLocalSlots,
        SetId::AffinityPicks,
        SetId::AffinityLocalPicks,
        SetId::AffinityEndpoints,
    ];
    for id in ids {
        let (_, elements) = table.sets.get_mut(id.name()).unwrap();
        *elements =
            elements.values().flat_map(resolved).flatten().map(|key| (key.clone().into(), Element::new(key))).collect();
    }
    // The numbers of ports depend on history, so each is replaced by the first VIP of the port.
    if let Some((_, vips)) = table.sets.get_mut(SetId::AffinityVips.name()) {
        let mut first: BTreeMap<ElementData, Tuple> = BTreeMap::new();
        for (key, element) in vips {
            let named = first.entry(element.data.clone()).or_insert_with(|| key.start().clone());
            element.data = ElementData::Value(named.clone());
        }
    }
    let clients = |name: &str| plan::sets::slot_of_clients(name).is_some();
    table.sets.retain(|name, _| !clients(name));
    let of_slots = ["slot-", "lb-affinity", "affinity"];
    table.chains.retain(|name, _| !of_slots.iter().any(|start| name.starts_with(start)));
}

#[test]
fn neither_a_second_sync_nor_a_restart_sends_anything() {
    let mut backend = backend();
    let state = state([service("web", "172.30.0.41", &["10.180.0.1", "10.180.1.2"])]);
    backend.apply(&state, &Changes::everything()).unwrap().whole().unwrap();
    assert_eq!(backend.kernel.log.len(), 2, "one transaction for each family");
    assert_eq!(sent(&mut backend, &state, &Changes::default()), (0, 0, 0));
    assert_eq!(sent(&mut backend, &state, &Changes::everything()), (0, 0, 0));
    assert_eq!(sent(&mut restarted(&backend), &state, &Changes::everything()), (0, 0, 0));
    assert_eq!(backend.kernel.reads, 4, "tables and temporary tables are read once");
}

#[test]
fn adding_an_endpoint_sends_only_the_difference() {
    let mut backend = backend();
    let web = |endpoints: &[&str]| service("web", "172.30.0.41", endpoints);
    let others = || (0..50).map(|i| service(&format!("s{i}"), &format!("172.30.1.{i}"), &["10.180.1.2", "10.180.1.4"]));
    let with = |endpoints: &[&str]| state(others().chain([web(endpoints)]));
    backend.apply(&with(&["10.180.1.2", "10.180.1.4"]), &Changes::everything()).unwrap().whole().unwrap();

    let replaced = with(&["10.180.1.2", "10.180.1.6"]);
    assert_eq!(sent(&mut backend, &replaced, &changed(&["web"])), (1, 1, 0), "another endpoint in slot 1");
    let grown = with(&["10.180.1.2", "10.180.1.6", "10.180.1.8"]);
    // The number of slots changes, and slot 2 is new. `sizes` leads to lb-3, which is declared with four rules.
    assert_eq!(sent(&mut backend, &grown, &changed(&["web"])), (3, 1, 5));
    assert_eq!(sent(&mut backend, &replaced, &changed(&["web"])), (1, 3, 2), "and lb-3 is flushed and deleted");
    let gone = with(&[]);
    // The number of slots and two slots are deleted, and the VIP gets a verdict.
    assert_eq!(sent(&mut backend, &gone, &changed(&["web"])), (1, 3, 0));
    assert_eq!(backend.kernel.reads, 4);
}

#[test]
fn a_restart_sends_only_differences() {
    let mut first = backend();
    let services = |n: u8| (1..=n).map(|i| service(&format!("s{i}"), &format!("172.30.0.{i}"), &["10.180.0.1"]));
    first.apply(&state(services(20)), &Changes::everything()).unwrap().whole().unwrap();
    let mut second = restarted(&first);
    // One more service adds its ClusterIP, dispatch and slot. The endpoint's hairpin exists already.
    assert_eq!(sent(&mut second, &state(services(21)), &Changes::everything()), (3, 0, 0));
    let mut third = restarted(&second);
    assert_eq!(sent(&mut third, &state(services(19)), &Changes::everything()), (0, 6, 0));
}

#[test]
fn changes_by_other_programs_are_repaired() {
    let mut backend = backend();
    let web = |endpoints: &[&str]| state([service("web", "172.30.0.41", endpoints)]);
    backend.apply(&web(&["10.180.1.2"]), &Changes::everything()).unwrap().whole().unwrap();
    backend.kernel.tables.clear();
    backend.apply(&web(&["10.180.1.2", "10.180.1.4"]), &changed(&["web"])).unwrap().whole().unwrap();
    let mut fresh = self::backend();
    fresh.apply(&web(&["10.180.1.2", "10.180.1.4"]), &Changes::everything()).unwrap().whole().unwrap();
    assert_eq!(backend.kernel.tables, fresh.kernel.tables);
}

#[test]
fn a_kernel_that_cannot_translate_ipv6_still_gets_ipv4() {
    let mut backend = backend();
    backend.kernel.lacks_nat = Some(Family::V6);
    for addresses in [&["10.180.1.2"][..], &["10.180.1.2", "10.180.1.3"]] {
        let state = state([service("web", "172.30.0.41", addresses)]);
        let synced = backend.apply(&state, &Changes::everything()).unwrap();
        let failed: Vec<_> = synced.failed.iter().map(|(family, _)| *family).collect();
        assert_eq!(failed, [Family::V6]);
        assert!(has(&backend, SetId::Services, ("172.30.0.41", 80)).is_some());
        assert_eq!(backend.kernel.tables[&plan::table(Family::V4)].sets["endpoints"].1.len(), addresses.len());
    }
    backend.kernel.lacks_nat = None;
    let state = state([service("web", "172.30.0.41", &["10.180.1.2"])]);
    backend.apply(&state, &Changes::everything()).unwrap().whole().unwrap();
}

#[test]
fn a_kernel_that_lacks_a_feature_is_reported_at_the_start() {
    let mut backend = backend();
    backend.check().unwrap();
    backend.kernel.lacks_nat = Some(Family::V4);
    let error = backend.check().unwrap_err().to_string();
    assert!(error.starts_with("this kernel lacks a feature of nf_tables: the kernel refused change"), "{error}");
    assert!(error.contains("Linux 5.10 or newer"), "{error}");
    assert!(backend.kernel.tables.is_empty() && backend.kernel.log.is_empty());
}

#[test]
fn tables_of_another_shape_are_replaced_in_one_transaction() {
    let mut other = FakeKernel::default();
    let table = plan::table(Family::V4);
    let mut transaction = Transaction::new();
    let odd = localnet_linux::nft::Set::new("services", [localnet_linux::nft::FieldType::Mark]);
    let odd = Arc::new(localnet_linux::nft::Set { size: Some(64), ..odd });
    transaction.add_table(&table).add_set(&table, &odd);
    other.apply(&transaction).unwrap();
    let mut backend = NftBackend::new(config(), other);
    backend
        .apply(&state([service("web", "172.30.0.41", &["10.180.1.2"])]), &Changes::everything())
        .unwrap()
        .whole()
        .unwrap();
    assert_eq!(backend.kernel.log.len(), 3, "that of the test, and one for each family");
    assert_eq!(normal(&backend.kernel), planned(&backend));
    assert!(has(&backend, SetId::Services, ("172.30.0.41", 80)).is_some());
}

#[test]
fn a_table_with_other_comments_is_kept() {
    let mut before = backend();
    let sticky = Service { client_ip_affinity: Some(100.into()), ..service("sticky", "172.30.0.41", &["10.180.1.2"]) };
    let state = state([sticky, service("web", "172.30.0.42", &["10.180.1.2"])]);
    before.apply(&state, &Changes::everything()).unwrap().whole().unwrap();
    for table in before.kernel.tables.values_mut() {
        table.chains.values_mut().for_each(|chain| chain.comment = Some("another wording".into()));
        for (set, _) in table.sets.values_mut() {
            *set = Arc::new(localnet_linux::nft::Set { comment: Some("another wording".into()), ..(**set).clone() });
        }
    }
    assert_eq!(sent(&mut restarted(&before), &state, &Changes::everything()), (0, 0, 0));
}

/// The brain gives a VIP that several services claim to one of them. When its owner changes, both services change.
#[test]
fn a_vip_moves_to_another_service_in_one_sync() {
    let with = |owner: &str| {
        state(["a", "b"].map(|name| {
            let address = if name == owner { "172.30.0.41" } else { "172.30.0.42" };
            service(name, address, &["10.180.1.2"])
        }))
    };
    let owner = |backend: &NftBackend<FakeKernel>| {
        has(backend, SetId::Services, ("172.30.0.41", 80)).unwrap().comment.unwrap().to_string()
    };
    let mut backend = backend();
    for name in ["b", "a", "b"] {
        let synced = backend.apply(&with(name), &changed(&["a", "b"])).unwrap();
        assert_eq!((owner(&backend), synced.skipped), (format!("default/{name}:http"), vec![]));
    }
    backend.apply(&state([]), &changed(&["a", "b"])).unwrap().whole().unwrap();
    assert_eq!(has(&backend, SetId::Services, ("172.30.0.41", 80)), None);
    assert_eq!(has(&backend, SetId::NoEndpoints, ("172.30.0.41", 80)), None);
}

/// Another program deleted the table after the backend had read it. The backend blamed the Service of the first element for
/// the refused commit, and did not serve the Service for 10 s.
#[test]
fn a_table_that_disappears_before_the_commit_is_no_fault_of_a_service() {
    let mut backend = backend();
    backend.kernel.generation = Some(1);
    let state = state([service("a", "172.30.0.41", &["10.180.1.2"])]);
    backend.apply(&state, &Changes::everything()).unwrap().whole().unwrap();
    let table = plan::table(Family::V4);
    let sets = &mut backend.kernel.tables.get_mut(&table).unwrap().sets;
    sets.get_mut(SetId::Services.name()).unwrap().1.clear();
    backend.forget();
    backend.kernel.deleted_next = Some(table);
    backend.apply(&state, &Changes::default()).unwrap().whole().unwrap();
    assert!(has(&backend, SetId::Services, ("172.30.0.41", 80)).is_some());
}

/// The answer to the transaction that adds new chains in advance was lost. The backend added their rules again, so packets met
/// them twice. After a lost answer about chains to delete, the backend tried in vain to delete them again.
#[test]
fn no_lost_answer_leaves_a_rule_twice_or_an_unused_chain() {
    let before = state([service("a", "172.30.0.41", &["10.180.1.2"]), service("b", "172.30.0.42", &["10.180.1.3"])]);
    let after = state([service("b", "172.30.0.42", &["10.180.1.4", "10.180.1.5"])]);
    let last = state([]);
    for transactions in 0..6 {
        let mut backend = backend();
        backend.apply(&before, &Changes::everything()).unwrap().whole().unwrap();
        backend.kernel.unanswered_after = Some(transactions);
        _ = backend.apply(&after, &difference(&before, &after));
        backend.kernel.unanswered_after = None;
        backend.apply(&after, &difference(&before, &after)).unwrap().whole().unwrap();
        assert_eq!(normal(&backend.kernel), planned(&backend), "{transactions}");
        backend.apply(&last, &difference(&after, &last)).unwrap().whole().unwrap();
        assert_eq!(normal(&backend.kernel), planned(&backend), "{transactions}");
    }
}

#[test]
fn a_refused_service_stops_no_other_even_if_another_program_commits_all_the_time() {
    let mut backend = backend();
    backend.kernel.generation = Some(1);
    backend.kernel.is_busy = true;
    let state = state([service("a", "172.30.0.41", &["10.180.1.2"]), service("b", "172.30.0.42", &["10.180.1.3"])]);
    let vip = VipKey { address: "172.30.0.41".parse().unwrap(), protocol: Protocol::Tcp, port: 80 };
    backend.kernel.hated.insert(plan::elements::tuple(&vip).into());
    let synced = backend.apply(&state, &Changes::everything()).unwrap();
    assert_eq!((synced.failed.len(), synced.refused.len()), (0, 1));
    assert!(has(&backend, SetId::Services, ("172.30.0.42", 80)).is_some());
}

#[test]
fn an_own_address_has_precedence_over_a_node_port() {
    let mut by_port = service("a", "172.30.0.41", &["10.180.1.2"]);
    by_port.ports[0].node_port = Some(30_080);
    let mut by_address = service("z", "172.30.0.42", &["10.180.1.4"]);
    by_address.external_ips = vec!["192.168.0.2".parse().unwrap()];
    by_address.ports[0].port = 30_080;
    let owner = |backend: &NftBackend<FakeKernel>| {
        has(backend, SetId::Services, ("192.168.0.2", 30_080)).unwrap().comment.unwrap().to_string()
    };
    let mut backend = backend();
    let both = state([by_port.clone(), by_address]);
    let notices = backend.desired.update(&both, &Changes::everything());
    assert_eq!(
        notices.iter().map(ToString::to_string).collect::<Vec<_>>(),
        [
            "Service default/a: 192.168.0.2:30080/tcp belongs to Service default/z, whose own address has precedence over NodePorts"
        ]
    );
    backend.apply(&both, &Changes::default()).unwrap().whole().unwrap();
    assert_eq!(owner(&backend), "default/z:http");
    backend.apply(&state([by_port]), &changed(&["z"])).unwrap().whole().unwrap();
    assert_eq!(owner(&backend), "default/a:http");
}

#[test]
fn a_service_that_the_kernel_refuses_is_skipped_until_it_changes_or_is_retried() {
    [false, true].into_iter().for_each(refused_service);
}

/// `vague`: whether the kernel's error does not name the element.
fn refused_service(vague: bool) {
    let mut backend = backend();
    backend.kernel.vague = vague;
    let bad = Tuple::new().address("172.30.0.42".parse().unwrap()).protocol(Protocol::Tcp).port(80);
    backend.kernel.hated.insert(bad.into());
    let services =
        ["172.30.0.41", "172.30.0.42", "172.30.0.43"].map(|ip| service(&format!("s-{ip}"), ip, &["10.180.1.2"]));
    let state = state(services);
    backend.apply(&state, &Changes::everything()).unwrap().whole().unwrap();
    assert!(has(&backend, SetId::Services, ("172.30.0.41", 80)).is_some());
    assert_eq!(has(&backend, SetId::Services, ("172.30.0.42", 80)), None);
    assert!(has(&backend, SetId::Services, ("172.30.0.43", 80)).is_some());
    assert_eq!(sent(&mut backend, &state, &Changes::default()), (0, 0, 0));
    // As long as the kernel refuses the service, each retry is refused. Once the kernel accepts the service, a retry is
    // enough to serve it.
    backend.retry_refused();
    let synced = backend.apply(&state, &Changes::default()).unwrap();
    assert_eq!(synced.refused, [ServiceKey::new("default", "s-172.30.0.42")].into());
    assert!(synced.skipped[0].problem.starts_with("the kernel refuses it; retrying later: "), "{synced:?}");
    let hated = std::mem::take(&mut backend.kernel.hated);
    backend.retry_refused();
    let synced = backend.apply(&state, &Changes::default()).unwrap();
    assert_eq!((synced.refused.len(), synced.skipped.len()), (0, 0));
    assert!(has(&backend, SetId::Services, ("172.30.0.42", 80)).is_some());
    // The same after a change of the service.
    backend.kernel.hated = hated;
    backend.kernel.tables.clear();
    backend.forget();
    backend.apply(&state, &Changes::default()).unwrap().whole().unwrap();
    assert_eq!(has(&backend, SetId::Services, ("172.30.0.42", 80)), None);
    backend.kernel.hated.clear();
    assert_eq!(sent(&mut backend, &state, &changed(&["s-172.30.0.42"])), (3, 0, 0));
    assert!(has(&backend, SetId::Services, ("172.30.0.42", 80)).is_some());
}

/// A lack of memory is not the fault of the service that hit it. The sync fails and is retried, and no service is
/// skipped.
#[test]
fn lack_of_memory_is_blamed_on_no_service() {
    for vague in [false, true] {
        let mut backend = backend();
        backend.kernel.vague = vague;
        let bad = Tuple::new().address("172.30.0.42".parse().unwrap()).protocol(Protocol::Tcp).port(80);
        backend.kernel.hated.insert(bad.into());
        backend.kernel.short = true;
        let state = state(["172.30.0.41", "172.30.0.42"].map(|ip| service(&format!("s-{ip}"), ip, &["10.180.1.2"])));
        let synced = backend.apply(&state, &Changes::everything()).unwrap();
        assert_eq!((synced.failed.len(), synced.skipped.len()), (1, 0), "{synced:?}");
        let error = format!("{:#}", synced.whole().unwrap_err());
        assert!(error.contains("os error 12") && !error.contains(": Service default/"), "{error}");
        backend.kernel.hated.clear();
        let synced = backend.apply(&state, &Changes::everything()).unwrap();
        assert_eq!((synced.failed.len(), synced.skipped.len()), (0, 0), "{synced:?}");
        assert!(has(&backend, SetId::Services, ("172.30.0.42", 80)).is_some());
    }
}

/// Every sync without an applied state is a full sync, not only the first one.
#[test]
fn a_lost_table_causes_a_full_sync() {
    let mut backend = backend();
    let state = state([service("web", "172.30.0.41", &["10.180.1.2"])]);
    let both = Family::BOTH.to_vec();
    assert_eq!(backend.apply(&state, &Changes::everything()).unwrap().full, both);
    assert_eq!(backend.apply(&state, &Changes::default()).unwrap().full, []);
    backend.kernel.tables.clear();
    backend.forget();
    assert_eq!(backend.apply(&state, &Changes::default()).unwrap().full, both);
}

#[test]
fn without_privileges_the_error_names_the_remedy() {
    let mut backend = backend();
    backend.kernel.denied = true;
    let error = backend.apply(&state([]), &Changes::everything()).unwrap_err();
    assert!(format!("{error:#}").contains("CAP_NET_ADMIN"), "{error:#}");
    backend.kernel.denied = false;
    backend.apply(&state([]), &Changes::everything()).unwrap().whole().unwrap();
    assert_eq!(backend.kernel.tables.len(), 2);
}

#[test]
fn growth_replaces_the_table_in_one_transaction() {
    let mut backend = backend();
    let services = |n: u16| {
        (0..n).map(|i| {
            service(&format!("s{i}"), &format!("172.30.{}.{}", i / 250, i % 250), &["10.180.1.2", "10.180.1.4"])
        })
    };
    let small = state(services(1000));
    backend.apply(&small, &Changes::everything()).unwrap().whole().unwrap();
    let big = state(services(2100));
    backend.apply(&big, &difference(&small, &big)).unwrap().whole().unwrap();
    assert_eq!(backend.kernel.log.len(), 3, "both tables, then the one that grew");
    let (set, elements) = &backend.kernel.tables[&plan::table(Family::V4)].sets["endpoints"];
    assert_eq!((elements.len(), set.size), (4200, Some(16_384)));
    assert_eq!(sent(&mut restarted(&backend), &big, &Changes::everything()), (0, 0, 0), "the size found is kept");
    let less = state(services(10));
    backend.apply(&less, &difference(&big, &less)).unwrap().whole().unwrap();
    assert_eq!(sent(&mut restarted(&backend), &less, &Changes::everything()), (0, 0, 0));
}

#[test]
fn a_changed_node_address_moves_the_node_ports() {
    let mut backend = backend();
    let mut with_node_port = service("web", "172.30.0.41", &["10.180.1.2"]);
    with_node_port.ports[0].node_port = Some(30_080);
    let mut state = state([with_node_port]);
    backend.apply(&state, &Changes::everything()).unwrap().whole().unwrap();
    assert!(has(&backend, SetId::External, ("192.168.0.2", 30_080)).is_some());
    state.node.addresses[0] = "192.168.0.9".parse().unwrap();
    backend.apply(&state, &Changes { node: true, ..Changes::default() }).unwrap().whole().unwrap();
    assert_eq!(has(&backend, SetId::External, ("192.168.0.2", 30_080)), None);
    assert!(has(&backend, SetId::External, ("192.168.0.9", 30_080)).is_some());
    assert_eq!(backend.kernel.sent_since(2), (3, 3, 0), "mark, dispatch and slot, and no chain");
}

#[test]
fn service_cidrs_rewrite_one_chain() {
    let mut backend = backend();
    let mut state = state([service("web", "172.30.0.41", &["10.180.1.2"])]);
    backend.apply(&state, &Changes::everything()).unwrap().whole().unwrap();
    state.node.service_cidrs.push("172.31.0.0/16".parse().unwrap());
    assert_eq!(
        sent(&mut backend, &state, &Changes { node: true, ..Changes::default() }),
        (0, 0, 5),
        "flush, four rules"
    );
}

#[test]
fn cleanup_leaves_nothing_and_sync_starts_anew() {
    let mut backend = backend();
    backend.remove_all().unwrap();
    let state = state([service("web", "172.30.0.41", &["10.180.1.2"])]);
    backend.apply(&state, &Changes::everything()).unwrap().whole().unwrap();
    backend.remove_all().unwrap();
    assert_eq!(backend.kernel.tables, BTreeMap::new());
    backend.apply(&state, &Changes::default()).unwrap().whole().unwrap();
    assert!(has(&backend, SetId::Services, ("172.30.0.41", 80)).is_some());
}

#[test]
fn a_commit_names_each_changed_vip_once() {
    let mut backend = backend();
    let web =
        |endpoints: &[&str]| state([service("web", "172.30.0.41", endpoints), service("other", "172.30.0.42", &[])]);
    let vip = |text: &str| Frontend::new(Protocol::Tcp, text.parse().unwrap());
    let planned = |backend: &mut NftBackend<FakeKernel>, state: &Snapshot, changes: &Changes| {
        backend.apply(state, changes).unwrap().whole().unwrap();
        let mut commit = backend.take_commit(&[]);
        commit.frontends.sort_by_key(|(frontend, _)| *frontend);
        (commit.frontends, commit.remembered)
    };
    let endpoints = |texts: &[&str]| Some(texts.iter().map(|text| text.parse().unwrap()).collect());
    let first = vec![(vip("172.30.0.41:80"), endpoints(&["10.180.1.2:8080"])), (vip("172.30.0.42:80"), endpoints(&[]))];
    assert_eq!(planned(&mut backend, &web(&["10.180.1.2"]), &Changes::everything()), (first.clone(), vec![]));
    assert_eq!(planned(&mut backend, &web(&["10.180.1.2"]), &Changes::default()), (vec![], vec![]));
    let replaced = vec![(vip("172.30.0.41:80"), endpoints(&["10.180.1.4:8080"]))];
    assert_eq!(planned(&mut backend, &web(&["10.180.1.4"]), &changed(&["web"])), (replaced, vec![]));

    // A new process knows the VIPs of the previous one. Changes of a failed sync are reported with the commit that
    // succeeds.
    let mut second = restarted(&backend);
    second.kernel.denied = true;
    second.apply(&state([]), &Changes::everything()).unwrap_err();
    second.kernel.denied = false;
    let (frontends, mut remembered) = planned(&mut second, &state([]), &Changes::everything());
    remembered.sort();
    remembered.dedup();
    assert_eq!((frontends, remembered), (vec![], vec![vip("172.30.0.41:80"), vip("172.30.0.42:80")]));
    let gone = planned(&mut backend, &state([]), &changed(&["web", "other"]));
    assert_eq!(gone, (vec![(vip("172.30.0.41:80"), None), (vip("172.30.0.42:80"), None)], vec![]));
}

#[test]
fn only_commits_after_the_read_cause_a_repair() {
    let mut backend = backend();
    backend.kernel.generation = Some(40);
    let web = state([service("web", "172.30.0.41", &["10.180.1.2"])]);
    backend.apply(&web, &Changes::everything()).unwrap().whole().unwrap();
    let ours = BTreeSet::from([plan::table(Family::V6), Table::new(Family::V4, "other")]);
    let others = BTreeSet::from([Table::new(Family::V4, "other")]);
    // The tables were read at 40; 41 is the backend's own commit.
    for (tables, generation, disturbs) in
        [(&ours, 39, false), (&ours, 40, false), (&ours, 42, true), (&others, 42, false), (&BTreeSet::new(), 43, false)]
    {
        assert_eq!(backend.committed_elsewhere(tables, generation), disturbs, "{tables:?} {generation}");
    }
    // The lost notification was of the backend's own commit, or arrived earlier.
    backend.kernel.generation = Some(43);
    assert!(!backend.lost_sight());
    backend.kernel.generation = Some(44);
    assert!(backend.lost_sight());
}

mod affinity;
mod any_state;
mod portions;
