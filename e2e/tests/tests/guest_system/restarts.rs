//! Events that interrupt no connection, with the programs as shipped: kill -9 under load, endpoints that terminate while they
//! have connections, and `ipvsadm -C` by another program.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    panic::resume_unwind,
    path::PathBuf,
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread::{self, ScopedJoinHandle},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use localnet_e2e::{Backend, Programs};
use localnet_lab::{
    Endpoint, Namespace, Network, OpenFlow, Outcome, Probe, Protocol, Running, Servers, Topology,
    probe::ANSWER_TIMEOUT,
    topology::{CLUSTER_CIDRS, NODE},
};
use localnet_vm::on_ipvs;
use rustix::process::{Pid, Signal, kill_process};

const BACKEND: &str = "localnet-ipvs";
const PODS: [&str; 3] = ["10.180.0.1", "10.180.0.2", "10.180.1.3"];
/// A pod that is only a client.
const ASKING: &str = "10.180.0.4";
const WEB: &str = "172.30.0.10:80";
const CHAT: &str = "172.30.0.10:7";
const DNS: &str = "172.30.0.10:53";
const SIGNALS: &str = "172.30.0.10:9";
const RESTARTS: usize = 3;
const FLOWS: usize = 4;
/// Maximum time for anything that must happen, on an emulated processor.
const PATIENCE: Duration = Duration::from_secs(120);

struct World {
    // Fields are dropped in this order.
    programs: Programs,
    _servers: Servers,
    network: Network,
}

impl World {
    fn build() -> anyhow::Result<Self> {
        let network = Network::build(Topology::with_pods(PODS.into_iter().chain([ASKING]))?)?;
        let servers = Servers::start(&network, [80, 53, 9].into_iter().flat_map(endpoints))?;
        for pod in PODS {
            chat(&network, pod)?;
        }
        let world = Self { programs: Programs::new()?, _servers: servers, network };
        fs::create_dir(world.cluster())?;
        world.write(&PODS)?;
        Ok(world)
    }

    fn cluster(&self) -> PathBuf {
        self.programs.path().join("cluster")
    }

    /// Writes a cluster with these pods as endpoints.
    fn write(&self, pods: &[&str]) -> anyhow::Result<()> {
        let node: Vec<String> = NODE.iter().map(|ip| format!("{{type: InternalIP, address: \"{ip}\"}}")).collect();
        let endpoints: Vec<String> =
            (pods.iter().map(|pod| format!("{{addresses: [{pod}], nodeName: {}}}", home(pod)))).collect();
        let text = format!(
            "\
{{apiVersion: v1, kind: Node, metadata: {{name: node-a}}, status: {{addresses: [{}]}}}}
---
apiVersion: v1
kind: Service
metadata: {{name: web, namespace: shop}}
spec:
  clusterIP: 172.30.0.10
  clusterIPs: [172.30.0.10]
  ports:
  - {{name: web, port: 80}}
  - {{name: chat, port: 7}}
  - {{name: dns, port: 53, protocol: UDP}}
  - {{name: signals, port: 9, protocol: SCTP}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: web, namespace: shop, labels: {{kubernetes.io/service-name: web}}}}
addressType: IPv4
ports:
- {{name: web, port: 80}}
- {{name: chat, port: 7}}
- {{name: dns, port: 53, protocol: UDP}}
- {{name: signals, port: 9, protocol: SCTP}}
endpoints: [{}]
",
            node.join(", "),
            endpoints.join(", ")
        );
        // Replaces the file in one step, as an editor does.
        let new = self.programs.path().join("new");
        fs::write(&new, text)?;
        Ok(fs::rename(new, self.cluster().join("all.yaml"))?)
    }

    fn start_brain(&self) -> anyhow::Result<Running> {
        self.programs.start_brain(self.network.node(), &format!("file:{}", self.cluster().display()))
    }

    /// Starts the backend, and waits until it has applied a state.
    fn start_backend(&self) -> anyhow::Result<Running> {
        let applied = || self.programs.states_applied(BACKEND);
        let before = applied();
        let (api, pods) = (self.programs.api(), CLUSTER_CIDRS.join(","));
        let flags = ["--api", &api, "--cluster-cidr", &pods];
        let backend = self.programs.start(self.network.node(), BACKEND, &flags)?;
        self.wait_until("the backend applies a state", || applied() > before)?;
        Ok(backend)
    }

    fn start(&self) -> anyhow::Result<[Running; 2]> {
        let brain = self.start_brain()?;
        let backend = self.start_backend()?;
        let all: Vec<_> = endpoints(80).map(|one| one.address).collect();
        self.programs.await_answers(self.network.client(), Probe::new(Protocol::Tcp, WEB.parse()?), &all)?;
        Ok([backend, brain])
    }

    fn wait_until(&self, what: &str, mut so: impl FnMut() -> bool) -> anyhow::Result<Duration> {
        let began = Instant::now();
        while !so() {
            let log = || self.programs.log(BACKEND);
            anyhow::ensure!(began.elapsed() < PATIENCE, "waited {PATIENCE:?} until {what}: {}", log());
            thread::park_timeout(Duration::from_millis(20));
        }
        Ok(began.elapsed())
    }

    fn run(&self, program: &str, arguments: &[&str]) -> anyhow::Result<String> {
        self.network.node().output(Command::new(program).args(arguments))
    }

    /// Everything that the backend has programmed. Rewritten rules differ.
    fn identity(&self) -> anyhow::Result<String> {
        Backend::Ipvs.identity(self.network.node())
    }
}

/// The node of a pod.
fn home(pod: &str) -> &'static str {
    if pod.starts_with("10.180.0.") { "node-a" } else { "node-b" }
}

/// The servers at a port of all pods.
fn endpoints(port: u16) -> impl Iterator<Item = Endpoint> {
    let protocol = match port {
        53 => Protocol::Udp,
        9 => Protocol::Sctp,
        _ => Protocol::Tcp,
    };
    PODS.iter().map(move |pod| Endpoint { protocol, address: SocketAddr::new(ip(pod), port) })
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address of this test")
}

/// Sends the last byte of the pod's address to each client, and then echoes.
fn chat(network: &Network, pod: &str) -> anyhow::Result<()> {
    let IpAddr::V4(address) = ip(pod) else { anyhow::bail!("{pod} is of the other family") };
    let listener = network.pod(ip(pod))?.run(|| Ok(TcpListener::bind((address, 7))?))?;
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut buffer = [address.octets()[3]];
                while stream.write_all(&buffer).is_ok() && stream.read_exact(&mut buffer).is_ok() {}
            });
        }
    });
    Ok(())
}

/// A long-lived connection, and its endpoint.
struct Chat {
    stream: TcpStream,
    pod: &'static str,
}

impl Chat {
    fn open(world: &World) -> anyhow::Result<Self> {
        let to = CHAT.parse()?;
        let mut stream = world.network.client().run(|| Ok(TcpStream::connect_timeout(&to, PATIENCE)?))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut number = [0];
        stream.read_exact(&mut number)?;
        let pod = PODS.into_iter().find(|pod| pod.ends_with(&format!(".{}", number[0])));
        Ok(Self { stream, pod: pod.context("an unknown pod answers")? })
    }

    fn exchange(&mut self) -> anyhow::Result<()> {
        let mut echoed = [0];
        self.stream.write_all(&[42])?;
        self.stream.read_exact(&mut echoed)?;
        anyhow::ensure!(echoed == [42], "{echoed:?} came back");
        Ok(())
    }
}

/// A UDP flow, and its endpoint.
struct Flow {
    socket: UdpSocket,
    endpoint: String,
}

impl Flow {
    fn open(world: &World) -> anyhow::Result<Self> {
        let to: SocketAddr = DNS.parse()?;
        let socket = world.network.client().run(|| Ok(UdpSocket::bind("0.0.0.0:0")?))?;
        socket.connect(to)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let mut flow = Self { socket, endpoint: String::new() };
        flow.endpoint = flow.ask()?;
        Ok(flow)
    }

    /// Sends a datagram, and returns the endpoint that answers.
    fn ask(&self) -> anyhow::Result<String> {
        self.socket.send(b"hello?")?;
        let mut answer = [0; 256];
        let length = self.socket.recv(&mut answer)?;
        let text = String::from_utf8_lossy(&answer[..length]).into_owned();
        text.split_whitespace().next().map(str::to_owned).context("an empty answer")
    }

    fn stays(&self) -> anyhow::Result<()> {
        let now = self.ask()?;
        anyhow::ensure!(now == self.endpoint, "a flow has moved from {} to {now}", self.endpoint);
        Ok(())
    }
}

fn join<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| resume_unwind(panic))
}

#[test]
fn kill_and_restart_under_load_fails_no_connection_and_moves_no_flow() {
    on_ipvs(|| kill_and_restart().unwrap_or_else(|error| panic!("{error:#}")));
}

fn kill_and_restart() -> anyhow::Result<()> {
    let world = World::build()?;
    let [mut backend, mut brain] = world.start()?;
    let mut chats = (0..4).map(|_| Chat::open(&world)).collect::<anyhow::Result<Vec<_>>>()?;
    let before = world.identity()?;
    let senders = [world.network.client(), world.network.pod(ip(ASKING))?, world.network.node()];
    let stop = AtomicBool::new(false);
    // Each client repeats as soon as it gets an answer, as often as an emulated processor allows.
    let repeat = |once: &dyn Fn() -> anyhow::Result<()>| {
        let mut count = 0;
        while !stop.load(Ordering::Relaxed) {
            once().with_context(|| format!("after {count}"))?;
            count += 1;
        }
        anyhow::Ok(count)
    };
    let flows = (0..FLOWS).map(|_| Flow::open(&world)).collect::<anyhow::Result<Vec<_>>>()?;
    let (connections, datagrams): (usize, usize) = thread::scope(|scope| {
        let tcp = senders.map(|from| scope.spawn(move || repeat(&|| connect(from).map(drop))));
        let udp = scope.spawn(|| repeat(&|| flows.iter().try_for_each(Flow::stays)));
        let restarted = (0..RESTARTS).try_for_each(|_| {
            backend.kill()?;
            backend.wait()?;
            backend = world.start_backend()?;
            brain.kill()?;
            brain.wait()?;
            brain = world.start_brain()?;
            chats.iter_mut().try_for_each(Chat::exchange).context("an earlier connection")
        });
        stop.store(true, Ordering::Relaxed);
        let tcp = tcp.map(join).into_iter().collect::<anyhow::Result<Vec<_>>>();
        let udp = join(udp);
        restarted?;
        anyhow::Ok((tcp.context("TCP")?.into_iter().sum(), udp.context("UDP")?))
    })?;
    println!("{RESTARTS} restarts each; {connections} connections, {datagrams} rounds of datagrams: all were answered");
    anyhow::ensure!(connections > 0 && datagrams > 0, "no request was sent");
    anyhow::ensure!(world.identity()? == before, "restarts changed the kernel:\n{before}\n{}", world.identity()?);
    Ok(())
}

#[test]
fn connections_survive_their_endpoint_and_the_programs() {
    on_ipvs(|| outlive().unwrap_or_else(|error| panic!("{error:#}")));
}

fn outlive() -> anyhow::Result<()> {
    let world = World::build()?;
    let [mut backend, mut brain] = world.start()?;
    let mut long = Chat::open(&world)?;
    let gone = long.pod;
    let rest: Vec<&str> = PODS.into_iter().filter(|pod| *pod != gone).collect();
    world.write(&rest)?;
    let has = |weight: &str| {
        let line = format!("-a -t {CHAT} -r {gone}:7 -m -w {weight}");
        world.run("ipvsadm", &["-S", "-n"]).is_ok_and(|servers| servers.lines().any(|server| server.starts_with(&line)))
    };
    world.wait_until("the endpoint drains", || has("0"))?;
    long.exchange()?;
    for _ in 0..6 {
        anyhow::ensure!(Chat::open(&world)?.pod != gone, "a new connection goes to the removed endpoint");
    }
    backend.kill()?;
    backend.wait()?;
    long.exchange()?;
    backend = world.start_backend()?;
    brain.kill()?;
    brain.wait()?;
    long.exchange()?;
    anyhow::ensure!(has("0"), "the removed endpoint still has a connection");
    // The connection ends with a reset, because the pod has more data to send. IPVS forgets a reset connection after ten seconds,
    // and an orderly closed one after two minutes.
    long.stream.write_all(&[1])?;
    long.stream.peek(&mut [0])?;
    drop(long);
    let took = world.wait_until("the endpoint goes", || !has(""))?;
    println!("the endpoint went {took:.1?} after its last connection");
    drop(backend);
    Ok(())
}

/// Regression: without `sloppy_sctp`, IPVS gives an endpoint only to the first packet of an association, so the client got no
/// answer after its endpoint had been deleted.
#[test]
fn an_association_is_answered_by_another_endpoint_once_its_own_is_deleted() {
    on_ipvs(|| is_routed_anew().unwrap_or_else(|error| panic!("{error:#}")));
}

fn is_routed_anew() -> anyhow::Result<()> {
    let world = World::build()?;
    let _programs = world.start()?;
    let client = world.network.client();
    let mut flow = OpenFlow::new(client, Probe::new(Protocol::Sctp, SIGNALS.parse()?));
    let mut ask = || match flow.exchange(client, ANSWER_TIMEOUT)? {
        Outcome::Answer { by, .. } => Ok(Some(by)),
        _ => anyhow::Ok(None),
    };
    let by = ask()?.context("the association gets no answer")?;
    anyhow::ensure!(ask()? == Some(by), "the association does not stay with its endpoint");
    let rest: Vec<&str> = PODS.into_iter().filter(|pod| ip(pod) != by.ip()).collect();
    world.write(&rest)?;
    let took = world.wait_until("another endpoint answers", || matches!(ask(), Ok(Some(other)) if other != by))?;
    println!("another endpoint answered after {took:.1?}");
    Ok(())
}

fn signal(program: &Running, signal: Signal) -> anyhow::Result<()> {
    Ok(kill_process(Pid::from_child(program), signal)?)
}

/// Connects to `web`, and returns how long it took.
fn connect(from: &Namespace) -> anyhow::Result<Duration> {
    let (to, began) = (WEB.parse()?, Instant::now());
    let mut answer = String::new();
    from.run(|| Ok(TcpStream::connect_timeout(&to, PATIENCE)?.read_to_string(&mut answer)?))?;
    Ok(began.elapsed())
}

#[test]
fn objects_deleted_with_ipvsadm_are_restored_and_connections_in_between_are_answered() {
    on_ipvs(|| cleared().unwrap_or_else(|error| panic!("{error:#}")));
}

fn cleared() -> anyhow::Result<()> {
    let world = World::build()?;
    let [backend, _brain] = world.start()?;
    let before = world.identity()?;
    let is_as_before = || world.identity().is_ok_and(|now| now == before);
    // IPVS ends the connections of deleted servers, but not those of a destination that gets no new ones.
    let disturbances: [&[&str]; 3] = [
        &["-C"],
        &["-d", "-t", CHAT, "-r", "10.180.0.1:7"],
        &["-e", "-t", CHAT, "-r", "10.180.0.2:7", "-m", "-w", "0"],
    ];
    let senders = [world.network.client(), world.network.pod(ip(ASKING))?, world.network.node()];
    for arguments in disturbances {
        let mut chats = (0..4).map(|_| Chat::open(&world)).collect::<anyhow::Result<Vec<_>>>()?;
        // The backend must not repair the change before the test has seen it.
        signal(&backend, Signal::STOP)?;
        world.run("ipvsadm", arguments)?;
        anyhow::ensure!(!is_as_before(), "{arguments:?} changed nothing");
        signal(&backend, Signal::CONT)?;
        // Clients that connect during this time may have to retry, but get an answer.
        let (took, slowest) = thread::scope(|scope| {
            let connecting = senders.map(|from| scope.spawn(move || connect(from)));
            let took = world.wait_until("all is back", is_as_before);
            let answered = connecting.map(join).into_iter().collect::<anyhow::Result<Vec<_>>>();
            anyhow::Ok((took?, answered.with_context(|| format!("after {arguments:?}"))?.into_iter().max()))
        })?;
        println!("put right {took:.1?} after ipvsadm {}; connected after {slowest:.1?}", arguments.join(" "));
        let stays = |chat: &&mut Chat| match arguments[0] {
            "-C" => false,
            "-d" => chat.pod != "10.180.0.1",
            _ => true,
        };
        chats.iter_mut().filter(stays).try_for_each(Chat::exchange).with_context(|| format!("after {arguments:?}"))?;
        Chat::open(&world)?.exchange()?;
    }
    Ok(())
}
