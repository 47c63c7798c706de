//! Restarting brain or backend interrupts no packet (invariant 10): kill -9 under load, again and again.
//!
//! `RESTARTS=100 cargo test -p localnet-e2e --test system restarts` kills each of them a hundred times instead of ten.

use std::{
    collections::BTreeSet,
    env,
    io::Read as _,
    net::{SocketAddr, TcpStream, UdpSocket},
    process::Command,
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread::{Scope, ScopedJoinHandle, scope},
    time::Duration,
};

use anyhow::Context as _;
use localnet_e2e::{Programs, await_condition};
use localnet_lab::{Endpoint, Namespace, Network, Probe, Protocol, Running, Servers, Topology};

const PODS: [&str; 3] = ["10.180.0.1", "10.180.0.2", "10.180.0.3"];
/// The cluster IP of `web` in the examples, and that of `dns`.
const WEB: &str = "172.30.0.10:80";
const DNS: &str = "172.30.0.53:53";
/// New TCP connections, 500 a second; and datagrams over flows that stay.
const CONNECT_EVERY: Duration = Duration::from_millis(2);
const UDP_FLOWS: usize = 50;
const SEND_EVERY: Duration = Duration::from_millis(20);
const ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// Something that runs until told to stop, and then says how much it has done.
struct Load<'scope> {
    stop: Sender<()>,
    thread: ScopedJoinHandle<'scope, anyhow::Result<usize>>,
}

impl<'scope> Load<'scope> {
    fn start<'env>(
        scope: &'scope Scope<'scope, 'env>,
        from: &'env Namespace,
        every: Duration,
        step: impl FnMut() -> anyhow::Result<()> + Send + 'scope,
    ) -> Self {
        let (stop, stopped) = channel();
        Self { stop, thread: scope.spawn(move || from.run(move || repeat(&stopped, every, step))) }
    }

    fn finish(self) -> anyhow::Result<usize> {
        // A load that has failed has stopped by itself.
        _ = self.stop.send(());
        self.thread.join().expect("a load does not panic")
    }
}

fn repeat(
    stopped: &Receiver<()>,
    every: Duration,
    mut step: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<usize> {
    let mut count = 0;
    while stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
        step().with_context(|| format!("after {count} that were answered"))?;
        count += 1;
    }
    Ok(count)
}

/// One new connection.
fn connect(to: SocketAddr) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect_timeout(&to, ANSWER_WITHIN).context("connecting")?;
    stream.set_read_timeout(Some(ANSWER_WITHIN))?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).context("reading the answer")?;
    anyhow::ensure!(answer.contains("10.180.0."), "a strange answer: {answer:?}");
    Ok(())
}

/// Flows to `to`, each with the endpoint that it was sent to first.
fn flows(from: &Namespace, to: SocketAddr) -> anyhow::Result<Vec<(UdpSocket, String)>> {
    from.run(|| {
        let open = |_| {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            socket.connect(to)?;
            socket.set_read_timeout(Some(ANSWER_WITHIN))?;
            let endpoint = ask(&socket)?;
            Ok((socket, endpoint))
        };
        (0..UDP_FLOWS).map(open).collect()
    })
}

/// A datagram over a flow: the name of the endpoint that answers.
fn ask(socket: &UdpSocket) -> anyhow::Result<String> {
    socket.send(b"who is there?")?;
    let mut answer = [0; 256];
    let length = socket.recv(&mut answer).context("waiting for an answer")?;
    let text = String::from_utf8_lossy(&answer[..length]).into_owned();
    Ok(text.split_whitespace().next().unwrap_or_default().to_owned())
}

struct World {
    network: Network,
    programs: Programs,
    _servers: Servers,
}

impl World {
    fn build() -> anyhow::Result<Self> {
        let network = Network::build(Topology::with_pods(PODS)?)?;
        let endpoint = |protocol, pod: &str, port: u16| -> anyhow::Result<Endpoint> {
            Ok(Endpoint { protocol, address: SocketAddr::new(pod.parse()?, port) })
        };
        let mut endpoints = Vec::new();
        for pod in PODS {
            endpoints.push(endpoint(Protocol::Tcp, pod, 8080)?);
            endpoints.push(endpoint(Protocol::Udp, pod, 5353)?);
        }
        let servers = Servers::start(&network, endpoints)?;
        Ok(Self { network, programs: Programs::new()?, _servers: servers })
    }

    fn start_brain(&self) -> anyhow::Result<Running> {
        let examples = concat!("file:", env!("CARGO_MANIFEST_DIR"), "/../../examples");
        self.programs.start_brain(self.network.node(), examples)
    }

    /// How often the backend has said that a state is applied.
    fn applied(&self) -> usize {
        self.programs.log("localnet-nft").matches(" applied ").count()
    }

    fn ruleset(&self) -> anyhow::Result<String> {
        self.network.node().output(Command::new("nft").args(["-a", "list", "ruleset"]))
    }

    /// Kills a program and starts it again, and waits until the backend holds a state again.
    fn restart(&self, program: &mut Running, start: impl FnOnce() -> anyhow::Result<Running>) -> anyhow::Result<()> {
        let before = self.applied();
        program.kill()?;
        program.wait()?;
        *program = start()?;
        await_condition("the backend applies the state again", || self.applied() > before)
            .with_context(|| format!("{}{}", self.programs.log("localnet-brain"), self.programs.log("localnet-nft")))
    }
}

#[test]
fn kill_and_restart_under_load_fails_no_connection_and_moves_no_flow() -> anyhow::Result<()> {
    let restarts: usize = env::var("RESTARTS").map_or(Ok(10), |text| text.parse()).context("reading RESTARTS")?;
    let world = World::build()?;
    let (web, dns): (SocketAddr, SocketAddr) = (WEB.parse()?, DNS.parse()?);
    let client = world.network.client();
    let mut brain = world.start_brain()?;
    let mut backend = world.programs.start_nft(world.network.node())?;
    let pods = PODS.iter().map(|pod| format!("{pod}:8080").parse()).collect::<Result<Vec<_>, _>>()?;
    world.programs.await_answers(client, Probe::new(Protocol::Tcp, web), &pods)?;

    let before = world.ruleset()?;
    let flows = flows(client, dns)?;
    let used: BTreeSet<_> = flows.iter().map(|(_, endpoint)| endpoint).collect();
    anyhow::ensure!(used.len() == 2, "flows to both endpoints of dns were expected: {used:?}");
    let (connections, datagrams) = scope(|scope| {
        let tcp = Load::start(scope, client, CONNECT_EVERY, || connect(web));
        let udp = Load::start(scope, client, SEND_EVERY, || {
            flows.iter().try_for_each(|(socket, endpoint)| {
                let now = ask(socket)?;
                anyhow::ensure!(now == *endpoint, "a flow has moved from {endpoint} to {now}");
                Ok(())
            })
        });
        let restarted = (0..restarts).try_for_each(|_| {
            world.restart(&mut backend, || world.programs.start_nft(world.network.node()))?;
            world.restart(&mut brain, || world.start_brain())
        });
        let loads = (tcp.finish(), udp.finish());
        restarted?;
        anyhow::Ok((loads.0.context("TCP")?, loads.1.context("UDP")? * UDP_FLOWS))
    })?;
    println!("{restarts} restarts each: {connections} connections and {datagrams} datagrams were answered");
    anyhow::ensure!(connections > restarts && datagrams > restarts, "{connections} connections, {datagrams} datagrams");
    assert_eq!(world.ruleset()?, before, "restarts changed the kernel");
    Ok(())
}
