//! Tests of the backend on the fake kernel: what it sends, in which order, and what the kernel then holds.

use std::{
    net::SocketAddr,
    pin::pin,
    sync::Arc,
    task::{Context, Waker},
    time::Duration,
};

use localnet_client::{
    Diagnostic,
    vips::{self, Detector},
};
use localnet_linux::ipvs::Destination;
use localnet_proto::{Protocol, ServiceKey};

use super::*;
use crate::testing::{FakeKernel, FakeServer};

fn config() -> Config {
    Config { detector: Detector::ClusterCidr(vec!["10.180.0.0/16".parse().unwrap()]), ..Config::default() }
}

fn backend(options: Options) -> IpvsBackend<FakeKernel> {
    IpvsBackend::new(config(), options, FakeKernel::default())
}

/// A backend in a new process, on the same kernel.
fn restarted(backend: &IpvsBackend<FakeKernel>) -> IpvsBackend<FakeKernel> {
    let kernel = FakeKernel { log: Vec::new(), ..backend.kernel.clone() };
    IpvsBackend::new(config(), backend.desired.options().clone(), kernel)
}

const WEB: &str = "{node: {name: n, addresses: [192.168.0.2], serviceCIDRs: [172.30.0.0/16]}, services: [
    {service: default/web, type: NodePort, clusterIPs: [172.30.0.1],
     ports: [{name: http, protocol: TCP, port: 80, nodePort: 30080}], endpoints: [
     {address: 10.180.0.1, ports: [{name: http, port: 8080}], local: true, scopes: {internal: true, external: true}},
     {address: 10.180.1.2, ports: [{name: http, port: 8080}], scopes: {internal: true, external: true}}]}]}";

fn state() -> Snapshot {
    serde_saphyr::from_str(WEB).unwrap()
}

/// The state with only the first endpoints.
fn with_endpoints(count: usize) -> Snapshot {
    let mut state = state();
    let web = state.services.get_mut(&ServiceKey::new("default", "web")).unwrap();
    Arc::make_mut(web).endpoints.truncate(count);
    state
}

fn web_changed() -> Changes {
    Changes { services: [ServiceKey::new("default", "web")].into(), ..Changes::default() }
}

#[track_caller]
fn sync(backend: &mut IpvsBackend<FakeKernel>, state: &Snapshot, changes: &Changes) -> Vec<String> {
    synced(backend, state, changes).0
}

/// Syncs, and returns the requests to the kernel and what was skipped.
#[track_caller]
fn synced(
    backend: &mut IpvsBackend<FakeKernel>,
    state: &Snapshot,
    changes: &Changes,
) -> (Vec<String>, Vec<Diagnostic>) {
    backend.kernel.log.clear();
    let synced = run(backend.apply(state, changes)).unwrap();
    assert!(synced.failed.is_empty(), "{:?}", synced.failed);
    (backend.kernel.log.clone(), synced.skipped)
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// `localnet diff` compares the listings. A destination that drains is no difference, nor is what belongs to other programs.
#[test]
fn the_live_listing_equals_the_plan_until_another_program_changes_something() {
    let mut backend = backend(Options::default());
    for (state, local) in [(state(), "192.168.0.2"), (with_endpoints(1), "192.168.0.2"), (state(), "192.168.0.3")] {
        backend.set_local_addresses(vec![local.parse().unwrap()]);
        sync(&mut backend, &state, &Changes::everything());
        let mut reader = restarted(&backend);
        reader.set_local_addresses(vec![local.parse().unwrap()]);
        let planned = reader.planned_lines(&state);
        assert!(planned.values().map(Vec::len).sum::<usize>() > 30, "{planned:#?}");
        assert_eq!(run(reader.live_lines()).unwrap(), planned);
    }
    let mut reader = restarted(&backend);
    let planned = reader.planned_lines(&state());
    let web = Frontend::new(Protocol::Tcp, "172.30.0.1:80".parse().unwrap());
    let foreign = Frontend::new(Protocol::Tcp, "10.9.9.9:443".parse().unwrap());
    let server = VirtualServer::new(foreign, Scheduler::default());
    reader.kernel.servers.insert(foreign, FakeServer { server, destinations: Default::default() });
    reader
        .kernel
        .servers
        .get_mut(&web)
        .unwrap()
        .destinations
        .retain(|address, _| address.ip().to_string() == "10.180.0.1");
    reader.kernel.addresses.as_mut().unwrap().clear();
    let table = reader.kernel.nft.tables.get_mut(&plan::table(Family::V4)).unwrap();
    table.chains.get_mut("masquerading").unwrap().rules.clear();
    table.sets.get_mut("vips").unwrap().1.clear();
    let live = run(reader.live_lines()).unwrap();
    let differing = planned.iter().filter(|(place, lines)| live.get(place) != Some(lines));
    let names: Vec<&str> = differing.map(|(place, _)| &*place.name).collect();
    assert_eq!(names, ["virtual servers", "kube-ipvs0", "masquerading", "vips"]);
    assert_eq!(live.len(), planned.len());
}

#[test]
fn the_reported_configuration_has_the_addresses_of_node_ports() {
    let mut backend = backend(Options::default());
    assert_eq!(backend.configuration(), None, "the node is unknown");
    sync(&mut backend, &state(), &Changes::everything());
    let effective = Effective { config: config(), node_port_addresses: vec![IpAddr::from([192, 168, 0, 2])] };
    assert_eq!(backend.configuration(), Some(effective));
}

fn foreign(port: u16, address: [u8; 4]) -> (Frontend, FakeServer) {
    let frontend = Frontend::new(Protocol::Tcp, SocketAddr::from((address, port)));
    let server = VirtualServer::new(frontend, "wlc".parse().unwrap());
    let destination = Destination::masqueraded("10.9.9.9:1".parse().unwrap(), 7);
    (frontend, FakeServer { server, destinations: [(destination.address, (destination, 1))].into() })
}

#[test]
fn rules_are_written_first_and_addresses_last_and_an_unchanged_state_sends_nothing() {
    let mut backend = backend(Options::default());
    let log = sync(&mut backend, &state(), &Changes::everything());
    let expected = [
        "rules",
        "rules",
        "-A -t 172.30.0.1:80 -s rr; -a -t 172.30.0.1:80 -r 10.180.0.1:8080 -m -w 1; -a -t 172.30.0.1:80 -r 10.180.1.2:8080 -m -w 1; \
         -A -t 192.168.0.2:30080 -s rr; -a -t 192.168.0.2:30080 -r 10.180.0.1:8080 -m -w 1; \
         -a -t 192.168.0.2:30080 -r 10.180.1.2:8080 -m -w 1",
        "addresses +[172.30.0.1] -[]",
    ];
    assert_eq!(log, expected);
    assert_eq!(sync(&mut backend, &state(), &Changes::default()), [] as [&str; 0]);
    assert_eq!(sync(&mut backend, &state(), &Changes::everything()), [] as [&str; 0]);
    assert_eq!(sync(&mut restarted(&backend), &state(), &Changes::everything()), [] as [&str; 0]);
    assert!(run(backend.is_undisturbed()).unwrap());
}

#[test]
fn removing_an_endpoint_changes_each_virtual_server_once() {
    let mut backend = backend(Options::default());
    sync(&mut backend, &state(), &Changes::everything());
    let log = sync(&mut backend, &with_endpoints(1), &web_changed());
    let drained = "-e -t 172.30.0.1:80 -r 10.180.1.2:8080 -m -w 0; -e -t 192.168.0.2:30080 -r 10.180.1.2:8080 -m -w 0";
    assert_eq!(log, [drained]);
    assert!(backend.is_draining());
    let mut after = restarted(&backend);
    assert_eq!(sync(&mut after, &with_endpoints(1), &Changes::everything()), [] as [&str; 0]);
    assert!(after.is_draining(), "a restart finds what drains");
    run(after.drain(Duration::ZERO)).unwrap();
    assert_eq!(
        after.kernel.log,
        ["-d -t 172.30.0.1:80 -r 10.180.1.2:8080", "-d -t 192.168.0.2:30080 -r 10.180.1.2:8080"]
    );
    assert!(!after.is_draining());
}

#[test]
fn removals_have_the_opposite_order() {
    let mut backend = backend(Options::default());
    sync(&mut backend, &state(), &Changes::everything());
    let empty = Snapshot { services: Default::default(), ..state() };
    let expected = ["-D -t 172.30.0.1:80; -D -t 192.168.0.2:30080", "rules", "addresses +[] -[172.30.0.1]"];
    assert_eq!(sync(&mut backend, &empty, &web_changed()), expected);
    // A restarted backend does the same: the table shows that the virtual server of the NodePort is ours.
    let mut backend = self::backend(Options::default());
    sync(&mut backend, &state(), &Changes::everything());
    assert_eq!(sync(&mut restarted(&backend), &empty, &Changes::everything()), expected);
}

#[test]
fn virtual_servers_of_other_programs_always_stay() {
    let options = Options { exclude_cidrs: vec!["172.30.9.0/24".parse().unwrap()], ..Options::default() };
    let mut backend = backend(options);
    let others = [foreign(80, [10, 9, 9, 1]), foreign(31_000, [192, 168, 0, 2]), foreign(80, [172, 30, 9, 1])];
    backend.kernel.servers.extend(others.clone());
    // The last address is on our interface, too. Its virtual server still belongs to others, because the address is excluded.
    backend.kernel.addresses = Some(["172.30.9.1".parse().unwrap()].into());
    sync(&mut backend, &state(), &Changes::everything());
    sync(&mut restarted(&backend), &with_endpoints(1), &Changes::everything());
    for (frontend, server) in &others {
        assert_eq!(backend.kernel.servers.get(frontend), Some(server));
    }
    let mut after = restarted(&backend);
    run(after.remove_all()).unwrap();
    assert_eq!(after.kernel.servers, others.into());
    assert_eq!((after.kernel.addresses.clone(), after.kernel.nft.tables.len()), (None, 0));
    // It is no error if there is nothing to remove.
    run(after.remove_all()).unwrap();
}

#[test]
fn a_vip_in_an_excluded_cidr_is_skipped_with_a_diagnostic() {
    let options = Options { exclude_cidrs: vec!["172.30.0.0/24".parse().unwrap()], ..Options::default() };
    let mut backend = backend(options);
    let (log, skipped) = synced(&mut backend, &state(), &Changes::everything());
    assert!(log.iter().all(|line| !line.contains("172.30.0.1")), "{log:?}");
    assert_eq!(skipped.len(), 1);
    assert!(skipped[0].problem.contains("172.30.0.1:80/tcp is in an excluded CIDR"), "{skipped:?}");
}

#[test]
fn objects_that_other_programs_delete_are_restored() {
    let mut backend = backend(Options::default());
    sync(&mut backend, &state(), &Changes::everything());
    let before = backend.kernel.clone();
    let disturbances: [fn(&mut FakeKernel); 4] = [
        |kernel| kernel.servers.clear(),
        |kernel| kernel.addresses = None,
        |kernel| kernel.nft.tables.clear(),
        |kernel| kernel.servers.values_mut().for_each(|fake| fake.destinations.clear()),
    ];
    for disturb in disturbances {
        disturb(&mut backend.kernel);
        backend.forget();
        sync(&mut backend, &state(), &Changes::default());
        assert_eq!(backend.kernel.servers, before.servers);
        assert_eq!((&backend.kernel.addresses, &backend.kernel.nft.tables), (&before.addresses, &before.nft.tables));
    }
    // The next sync repairs the change even if nothing reported it.
    backend.kernel.servers.clear();
    sync(&mut backend, &with_endpoints(1), &web_changed());
    assert_eq!(backend.kernel.servers.len(), 2);
    assert!(run(backend.is_undisturbed()).unwrap());
}

#[test]
fn destinations_that_other_programs_change_are_repaired() {
    let mut backend = backend(Options::default());
    sync(&mut backend, &state(), &Changes::everything());
    let before = backend.kernel.servers.clone();
    let disturbances: [fn(&mut FakeServer); 3] = [
        |fake| _ = fake.destinations.pop_first(),
        |fake| fake.destinations.values_mut().for_each(|(destination, _)| destination.weight = 0),
        |fake| {
            let more = Destination::masqueraded("10.9.9.9:1".parse().unwrap(), 7);
            fake.destinations.insert(more.address, (more, 0));
        },
    ];
    for disturb in disturbances {
        for frontend in before.keys() {
            disturb(backend.kernel.servers.get_mut(frontend).unwrap());
            assert!(!run(backend.is_undisturbed()).unwrap());
            backend.forget();
            sync(&mut backend, &state(), &Changes::default());
            // The added destination has no connections, so it is deleted.
            run(backend.drain(Duration::ZERO)).unwrap();
            assert_eq!(backend.kernel.servers, before);
            assert!(run(backend.is_undisturbed()).unwrap());
        }
    }
}

/// A change must not wait for the check of 1,000 virtual servers.
#[test]
fn a_cancelled_check_continues_where_it_stopped() {
    let mut backend = backend(Options::default());
    sync(&mut backend, &state(), &Changes::everything());
    let last = *backend.kernel.servers.keys().next_back().unwrap();
    {
        let mut check = pin!(backend.is_undisturbed());
        assert!(check.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending(), "the check did not yield");
    }
    assert_eq!(backend.desired.servers().after(backend.checked, 1), [last]);
    let mut draining = self::backend(Options::default());
    sync(&mut draining, &state(), &Changes::everything());
    sync(&mut draining, &with_endpoints(1), &web_changed());
    {
        let mut drain = pin!(draining.drain(Duration::ZERO));
        assert!(drain.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending(), "the check did not yield");
    }
    // The first virtual server has drained. The next call continues with the other one.
    let first = ["-d -t 172.30.0.1:80 -r 10.180.1.2:8080"];
    assert!(draining.kernel.log.ends_with(&first.map(str::to_owned)), "{:?}", draining.kernel.log);
    assert!(draining.is_draining());
    run(draining.drain(Duration::ZERO)).unwrap();
    assert!(!draining.is_draining());
}

/// The rules of a VIP decide who may reach it, so a family without rules gets no virtual servers.
#[test]
fn a_vip_without_rules_has_no_virtual_server() {
    let mut backend = backend(Options::default());
    backend.kernel.no_rules = Some(Family::V4);
    let synced = run(backend.apply(&state(), &Changes::everything())).unwrap();
    assert_eq!(synced.failed.iter().map(|(family, _)| *family).collect::<Vec<_>>(), [localnet_proto::Family::V4]);
    assert!(backend.kernel.servers.is_empty() && backend.kernel.addresses.is_none(), "{:?}", backend.kernel.log);
    backend.kernel.no_rules = None;
    let log = sync(&mut backend, &state(), &Changes::everything());
    assert_eq!((log.len(), &*log[0], backend.kernel.servers.len()), (3, "rules", 2), "{log:?}");
    assert_eq!(sync(&mut backend, &state(), &Changes::default()), [] as [&str; 0]);
}

#[test]
fn an_endpoint_that_the_kernel_refuses_is_skipped_with_a_diagnostic() {
    let mut backend = backend(Options::default());
    backend.kernel.hated.insert("10.180.1.2:8080".parse().unwrap());
    let (_, skipped) = synced(&mut backend, &state(), &Changes::everything());
    assert_eq!(skipped.len(), 2, "{skipped:?}");
    assert!(skipped.iter().all(|one| one.subject.service_key() == Some(ServiceKey::new("default", "web"))));
    assert!(skipped[0].problem.contains("failed to add destination 10.180.1.2:8080"), "{skipped:?}");
    assert!(backend.kernel.servers.values().all(|fake| fake.destinations.len() == 1));
    // The next sync does not retry it.
    let (log, again) = synced(&mut backend, &state(), &Changes::default());
    assert_eq!((log, again), (vec![], skipped.clone()));
    // A full sync does not retry it, either. Only `retry_refused` does.
    backend.forget();
    let (log, again) = synced(&mut backend, &state(), &Changes::default());
    assert_eq!((log, again), (vec![], skipped.clone()));
    backend.retry_refused();
    let (log, again) = synced(&mut backend, &state(), &Changes::default());
    assert_eq!((log.len(), again), (1, skipped));
    assert_eq!(synced(&mut backend, &with_endpoints(1), &web_changed()).1, []);
}

#[test]
fn a_refused_endpoint_is_retried_without_a_change() {
    let mut backend = backend(Options::default());
    backend.kernel.hated.insert("10.180.1.2:8080".parse().unwrap());
    let synced = run(backend.apply(&state(), &Changes::everything())).unwrap();
    assert_eq!(synced.refused, [ServiceKey::new("default", "web")].into());
    backend.retry_refused();
    assert_eq!(run(backend.apply(&state(), &Changes::default())).unwrap().refused.len(), 1);
    assert!(!backend.take_commit(&[]).recheck);
    backend.kernel.hated.clear();
    backend.retry_refused();
    let synced = run(backend.apply(&state(), &Changes::default())).unwrap();
    assert_eq!((synced.refused.len(), synced.skipped), (0, vec![]));
    assert!(backend.take_commit(&[]).recheck, "flows to the VIP began untranslated");
    assert!(backend.kernel.servers.values().all(|fake| fake.destinations.len() == 2));
}

/// The Service changed after the kernel had stopped refusing its endpoint. UDP flows to the VIP stayed untranslated.
#[test]
fn flows_are_checked_after_the_kernel_accepts_an_endpoint_with_a_change() {
    let mut backend = backend(Options::default());
    backend.kernel.hated.insert("10.180.1.2:8080".parse().unwrap());
    _ = run(backend.apply(&state(), &Changes::everything())).unwrap();
    assert!(!backend.take_commit(&[]).recheck);
    backend.kernel.hated.clear();
    _ = run(backend.apply(&state(), &web_changed())).unwrap();
    assert!(backend.take_commit(&[]).recheck);
}

#[test]
fn an_address_that_the_kernel_refuses_is_reported_and_retried() {
    let mut backend = backend(Options::default());
    backend.kernel.hated_addresses.insert("172.30.0.1".parse().unwrap());
    let (_, skipped) = synced(&mut backend, &state(), &Changes::everything());
    let reason = "failed to add the address 172.30.0.1 to the interface kube-ipvs0: hated".to_owned();
    assert_eq!(skipped, [vips::refused(&ServiceKey::new("default", "web"), reason)]);
    assert!(run(backend.is_undisturbed()).unwrap(), "no other program removed it");
    // The backend does not retry it, but the change stays pending.
    assert_eq!(synced(&mut backend, &state(), &Changes::default()), (vec![], skipped.clone()));
    backend.forget();
    assert_eq!(synced(&mut backend, &state(), &Changes::default()), (vec![], skipped.clone()));
    backend.retry_refused();
    let add = || vec!["addresses +[172.30.0.1] -[]".to_owned()];
    assert_eq!(synced(&mut backend, &state(), &Changes::default()), (add(), skipped));
    assert!(!backend.take_commit(&[]).recheck);
    backend.kernel.hated_addresses.clear();
    backend.retry_refused();
    assert_eq!(synced(&mut backend, &state(), &Changes::default()), (add(), vec![]));
    assert!(backend.take_commit(&[]).recheck, "flows to the address began untranslated");
    assert_eq!(backend.kernel.addresses, Some(["172.30.0.1".parse().unwrap()].into()));
    assert_eq!(synced(&mut backend, &state(), &Changes::default()), (vec![], vec![]));
}

/// A refusal for lack of memory is not the fault of the Service being written: the sync fails, is retried, and skips no Service.
#[test]
fn lack_of_memory_is_blamed_on_no_service() {
    let hate: [fn(&mut FakeKernel); 3] = [
        |kernel| _ = kernel.hated.insert("10.180.1.2:8080".parse().unwrap()),
        // The kernel then refuses its destinations for another reason: their virtual server is missing.
        |kernel| _ = kernel.hated.insert("172.30.0.1:80".parse().unwrap()),
        |kernel| _ = kernel.hated_addresses.insert("172.30.0.1".parse().unwrap()),
    ];
    for hate in hate {
        let mut backend = backend(Options::default());
        backend.kernel.short = true;
        hate(&mut backend.kernel);
        let synced = run(backend.apply(&state(), &Changes::everything())).unwrap();
        assert_eq!((synced.failed.is_empty(), synced.skipped.len(), synced.refused.len()), (false, 0, 0), "{synced:?}");
        backend.kernel.hated.clear();
        backend.kernel.hated_addresses.clear();
        let synced = run(backend.apply(&state(), &Changes::everything())).unwrap();
        assert_eq!((synced.failed.len(), synced.skipped), (0, vec![]));
        assert_eq!(backend.kernel.addresses, Some(["172.30.0.1".parse().unwrap()].into()));
        assert!(backend.kernel.servers.values().all(|fake| fake.destinations.len() == 2));
    }
}

/// The backend removed the VIP of a virtual server from the tables although the kernel still had the virtual server. It then took the
/// virtual server for one of another program, and never deleted it.
#[test]
fn a_virtual_server_that_the_kernel_lacks_the_memory_to_delete_is_deleted_later() {
    let mut backend = backend(Options::default());
    sync(&mut backend, &state(), &Changes::everything());
    let empty = Snapshot { services: Default::default(), ..state() };
    backend.kernel.keeps = true;
    let error = run(backend.apply(&empty, &web_changed())).unwrap_err();
    assert!(format!("{error:#}").contains("Cannot allocate memory"), "{error:#}");
    backend.kernel.keeps = false;
    for mut backend in [restarted(&backend), backend] {
        sync(&mut backend, &empty, &Changes::everything());
        assert_eq!(backend.kernel.servers, Default::default());
    }
}

/// A sync failed before it added the new endpoints. The backend nevertheless deleted the former ones, which still served.
#[test]
fn nothing_drains_after_a_failed_sync() {
    let mut backend = backend(Options::default());
    sync(&mut backend, &state(), &Changes::everything());
    let mut backend = restarted(&backend);
    let before = backend.kernel.servers.clone();
    // Without the NodePort, the sync begins with a deletion.
    let moved = WEB.replace(", nodePort: 30080", "").replace("address: 10.180.", "address: 10.181.");
    let moved: Snapshot = serde_saphyr::from_str(&moved).unwrap();
    backend.kernel.keeps = true;
    run(backend.apply(&moved, &Changes::everything())).unwrap_err();
    backend.kernel.keeps = false;
    run(backend.drain(Duration::ZERO)).unwrap();
    assert_eq!(backend.kernel.servers, before);
    // After a sync, they drain. A deletion that lacks memory is retried.
    sync(&mut backend, &moved, &Changes::everything());
    for (keeps, destinations) in [(true, 4), (false, 2)] {
        backend.kernel.keeps = keeps;
        run(backend.drain(Duration::ZERO)).unwrap();
        assert_eq!(backend.kernel.servers.values().map(|fake| fake.destinations.len()).sum::<usize>(), destinations);
    }
    assert!(!backend.is_draining());
}

/// The kernel lacked the memory for the new endpoints. The backend nevertheless removed the former ones, and the Service had none.
#[test]
fn endpoints_stay_while_the_kernel_lacks_the_memory_for_those_that_replace_them() {
    let mut backend = backend(Options::default());
    sync(&mut backend, &state(), &Changes::everything());
    let before = backend.kernel.servers.clone();
    let moved = Snapshot::clone(&serde_saphyr::from_str(&WEB.replace("address: 10.180.", "address: 10.181.")).unwrap());
    backend.kernel.short = true;
    backend.kernel.hated.extend(["10.181.0.1:8080", "10.181.1.2:8080"].map(|one| one.parse::<SocketAddr>().unwrap()));
    let synced = run(backend.apply(&moved, &web_changed())).unwrap();
    assert_eq!((synced.failed.is_empty(), &backend.kernel.servers), (false, &before));
    backend.kernel.hated.clear();
    sync(&mut backend, &moved, &Changes::everything());
    let serves = |fake: &FakeServer| fake.destinations.values().filter(|(one, _)| one.weight > 0).count();
    assert!(backend.kernel.servers.values().all(|fake| serves(fake) == 2 && fake.destinations.len() == 4));
}

/// Rules kept packets away from a virtual server without destinations. The backend deleted these rules before it added destinations. If
/// the sync failed in between, the Service had no endpoints until the next one.
#[test]
fn an_empty_virtual_server_gets_destinations_before_its_rules_change() {
    let mut backend = backend(Options::default());
    sync(&mut backend, &with_endpoints(0), &Changes::everything());
    let lines = sync(&mut backend, &state(), &web_changed());
    let at = |what: &str| lines.iter().position(|line| line.contains(what)).unwrap();
    assert!(at("-a") < at("rules"), "{lines:#?}");
}

/// Another program deleted our table and our interface, and the Service was deleted before the backend read them again. It took the
/// virtual servers for those of another program, and never deleted them.
#[test]
fn virtual_servers_that_lost_all_marks_are_still_our_own() {
    let mut backend = backend(Options::default());
    sync(&mut backend, &state(), &Changes::everything());
    backend.kernel.nft.tables.clear();
    backend.kernel.addresses = None;
    backend.forget();
    sync(&mut backend, &Snapshot { services: Default::default(), ..state() }, &Changes::everything());
    assert_eq!(backend.kernel.servers, Default::default());
}

/// Every sync without an applied state is a full sync, not only the first one.
#[test]
fn a_lost_table_causes_a_full_sync() {
    let mut backend = backend(Options::default());
    let mut full = |lose: bool| {
        if lose {
            backend.forget();
        }
        run(backend.apply(&state(), &Changes::everything())).unwrap().full
    };
    let both = localnet_proto::Family::BOTH.to_vec();
    assert_eq!([full(false), full(false), full(true)], [both.clone(), vec![], both]);
}

#[test]
fn an_error_about_a_missing_scheduler_names_its_module() {
    let mut backend = backend(Options { scheduler: "mh".parse().unwrap(), ..Options::default() });
    backend.kernel.lacks.insert("mh".to_owned());
    let error = backend.check().unwrap_err().to_string();
    assert!(error.contains("no IPVS scheduler mh: load its module with modprobe ip_vs_mh"), "{error}");
    backend.kernel.lacks.clear();
    backend.check().unwrap();
    assert_eq!(backend.kernel.servers, Default::default(), "the check for the scheduler creates no virtual server");
}

#[test]
fn an_address_of_another_interface_stays_there() {
    let mut backend = backend(Options::default());
    backend.set_local_addresses(vec!["172.30.0.1".parse().unwrap()]);
    sync(&mut backend, &state(), &Changes::everything());
    assert_eq!(backend.kernel.addresses, None);
    assert!(backend.set_local_addresses(vec!["192.168.0.2".parse().unwrap()]));
    assert_eq!(sync(&mut backend, &state(), &Changes::default()), ["rules", "addresses +[172.30.0.1] -[]"]);
    assert!(!backend.set_local_addresses(vec!["192.168.0.3".parse().unwrap()]), "no NodePort depends on this address");
}

#[test]
fn an_annotation_selects_the_scheduler() {
    let named = |name: &str| {
        let mut state = state();
        let web = state.services.get_mut(&ServiceKey::new("default", "web")).unwrap();
        Arc::make_mut(web).ipvs_scheduler = Some(name.into());
        state
    };
    let mut backend = backend(Options::default());
    sync(&mut backend, &state(), &Changes::everything());
    let scheduler = |backend: &IpvsBackend<FakeKernel>| {
        let all: BTreeSet<_> = backend.kernel.servers.values().map(|fake| fake.server.scheduler.to_string()).collect();
        all.into_iter().collect::<Vec<_>>().join(" ")
    };
    let (log, skipped) = synced(&mut backend, &named("maglev"), &web_changed());
    assert_eq!(
        log,
        ["-E -t 172.30.0.1:80 -s mh -b mh-fallback,mh-port; -E -t 192.168.0.2:30080 -s mh -b mh-fallback,mh-port"]
    );
    assert_eq!(skipped, []);
    for (name, reason) in [
        ("sed", "this kernel has no IPVS scheduler sed: load its module with modprobe ip_vs_sed; using rr instead"),
        ("round robin", "\"round robin\" is not the name of an IPVS scheduler"),
        // With this name, the kernel creates virtual servers that refuse all connections.
        ("none", "\"none\" is not the name of an IPVS scheduler"),
    ] {
        backend.kernel.lacks.insert("sed".to_owned());
        let (_, skipped) = synced(&mut backend, &named(name), &web_changed());
        assert_eq!(scheduler(&backend), "rr");
        assert_eq!(skipped.len(), 1, "{skipped:?}");
        assert!(skipped[0].problem.starts_with("annotation localnet.dev/ipvs-scheduler: "), "{skipped:?}");
        assert!(skipped[0].problem.contains(reason), "{skipped:?}");
    }
    assert_eq!(synced(&mut backend, &named("wlc"), &web_changed()).1, []);
    assert_eq!(scheduler(&backend), "wlc");
}

/// The answer to the removal of an unused chain was lost. After each change, the backend tried in vain to remove the chain again.
#[test]
fn an_unused_chain_is_removed_once_even_if_the_answer_is_lost() {
    let (with, without) = (state(), Snapshot { services: std::collections::BTreeMap::new(), ..state() });
    let rules = |log: Vec<String>| log.iter().filter(|line| *line == "rules").count();
    let mut backend = backend(Options::default());
    sync(&mut backend, &with, &Changes::everything());
    let tables = &mut backend.kernel.nft.tables;
    tables.values_mut().for_each(|table| _ = table.chains.insert("old".into(), localnet_linux::nft::Chain::new("old")));
    let mut backend = restarted(&backend);
    // The change itself, the rules of the chain, and the chain.
    backend.kernel.unanswered_after = Some(2);
    // In the other family, whose rules stay: the rules of the chain, and the chain.
    assert_eq!(rules(sync(&mut backend, &without, &Changes::everything())), 5);
    assert_eq!(rules(sync(&mut backend, &with, &web_changed())), 1);
}

#[test]
fn destinations_have_the_weights_of_endpoints_and_a_scheduler_that_ignores_them_is_reported() {
    let weighed = |scheduler: &str| {
        let mut state = state();
        let web = Arc::make_mut(state.services.get_mut(&ServiceKey::new("default", "web")).unwrap());
        web.ipvs_scheduler = Some(scheduler.into());
        web.endpoints[0].weight = localnet_proto::Endpoint::weighing(3);
        state
    };
    let mut backend = backend(Options::default());
    sync(&mut backend, &state(), &Changes::everything());
    let (log, skipped) = synced(&mut backend, &weighed("rr"), &web_changed());
    assert!(log[0].contains("-w 3"), "{log:?}");
    let found: Vec<_> = skipped.iter().map(|of| (of.code, &*of.problem)).collect();
    assert_eq!(found, [(localnet_client::Code::WeightsUnsupported, "the IPVS scheduler rr ignores weights")]);
    assert_eq!(synced(&mut backend, &weighed("wrr"), &web_changed()).1, []);
}

/// A backend crashed before it removed an unused chain. The next one kept the chain until another change.
#[test]
fn a_restart_removes_unused_chains() {
    let mut backend = backend(Options::default());
    sync(&mut backend, &state(), &Changes::everything());
    let before = backend.kernel.nft.tables.clone();
    let tables = &mut backend.kernel.nft.tables;
    tables.values_mut().for_each(|table| _ = table.chains.insert("old".into(), localnet_linux::nft::Chain::new("old")));
    let mut backend = restarted(&backend);
    sync(&mut backend, &state(), &Changes::everything());
    assert_eq!(backend.kernel.nft.tables, before);
}
