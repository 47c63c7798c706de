//! Session affinity with real clients and real connections.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    process::Command,
    sync::Arc,
    time::Instant,
};

use localnet_client::Synced;
use localnet_lab::{Endpoint, Network, Outcome, Probe, Protocol, Servers, Topology};
use localnet_nft::{LinuxBackend as _, Netlink, NftBackend};
use localnet_proto::{Changes, Service, ServiceKey, Snapshot};

use super::{
    config, list,
    live::{Live, PATIENCE},
    load, network, sorted, sync,
};

const ENDPOINTS: [&str; 3] = ["10.180.0.1", "10.180.1.2", "10.180.1.3"];
const CLIENTS: u8 = 12;
const CONNECTIONS: usize = 6;

struct World {
    network: Arc<Network>,
    _servers: Servers,
}

/// The endpoint that answered each client.
type Ends = BTreeMap<u8, SocketAddr>;

impl World {
    fn build() -> Self {
        let clients: Vec<String> = (0..CLIENTS).map(client).collect();
        let pods = ENDPOINTS.into_iter().chain(clients.iter().map(String::as_str));
        let network = Network::build(Topology::with_pods(pods).unwrap()).unwrap();
        let pairs = ENDPOINTS.map(|text| localnet_lab::Pod::at(text.parse().unwrap()).unwrap().addresses());
        let endpoints = pairs.into_iter().flatten().flat_map(|ip| {
            [(Protocol::Tcp, 8080), (Protocol::Udp, 5353)]
                .map(|(protocol, port)| Endpoint { protocol, address: SocketAddr::new(ip, port) })
        });
        let servers = Servers::start(&network, endpoints).unwrap();
        Self { network: Arc::new(network), _servers: servers }
    }

    fn apply(&self, backend: &mut NftBackend<Netlink>, state: &Snapshot) {
        self.network.node().run(|| backend.apply(state, &Changes::everything())).unwrap().whole().unwrap();
    }

    fn backend(&self) -> NftBackend<Netlink> {
        self.network.node().run(|| Ok(NftBackend::new(config(), Netlink::open()?))).unwrap()
    }

    fn connect(&self, number: u8, protocol: Protocol, to: &str) -> SocketAddr {
        let client = self.network.pod(client(number).parse().unwrap()).unwrap();
        match client.probe(Probe::new(protocol, to.parse().unwrap())).unwrap() {
            Outcome::Answer { by, .. } => by,
            other => panic!("{other}"),
        }
    }

    /// Opens one connection from every client.
    fn ends(&self, protocol: Protocol, to: &str) -> Ends {
        (0..CLIENTS).map(|number| (number, self.connect(number, protocol, to))).collect()
    }

    fn elements(&self, set: &str) -> String {
        self.network.node().output(Command::new("nft").args(["list", "set", "ip", "localnet", set])).unwrap()
    }
}

fn client(number: u8) -> String {
    format!("10.180.0.{}", 20 + number)
}

const TCP: &str = "172.30.0.20:80";
const UDP: &str = "172.30.0.20:53";
const TCP6: &str = "[fd00:172:30::20]:80";

/// A Service with these endpoints, in both families.
fn state(endpoints: &[&str], seconds: Option<u32>) -> Snapshot {
    let ports = "ports: [{name: dns, port: 5353}, {name: web, port: 8080}]";
    let scopes = "scopes: {internal: true, external: true, shortCircuit: true}";
    let both = endpoints.iter().flat_map(|text| {
        let [v4, v6] = localnet_lab::Pod::at(text.parse().unwrap()).unwrap().addresses();
        [v4, v6].map(|address| format!("{{address: \"{address}\", {ports}, {scopes}}}"))
    });
    let affinity = seconds.map(|seconds| format!("clientIpAffinity: {seconds},")).unwrap_or_default();
    let text = format!(
        "{{node: {{name: node-a, addresses: [192.168.0.2, \"2001:db8::2\"]}}, services: [{{service: default/sticky,
        type: ClusterIP, clusterIPs: [172.30.0.20, \"fd00:172:30::20\"], {affinity}
        ports: [{{name: dns, protocol: UDP, port: 53}}, {{name: web, protocol: TCP, port: 80}}], endpoints: [{}]}}]}}",
        both.collect::<Vec<_>>().join(", ")
    );
    serde_saphyr::from_str(&text).unwrap()
}

fn used(ends: &Ends) -> BTreeSet<IpAddr> {
    ends.values().map(SocketAddr::ip).collect()
}

#[test]
fn each_client_stays_with_one_endpoint_while_the_tables_are_listed() {
    let world = World::build();
    let mut backend = world.backend();
    world.apply(&mut backend, &state(&ENDPOINTS[..2], Some(10_800)));
    for (protocol, to) in [(Protocol::Tcp, TCP), (Protocol::Udp, UDP), (Protocol::Tcp, TCP6)] {
        let first = world.ends(protocol, to);
        assert_eq!(used(&first).len(), 2, "12 clients use both endpoints: {first:?}");
        for _ in 1..CONNECTIONS {
            assert_eq!(world.ends(protocol, to), first, "{to}");
        }
    }
    let node = world.network.node();
    let listing = list(node);
    assert_eq!(listing.matches("timeout 3h expires").count(), 3 * usize::from(CLIENTS), "{listing}");
    let json = node.output(Command::new("nft").args(["-j", "list", "ruleset"])).unwrap();
    assert!(json.contains("affinity-1"), "{json}");
    let again = network();
    load(again.node(), &listing);
    let timeless = |listing: &str| {
        let lines = sorted(listing).into_iter();
        lines.map(|line| line.split(" expires").next().unwrap_or_default().to_owned()).collect::<BTreeSet<_>>()
    };
    assert_eq!(timeless(&list(again.node())), timeless(&listing));
}

/// kube-proxy remembers a client for each port of a Service, whichever address it connects to. localnet once did so for
/// each address.
#[test]
fn a_client_has_one_endpoint_for_all_addresses_of_a_port() {
    let world = World::build();
    let mut backend = world.backend();
    let mut state = state(&ENDPOINTS, Some(10_800));
    for service in state.services.values_mut() {
        let service = Arc::make_mut(service);
        service.external_ips = ["1.2.3.20", "2001:db8:77::20"].map(|address| address.parse().unwrap()).into();
        service.load_balancer_ips = vec!["1.2.3.21".parse().unwrap()];
        service.ports[1].node_port = Some(30_080);
    }
    world.apply(&mut backend, &state);
    for of_one_port in [
        &[TCP, "1.2.3.20:80", "1.2.3.21:80", "192.168.0.2:30080"][..],
        &[TCP6, "[2001:db8:77::20]:80", "[2001:db8::2]:30080"],
    ] {
        // For each address, some clients connect to it first.
        let first: Ends = (0..CLIENTS)
            .map(|number| {
                let to = of_one_port[usize::from(number) % of_one_port.len()];
                (number, world.connect(number, Protocol::Tcp, to))
            })
            .collect();
        assert!(used(&first).len() > 1, "{first:?}");
        for to in of_one_port {
            assert_eq!(world.ends(Protocol::Tcp, to), first, "{to}");
        }
        let mut backend = world.backend();
        world.apply(&mut backend, &state);
        for to in of_one_port {
            assert_eq!(world.ends(Protocol::Tcp, to), first, "{to}, after a restart");
        }
    }
    let listing = list(world.network.node());
    assert_eq!(listing.matches("timeout 3h expires").count(), 2 * usize::from(CLIENTS), "{listing}");
}

/// Regression: after a timeout of hours was changed to a second, its clients stayed for hours. In kube-proxy's iptables
/// mode the new timeout counts at once, from each client's last connection. In kube-proxy's nftables
/// mode, the new timeout counts only from the next connection.
#[test]
fn a_changed_timeout_counts_at_once() {
    let world = World::build();
    let mut backend = world.backend();
    world.apply(&mut backend, &state(&ENDPOINTS, Some(10_800)));
    let first = world.ends(Protocol::Tcp, TCP);
    world.apply(&mut backend, &state(&ENDPOINTS, Some(600)));
    let remembered: Vec<String> = (0..3).map(|slot| world.elements(&format!("affinity-{slot}"))).collect();
    let count = |text: &str| remembered.iter().map(|set| set.matches(text).count()).sum::<usize>();
    assert_eq!((count("timeout 10m expires 9m"), count("timeout 3h")), (usize::from(CLIENTS), 0), "{remembered:?}");
    world.apply(&mut backend, &state(&ENDPOINTS, Some(7200)));
    assert_eq!(world.ends(Protocol::Tcp, TCP), first, "no client's timeout has passed");

    world.apply(&mut backend, &state(&ENDPOINTS, Some(1)));
    let deadline = Instant::now() + PATIENCE;
    while (0..3).any(|slot| world.elements(&format!("affinity-{slot}")).contains("expires")) {
        assert!(Instant::now() < deadline, "clients are remembered for the previous timeout");
    }
    assert_ne!(world.ends(Protocol::Tcp, TCP), first, "equal by chance once in 500,000 runs");
}

#[test]
fn only_clients_of_a_removed_endpoint_move() {
    let world = World::build();
    let mut backend = world.backend();
    world.apply(&mut backend, &state(&ENDPOINTS[..2], Some(10_800)));
    let first = world.ends(Protocol::Tcp, TCP);

    world.apply(&mut backend, &state(&ENDPOINTS, Some(10_800)));
    assert_eq!(world.ends(Protocol::Tcp, TCP), first, "one more endpoint moves no client");
    let mut backend = world.backend();
    world.apply(&mut backend, &state(&ENDPOINTS, Some(10_800)));
    assert_eq!(world.ends(Protocol::Tcp, TCP), first, "another process moves no client");
    world.apply(&mut backend, &crowded(state(&ENDPOINTS, Some(10_800))));
    assert!(list(world.network.node()).contains("size 16384"));
    assert_eq!(world.ends(Protocol::Tcp, TCP), first, "growing maps move no client");

    let gone: IpAddr = ENDPOINTS[0].parse().unwrap();
    world.apply(&mut backend, &state(&ENDPOINTS[1..], Some(10_800)));
    assert!(!world.elements("affinity-0").contains("expires"), "clients of slot 0 are forgotten");
    let second = world.ends(Protocol::Tcp, TCP);
    for (number, before) in &first {
        let after = second[number];
        assert!(if before.ip() == gone { after.ip() != gone } else { after == *before }, "{before} {after}");
    }
    world.apply(&mut backend, &state(&ENDPOINTS, Some(10_800)));
    assert_eq!(world.ends(Protocol::Tcp, TCP), second, "a returning endpoint gets no former client");
    assert_eq!(sync(world.network.node(), &config(), &state(&ENDPOINTS, Some(10_800))), []);
}

/// Adds so many Services that every map must grow.
fn crowded(mut state: Snapshot) -> Snapshot {
    let service = Service::clone(&state.services[&ServiceKey::new("default", "sticky")]);
    for index in 0..2500_u32 {
        let key = ServiceKey::new("crowd", format!("s{index}"));
        let cluster_ips = vec![IpAddr::V4((0xac1e_1000 + index).into())];
        let service = Service { key: key.clone(), cluster_ips, client_ip_affinity: None, ..service.clone() };
        state.services.insert(key, Arc::new(service));
    }
    state
}

#[test]
fn clients_are_forgotten_after_the_timeout() {
    let world = World::build();
    world.apply(&mut world.backend(), &state(&ENDPOINTS[..2], Some(1)));
    let deadline = Instant::now() + PATIENCE;
    let first = world.ends(Protocol::Tcp, TCP);
    // A client may get the same endpoint again by chance.
    while world.ends(Protocol::Tcp, TCP) == first {
        while ["affinity-0", "affinity-1"].iter().any(|set| world.elements(set).contains("expires")) {
            assert!(Instant::now() < deadline, "clients are never forgotten");
        }
        assert!(Instant::now() < deadline, "no client ever moves");
    }
}

#[test]
fn connections_work_even_if_the_set_of_clients_is_full() {
    let world = World::build();
    let node = world.network.node();
    world.apply(&mut world.backend(), &state(&ENDPOINTS[..2], Some(10_800)));
    // The same table with space for two clients in each slot.
    let small = list(node).replace("size 65536", "size 2");
    node.output(Command::new("nft").args(["flush", "ruleset"])).unwrap();
    load(node, &small);
    for _ in 0..3 {
        world.ends(Protocol::Tcp, TCP);
    }
    for slot in 0..2 {
        let remembered = world.elements(&format!("affinity-{slot}")).matches("expires").count();
        assert_eq!(remembered, 2);
    }
}

#[test]
fn switching_off_affinity_removes_all_its_objects() {
    let world = World::build();
    let mut backend = world.backend();
    for seconds in [Some(10_800), None, Some(60)] {
        world.apply(&mut backend, &state(&ENDPOINTS, seconds));
        let ends = world.ends(Protocol::Tcp, TCP);
        assert_eq!(world.ends(Protocol::Tcp, TCP) == ends, seconds.is_some());
        let fresh = network();
        sync(fresh.node(), &config(), &state(&ENDPOINTS, seconds));
        let objects = |listing: &str| {
            let lines = listing.lines().filter(|line| line.ends_with('{')).map(|line| line.trim().to_owned());
            lines.collect::<BTreeSet<_>>()
        };
        assert_eq!(objects(&list(world.network.node())), objects(&list(fresh.node())), "{seconds:?}");
    }
}

#[test]
fn a_flush_by_another_program_is_repaired() {
    let world = World::build();
    let mut backend = world.backend();
    world.apply(&mut backend, &state(&ENDPOINTS, Some(10_800)));
    let first = world.ends(Protocol::Tcp, TCP);
    let node = world.network.node();
    let nft = |arguments: &str| node.output(Command::new("nft").args(arguments.split(' '))).unwrap();
    nft("flush chain ip localnet affinity");
    nft("flush map ip localnet affinity-picks");
    nft("flush map ip localnet affinity-vips");
    backend.forget();
    world.apply(&mut backend, &state(&ENDPOINTS, Some(10_800)));
    assert_eq!(world.ends(Protocol::Tcp, TCP), first, "clients keep their endpoints");
}

#[test]
fn new_and_expired_clients_cause_no_sync() {
    let world = World::build();
    let state = state(&ENDPOINTS, Some(1));
    let live = Live::start(&world.network, config(), state.clone());
    let deadline = Instant::now() + PATIENCE;
    world.ends(Protocol::Tcp, TCP);
    while (0..3).any(|slot| world.elements(&format!("affinity-{slot}")).contains("expires")) {
        assert!(Instant::now() < deadline, "clients are never forgotten");
    }
    assert_eq!(live.set(state), 1, "no sync but this one");
}

/// Regression: a packet that had read a number of slots found no chain for it, because the same transaction had removed the chain's
/// element.
#[test]
fn no_connection_fails_while_endpoints_come_and_go() {
    [None, Some(10_800)].into_iter().for_each(connections_while_endpoints_change);
}

fn connections_while_endpoints_change(seconds: Option<u32>) {
    let world = World::build();
    let mut backend = world.backend();
    let states = [&ENDPOINTS[..2], &ENDPOINTS[1..], &ENDPOINTS[..], &ENDPOINTS[2..]].map(|some| state(some, seconds));
    world.apply(&mut backend, &states[0]);
    let done = std::sync::atomic::AtomicBool::new(false);
    let connections: usize = std::thread::scope(|scope| {
        let (world, done) = (&world, &done);
        let clients: Vec<_> = (0..4)
            .map(|number| {
                scope.spawn(move || {
                    let to = if number % 2 == 0 { TCP } else { TCP6 };
                    let mut count = 0;
                    while !done.load(std::sync::atomic::Ordering::Relaxed) {
                        world.connect(number, Protocol::Tcp, to);
                        count += 1;
                    }
                    count
                })
            })
            .collect();
        let changes = world.network.node().run(|| {
            (0..400)
                .try_for_each(|turn| backend.apply(&states[turn % 4], &Changes::everything()).and_then(Synced::whole))
        });
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        changes.unwrap();
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    });
    assert!(connections > 100, "{connections}");
    let used: BTreeSet<_> = (0..CLIENTS).map(|number| world.connect(number, Protocol::Tcp, TCP)).collect();
    assert_eq!(used.len(), 1, "one endpoint is left");
}
