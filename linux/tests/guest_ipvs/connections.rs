//! The kernel's counts of connections through virtual servers, which decide when a destination is drained.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use localnet_core::{Family, Protocol};
use localnet_linux::ipvs::{Change, Connections, Persistence, Socket, VirtualServer};
use localnet_vm::on_ipvs;

use crate::namespace::run;
use crate::servers::{apply, destination, frontend, isolated, server};

/// A timeout that no step reaches.
const PATIENCE: Duration = Duration::from_secs(20);

/// Addresses of virtual servers and destinations, all in this namespace.
const NETWORK: &str = "
addr add 10.96.0.1/32 dev lo
addr add 10.244.0.1/32 dev lo
addr add 10.244.0.2/32 dev lo
addr add fd00:96::1/128 dev lo nodad
addr add fd00:10::1/128 dev lo nodad
addr add fd00:10::2/128 dev lo nodad
";

/// The connections of the destinations, by address.
fn connections(socket: &mut Socket, protocol: Protocol, at: &str) -> Vec<(SocketAddr, u32, Connections)> {
    let states = socket.destinations(&frontend(protocol, at)).unwrap();
    let mut counts: Vec<_> =
        states.iter().map(|state| (state.destination.address, state.destination.weight, state.connections)).collect();
    counts.sort_by_key(|(address, ..)| *address);
    counts
}

/// Waits for these counts. The kernel counts a closed connection a moment after its last packet.
#[track_caller]
fn await_connections(socket: &mut Socket, at: &str, expected: &[(&str, u32, [u32; 3])]) {
    let expected: Vec<_> = expected
        .iter()
        .map(|(address, weight, [active, inactive, persistent])| {
            let counts = Connections { active: *active, inactive: *inactive, persistent: *persistent };
            (address.parse().unwrap(), *weight, counts)
        })
        .collect();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let counts = connections(socket, Protocol::Tcp, at);
        if counts == expected {
            return;
        }
        assert!(Instant::now() < deadline, "{counts:?} instead of {expected:?}");
        std::thread::yield_now();
    }
}

fn exchange(client: &mut TcpStream, server: &mut TcpStream) {
    client.write_all(b"x").unwrap();
    let mut byte = [0];
    server.read_exact(&mut byte).unwrap();
    server.write_all(b"y").unwrap();
    client.read_exact(&mut byte).unwrap();
}

#[test]
fn a_destination_with_weight_zero_keeps_its_connections_and_drains() {
    on_ipvs(|| {
        isolated(|| {
            run("ip", &["-batch", "-"], NETWORK);
            for (vip, one, two) in [
                ("10.96.0.1:80", "10.244.0.1:8080", "10.244.0.2:8080"),
                ("[fd00:96::1]:80", "[fd00:10::1]:8080", "[fd00:10::2]:8080"),
            ] {
                let of = frontend(Protocol::Tcp, vip);
                let mut socket = Socket::open().unwrap();
                let changes = [
                    Change::AddServer(server(Protocol::Tcp, vip, "rr")),
                    Change::AddDestination(of, destination(one, 1)),
                ];
                apply(&mut socket, &changes);
                let first = TcpListener::bind(one).unwrap();
                let second = TcpListener::bind(two).unwrap();

                let mut client = TcpStream::connect(vip).unwrap();
                let (mut served, _) = first.accept().unwrap();
                exchange(&mut client, &mut served);
                await_connections(&mut socket, vip, &[(one, 1, [1, 0, 0])]);

                let changes = [
                    Change::UpdateDestination(of, destination(one, 0)),
                    Change::AddDestination(of, destination(two, 1)),
                ];
                apply(&mut socket, &changes);
                // The old connection stays, and a new one goes to the other destination.
                exchange(&mut client, &mut served);
                let mut other = TcpStream::connect(vip).unwrap();
                let (mut elsewhere, _) = second.accept().unwrap();
                exchange(&mut other, &mut elsewhere);
                await_connections(&mut socket, vip, &[(one, 0, [1, 0, 0]), (two, 1, [1, 0, 0])]);

                drop((client, served));
                await_connections(&mut socket, vip, &[(one, 0, [0, 1, 0]), (two, 1, [1, 0, 0])]);
                let drained = connections(&mut socket, Protocol::Tcp, vip)[0].2;
                assert!(!drained.is_drained(), "the kernel still counts the closed connection");
                apply(&mut socket, &[Change::DeleteDestination(of, one.parse().unwrap())]);
                exchange(&mut other, &mut elsewhere);
            }
        });
    });
}

#[test]
fn datagrams_count_as_inactive_and_bound_clients_as_persistent() {
    on_ipvs(|| {
        isolated(|| {
            run("ip", &["-batch", "-"], NETWORK);
            let of = frontend(Protocol::Udp, "10.96.0.1:53");
            let mut socket = Socket::open().unwrap();
            let persistent = VirtualServer {
                persistence: Some(Persistence::of_addresses(Family::V4, 10800)),
                ..server(Protocol::Udp, "10.96.0.1:53", "rr")
            };
            let changes = [
                Change::AddServer(persistent),
                Change::AddDestination(of, destination("10.244.0.1:5353", 1)),
                Change::AddDestination(of, destination("10.244.0.2:5353", 1)),
            ];
            apply(&mut socket, &changes);
            let servers = ["10.244.0.1:5353", "10.244.0.2:5353"].map(|at| UdpSocket::bind(at).unwrap());
            for server in &servers {
                server.set_nonblocking(true).unwrap();
            }
            let clients = [(); 5].map(|()| UdpSocket::bind("10.244.0.1:0").unwrap());
            for client in &clients {
                // All datagrams of one client go to one destination. The kernel may deliver a datagram after `send_to` returns.
                client.send_to(b"x", "10.96.0.1:53").unwrap();
                let sent = Instant::now();
                while !servers.iter().any(|server| server.recv(&mut [0; 1]).is_ok()) {
                    assert!(sent.elapsed() < PATIENCE, "no server received the datagram");
                    std::thread::yield_now();
                }
            }
            let counts: Vec<_> = connections(&mut socket, Protocol::Udp, "10.96.0.1:53");
            let counted: Vec<_> = counts.iter().map(|(.., counts)| [counts.inactive, counts.persistent]).collect();
            assert!(counted == [[5, 1], [0, 0]] || counted == [[0, 0], [5, 1]], "{counts:?}");
            assert!(counts.iter().all(|(.., counts)| counts.active == 0));
        });
    });
}
