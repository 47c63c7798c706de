//! Lists of virtual servers are complete, whatever their size and whichever program added them.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;

use localnet_core::Protocol;
use localnet_linux::ipvs::{
    Change, Connections, Destination, Forwarding, Frontend, Persistence, Socket, VirtualServer,
};
use localnet_vm::on_ipvs;

use crate::namespace::run;
use crate::servers::{apply, destination, frontend, ipvsadm, isolated, server};

const SERVERS: u32 = 300;
const DESTINATIONS: u32 = 3;

fn at(network: u8, index: u32) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::from((u32::from(network) << 24) + 256 + index).into(), 80)
}

fn many() -> Vec<Change> {
    let frontend = |index| Frontend::new(Protocol::Tcp, at(10, index));
    let servers =
        (0..SERVERS).map(|index| Change::AddServer(VirtualServer::new(frontend(index), "rr".parse().unwrap())));
    let destinations = (0..SERVERS * DESTINATIONS).map(|index| {
        Change::AddDestination(frontend(index / DESTINATIONS), Destination::masqueraded(at(20, index), index % 7))
    });
    servers.chain(destinations).collect()
}

#[test]
fn many_changes_take_few_batches_and_are_listed_completely() {
    on_ipvs(|| {
        isolated(|| {
            let mut socket = Socket::open().unwrap();
            let changes = many();
            let started = Instant::now();
            let applied = socket.apply(&changes).unwrap();
            let took = started.elapsed();
            assert_eq!(applied.refused, []);
            assert_eq!(applied.batches, changes.len().div_ceil(512));
            println!("{} changes: {took:?}, {} batches", applied.changes, applied.batches);

            let started = Instant::now();
            let listed = socket.list().unwrap();
            println!("listed: {:?}", started.elapsed());
            let listed: HashMap<_, _> = listed.iter().map(|state| (state.server.frontend, state)).collect();
            assert_eq!(listed.len(), SERVERS as usize);
            let mut of: HashMap<Frontend, HashMap<SocketAddr, Destination>> = HashMap::new();
            for change in &changes {
                match change {
                    Change::AddServer(server) => assert_eq!(listed[&server.frontend].server, *server),
                    Change::AddDestination(frontend, destination) => {
                        of.entry(*frontend).or_default().insert(destination.address, *destination);
                    }
                    _ => unreachable!("only additions"),
                }
            }
            for (frontend, expected) in of {
                let states = &listed[&frontend].destinations;
                assert!(states.iter().all(|state| state.connections == Connections::default()));
                let destinations: HashMap<_, _> =
                    states.iter().map(|state| (state.destination.address, state.destination)).collect();
                assert_eq!(destinations, expected, "{frontend}");
            }

            // All additions again: the kernel refuses each, and no answer is lost.
            let applied = socket.apply(&changes).unwrap();
            let refused: Vec<_> = applied.refused.iter().map(|refused| refused.change).collect();
            assert_eq!(refused, (0..changes.len()).collect::<Vec<_>>());

            let deletions: Vec<_> = listed.keys().copied().map(Change::DeleteServer).collect();
            let started = Instant::now();
            apply(&mut socket, &deletions);
            println!("{} deleted: {:?}", deletions.len(), started.elapsed());
            assert_eq!(socket.list().unwrap(), []);
            assert_eq!(ipvsadm(), Vec::<String>::new());
        });
    });
}

#[test]
fn one_virtual_server_with_many_destinations_is_listed_in_parts() {
    on_ipvs(|| {
        isolated(|| {
            let mut socket = Socket::open().unwrap();
            let server = server(Protocol::Tcp, "10.96.0.1:80", "rr");
            let of = server.frontend;
            let mut changes = vec![Change::AddServer(server)];
            changes
                .extend((0..1000).map(|index| Change::AddDestination(of, Destination::masqueraded(at(20, index), 1))));
            apply(&mut socket, &changes);
            let mut listed: Vec<_> =
                socket.destinations(&of).unwrap().iter().map(|state| state.destination.address).collect();
            listed.sort();
            assert_eq!(listed, (0..1000).map(|index| at(20, index)).collect::<Vec<_>>());
        });
    });
}

#[test]
fn foreign_virtual_servers_are_listed_except_those_of_firewall_marks() {
    on_ipvs(|| {
        isolated(|| {
            run(
                "ipvsadm",
                &["-R"],
                "-A -f 7 -s rr
-a -f 7 -r 10.0.0.7 -g
-A -t 192.0.2.1:80 -s wlc -p 77 -M 255.255.0.0
-a -t 192.0.2.1:80 -r 10.0.0.1:80 -i -w 5",
            );
            let mut socket = Socket::open().unwrap();
            let listed = socket.list().unwrap();
            assert_eq!(listed.len(), 1);
            let foreign = VirtualServer {
                persistence: Some(Persistence { timeout: 77, prefix_len: 16 }),
                ..server(Protocol::Tcp, "192.0.2.1:80", "wlc")
            };
            assert_eq!(listed[0].server, foreign);
            let tunnel = Destination { forwarding: Forwarding::TUNNEL, ..destination("10.0.0.1:80", 5) };
            assert_eq!(listed[0].destinations[0].destination, tunnel);
            // Our changes leave them unchanged.
            let before = ipvsadm();
            let ours = server(Protocol::Tcp, "10.96.0.1:80", "rr");
            apply(&mut socket, &[Change::AddServer(ours.clone()), Change::DeleteServer(ours.frontend)]);
            assert_eq!(ipvsadm(), before);
            let (there, absent) = (frontend(Protocol::Tcp, "192.0.2.1:80"), frontend(Protocol::Udp, "192.0.2.1:80"));
            assert_eq!(socket.server(&there).unwrap().unwrap(), listed[0].server);
            assert_eq!(socket.server(&absent).unwrap(), None);
            assert_eq!(socket.destinations(&absent).unwrap(), []);
        });
    });
}
