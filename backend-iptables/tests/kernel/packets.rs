//! Packets while the rules change, and packets that connection tracking calls invalid.

use std::{
    io,
    net::UdpSocket,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc::channel,
    },
    thread,
    time::{Duration, Instant},
};

use localnet_client::vips::{Config, NodePortAddresses};
use localnet_iptables::{Flavour, IptablesBackend, LinuxBackend as _, Tools, desired::Desired};
use localnet_lab::{Endpoint, Network, Outcome, Probe, Protocol, Servers, Topology, segment::invalid_is_forwarded};
use localnet_linux::{conntrack::Cleaner, nfacct};
use localnet_proto::{Changes, Snapshot, wire::PacketCounts};

use super::{
    FLAVOURS, config, list,
    live::{Live, PATIENCE},
    programs, run,
};

const POD: &str = "10.180.0.1";
const VIP: &str = "198.51.100.53:53";
/// How many times the Service gains its first endpoint and loses its last.
const ROUNDS: usize = 15;

fn dns(serves: bool) -> Snapshot {
    let endpoint = format!(
        "{{address: {POD}, ports: [{{name: dns, port: 5353}}], local: true, scopes: {{internal: true, external: true}}}}"
    );
    let yaml = format!(
        "node: {{name: node-a, addresses: [192.168.0.2]}}
services:
  - service: default/dns
    type: ClusterIP
    clusterIPs: [172.30.0.53]
    externalIPs: [198.51.100.53]
    ports: [{{name: dns, protocol: UDP, port: 53, whenEmptyIPv4: {{internal: reject, external: reject}}}}]
    endpoints: [{}]
",
        if serves { endpoint.as_str() } else { "" }
    );
    serde_saphyr::from_str(&yaml).unwrap()
}

/// The outcome of the client's latest datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Heard {
    Answer(String),
    Refused,
    Nothing,
}

/// Sends questions from one port until `stop` is set, and stores the latest outcome in `heard`.
fn ask(network: &Network, stop: &AtomicBool, heard: &Mutex<Heard>) -> anyhow::Result<()> {
    let socket = network.client().run(|| {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.connect(VIP)?;
        // Answers arrive within microseconds. A late one counts as the answer to the next question.
        socket.set_read_timeout(Some(Duration::from_millis(1)))?;
        Ok(socket)
    })?;
    let mut buffer = [0; 256];
    while !stop.load(Ordering::Relaxed) {
        let newest = match socket.send(b"?").and_then(|_| socket.recv(&mut buffer)) {
            Ok(length) => Heard::Answer(String::from_utf8_lossy(&buffer[..length]).into_owned()),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Heard::Refused,
            Err(_) => Heard::Nothing,
        };
        *heard.lock().unwrap() = newest;
    }
    Ok(())
}

#[track_caller]
fn await_that(what: &str, heard: &Mutex<Heard>, is: impl Fn(&Heard) -> bool) {
    let began = Instant::now();
    while let newest = heard.lock().unwrap().clone()
        && !is(&newest)
    {
        assert!(began.elapsed() < PATIENCE, "the client is not {what}: {newest:?}");
        thread::yield_now();
    }
}

/// A client with a fixed port sends to an external address while its Service gains its first endpoint and loses its last. The two
/// affected tables do not change at once. A packet in between that is neither rejected nor translated would leave the node, as it
/// does with kube-proxy. Then another host with that address answers, and the client may stay bound to it.
fn nothing_leaves(flavour: Flavour) {
    let network = Network::build(Topology::with_pods([POD]).unwrap()).unwrap();
    let address = format!("{POD}:5353").parse().unwrap();
    let _servers = Servers::start(&network, [Endpoint { protocol: Protocol::Udp, address }]).unwrap();
    let outside = network.outside().run(|| Ok(UdpSocket::bind(VIP)?)).unwrap();
    outside.set_nonblocking(true).unwrap();
    let (stop, strayed, heard) = (AtomicBool::new(false), AtomicUsize::new(0), Mutex::new(Heard::Nothing));
    let (begin, may_begin) = channel::<()>();
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                match outside.recv_from(&mut [0; 256]) {
                    Ok((_, from)) => {
                        strayed.fetch_add(1, Ordering::Relaxed);
                        _ = outside.send_to(b"astray", from);
                    }
                    Err(_) => thread::park_timeout(Duration::from_micros(500)),
                }
            }
        });
        let (stop, heard, network) = (&stop, &heard, &network);
        let querying = scope.spawn(move || {
            // Without rules, packets to the address would leave the node.
            may_begin.recv()?;
            ask(network, stop, heard)
        });
        let changing = move || {
            let cleaner = Cleaner::start(|_| {}).expect("a thread");
            let mut backend = IptablesBackend::new(Desired::new(config()), Tools::find(flavour)?);
            let mut begin = Some(begin);
            for _ in 0..ROUNDS {
                for serves in [false, true] {
                    backend.apply(&dns(serves), &Changes::everything())?.whole()?;
                    cleaner.committed(backend.take_commit(&[]));
                    begin.take().map_or(Ok(()), |begin| begin.send(()))?;
                    if serves {
                        await_that(
                            "answered",
                            heard,
                            |heard| matches!(heard, Heard::Answer(by) if by.starts_with(POD)),
                        );
                    } else {
                        await_that("refused", heard, |heard| *heard == Heard::Refused);
                    }
                }
            }
            Ok(())
        };
        // After a panic, the other threads have to end, too.
        let changed = catch_unwind(AssertUnwindSafe(|| network.node().run(changing)));
        stop.store(true, Ordering::Relaxed);
        let queried = querying.join().unwrap();
        changed.unwrap_or_else(|panic| resume_unwind(panic)).unwrap();
        queried.unwrap();
    });
    assert_eq!(strayed.load(Ordering::Relaxed), 0, "{flavour:?}: packets left the node untranslated");
}

#[test]
fn no_packet_leaves_untranslated_while_a_service_gains_or_loses_all_endpoints() {
    FLAVOURS.into_iter().for_each(nothing_leaves);
}

/// Invalid packets are dropped as in kube-proxy's iptables mode (kubernetes/kubernetes#74839). A segment outside of the window of
/// a translated connection would reach the client untranslated, and the client would reset the connection.
#[test]
fn invalid_packets_are_dropped_unless_tcp_windows_are_ignored() {
    for (flavour, forwards) in FLAVOURS.into_iter().flat_map(|flavour| [(flavour, false), (flavour, true)]) {
        let network = Network::build(Topology::with_pods([POD, "10.180.0.2"]).unwrap()).unwrap();
        let state = "node: {name: node-a, addresses: [192.168.0.2]}
services:
  - service: default/web
    type: ClusterIP
    clusterIPs: [172.30.0.80]
    ports: [{name: http, protocol: TCP, port: 80}]
    endpoints:
      - {address: 10.180.0.1, ports: [{name: http, port: 8080}], local: true, scopes: {internal: true, external: true}}
";
        let work = || {
            let mut desired = Desired::new(config());
            if forwards {
                desired.forward_invalid();
            }
            let mut backend = IptablesBackend::new(desired, Tools::find(flavour)?);
            let state = serde_saphyr::from_str(state)?;
            backend.apply(&state, &Changes::everything())?.whole()?;
            anyhow::ensure!(!backend.needs_repair()?, "the tables read back differ from those written");
            Ok(())
        };
        network.node().run(work).unwrap();
        let (client, vip) = ("10.180.0.2".parse().unwrap(), "172.30.0.80:80".parse().unwrap());
        let forwarded = invalid_is_forwarded(&network, client, vip, "10.180.0.1:8080".parse().unwrap()).unwrap();
        assert_eq!(forwarded, forwards, "{flavour:?}");
        let dropped = network.node().run(|| Ok(nfacct::packets("ct_state_invalid_dropped_pkts")?)).unwrap();
        assert_eq!(dropped > 0, !forwards, "{flavour:?}: {dropped} packets are counted as dropped");
    }
}

/// The backend counts in the counters that kube-proxy uses. They may exist, like kube-proxy's rules, and a restart keeps them.
#[test]
fn connections_to_node_ports_on_localhost_are_counted() {
    const COUNTER: &str = "localhost_nps_accepted_pkts";
    let state: Snapshot = serde_saphyr::from_str(
        "node: {name: node-a, addresses: [192.168.0.2]}
services:
  - service: default/web
    type: NodePort
    clusterIPs: [172.30.0.80]
    ports: [{name: http, protocol: TCP, port: 80, nodePort: 30080}]
    endpoints:
      - {address: 10.180.0.1, ports: [{name: http, port: 8080}], local: true, scopes: {internal: true, external: true}}
",
    )
    .unwrap();
    let config = || Config {
        node_port_addresses: NodePortAddresses { localhost: true, ..NodePortAddresses::PRIMARY },
        ..config()
    };
    for flavour in FLAVOURS {
        let network = Arc::new(Network::build(Topology::with_pods([POD]).unwrap()).unwrap());
        let node = network.node();
        node.sysctl(&[("net/ipv4/conf/all/route_localnet", "1")]).unwrap();
        let address = format!("{POD}:8080").parse().unwrap();
        let _servers = Servers::start(&network, [Endpoint { protocol: Protocol::Tcp, address }]).unwrap();
        node.run(|| Ok(nfacct::ensure(COUNTER)?)).unwrap();
        let [iptables, _] = programs(flavour);
        let former =
            format!("KUBE-NODEPORTS -d 127.0.0.0/8 -p tcp -m tcp --dport 30080 -m nfacct --nfacct-name {COUNTER}");
        run(node, &format!("{iptables} -t nat -N KUBE-NODEPORTS"));
        run(node, &format!("{iptables} -t nat -A {former} -j RETURN"));

        let packets = |accepted| PacketCounts { invalid_dropped: 0, localhost_node_ports_accepted: accepted };
        let mut live = Live::start(&network, config(), flavour, state.clone());
        live.await_packets(packets(0));
        live.await_connections(0);
        assert!(!list(node, flavour).join("\n").contains("KUBE-NODEPORTS -d 127.0.0.0/8"), "{flavour:?}");
        for to in ["127.0.0.1", "127.0.0.1", "192.168.0.2", "127.0.0.1"] {
            let probe = Probe::new(Protocol::Tcp, format!("{to}:30080").parse().unwrap());
            let outcome = node.probe(probe).unwrap();
            assert!(matches!(outcome, Outcome::Answer { .. }), "{flavour:?} {to}: {outcome:?}");
        }
        live.await_packets(packets(3));
        live.await_connections(4);
        drop(live);
        Live::start(&network, config(), flavour, state.clone()).await_packets(packets(3));
    }
}
