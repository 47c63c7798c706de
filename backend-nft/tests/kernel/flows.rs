//! Flows after a change of endpoints, with real sockets and real packets.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::Arc,
    time::{Duration, Instant},
};

use localnet_lab::{
    Endpoint, Namespace, Network, Outcome, Probe, Protocol, Servers, Topology, segment::invalid_is_forwarded,
};
use localnet_linux::conntrack::{self, Conntrack as _, Flow, Selection};
use localnet_proto::{Family, ServiceKey, Snapshot};

use super::{
    config,
    live::{Live, PATIENCE},
    load,
};

const A: &str = "10.180.0.1";
const B: &str = "10.180.0.2";
const VIP: &str = "172.30.0.53:53";
const NODE_PORT: &str = "192.168.0.2:30053";
const TRACKS: &str =
    "add table ip t; add chain ip t c { type filter hook forward priority 0; }; add rule ip t c ct state new";
const ESTABLISHED: Selection = Selection { family: Family::V4, protocol: Protocol::Tcp, established: true };
const ANSWER_WITHIN: Duration = Duration::from_millis(200);

/// kube-proxy's mode nftables forwards packets that connection tracking calls invalid; its mode iptables drops them.
#[test]
fn invalid_packets_are_forwarded() {
    let network = Arc::new(Network::build(Topology::with_pods([A, B]).unwrap()).unwrap());
    let state = "node: {name: node-a, addresses: [192.168.0.2]}
services:
  - service: default/web
    type: ClusterIP
    clusterIPs: [172.30.0.80]
    ports: [{name: http, protocol: TCP, port: 80}]
    endpoints:
      - {address: 10.180.0.1, ports: [{name: http, port: 8080}], local: true, scopes: {internal: true, external: true}}
";
    let _live = Live::start(&network, config(), serde_saphyr::from_str(state).unwrap());
    let (client, vip) = (B.parse().unwrap(), "172.30.0.80:80".parse().unwrap());
    assert!(invalid_is_forwarded(&network, client, vip, "10.180.0.1:8080".parse().unwrap()).unwrap());
}

struct World {
    network: Arc<Network>,
    _servers: Servers,
}

impl World {
    fn build() -> Self {
        let network = Network::build(Topology::with_pods([A, B]).unwrap()).unwrap();
        let endpoint = |protocol, pod: &str| Endpoint { protocol, address: format!("{pod}:5353").parse().unwrap() };
        let all = [A, B].map(|pod| [Protocol::Udp, Protocol::Sctp].map(|protocol| endpoint(protocol, pod)));
        let servers = Servers::start(&network, all.concat()).unwrap();
        Self { network: Arc::new(network), _servers: servers }
    }

    fn live(&self, state: Snapshot) -> Live {
        let live = Live::start(&self.network, config(), state);
        // The kernel must not end a flow by itself while a test waits for the backend to do it.
        let sctp = ["closed", "cookie_wait", "cookie_echoed", "shutdown_sent", "shutdown_recd", "shutdown_ack_sent"];
        let sctp = sctp.map(|state| format!("net/netfilter/nf_conntrack_sctp_timeout_{state}"));
        let udp = ["udp_timeout", "udp_timeout_stream"].map(|name| format!("net/netfilter/nf_conntrack_{name}"));
        let settings: Vec<_> = udp.iter().chain(&sctp).map(|path| (path.as_str(), "3600")).collect();
        self.node().sysctl(&settings).unwrap();
        live
    }

    fn node(&self) -> &Namespace {
        self.network.node()
    }

    /// A client's socket, and the pod that answers it.
    fn flow(&self, to: &str) -> (UdpSocket, Option<String>) {
        let socket = self.network.client().run(|| {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            socket.connect(to)?;
            socket.set_read_timeout(Some(ANSWER_WITHIN))?;
            Ok(socket)
        });
        let socket = socket.unwrap();
        let by = ask(&socket);
        (socket, by)
    }

    /// The tracked flows to a port.
    fn tracked(&self, selection: Selection, port: u16) -> Vec<Flow> {
        self.node()
            .run(|| {
                let mut flows = Vec::new();
                conntrack::Kernel::open()?.dump(selection, &mut |flow| flows.push(*flow))?;
                Ok(flows)
            })
            .unwrap()
            .into_iter()
            .filter(|flow| flow.original.destination.port() == port)
            .collect()
    }

    fn tracked_udp(&self, port: u16) -> Vec<Flow> {
        self.tracked(Selection { family: Family::V4, protocol: Protocol::Udp, established: false }, port)
    }

    #[track_caller]
    fn await_no_flow(&self, port: u16) {
        let began = Instant::now();
        while let flows = self.tracked_udp(port)
            && !flows.is_empty()
        {
            assert!(began.elapsed() < PATIENCE, "{flows:?}");
        }
    }
}

/// The pod that answers a datagram; `None` if no answer comes or the datagram is rejected. The namespace outside owns
/// all addresses that no other one owns, but never answers with a pod's name.
fn ask(socket: &UdpSocket) -> Option<String> {
    let mut answer = [0; 256];
    let length = socket.send(b"hello?").and_then(|_| socket.recv(&mut answer)).ok()?;
    let text = String::from_utf8_lossy(&answer[..length]).into_owned();
    let pod = text.split(':').next()?;
    [A, B].contains(&pod).then(|| pod.to_owned())
}

#[track_caller]
fn await_answer(socket: &UdpSocket, by: &str) {
    let began = Instant::now();
    while ask(socket).as_deref() != Some(by) {
        assert!(began.elapsed() < PATIENCE, "{by} does not answer");
    }
}

const PORTS: &str = "{name: dns, port: 5353}, {name: dns-tcp, port: 5353}, {name: dns-sctp, port: 5353}";
const SERVES: &str = "{internal: true, external: true}";
const FINISHES: &str = "{established: true}";

fn service(endpoints: &[(&str, &str)], node_port: u16) -> Snapshot {
    let endpoints: Vec<String> = endpoints
        .iter()
        .map(|(address, scopes)| format!("{{address: {address}, ports: [{PORTS}], local: true, scopes: {scopes}}}"))
        .collect();
    let yaml = format!(
        "node: {{name: node-a, addresses: [192.168.0.2]}}
services:
  - service: default/dns
    type: NodePort
    clusterIPs: [172.30.0.53]
    ports:
      - {{name: dns, protocol: UDP, port: 53, nodePort: {node_port}}}
      - {{name: dns-tcp, protocol: TCP, port: 53}}
      - {{name: dns-sctp, protocol: SCTP, port: 53}}
    endpoints: [{}]
",
        endpoints.join(", ")
    );
    serde_saphyr::from_str(&yaml).unwrap()
}

fn dns(endpoints: &[(&str, &str)]) -> Snapshot {
    service(endpoints, 30053)
}

fn deleted() -> Snapshot {
    let mut state = dns(&[]);
    state.services.remove(&ServiceKey::new("default", "dns"));
    state
}

/// B-01: a client that keeps sending from one port is moved to an eligible endpoint.
#[test]
fn a_flow_moves_from_an_endpoint_that_was_replaced() {
    let world = World::build();
    let live = world.live(dns(&[(A, SERVES)]));
    let (to_vip, by) = world.flow(VIP);
    assert_eq!(by.as_deref(), Some(A));
    let (to_node, by) = world.flow(NODE_PORT);
    assert_eq!(by.as_deref(), Some(A));
    live.set(dns(&[(B, SERVES)]));
    await_answer(&to_vip, B);
    await_answer(&to_node, B);
}

/// B-08: an SCTP association that is being set up with a removed endpoint.
#[test]
fn sctp_flows_move_too() {
    let world = World::build();
    let live = world.live(dns(&[(A, SERVES)]));
    let selection = Selection { family: Family::V4, protocol: Protocol::Sctp, established: false };
    let probe = Probe::new(Protocol::Sctp, VIP.parse().unwrap());
    let ask = || match world.network.client().probe(probe).unwrap() {
        Outcome::Answer { by, .. } => by.ip().to_string(),
        other => panic!("{other:?}"),
    };
    assert_eq!(ask(), A);
    assert_eq!(world.tracked(selection, 53).len(), 1);
    live.set(dns(&[(B, SERVES)]));
    let began = Instant::now();
    while !world.tracked(selection, 53).is_empty() {
        assert!(began.elapsed() < PATIENCE);
    }
    assert_eq!(ask(), B);
}

/// B-02
#[test]
fn a_service_scaled_to_zero_keeps_no_flow() {
    let world = World::build();
    let live = world.live(dns(&[(A, SERVES)]));
    let (socket, by) = world.flow(VIP);
    assert_eq!(by.as_deref(), Some(A));
    live.set(dns(&[]));
    world.await_no_flow(53);
    assert_eq!(ask(&socket), None);
    live.set(dns(&[(B, SERVES)]));
    await_answer(&socket, B);
}

/// B-03
#[test]
fn a_deleted_service_keeps_no_flow() {
    let world = World::build();
    let live = world.live(dns(&[(A, SERVES)]));
    let (socket, by) = world.flow(VIP);
    assert_eq!(by.as_deref(), Some(A));
    live.set(deleted());
    let began = Instant::now();
    while ask(&socket).is_some() {
        assert!(began.elapsed() < PATIENCE);
    }
    live.set(dns(&[(B, SERVES)]));
    await_answer(&socket, B);
}

/// B-03 while no backend runs.
#[test]
fn a_service_that_was_deleted_while_no_backend_ran_keeps_no_flow() {
    let world = World::build();
    let live = world.live(dns(&[(A, SERVES)]));
    let (_socket, by) = world.flow(VIP);
    assert_eq!(by.as_deref(), Some(A));
    drop(live);
    assert_eq!(world.tracked_udp(53).len(), 1);
    let _live = world.live(deleted());
    world.await_no_flow(53);
}

#[test]
fn a_terminating_endpoint_keeps_its_flows() {
    let world = World::build();
    let live = world.live(dns(&[(A, SERVES)]));
    let (old, by) = world.flow(VIP);
    assert_eq!(by.as_deref(), Some(A));
    let before = world.tracked_udp(53);
    live.set(dns(&[(A, FINISHES), (B, SERVES)]));
    let (_new, by) = world.flow(VIP);
    assert_eq!(by.as_deref(), Some(B));
    // The later cleanup of this flow proves that the whole table was searched.
    let (_gone, by) = world.flow(NODE_PORT);
    assert_eq!(by.as_deref(), Some(B));
    live.set(service(&[(A, FINISHES), (B, SERVES)], 30054));
    world.await_no_flow(30053);
    assert_eq!(ask(&old).as_deref(), Some(A));
    let of_old = |flow: &&Flow| flow.original.source == old.local_addr().unwrap();
    assert_eq!(world.tracked_udp(53).iter().find(of_old).map(|flow| flow.id), Some(before[0].id));
}

#[test]
fn a_changed_node_port_ends_flows_to_the_node_s_addresses_only() {
    let world = World::build();
    let live = world.live(dns(&[(A, SERVES)]));
    let (_to_node, by) = world.flow(NODE_PORT);
    assert_eq!(by.as_deref(), Some(A));
    // A flow to the same port of another host, which passes through the node.
    let (_passing, by) = world.flow("198.51.100.77:30053");
    assert_eq!((by, world.tracked_udp(30053).len()), (None, 2));
    live.set(service(&[(A, SERVES)], 30054));
    let began = Instant::now();
    while world.tracked_udp(30053).len() == 2 {
        assert!(began.elapsed() < PATIENCE);
    }
    drop(live);
    let left: Vec<SocketAddr> = world.tracked_udp(30053).iter().map(|flow| flow.original.destination).collect();
    assert_eq!(left, ["198.51.100.77:30053".parse().unwrap()]);
}

/// B-05
#[test]
fn a_restart_keeps_valid_flows() {
    let world = World::build();
    let live = world.live(dns(&[(A, SERVES), (B, SERVES)]));
    let flows: Vec<_> = (0..20).map(|_| world.flow(VIP)).collect();
    let ids = || {
        let mut ids: Vec<u32> = world.tracked_udp(53).iter().map(|flow| flow.id).collect();
        ids.sort_unstable();
        ids
    };
    let before = ids();
    assert_eq!(before.len(), 20);
    drop(live);
    // The first sync, which compares everything, ends before this returns.
    drop(world.live(dns(&[(A, SERVES), (B, SERVES)])));
    assert_eq!(ids(), before);
    for (socket, by) in &flows {
        assert_eq!(&ask(socket), by);
    }
}

/// A successor of the backend finds the flows unchanged.
#[test]
fn cleanup_ends_no_flow() {
    let world = World::build();
    let live = world.live(dns(&[(A, SERVES)]));
    let (_socket, by) = world.flow(VIP);
    assert_eq!(by.as_deref(), Some(A));
    drop(live);
    let before = world.tracked_udp(53);
    assert_eq!(before.len(), 1);
    // Connection tracking must stay active without localnet's rules.
    load(world.node(), TRACKS);
    world.node().output(std::process::Command::new(env!("CARGO_BIN_EXE_localnet-nft")).arg("cleanup")).unwrap();
    assert_eq!(world.tracked_udp(53).iter().map(|flow| flow.id).collect::<Vec<_>>(), [before[0].id]);
}

/// A datagram that arrives while the rules are missing is tracked without translation, and its flow would stay so.
#[test]
fn flows_that_began_while_rules_were_missing_are_corrected() {
    let world = World::build();
    let _live = world.live(dns(&[(A, SERVES)]));
    // Connection tracking must stay active without localnet's rules.
    load(world.node(), TRACKS);
    let mut astray = 0;
    for _ in 0..20 {
        load(world.node(), "delete table ip localnet");
        let (socket, by) = world.flow(VIP);
        astray += usize::from(by.is_none());
        await_answer(&socket, A);
    }
    println!("{astray} of 20 flows went astray and came back");
}

/// B-47: as after a reboot.
#[test]
fn flows_that_began_before_the_first_rules_are_corrected() {
    let world = World::build();
    // Connection tracking must be active without localnet's rules.
    load(world.node(), TRACKS);
    let (socket, by) = world.flow(VIP);
    assert_eq!((by, world.tracked_udp(53).len()), (None, 1));
    let _live = world.live(dns(&[(A, SERVES)]));
    await_answer(&socket, A);
}

/// Answers each line with the name of the pod, until the client disconnects.
fn echo(pod: &Namespace, address: &str) {
    let listener = pod.run(|| Ok(TcpListener::bind(address)?)).unwrap();
    let name = address.to_owned();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, name) = (stream.unwrap(), name.clone());
            std::thread::spawn(move || {
                while stream.read(&mut [0; 16]).is_ok_and(|len| len > 0) && stream.write_all(name.as_bytes()).is_ok() {}
            });
        }
    });
}

fn say(stream: &mut TcpStream) -> String {
    try_say(stream).unwrap()
}

fn try_say(stream: &mut TcpStream) -> std::io::Result<String> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"hello")?;
    let mut answer = [0; 64];
    let length = stream.read(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer[..length]).into_owned())
}

/// B-06
#[test]
fn an_established_connection_is_never_cut() {
    let world = World::build();
    for pod in [A, B] {
        echo(world.network.pod(pod.parse().unwrap()).unwrap(), &format!("{pod}:5353"));
    }
    let live = world.live(dns(&[(A, SERVES)]));
    let connect = || world.network.client().run(|| Ok(TcpStream::connect(VIP)?)).unwrap();
    let mut stream = connect();
    assert_eq!(say(&mut stream), format!("{A}:5353"));
    let (socket, _) = world.flow(VIP);
    live.set(dns(&[(B, SERVES)]));
    await_answer(&socket, B);
    assert_eq!(say(&mut connect()), format!("{B}:5353"));
    live.set(deleted());
    drop(live);
    assert_eq!(say(&mut stream), format!("{A}:5353"));
}

/// A Service may request that its connections end some time after their endpoint. The next packet of such a connection goes to
/// another endpoint, which answers with a reset.
#[test]
fn a_connection_is_closed_after_its_endpoint_if_the_service_requests_it() {
    let world = World::build();
    for pod in [A, B] {
        echo(world.network.pod(pod.parse().unwrap()).unwrap(), &format!("{pod}:5353"));
    }
    let closing = |endpoints: &[(&str, &str)], after: u32| {
        let mut state = dns(endpoints);
        state.services.values_mut().for_each(|service| Arc::make_mut(service).close_after = Some(after));
        state
    };
    let live = world.live(closing(&[(A, SERVES), (B, SERVES)], 2));
    let connect = |endpoint: &str| loop {
        let mut stream = world.network.client().run(|| Ok(TcpStream::connect(VIP)?)).unwrap();
        if say(&mut stream) == format!("{endpoint}:5353") {
            return stream;
        }
    };
    let (mut to_a, mut to_b) = (connect(A), connect(B));
    let stopped = Instant::now();
    live.set(closing(&[(B, SERVES)], 2));
    while world.tracked(ESTABLISHED, 53).iter().any(|flow| flow.reply.source == format!("{A}:5353").parse().unwrap()) {
        assert!(stopped.elapsed() < PATIENCE);
    }
    assert!(stopped.elapsed() >= Duration::from_secs(2));
    assert_eq!(try_say(&mut to_a).unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    assert_eq!(say(&mut to_b), format!("{B}:5353"), "its endpoint serves");
    live.set(closing(&[], 0));
    while !world.tracked(ESTABLISHED, 53).is_empty() {
        assert!(stopped.elapsed() < 2 * PATIENCE);
    }
    // Without endpoints, the client gets an ICMP error, which established connections ignore.
    live.set(closing(&[(A, SERVES)], 0));
    let reset = |stream: &mut TcpStream| {
        try_say(stream).is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset)
    };
    assert!(reset(&mut to_b) || reset(&mut to_b), "as soon as another endpoint serves");
}

/// Each connection picks an endpoint by itself, so the number that one of two endpoints gets of N is binomial. By Hoeffding's
/// inequality, it is 220 or more off its mean with a probability below 2·exp(-2·220²/N), which is 1.2e-10.
#[test]
fn new_connections_follow_the_weights_until_a_weight_becomes_zero() {
    const N: u16 = 4096;
    let world = World::build();
    let weighed = |scopes: &str, weight: u32| {
        let mut state = dns(&[(A, SERVES), (B, scopes)]);
        let web = Arc::make_mut(state.services.values_mut().next().unwrap());
        web.endpoints[0].weight = localnet_proto::Endpoint::weighing(weight);
        state
    };
    let live = world.live(weighed(SERVES, 3));
    let counted = |ports: std::ops::Range<u16>| {
        let socket = |port| {
            let socket = UdpSocket::bind(("0.0.0.0", port))?;
            socket.connect(VIP)?;
            socket.set_read_timeout(Some(PATIENCE))?;
            Ok::<_, std::io::Error>(socket)
        };
        let answers = world.network.client().run(|| Ok(ports.map(|port| ask(&socket(port).unwrap())).collect()));
        let answers: Vec<Option<String>> = answers.unwrap();
        let count = |pod: &str| u16::try_from(answers.iter().filter(|by| by.as_deref() == Some(pod)).count()).unwrap();
        (count(A), count(B))
    };
    let (to_a, to_b) = counted(10_000..10_000 + N);
    assert_eq!(to_a + to_b, N);
    assert!(to_a.abs_diff(N / 4 * 3) < 220, "{to_a} of {N}");
    let to_b = std::iter::repeat_with(|| world.flow(VIP)).find(|(_, by)| by.as_deref() == Some(B)).unwrap().0;
    // The brain sends an endpoint of weight 0 in this way.
    live.set(weighed(FINISHES, 1));
    assert_eq!(counted(20_000..20_400), (400, 0));
    assert_eq!(ask(&to_b).as_deref(), Some(B), "existing flows stay");
}

/// B-07
#[test]
fn an_unanswered_connection_moves_from_a_dead_endpoint() {
    let world = World::build();
    echo(world.network.pod(B.parse().unwrap()).unwrap(), &format!("{B}:5353"));
    let dead = world.network.pod(A.parse().unwrap()).unwrap();
    load(dead, "add table ip t; add chain ip t c { type filter hook input priority 0; policy drop; }");
    let live = world.live(dns(&[(A, SERVES)]));
    let unanswered = Selection { family: Family::V4, protocol: Protocol::Tcp, established: false };
    std::thread::scope(|scope| {
        // The client retries after one second and then after two, from the same port.
        let connecting = scope.spawn(|| world.network.client().run(|| Ok(TcpStream::connect(VIP)?)).unwrap());
        let began = Instant::now();
        while world.tracked(unanswered, 53).is_empty() {
            assert!(began.elapsed() < PATIENCE);
        }
        live.set(dns(&[(B, SERVES)]));
        assert_eq!(say(&mut connecting.join().unwrap()), format!("{B}:5353"));
    });
}

/// A ServiceCIDR contains the pods, and a Service has a pod's address as its ClusterIP. Packets that another VIP
/// translated to that pod are neither for an unallocated address nor for an unused port.
#[test]
fn endpoints_with_addresses_in_the_service_cidr_answer() {
    let vip: SocketAddr = "172.30.0.13:80".parse().unwrap();
    let network = Arc::new(Network::build(Topology::with_pods([A]).unwrap()).unwrap());
    let endpoint = Endpoint { protocol: Protocol::Tcp, address: format!("{A}:8080").parse().unwrap() };
    let _servers = Servers::start(&network, [endpoint]).unwrap();
    let mut state = super::state();
    let key = ServiceKey::new("default", "many");
    let many = Arc::make_mut(state.services.get_mut(&key).unwrap());
    many.endpoints.truncate(1);
    many.endpoints[0].address = A.parse().unwrap();
    let mut misled = many.clone();
    misled.key = ServiceKey::new("default", "misled");
    misled.cluster_ips = vec![A.parse().unwrap()];
    (misled.external_ips, misled.load_balancer_ips) = (vec![], vec![]);
    misled.ports.iter_mut().for_each(|port| (port.port, port.node_port) = (81, None));
    state.services.insert(misled.key.clone(), Arc::new(misled));
    state.node.service_cidrs = vec!["10.0.0.0/8".parse().unwrap(), "172.30.0.0/16".parse().unwrap()];
    let _live = Live::start(&network, config(), state);
    for from in [network.client(), network.node()] {
        match from.probe(Probe::new(Protocol::Tcp, vip)).unwrap() {
            Outcome::Answer { by, .. } => assert_eq!(by, endpoint.address),
            other => panic!("{other}"),
        }
    }
}
