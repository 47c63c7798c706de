//! Networks: creation, reachability and removal.

use std::io::{BufRead, BufReader, Read};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use localnet_lab::foreign::ForeignTables;
use localnet_lab::probe::SILENCE_TIMEOUT;
use localnet_lab::topology::{CLIENT, CLIENT_TWO, NODE, of_family};
use localnet_lab::{Endpoint, Namespace, Network, OpenFlow, Outcome, Probe, Protocol, Servers, Topology};

const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];

fn network(pods: &[&str]) -> Network {
    Topology::with_pods(pods.iter().copied()).and_then(Network::build).expect("the network can be built")
}

fn at(address: &str) -> SocketAddr {
    address.parse().expect("an address and a port")
}

fn endpoints(addresses: &[&str]) -> Vec<Endpoint> {
    let every = |address: &&str| PROTOCOLS.map(|protocol| Endpoint { protocol, address: at(address) });
    addresses.iter().flat_map(every).collect()
}

#[test]
fn pods_reach_each_other_in_both_families_at_once() {
    let pods = ["10.180.0.1", "10.180.0.2", "10.180.1.1"];
    let started = Instant::now();
    let network = network(&pods);
    let built = started.elapsed();
    let served = ["10.180.0.1:80", "[fd00:10:180::1]:80", "10.180.1.1:80", "[fd00:10:180:1::1]:80"];
    let _servers = Servers::start(&network, endpoints(&served)).unwrap();
    let serving = started.elapsed();
    let sender = network.pod("10.180.0.2".parse().unwrap()).unwrap();
    let mut first = None;
    for server in served.map(at) {
        let own: IpAddr = if server.is_ipv4() { "10.180.0.2" } else { "fd00:10:180::2" }.parse().unwrap();
        for protocol in PROTOCOLS {
            let outcome = sender.probe(Probe::new(protocol, server)).unwrap();
            assert_eq!(outcome, Outcome::Answer { by: server, seen_source: own }, "{protocol} {server}");
            first.get_or_insert_with(|| started.elapsed());
        }
    }
    println!("built {built:?}, serving {serving:?}, first answer {first:?}, all {:?}", started.elapsed());
    // More than the network needs, and much less than duplicate address detection or a missed link event would take.
    assert!(built < Duration::from_secs(2), "{built:?}");
}

#[test]
fn every_packet_to_a_closed_port_is_rejected() {
    let network = network(&["10.180.0.1", "10.180.0.2"]);
    let sender = network.pod("10.180.0.2".parse().unwrap()).unwrap();
    for closed in ["10.180.0.1:9", "[fd00:10:180::1]:9", "192.168.0.2:9", "[2001:db8::2]:9"].map(at) {
        let probe = Probe::new(Protocol::Udp, closed).timeout(SILENCE_TIMEOUT);
        sender
            .probe_until(probe, 20, |outcome| {
                assert_eq!(outcome, Outcome::Rejected, "{closed}");
                false
            })
            .unwrap();
    }
}

#[test]
fn client_node_and_outside_world_reach_the_expected_addresses() {
    let network = network(&["10.180.0.1"]);
    let served = [
        "10.180.0.1:80",
        "[fd00:10:180::1]:80",
        "192.168.0.2:81",
        "[2001:db8::2]:81",
        "1.2.3.5:82",
        "[2001:db8:99::1]:82",
    ];
    let _servers = Servers::start(&network, endpoints(&served)).unwrap();
    for server in served.map(at) {
        for protocol in PROTOCOLS {
            for (sender, own, set) in [
                (network.client(), of_family(CLIENT, server.ip()), false),
                (network.client(), of_family(CLIENT_TWO, server.ip()), true),
                (
                    network.pod("10.180.0.1".parse().unwrap()).unwrap(),
                    of_family(["10.180.0.1".parse().unwrap(), "fd00:10:180::1".parse().unwrap()], server.ip()),
                    false,
                ),
            ] {
                let probe = Probe::new(protocol, server);
                let probe = if set { probe.from(own) } else { probe };
                let outcome = sender.probe(probe).unwrap();
                assert_eq!(
                    outcome,
                    Outcome::Answer { by: server, seen_source: own },
                    "{protocol} {server} from {}",
                    sender.name()
                );
            }
        }
    }
    let outcome = network.node().probe(Probe::new(Protocol::Tcp, at("1.2.3.5:82"))).unwrap();
    assert_eq!(outcome, Outcome::Answer { by: at("1.2.3.5:82"), seen_source: NODE[0] });
}

#[test]
fn rejects_drops_and_missing_routes_have_different_outcomes() {
    let network = network(&["10.180.0.1"]);
    let rules = "
        table inet t {
            chain f { type filter hook forward priority 0; th dport 7 reject; th dport 9 drop; }
            chain o { type filter hook output priority 0; th dport 7 reject; th dport 9 drop; }
        }";
    network.node().output_with_input(Command::new("nft").args(["-f", "-"]), rules).unwrap();
    for address in ["10.180.0.1", "fd00:10:180::1"] {
        for protocol in PROTOCOLS {
            for sender in [network.client(), network.node()] {
                for (port, expected) in [(7, Outcome::Rejected), (9, Outcome::Dropped)] {
                    let probe =
                        Probe::new(protocol, SocketAddr::new(address.parse().unwrap(), port)).timeout(SILENCE_TIMEOUT);
                    // ICMP errors are not rate limited, so every probe gets its reject.
                    for _ in 0..if port == 7 { 20 } else { 1 } {
                        let outcome = sender.probe(probe).unwrap();
                        assert_eq!(outcome, expected, "{protocol} {address}:{port} from {}", sender.name());
                    }
                }
            }
        }
    }
    // No server listens on this port.
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        assert_eq!(network.client().probe(Probe::new(protocol, at("10.180.0.1:80"))).unwrap(), Outcome::Rejected);
    }
    let pod = network.pod("10.180.0.1".parse().unwrap()).unwrap();
    pod.output(Command::new("ip").args(["route", "del", "default"])).unwrap();
    for protocol in PROTOCOLS {
        assert_eq!(pod.probe(Probe::new(protocol, at("1.2.3.4:80"))).unwrap(), Outcome::NoRoute, "{protocol}");
    }
}

/// The kernel kept such a connection, and its port could not connect again: "Cannot assign requested address".
#[test]
fn a_connection_without_an_answer_can_be_opened_again_from_its_port() {
    let network = network(&["10.180.0.1", "10.180.0.2"]);
    let _servers = Servers::start_with_open_connections(&network, endpoints(&["10.180.0.1:80"])).unwrap();
    let pod = |address: &str| network.pod(address.parse().unwrap()).unwrap();
    let (server, sender) = (pod("10.180.0.1"), pod("10.180.0.2"));
    let nft = |text: &str| {
        let status = server.run(|| Ok(Command::new("nft").arg(text).status()?)).unwrap();
        assert!(status.success(), "nft {text}");
    };
    let mut flow = OpenFlow::new(sender, Probe::new(Protocol::Tcp, at("10.180.0.1:80")));
    let mut exchange = |seconds| flow.exchange(sender, Duration::from_secs(seconds)).unwrap();
    assert!(matches!(exchange(5), Outcome::Answer { .. }));
    nft("add table ip silent { chain input { type filter hook input priority 0; policy drop; }; }");
    assert_eq!([exchange(1), exchange(1)], [Outcome::Dropped, Outcome::Dropped]);
    nft("delete table ip silent");
    assert!(matches!(exchange(5), Outcome::Answer { .. }));
}

#[test]
fn dropping_a_network_removes_it_even_during_a_panic() {
    let network = network(&["10.180.0.1", "10.180.1.1"]);
    let paths: Vec<_> = network.namespaces().map(Namespace::path).collect();
    assert_eq!(paths.len(), 6);
    assert!(paths.iter().all(|path| path.exists()));
    let _servers = Servers::start(&network, endpoints(&["10.180.0.1:80"])).unwrap();
    let panicked = std::thread::spawn(move || {
        let _network = network;
        panic!("like a failing test");
    });
    assert!(panicked.join().is_err());
    assert_eq!(paths.iter().filter(|path| path.exists()).count(), 0);
}

#[test]
fn namespaces_of_a_dead_process_are_removed() {
    // A process that has ended, and whose pid no other process has yet.
    let mut ended = Command::new("true").spawn().unwrap();
    let name = format!("lab-{}-0-node", ended.id());
    ended.wait().unwrap();
    assert!(Command::new("ip").args(["netns", "add", &name]).status().unwrap().success());
    // A process removes leftovers only once, before its first namespaces, so another process has to do it.
    let test = std::env::current_exe().unwrap();
    let other =
        Command::new(test).args(["--exact", "dropping_a_network_removes_it_even_during_a_panic"]).output().unwrap();
    assert!(other.status.success(), "{}", String::from_utf8_lossy(&other.stdout));
    let left = std::path::Path::new("/run/netns").join(&name);
    let swept = !left.exists();
    if !swept {
        Command::new("ip").args(["netns", "del", &name]).status().unwrap();
    }
    assert!(swept, "{name} is still there");
}

#[test]
fn a_process_runs_inside_and_ends_when_dropped() {
    let network = network(&[]);
    let sleeping = network.node().spawn("sleep", |sleep| sleep.arg("1000")).unwrap();
    let process = std::path::PathBuf::from(format!("/proc/{}", sleeping.id()));
    let inside = |file: &std::path::Path| rustix::fs::stat(file).unwrap().st_ino;
    assert_eq!(
        inside(&process.join("ns/net")),
        rustix::fs::fstat(std::fs::File::open(network.node().path()).unwrap().as_fd()).unwrap().st_ino
    );
    drop(sleeping);
    assert!(!process.exists());
}

/// Set in the environment of the copy of this test that is killed.
const HOLD: &str = "LOCALNET_LAB_HOLD_PROCESS";

#[test]
fn a_killed_test_leaves_no_process() {
    if std::env::var_os(HOLD).is_some() {
        let network = network(&[]);
        // The program writes until it ends, and holds this copy's standard output open.
        let _running = network.node().spawn("yes", |yes| yes.arg("running")).unwrap();
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        return;
    }
    let mut copy = Command::new(std::env::current_exe().unwrap());
    copy.args(["--exact", "a_killed_test_leaves_no_process", "--nocapture"]).env(HOLD, "1");
    let mut copy = copy.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(copy.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line == "running"), "the program does not run");
    copy.kill().unwrap();
    copy.wait().unwrap();
    let (sender, ended) = std::sync::mpsc::channel();
    // The pipe ends when no process holds its other end.
    std::thread::spawn(move || sender.send(lines.by_ref().count()));
    ended.recv_timeout(Duration::from_secs(20)).expect("the program must end with its test");
}

#[test]
fn errors_of_commands_contain_the_cause() {
    let network = network(&[]);
    let error = network.node().spawn("/no/such/program", |program| program).map(|mut running| running.wait());
    assert_eq!(error.unwrap().unwrap().code(), Some(127), "setpriv reports a missing program");
    let error = network.node().output(Command::new("ip").args(["link", "show", "nothing"])).unwrap_err();
    assert!(format!("{error:#}").contains("nothing"), "{error:#}");
    let error = network.pod("10.180.0.1".parse().unwrap()).unwrap_err();
    assert!(format!("{error:#}").contains("add it to the topology"), "{error:#}");
}

#[test]
fn changes_of_foreign_tables_are_detected_and_traffic_passes() {
    let network = network(&["10.180.0.1"]);
    let foreign = ForeignTables::install(network.node()).unwrap();
    let _servers =
        Servers::start(&network, endpoints(&["10.180.0.1:80", "1.2.3.5:80", "[2001:db8:99::1]:80"])).unwrap();
    let pod = network.pod("10.180.0.1".parse().unwrap()).unwrap();
    for (server, seen_source) in [("1.2.3.5:80", NODE[0]), ("[2001:db8:99::1]:80", NODE[1])] {
        let outcome = pod.probe(Probe::new(Protocol::Tcp, at(server))).unwrap();
        assert_eq!(outcome, Outcome::Answer { by: at(server), seen_source });
    }
    let outcome =
        network.client().probe(Probe::new(Protocol::Tcp, at("10.180.0.1:23")).timeout(SILENCE_TIMEOUT)).unwrap();
    assert_eq!(outcome, Outcome::Dropped);
    foreign.check_unchanged(network.node()).unwrap();
    let touch = ["add", "element", "inet", "firewall", "blocked", "{ 198.51.100.2 }"];
    network.node().output(Command::new("nft").args(touch)).unwrap();
    assert!(format!("{:#}", foreign.check_unchanged(network.node()).unwrap_err()).contains("198.51.100.2"));
}
