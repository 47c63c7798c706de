//! The backend with a fake HNS: the calls it makes, what HNS holds afterwards, and how failures are handled.

use std::sync::Arc;

use localnet_proto::{Service, ServiceKey};
use proptest::{collection::vec, prelude::*};
use serde_json::json;

use super::*;
use crate::{
    hcn::{
        Guid,
        schema::{LoadBalancer, tests::any_json},
    },
    testing::FakeHcn,
};

mod cases;
mod listed;
mod recorded;
mod refused;

const WEB: &str = "{node: {name: n, addresses: [192.168.0.2], serviceCIDRs: [172.30.0.0/16]}, services: [
    {service: default/web, type: NodePort, clusterIPs: [172.30.0.1],
     ports: [{name: http, protocol: TCP, port: 80, nodePort: 30080}], endpoints: [
     {address: 10.180.0.1, ports: [{name: http, port: 8080}], local: true, scopes: {internal: true, external: true}},
     {address: 10.180.1.2, ports: [{name: http, port: 8080}], scopes: {internal: true, external: true}}]}]}";

fn state() -> Snapshot {
    serde_saphyr::from_str(WEB).unwrap()
}

/// The state without its second endpoint.
fn shrunk() -> Snapshot {
    let mut state = state();
    Arc::make_mut(state.services.get_mut(&web()).unwrap()).endpoints.truncate(1);
    state
}

fn empty() -> Snapshot {
    Snapshot { services: Default::default(), ..state() }
}

fn web() -> ServiceKey {
    ServiceKey::new("default", "web")
}

fn web_changed() -> Changes {
    Changes { services: [web()].into(), ..Changes::default() }
}

fn fake(network: &str) -> FakeHcn {
    let mut fake = FakeHcn::with_network("cbr0", network, &[("10.180.1.0/24", "192.168.0.3")], &["10.180.0.1"]);
    fake.interfaces = [([192, 168, 0, 2].into(), "00-15-5d-00-00-02".to_owned())].into();
    fake
}

fn with(mut fake: FakeHcn, change: impl FnOnce(&mut FakeHcn)) -> FakeHcn {
    change(&mut fake);
    fake
}

fn backend(kernel: FakeHcn) -> WinBackend<FakeHcn> {
    let overlay = kernel.documents(Kind::Network).any(|(_, network)| network["Type"] == "Overlay");
    let source_vip = overlay.then(|| [10, 180, 0, 250].into());
    WinBackend::new(Config::default(), Options { source_vip, ..Options::default() }, kernel)
}

/// Returns a new process that uses the same HNS.
fn restarted(backend: &WinBackend<FakeHcn>) -> WinBackend<FakeHcn> {
    let mut kernel = backend.kernel.clone();
    kernel.log.clear();
    self::backend(kernel)
}

fn frontend(backend: &WinBackend<FakeHcn>, text: &str) -> Frontend {
    *backend.desired.wants().keys().find(|frontend| frontend.to_string() == text).unwrap()
}

/// Returns the calls, with names instead of identifiers.
fn calls(backend: &mut WinBackend<FakeHcn>) -> Vec<String> {
    let mut names: BTreeMap<String, String> =
        backend.desired.wants().keys().map(|frontend| (frontend.id().to_string(), frontend.to_string())).collect();
    for address in ["172.30.0.1", "10.180.1.2", "10.180.0.1"] {
        names.insert(Guid::of_remote_endpoint(address.parse().unwrap()).to_string(), address.to_owned());
    }
    names.insert(Guid::of_source_vip("10.180.0.250".parse().unwrap()).to_string(), "source".to_owned());
    let log = std::mem::take(&mut backend.kernel.log);
    log.into_iter()
        .map(|line| {
            let (call, id) = line.split_once(' ').unwrap();
            format!("{} {}", call.trim_start_matches("Hcn"), names.get(id).map_or(id, String::as_str))
        })
        .collect()
}

#[track_caller]
fn sync(backend: &mut WinBackend<FakeHcn>, state: &Snapshot, changes: &Changes) -> Vec<String> {
    backend.apply(state, changes).unwrap().whole().unwrap();
    calls(backend)
}

const NOTHING: [&str; 0] = [];

#[test]
fn the_configuration_is_reported() {
    let mut backend = backend(fake("L2Bridge"));
    sync(&mut backend, &state(), &Changes::everything());
    assert_eq!(backend.configuration().map(|effective| effective.config), Some(Config::default()));
}

#[test]
fn endpoints_are_written_before_load_balancers_and_an_unchanged_state_writes_nothing() {
    let mut backend = backend(fake("L2Bridge"));
    let expected = [
        "CreateEndpoint 10.180.1.2",
        "CreateLoadBalancer 172.30.0.1:80/tcp",
        "CreateLoadBalancer NodePort 30080/tcp of IPv4",
    ];
    assert_eq!(sync(&mut backend, &state(), &Changes::everything()), expected);
    assert_eq!(sync(&mut backend, &state(), &Changes::default()), NOTHING);
    assert_eq!(sync(&mut backend, &state(), &Changes::everything()), NOTHING);
    assert_eq!(sync(&mut restarted(&backend), &state(), &Changes::everything()), NOTHING);
    assert!(!backend.is_disturbed().unwrap());
}

#[test]
fn a_change_is_made_in_place_if_hns_supports_it() {
    let names = ["172.30.0.1:80/tcp", "NodePort 30080/tcp of IPv4"];
    let replaced =
        names.map(|name| [format!("DeleteLoadBalancer {name}"), format!("CreateLoadBalancer {name}")]).concat();
    let changed = names.map(|name| format!("ModifyLoadBalancer {name}")).to_vec();
    let delete = vec!["DeleteEndpoint 10.180.1.2".to_owned()];
    // The version denies the feature, or a failed attempt shows that it is missing.
    let tried = [&changed[..1], &replaced[..]].concat();
    for (version, implemented, expected) in [
        (Version::new(13, 3), true, replaced.clone()),
        (Version::new(15, 5), true, changed.clone()),
        (Version::new(15, 5), false, tried.clone()),
    ] {
        let mut backend = backend(with(fake("L2Bridge"), |fake| {
            fake.version = version;
            fake.modify_is_not_implemented = !implemented;
        }));
        sync(&mut backend, &state(), &Changes::everything());
        assert_eq!(sync(&mut backend, &shrunk(), &web_changed()), [expected, delete.clone()].concat(), "{version}");
        let back = sync(&mut backend, &state(), &web_changed());
        assert_eq!(back.len(), 1 + if implemented && version.major == 15 { 2 } else { 4 }, "{back:?}");
    }
    // An HNS that reports success and changes nothing.
    let mut backend = backend(with(fake("L2Bridge"), |fake| {
        (fake.version, fake.modify_does_nothing) = (Version::new(15, 5), true);
    }));
    sync(&mut backend, &state(), &Changes::everything());
    assert_eq!(sync(&mut backend, &shrunk(), &web_changed()), [tried, delete].concat());
    assert!(backend.kernel.load_balancers().iter().all(|one| one.host_compute_endpoints.len() == 1));
}

#[test]
fn an_endpoint_that_hns_no_longer_has_costs_no_load_balancer() {
    let mut backend = backend(with(fake("L2Bridge"), |fake| fake.version = Version::new(15, 5)));
    sync(&mut backend, &state(), &Changes::everything());
    backend.kernel.deletes_what_is_named = true;
    let not_found = Failure::new("HcnModifyLoadBalancer", 0x803b_0007, "");
    backend.kernel.fail("HcnModifyLoadBalancer", 1, not_found);
    let synced = backend.apply(&shrunk(), &web_changed()).unwrap();
    assert_eq!((synced.failed.len(), backend.kernel.load_balancers().len()), (1, 2), "{synced:?}");
    let calls = calls(&mut backend);
    assert!(!calls.iter().any(|call| call.starts_with("Delete")), "the endpoint that it still names stays: {calls:?}");
    sync(&mut backend, &shrunk(), &Changes::default());
    assert_eq!(backend.kernel.documents(Kind::Endpoint).count(), 1);
    assert!(backend.kernel.load_balancers().iter().all(|one| one.host_compute_endpoints.len() == 1));
}

#[test]
fn removed_services_leave_nothing_even_after_a_restart() {
    for network in ["L2Bridge", "Overlay"] {
        let before = fake(network);
        let mut backend = backend(before.clone());
        sync(&mut backend, &state(), &Changes::everything());
        let mut after = restarted(&backend);
        for one in [&mut backend, &mut after] {
            sync(one, &empty(), &Changes::everything());
            one.remove_all(false).unwrap();
            assert_eq!(one.kernel.objects, before.objects);
            one.remove_all(false).unwrap();
        }
    }
}

#[test]
fn cleanup_needs_no_network_and_continues_after_failures() {
    let mut backend = backend(fake("L2Bridge"));
    sync(&mut backend, &state(), &Changes::everything());
    backend.kernel.objects.retain(|(kind, _), _| *kind != Kind::Network);
    let busy = Failure::new("HcnDeleteLoadBalancer", 0x8000_4005, "");
    backend.kernel.fail("HcnDeleteLoadBalancer", 1, busy);
    let error = format!("{:#}", backend.remove_all(false).unwrap_err());
    assert!(error.contains("failed to remove 1 objects"), "{error}");
    assert_eq!(backend.kernel.load_balancers().len(), 1);
    backend.remove_all(false).unwrap();
    assert_eq!((backend.kernel.load_balancers().len(), backend.kernel.documents(Kind::Endpoint).count()), (0, 1));
}

#[test]
fn an_unchanged_hns_causes_no_sync_and_failures_are_left_to_the_loop() {
    let mut backend = backend(fake("L2Bridge"));
    backend.kernel.fail("HcnCreateLoadBalancer", 1, Failure::new("HcnCreateLoadBalancer", 0x8000_4005, ""));
    assert_eq!(backend.apply(&state(), &Changes::everything()).unwrap().failed.len(), 1);
    assert!(!backend.is_disturbed().unwrap(), "the loop retries it with backoff");
    backend.kernel.add_pod("cbr0", "10.180.0.77");
    assert!(backend.is_disturbed().unwrap(), "a change in HNS causes a sync");
    backend.read_at = Instant::now();
    assert!(backend.is_disturbed().unwrap());
}

#[test]
fn in_an_overlay_network_source_and_service_endpoints_are_deleted_with_their_last_user() {
    let mut backend = backend(fake("Overlay"));
    let expected = [
        "CreateEndpoint 10.180.1.2",
        "CreateEndpoint 172.30.0.1",
        "CreateEndpoint source",
        "CreateLoadBalancer 172.30.0.1:80/tcp",
        "CreateLoadBalancer NodePort 30080/tcp of IPv4",
    ];
    assert_eq!(sync(&mut backend, &state(), &Changes::everything()), expected);
    // A second Service with the same endpoint.
    let mut two = state();
    let mut other = Service::clone(&two.services[&web()]);
    other.key = ServiceKey::new("default", "other");
    other.cluster_ips = vec![[172, 30, 0, 2].into()];
    other.ports[0].node_port = None;
    two.services.insert(other.key.clone(), Arc::new(other));
    sync(&mut backend, &two, &Changes::everything());
    two.services.remove(&web());
    let log = sync(&mut backend, &two, &web_changed());
    assert!(
        log.contains(&"DeleteEndpoint 172.30.0.1".to_owned()) && !log.contains(&"DeleteEndpoint 10.180.1.2".to_owned()),
        "{log:?}"
    );
    let shared = Guid::of_remote_endpoint([10, 180, 1, 2].into());
    assert!(backend.kernel.objects.contains_key(&(Kind::Endpoint, shared)));
    sync(&mut backend, &empty(), &Changes::everything());
    assert!(!backend.kernel.objects.contains_key(&(Kind::Endpoint, shared)));
}

#[test]
fn a_changed_subnet_of_a_node_replaces_its_endpoints() {
    let mut backend = backend(fake("Overlay"));
    sync(&mut backend, &state(), &Changes::everything());
    let network = backend.inventory.network().unwrap();
    let document = backend.kernel.objects.get_mut(&(Kind::Network, network)).unwrap();
    document["Policies"][0]["Settings"]["ProviderAddress"] = json!("192.168.0.9");
    assert!(backend.is_disturbed().unwrap());
    let expected = [
        "DeleteLoadBalancer 172.30.0.1:80/tcp",
        "DeleteLoadBalancer NodePort 30080/tcp of IPv4",
        "DeleteEndpoint 10.180.1.2",
        "CreateEndpoint 10.180.1.2",
        "CreateLoadBalancer 172.30.0.1:80/tcp",
        "CreateLoadBalancer NodePort 30080/tcp of IPv4",
    ];
    let mut log = sync(&mut backend, &state(), &Changes::default());
    log[..2].sort();
    assert_eq!(log, expected);
    assert_eq!(sync(&mut backend, &state(), &Changes::default()), NOTHING);
}

#[test]
fn objects_that_other_programs_delete_or_change_are_restored() {
    let mut backend = backend(fake("L2Bridge"));
    sync(&mut backend, &state(), &Changes::everything());
    let before = backend.kernel.objects.clone();
    let cluster_ip = frontend(&backend, "172.30.0.1:80/tcp").id();
    let remote = Guid::of_remote_endpoint([10, 180, 1, 2].into());
    type Disturb<'a> = &'a dyn Fn(&mut FakeHcn);
    let disturbances: [(&str, Disturb<'_>); 4] = [
        ("one load balancer", &|fake| _ = fake.objects.remove(&(Kind::LoadBalancer, cluster_ip))),
        ("all load balancers", &|fake| fake.objects.retain(|(kind, _), _| *kind != Kind::LoadBalancer)),
        ("an endpoint", &|fake| _ = fake.objects.remove(&(Kind::Endpoint, remote))),
        ("the contents", &|fake| fake.objects.get_mut(&(Kind::LoadBalancer, cluster_ip)).unwrap()["Flags"] = json!(1)),
    ];
    for (what, disturb) in disturbances {
        disturb(&mut backend.kernel);
        // Polling reads all documents again at intervals.
        backend.read_at = Instant::now();
        assert!(backend.is_disturbed().unwrap(), "{what}");
        sync(&mut backend, &state(), &Changes::default());
        assert_eq!(backend.kernel.objects, before, "{what}");
        assert!(!backend.is_disturbed().unwrap(), "{what}");
    }
    // HNS loses all objects, including the network, and the CNI plugin creates the network again.
    backend.kernel.objects.clear();
    let error = format!("{:#}", backend.apply(&state(), &Changes::default()).unwrap_err());
    assert!(error.contains("network"), "{error}");
    let anew = fake("L2Bridge");
    backend.kernel.objects = anew.objects;
    sync(&mut backend, &state(), &Changes::default());
    assert_eq!(backend.kernel.load_balancers().len(), 2);
}

#[test]
fn endpoints_that_the_cni_plugin_creates_late_are_used() {
    let mut backend = backend(FakeHcn::with_network("cbr0", "L2Bridge", &[], &[]));
    let synced = backend.apply(&state(), &Changes::everything()).unwrap();
    assert!(
        synced.skipped[0].problem.contains("waits for HNS endpoints of local pods (10.180.0.1)"),
        "{:?}",
        synced.skipped
    );
    assert!(backend.kernel.load_balancers().iter().all(|one| one.host_compute_endpoints.len() == 1));
    assert!(!backend.is_disturbed().unwrap());
    backend.kernel.add_pod("cbr0", "10.180.0.1");
    assert!(backend.is_disturbed().unwrap(), "a new endpoint is noticed without a new state");
    let synced = backend.apply(&state(), &Changes::default()).unwrap();
    assert_eq!(synced.skipped, []);
    assert!(backend.kernel.load_balancers().iter().all(|one| one.host_compute_endpoints.len() == 2));
    backend.kernel.add_pod("cbr0", "10.180.0.77");
    assert!(!backend.is_disturbed().unwrap(), "no Service uses that endpoint");
}

#[test]
fn a_remote_endpoint_with_the_address_of_a_local_pod_is_deleted() {
    let mut elsewhere = state();
    let endpoints = &mut Arc::make_mut(elsewhere.services.get_mut(&web()).unwrap()).endpoints;
    endpoints[0].local = false;
    // The pod was on another node, and its address now belongs to a local pod.
    let mut kernel = fake("L2Bridge");
    kernel.objects.retain(|(kind, _), _| *kind == Kind::Network);
    let mut backend = backend(kernel);
    sync(&mut backend, &elsewhere, &Changes::everything());
    backend.kernel.add_pod("cbr0", "10.180.0.1");
    let log = sync(&mut backend, &state(), &Changes::everything());
    assert_eq!(log.last().map(String::as_str), Some("DeleteEndpoint 10.180.0.1"));
    assert_eq!(backend.kernel.documents(Kind::Endpoint).count(), 2);
}

#[test]
fn kube_proxys_objects_are_adopted_and_nothing_is_deleted_at_the_start() {
    // kube-proxy's load balancers equal ours, except for the identifiers.
    let mut kernel = fake("L2Bridge");
    kernel.chooses_ids = true;
    let mut theirs = backend(kernel);
    sync(&mut theirs, &state(), &Changes::everything());
    let stale = json!({"FrontendVIPs": ["172.30.7.7"], "HostComputeEndpoints": [], "PortMappings": [{"Protocol": 6, "ExternalPort": 80}]});
    let foreign = json!({"FrontendVIPs": ["10.9.9.9"], "HostComputeEndpoints": [], "PortMappings": [{"Protocol": 6, "ExternalPort": 80}]});
    theirs.kernel.objects.insert((Kind::LoadBalancer, Guid::new(0xa)), stale);
    theirs.kernel.objects.insert((Kind::LoadBalancer, Guid::new(0xb)), foreign);
    let mut after = restarted(&theirs);
    after.kernel.chooses_ids = false;
    assert_eq!(sync(&mut after, &state(), &Changes::everything()), [format!("DeleteLoadBalancer {}", Guid::new(0xa))]);
    // The adopted ones stay in use until they are deleted.
    sync(&mut after, &shrunk(), &web_changed());
    sync(&mut after, &empty(), &Changes::everything());
    assert_eq!(after.kernel.documents(Kind::LoadBalancer).map(|(id, _)| id).collect::<Vec<_>>(), [Guid::new(0xb)]);
    assert_eq!(after.kernel.documents(Kind::Endpoint).count(), 1, "kube-proxy's remote endpoint is deleted");
    after.remove_all(true).unwrap();
    assert_eq!(after.kernel.documents(Kind::LoadBalancer).count(), 0);
}

#[test]
fn a_port_in_use_is_retried_after_a_read_and_then_skipped() {
    let mut backend = backend(fake("L2Bridge"));
    sync(&mut backend, &state(), &Changes::everything());
    // Another program has replaced our load balancer since the last read.
    let id = frontend(&backend, "172.30.0.1:80/tcp").id();
    let taken =
        Failure::new("HcnCreateLoadBalancer", 0x803b_0013, "{\"Error\":\"The specified port already exists.\"}");
    backend.kernel.fail("HcnCreateLoadBalancer", 1, taken.clone());
    backend.kernel.objects.remove(&(Kind::LoadBalancer, id));
    assert_eq!(sync(&mut backend, &state(), &Changes::default()).len(), 2, "the second attempt follows at once");
    // The frontend is taken by an object that HNS does not list.
    backend.kernel.fail("HcnCreateLoadBalancer", 99, taken);
    backend.kernel.objects.remove(&(Kind::LoadBalancer, id));
    let synced = backend.apply(&state(), &Changes::default()).unwrap();
    assert!(synced.failed.is_empty() && synced.skipped.len() == 1, "{synced:?}");
    assert!(
        synced.skipped[0]
            .problem
            .contains("172.30.0.1:80/tcp: HcnCreateLoadBalancer: The specified port already exists."),
        "{synced:?}"
    );
    backend.kernel.log.clear();
    assert_eq!(
        sync(&mut backend, &state(), &Changes::default()),
        NOTHING,
        "the refused load balancer is not retried at each sync"
    );
    backend.read_at = Instant::now();
    assert!(!backend.is_disturbed().unwrap(), "a full read does not retry it");
    // The refusal is retried when requested. Once the cause is gone, the retry succeeds although the state has not changed.
    backend.retry_refused();
    let synced = backend.apply(&state(), &Changes::default()).unwrap();
    assert_eq!((synced.skipped.len(), synced.refused), (1, [ServiceKey::new("default", "web")].into()));
    backend.kernel.mend();
    backend.retry_refused();
    let synced = backend.apply(&state(), &Changes::default()).unwrap();
    assert_eq!((synced.skipped.len(), synced.refused.len()), (0, 0), "{synced:?}");
    assert!(backend.inventory.balancers().contains_key(&id));
}

/// HNS made the change, but the answer was lost. The state then went back, and the backend took the former documents for current.
#[test]
fn a_change_without_an_answer_is_read_again() {
    let mut backend = backend(with(fake("L2Bridge"), |fake| fake.version = Version::new(15, 5)));
    sync(&mut backend, &state(), &Changes::everything());
    let before = backend.kernel.load_balancers();
    let mut other = restarted(&backend);
    sync(&mut other, &shrunk(), &Changes::everything());
    let lost = Failure::new("HcnModifyLoadBalancer", 0x8007_06be, "");
    backend.kernel.fail("HcnModifyLoadBalancer", 2, lost);
    let synced = backend.apply(&shrunk(), &web_changed()).unwrap();
    assert_eq!(synced.failed.len(), 2);
    backend.kernel.objects = other.kernel.objects;
    calls(&mut backend);
    sync(&mut backend, &state(), &web_changed());
    let ends = |all: Vec<LoadBalancer>| all.into_iter().map(|one| one.host_compute_endpoints).collect::<Vec<_>>();
    assert_eq!(ends(backend.kernel.load_balancers()), ends(before));
}

#[test]
fn our_endpoint_on_a_former_network_is_created_again() {
    let mut backend = backend(fake("L2Bridge"));
    let stale = Guid::of_remote_endpoint([10, 180, 1, 2].into());
    backend.kernel.objects.insert((Kind::Endpoint, stale), json!({"HostComputeNetwork": Guid::new(0xdead)}));
    let log = sync(&mut backend, &state(), &Changes::everything());
    assert_eq!(log[..3], ["CreateEndpoint 10.180.1.2", "DeleteEndpoint 10.180.1.2", "CreateEndpoint 10.180.1.2"]);
    assert_eq!(sync(&mut backend, &state(), &Changes::default()), NOTHING);
}

#[test]
fn failures_are_retried_and_stop_nothing_else() {
    let busy = |call| Failure::new(call, 0x8000_4005, "");
    for call in ["HcnCreateLoadBalancer", "HcnCreateEndpoint"] {
        let mut backend = backend(fake("L2Bridge"));
        backend.kernel.fail(call, 1, busy(call));
        let synced = backend.apply(&state(), &Changes::everything()).unwrap();
        assert_eq!(synced.failed.len(), 1, "{call}: {synced:?}");
        assert!(!backend.kernel.load_balancers().is_empty(), "{call}");
        sync(&mut backend, &state(), &Changes::default());
        let expected = backend.kernel.load_balancers();
        assert!(
            expected.len() == 2 && expected.iter().all(|one| one.host_compute_endpoints.len() == 2),
            "{expected:?}"
        );
    }
    // An object that cannot be deleted still exists and stays in the inventory.
    let mut backend = backend(fake("L2Bridge"));
    sync(&mut backend, &state(), &Changes::everything());
    backend.kernel.fail("HcnDeleteLoadBalancer", 1, busy("HcnDeleteLoadBalancer"));
    let synced = backend.apply(&empty(), &Changes::everything()).unwrap();
    assert_eq!(synced.failed.len(), 1, "{synced:?}");
    sync(&mut backend, &empty(), &Changes::default());
    assert_eq!((backend.kernel.load_balancers().len(), backend.kernel.documents(Kind::Endpoint).count()), (0, 1));
}

#[test]
fn missing_requirements_are_errors_before_anything_is_written() {
    let message = |kernel: FakeHcn, options: Options, state: &Snapshot| {
        let mut backend = WinBackend::new(Config::default(), options, kernel);
        let error = format!("{:#}", backend.apply(state, &Changes::everything()).unwrap_err());
        assert_eq!(backend.kernel.log, NOTHING);
        error
    };
    let overlay = Options { source_vip: Some([10, 180, 0, 250].into()), ..Options::default() };
    let mut nameless = state();
    nameless.node.addresses.clear();
    for (error, expected) in [
        (
            message(with(fake("L2Bridge"), |fake| fake.version = Version::new(9, 1)), Options::default(), &state()),
            "HNS has version 9.1",
        ),
        (message(fake("Overlay"), Options::default(), &state()), "--source-vip"),
        (message(fake("Overlay"), overlay.clone(), &nameless), "the Node object has no IPv4 address"),
        (
            message(with(fake("Overlay"), |fake| fake.interfaces.clear()), overlay, &state()),
            "no interface has the node's address 192.168.0.2",
        ),
        (message(FakeHcn::default(), Options::default(), &state()), "HNS has none"),
    ] {
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn an_hns_that_normalizes_documents_or_identifiers_is_not_written_to_forever() {
    let mut kernel = fake("L2Bridge");
    kernel.chooses_ids = true;
    kernel.rewrites = Some(|document| {
        if document.get("PortMappings").is_some() {
            document["PortMappings"][0]["Flags"] = json!(64);
        }
    });
    let mut backend = backend(kernel);
    sync(&mut backend, &state(), &Changes::everything());
    assert_eq!(sync(&mut backend, &state(), &Changes::default()), NOTHING);
    backend.read_at = Instant::now();
    assert!(!backend.is_disturbed().unwrap());
    sync(&mut backend, &empty(), &Changes::everything());
    assert_eq!(
        (backend.kernel.documents(Kind::LoadBalancer).count(), backend.kernel.documents(Kind::Endpoint).count()),
        (0, 1)
    );
}

/// Generates a Service of one of a few shapes or none, a local pod or none, and a failure.
fn step() -> impl Strategy<Value = (u8, Option<(u8, bool, bool)>, u8, u8)> {
    (0..3_u8, proptest::option::weighted(0.8, (1..4_u8, any::<bool>(), any::<bool>())), 0..3_u8, 0..8_u8)
}

fn service(name: u8, (endpoints, node_port, local): (u8, bool, bool)) -> Service {
    let node_port = if node_port { format!(", nodePort: {}", 30_000 + u16::from(name)) } else { String::new() };
    let endpoint = |number: u8| {
        let (network, local) = if local && number == 1 { (0, ", local: true") } else { (1, "") };
        format!(
            "{{address: 10.180.{network}.{number}{local}, ports: [{{name: p, port: 8080}}], scopes: {{internal: true, external: true}}}}"
        )
    };
    let endpoints: Vec<String> = (1..=endpoints).map(endpoint).collect();
    let yaml = format!(
        "{{service: ns/{name}, type: NodePort, clusterIPs: [172.30.0.{name}], ports: [{{name: p, protocol: TCP, port: 80{node_port}}}], endpoints: [{}]}}",
        endpoints.join(", ")
    );
    serde_saphyr::from_str(&yaml).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// Whatever happened and failed before, HNS ends up as if it had received only the last state.
    #[test]
    fn any_history_ends_in_the_same_hns(steps in vec(step(), 1..16), overlay in any::<bool>()) {
        let network = if overlay { "Overlay" } else { "L2Bridge" };
        let mut backend = backend(fake(network));
        let mut state = empty();
        for (name, shape, pods, wrong) in steps {
            let key = ServiceKey::new("ns", name.to_string());
            match shape {
                Some(shape) => _ = state.services.insert(key.clone(), Arc::new(service(name, shape))),
                None => _ = state.services.remove(&key),
            }
            for pod in 0..pods {
                let address = format!("10.180.0.{}", pod + 2);
                if backend.inventory.local(address.parse().unwrap()).is_none() {
                    backend.kernel.add_pod("cbr0", &address);
                }
            }
            let busy = |call| Failure::new(call, 0x8000_4005, "");
            match wrong {
                0 => backend.kernel.fail("HcnCreateLoadBalancer", 1, busy("HcnCreateLoadBalancer")),
                1 => backend.kernel.fail("HcnDeleteLoadBalancer", 1, busy("HcnDeleteLoadBalancer")),
                2 => backend.kernel.fail("HcnCreateEndpoint", 1, busy("HcnCreateEndpoint")),
                3 => backend.kernel.objects.retain(|(kind, _), _| *kind != Kind::LoadBalancer),
                4 => backend = restarted(&backend),
                5 => backend.kernel.version = Version::new(15, 5),
                _ => {}
            }
            let changes = Changes { services: [key].into(), everything: wrong == 4, ..Changes::default() };
            // The call may fail. Only the final result matters.
            _ = backend.apply(&state, &changes);
        }
        backend.inventory.forget();
        for attempt in 0.. {
            let synced = backend.apply(&state, &Changes::everything()).unwrap();
            if synced.failed.is_empty() {
                break;
            }
            prop_assert!(attempt < 40, "{synced:?}");
        }
        let mut fresh = self::backend(fake(network));
        fresh.kernel.objects = backend.kernel.objects.clone();
        fresh.kernel.objects.retain(|(kind, id), _| *kind != Kind::LoadBalancer && !id.is_ours());
        fresh.apply(&state, &Changes::everything()).unwrap().whole().unwrap();
        let documents = |fake: &FakeHcn| fake.objects.clone();
        prop_assert_eq!(documents(&backend.kernel), documents(&fresh.kernel));
    }

    /// Unknown objects in HNS stop nothing. Documents that cannot be parsed are left alone, or replaced if they are ours.
    #[test]
    fn garbage_in_hns_stops_nothing(documents in vec((any_json(), any::<bool>(), any::<bool>()), 0..6), overlay in any::<bool>()) {
        let mut backend = backend(fake(if overlay { "Overlay" } else { "L2Bridge" }));
        sync(&mut backend, &state(), &Changes::everything());
        let is_ours = |(kind, id): &&(Kind, Guid)| *kind == Kind::LoadBalancer && id.is_ours();
        let ours: Vec<_> = backend.kernel.objects.keys().filter(is_ours).copied().collect();
        let network = backend.inventory.network();
        for (number, (mut document, endpoint, replaces)) in documents.into_iter().enumerate() {
            if let Some(fields) = document.as_object_mut().filter(|_| endpoint) {
                fields.insert("HostComputeNetwork".to_owned(), json!(network));
            }
            let kind = if endpoint { Kind::Endpoint } else { Kind::LoadBalancer };
            let key = match ours.get(number).filter(|_| replaces) {
                Some(key) => *key,
                None => (kind, Guid::new(0xbad_0000 + number as u128)),
            };
            backend.kernel.objects.insert(key, document);
        }
        backend.inventory.forget();
        // Garbage that looks like a load balancer may occupy a frontend. Such frontends are reported, and all others exist.
        let synced = backend.apply(&state(), &Changes::everything()).unwrap();
        let there = backend.kernel.load_balancers().iter().filter(|one| one.id.is_some_and(Guid::is_ours)).count();
        prop_assert!(there + synced.skipped.len() + synced.failed.len() >= 2, "{there} and {synced:?}");
        let again = backend.apply(&state(), &Changes::everything()).unwrap();
        prop_assert!(again.failed.is_empty(), "{again:?}");
    }
}
