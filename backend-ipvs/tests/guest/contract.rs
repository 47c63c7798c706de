//! The contract of IPVS and of the interface with its addresses: what the backend and the simulation rely on. Each behaviour is a
//! function, which runs on the fake kernel of the unit tests and on the real one.

use std::{
    collections::BTreeSet,
    io::ErrorKind,
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    time::{Duration, Instant},
};

use localnet_ipvs::{Host, kernel::Kernel, plan::INTERFACE, testing::FakeKernel};
use localnet_lab::{Network, Protocol, Topology};
use localnet_linux::{
    dummy,
    ipvs::{Change, Connections, Destination, Flags, Frontend, Persistence, ServerState, VirtualServer},
};
use localnet_proto::Family;
use localnet_vm::on_ipvs;
use rustix::net::sockopt;
use tokio::runtime::Runtime;

use crate::repair::run;

/// A node: its kernel, and what its clients and other programs do.
struct Node<P: Place> {
    kernel: P::Kernel,
    place: P,
    runtime: Runtime,
}

/// What happens outside of the backend.
trait Place {
    type Kernel: Kernel;

    /// A client connects to [`VIP`]. Returns the destination.
    fn connect(&mut self, kernel: &mut Self::Kernel) -> SocketAddr;
    /// The oldest connection ends.
    fn disconnect(&mut self, kernel: &mut Self::Kernel);
    /// Another program deletes the interface.
    fn delete_interface(&mut self, kernel: &mut Self::Kernel);
}

/// The connections of the fake kernel, by their destinations.
#[derive(Default)]
struct Fake(Vec<SocketAddr>);

impl Place for Fake {
    type Kernel = FakeKernel;

    fn connect(&mut self, kernel: &mut FakeKernel) -> SocketAddr {
        let to = kernel.connect(&frontend(VIP)).expect("a destination serves the virtual server");
        self.0.push(to);
        to
    }

    fn disconnect(&mut self, kernel: &mut FakeKernel) {
        kernel.disconnect(&frontend(VIP), self.0.remove(0));
    }

    fn delete_interface(&mut self, kernel: &mut FakeKernel) {
        kernel.addresses = None;
    }
}

/// The servers at [`ENDPOINTS`], and the ends of each connection.
struct Real {
    servers: Vec<TcpListener>,
    connections: Vec<[TcpStream; 2]>,
}

impl Place for Real {
    type Kernel = Host;

    fn connect(&mut self, _: &mut Host) -> SocketAddr {
        let client = TcpStream::connect(VIP).unwrap();
        // A reset ends the connection. IPVS forgets it after 10 seconds, but a regular end only after two minutes.
        sockopt::set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
        let began = Instant::now();
        loop {
            for server in &self.servers {
                match server.accept() {
                    Ok((stream, _)) => {
                        self.connections.push([client, stream]);
                        return server.local_addr().unwrap();
                    }
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
            }
            assert!(began.elapsed() < PATIENCE, "no server has the connection");
            std::thread::yield_now();
        }
    }

    fn disconnect(&mut self, _: &mut Host) {
        self.connections.remove(0);
    }

    fn delete_interface(&mut self, _: &mut Host) {
        run(&format!("ip link delete {INTERFACE}"));
    }
}

const PATIENCE: Duration = Duration::from_secs(120);

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn on_the_fake(behaviour: impl Fn(&mut Node<Fake>)) {
    let kernel = FakeKernel { lacks: [LACKING.to_owned()].into(), ..FakeKernel::default() };
    behaviour(&mut Node { kernel, place: Fake::default(), runtime: runtime() });
}

fn on_the_kernel(behaviour: fn(&mut Node<Real>)) {
    let network = Network::build(Topology::default()).unwrap();
    let work = || {
        for address in [VIP, ENDPOINTS[0], ENDPOINTS[1]] {
            run(&format!("ip address add {}/32 dev lo", address.split(':').next().unwrap()));
        }
        let listen = |at: &&str| {
            let server = TcpListener::bind(*at).unwrap();
            server.set_nonblocking(true).unwrap();
            server
        };
        let place = Real { servers: ENDPOINTS.iter().map(listen).collect(), connections: Vec::new() };
        let runtime = runtime();
        let kernel = runtime.block_on(async { Host::open() })?;
        behaviour(&mut Node { kernel, place, runtime });
        Ok(())
    };
    network.node().run(work).unwrap();
}

macro_rules! contract {
    ($($behaviour:ident),+ $(,)?) => {
        mod fake {
            $(#[test] fn $behaviour() { super::on_the_fake(|node| super::$behaviour(node)); })+
        }

        mod kernel {
            $(#[test] fn $behaviour() { super::on_ipvs(|| super::on_the_kernel(super::$behaviour)); })+
        }
    };
}

contract! {
    objects_are_read_back_as_they_were_written,
    a_change_is_refused_by_the_existence_of_its_object,
    a_missing_scheduler_is_reported_for_existing_objects_only,
    a_destination_with_an_invalid_address_or_number_is_refused,
    a_virtual_server_is_deleted_with_its_destinations,
    changes_keep_connections,
    a_destination_without_weight_gets_no_connections_and_drains,
    a_destination_that_returns_has_its_connections_again,
    addresses_may_be_added_and_removed_twice,
    a_refused_address_stops_no_other,
    a_deleted_interface_is_reported_once,
}

const VIP: &str = "10.96.0.1:80";
const ENDPOINTS: [&str; 2] = ["10.244.0.1:8080", "10.244.0.2:8080"];
/// A scheduler that no kernel has. `none` is not one: it means "without a scheduler".
const LACKING: &str = "absent";

const NO_ENTRY: i32 = 2;
const NO_SERVER: i32 = 3;
const EXISTS: i32 = 17;
const INVALID: i32 = 22;
const RANGE: i32 = 34;

fn frontend(at: &str) -> Frontend {
    Frontend::new(Protocol::Tcp, at.parse().unwrap())
}

fn server(at: &str, scheduler: &str) -> VirtualServer {
    VirtualServer::new(frontend(at), scheduler.parse().unwrap())
}

fn destination(at: &str, weight: u32) -> Destination {
    Destination::masqueraded(at.parse().unwrap(), weight)
}

fn add(destination: Destination) -> Change {
    Change::AddDestination(frontend(VIP), destination)
}

fn delete(at: &str) -> Change {
    Change::DeleteDestination(frontend(VIP), at.parse().unwrap())
}

impl<P: Place> Node<P> {
    /// Applies the changes. The kernel must refuse those with an error number.
    #[track_caller]
    fn change(&mut self, changes: impl IntoIterator<Item = (Change, Option<i32>)>) {
        let (changes, expected): (Vec<_>, Vec<_>) = changes.into_iter().unzip();
        let applied = self.kernel.change(&changes).unwrap();
        let mut errnos = vec![None; changes.len()];
        applied.refused.iter().for_each(|refused| errnos[refused.change] = Some(refused.errno));
        assert_eq!((applied.changes, errnos), (changes.len(), expected), "{changes:?}");
    }

    /// Applies the changes, of which the kernel must refuse none.
    #[track_caller]
    fn make(&mut self, changes: impl IntoIterator<Item = Change>) {
        self.change(changes.into_iter().map(|change| (change, None)));
    }

    /// The virtual servers with their sorted destinations.
    fn states(&mut self) -> Vec<ServerState> {
        let mut states = self.kernel.servers().unwrap();
        states.iter_mut().for_each(|state| state.destinations.sort_by_key(|one| one.destination.address));
        let heads: Vec<_> = states.iter().map(|state| state.server.clone()).collect();
        assert_eq!(self.kernel.heads().unwrap(), heads);
        states
    }

    /// The weight and the number of active connections of each destination of [`VIP`], sorted by address.
    fn active(&mut self) -> Vec<(u32, u32)> {
        let mut states = self.kernel.destinations(&frontend(VIP)).unwrap();
        states.sort_by_key(|one| one.destination.address);
        states.iter().map(|one| (one.destination.weight, one.connections.active)).collect()
    }

    fn connect(&mut self) -> SocketAddr {
        self.place.connect(&mut self.kernel)
    }

    fn bind(&mut self, add: &[&str], remove: &[&str]) -> Result<dummy::Changed, dummy::Error> {
        let parsed = |all: &[&str]| all.iter().map(|address| address.parse().unwrap()).collect();
        self.runtime.block_on(self.kernel.bind(parsed(add), parsed(remove)))
    }

    fn addresses(&mut self) -> Option<BTreeSet<IpAddr>> {
        self.runtime.block_on(self.kernel.addresses()).unwrap()
    }
}

fn objects_are_read_back_as_they_were_written<P: Place>(node: &mut Node<P>) {
    let servers = [
        server(VIP, "rr"),
        VirtualServer {
            flags: Flags::SCHEDULER_1.with(Flags::SCHEDULER_2),
            persistence: Some(Persistence::of_addresses(Family::V4, 10_800)),
            ..server("10.96.0.2:80", "mh")
        },
        VirtualServer {
            persistence: Some(Persistence::of_addresses(Family::V6, 1)),
            frontend: Frontend::new(Protocol::Udp, "[fd00:96::1]:53".parse().unwrap()),
            ..server(VIP, "wrr")
        },
    ];
    let destinations = [
        (servers[0].frontend, destination(ENDPOINTS[0], 0)),
        (servers[0].frontend, destination(ENDPOINTS[1], i32::MAX.cast_unsigned())),
        (
            servers[2].frontend,
            Destination { upper_threshold: 9, lower_threshold: 3, ..destination("[fd00:10::1]:53", 1) },
        ),
    ];
    node.make(servers.iter().cloned().map(Change::AddServer));
    node.make(destinations.map(|(of, one)| Change::AddDestination(of, one)));
    let states = node.states();
    let of = |frontend| destinations.iter().filter(move |(of, _)| *of == frontend).map(|(_, one)| *one);
    for server in &servers {
        let state = states.iter().find(|state| state.server.frontend == server.frontend).unwrap();
        assert_eq!(state.server, *server);
        let read: Vec<_> = state.destinations.iter().map(|one| one.destination).collect();
        assert_eq!(read, of(server.frontend).collect::<Vec<_>>());
        assert!(state.destinations.iter().all(|one| one.connections == Connections::default()));
    }
    assert_eq!(states.len(), servers.len());
    assert_eq!(node.kernel.destinations(&frontend("10.96.0.9:80")).unwrap(), []);
}

/// A refused change also stops no other change of the same batch.
fn a_change_is_refused_by_the_existence_of_its_object<P: Place>(node: &mut Node<P>) {
    let (vip, other) = (frontend(VIP), frontend("10.96.0.9:80"));
    let one = destination(ENDPOINTS[0], 1);
    node.change([
        (add(one), Some(NO_SERVER)),
        (Change::AddServer(server(VIP, "rr")), None),
        (Change::AddServer(server(VIP, "wrr")), Some(EXISTS)),
        (Change::UpdateDestination(vip, one), Some(NO_ENTRY)),
        (delete(ENDPOINTS[0]), Some(NO_ENTRY)),
        (add(one), None),
        (add(Destination { weight: 7, ..one }), Some(EXISTS)),
        (Change::UpdateServer(server("10.96.0.9:80", "rr")), Some(NO_SERVER)),
        (Change::DeleteServer(other), Some(NO_SERVER)),
        (Change::UpdateDestination(other, one), Some(NO_SERVER)),
        (Change::DeleteDestination(other, one.address), Some(NO_SERVER)),
    ]);
    let states = node.states();
    assert_eq!((states.len(), &states[0].server), (1, &server(VIP, "rr")));
    assert_eq!(node.active(), [(1, 0)]);
}

fn a_missing_scheduler_is_reported_for_existing_objects_only<P: Place>(node: &mut Node<P>) {
    node.change([
        (Change::AddServer(server(VIP, LACKING)), Some(NO_ENTRY)),
        (Change::UpdateServer(server(VIP, LACKING)), Some(NO_SERVER)),
        (Change::AddServer(server(VIP, "rr")), None),
        (Change::AddServer(server(VIP, LACKING)), Some(EXISTS)),
        (Change::UpdateServer(server(VIP, LACKING)), Some(NO_ENTRY)),
    ]);
    assert_eq!(node.states()[0].server, server(VIP, "rr"));
}

fn a_destination_with_an_invalid_address_or_number_is_refused<P: Place>(node: &mut Node<P>) {
    let thresholds = Destination { upper_threshold: 1, lower_threshold: 2, ..destination(ENDPOINTS[0], 1) };
    node.make([Change::AddServer(server(VIP, "rr")), add(destination(ENDPOINTS[0], 1))]);
    node.change([
        (add(destination("224.0.0.1:8080", 1)), Some(INVALID)),
        (add(destination("[fd00:10::1]:8080", 1)), Some(INVALID)),
        (add(destination(ENDPOINTS[1], 1 << 31)), Some(RANGE)),
        (Change::UpdateDestination(frontend(VIP), thresholds), Some(RANGE)),
    ]);
    assert_eq!(node.active(), [(1, 0)]);
}

fn a_virtual_server_is_deleted_with_its_destinations<P: Place>(node: &mut Node<P>) {
    let all = [Change::AddServer(server(VIP, "rr")), add(destination(ENDPOINTS[0], 1))];
    node.make(all);
    node.make([Change::DeleteServer(frontend(VIP)), Change::AddServer(server(VIP, "rr"))]);
    assert_eq!(node.active(), []);
}

fn changes_keep_connections<P: Place>(node: &mut Node<P>) {
    node.make([Change::AddServer(server(VIP, "rr")), add(destination(ENDPOINTS[0], 1))]);
    assert_eq!(node.connect(), ENDPOINTS[0].parse().unwrap());
    let persistent = Some(Persistence::of_addresses(Family::V4, 60));
    node.make([Change::UpdateServer(VirtualServer { persistence: persistent, ..server(VIP, "wrr") })]);
    node.make([Change::UpdateDestination(frontend(VIP), destination(ENDPOINTS[0], 5))]);
    assert_eq!(node.active(), [(5, 1)]);
}

fn a_destination_without_weight_gets_no_connections_and_drains<P: Place>(node: &mut Node<P>) {
    node.make([Change::AddServer(server(VIP, "rr")), add(destination(ENDPOINTS[0], 1))]);
    node.connect();
    node.make([
        Change::UpdateDestination(frontend(VIP), destination(ENDPOINTS[0], 0)),
        add(destination(ENDPOINTS[1], 1)),
    ]);
    for connections in 1..4 {
        assert_eq!(node.connect(), ENDPOINTS[1].parse().unwrap());
        assert_eq!(node.active(), [(0, 1), (1, connections)]);
    }
    node.place.disconnect(&mut node.kernel);
    let began = Instant::now();
    loop {
        let states = node.kernel.destinations(&frontend(VIP)).unwrap();
        let drains = states.iter().find(|one| one.destination.weight == 0).unwrap();
        if drains.connections.is_drained() {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "{drains:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
    node.make([delete(ENDPOINTS[0])]);
    assert_eq!(node.active(), [(1, 3)]);
}

/// The kernel keeps deleted destinations while they have connections, also those of a deleted virtual server.
fn a_destination_that_returns_has_its_connections_again<P: Place>(node: &mut Node<P>) {
    let all = || [Change::AddServer(server(VIP, "rr")), add(destination(ENDPOINTS[0], 1))];
    node.make(all());
    node.connect();
    node.make([delete(ENDPOINTS[0])]);
    assert_eq!(node.active(), []);
    node.make([add(destination(ENDPOINTS[0], 3))]);
    assert_eq!(node.active(), [(3, 1)]);
    node.make([Change::DeleteServer(frontend(VIP))]);
    node.make(all());
    assert_eq!(node.active(), [(1, 1)]);
}

fn addresses_may_be_added_and_removed_twice<P: Place>(node: &mut Node<P>) {
    let set = |all: &[&str]| all.iter().map(|address| address.parse().unwrap()).collect::<BTreeSet<IpAddr>>();
    let [one, two, v6] = ["10.96.0.7", "10.96.0.8", "fd00:96::7"];
    assert_eq!(node.addresses(), None);
    let changed = node.bind(&[one, v6], &[two]).unwrap();
    assert_eq!((changed.added, changed.removed, changed.refused.len()), (2, 0, 0));
    assert_eq!(node.addresses(), Some(set(&[one, v6])));
    let changed = node.bind(&[one, two], &[v6]).unwrap();
    assert_eq!((changed.added, changed.removed, changed.refused.len()), (1, 1, 0));
    assert_eq!(node.addresses(), Some(set(&[one, two])));
    // The interface stays without addresses, until it is deleted.
    assert_eq!(node.bind(&[], &[one, two]).unwrap().removed, 2);
    assert_eq!(node.addresses(), Some(set(&[])));
    for _ in 0..2 {
        node.runtime.block_on(node.kernel.delete_interface()).unwrap();
        assert_eq!(node.addresses(), None);
    }
}

fn a_refused_address_stops_no_other<P: Place>(node: &mut Node<P>) {
    let changed = node.bind(&["ff02::7", "fd00:96::7"], &[]).unwrap();
    let refused: Vec<_> = changed.refused.iter().map(|refused| (refused.address, refused.is_shortage)).collect();
    assert_eq!(refused, [("ff02::7".parse().unwrap(), false)]);
    assert_eq!(node.addresses(), Some(["fd00:96::7".parse().unwrap()].into()));
}

fn a_deleted_interface_is_reported_once<P: Place>(node: &mut Node<P>) {
    let add = |node: &mut Node<P>, address| node.bind(&[address], &[]).map(drop);
    add(node, "10.96.0.7").unwrap();
    node.place.delete_interface(&mut node.kernel);
    let error = add(node, "10.96.0.8").unwrap_err();
    assert!(matches!(error, dummy::Error::Deleted { .. }), "{error}");
    add(node, "10.96.0.8").unwrap();
    assert_eq!(node.addresses(), Some(["10.96.0.8".parse().unwrap()].into()));
    // A backend that has seen that the interface is missing creates it.
    node.place.delete_interface(&mut node.kernel);
    assert_eq!(node.addresses(), None);
    add(node, "10.96.0.9").unwrap();
    assert_eq!(node.addresses(), Some(["10.96.0.9".parse().unwrap()].into()));
}
