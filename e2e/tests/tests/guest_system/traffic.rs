//! The traffic that the brain exports for the ipvs backend is what clients sent and received, with the programs as shipped.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream, UdpSocket},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use localnet_e2e::Programs;
use localnet_lab::{
    Endpoint, Network, Outcome, Probe, Protocol, Running, Servers, Topology,
    topology::{CLUSTER_CIDRS, NODE},
};
use localnet_vm::on_ipvs;

const BACKEND: &str = "localnet-ipvs";
const PODS: [&str; 2] = ["10.180.0.1", "10.180.0.2"];
const PODS_V6: [&str; 2] = ["fd00:10:180::1", "fd00:10:180::2"];
const VIPS: [&str; 2] = ["172.30.0.53", "fd00:172:30::53"];
const PORTS: [(Protocol, &str); 2] = [(Protocol::Tcp, "tcp"), (Protocol::Udp, "udp")];
/// Maximum time for anything that must happen, on an emulated processor.
const PATIENCE: Duration = Duration::from_secs(120);

/// Connections, and the packets and bytes from and to clients.
type Counts = [u64; 5];

struct World {
    // Fields are dropped in this order.
    programs: Programs,
    _servers: Servers,
    network: Network,
}

impl World {
    fn build() -> anyhow::Result<Self> {
        let network = Network::build(Topology::with_pods(PODS)?)?;
        let mut servers = Vec::new();
        for pod in PODS.iter().chain(&PODS_V6) {
            let address = SocketAddr::new(pod.parse()?, 5353);
            servers.extend(PORTS.map(|(protocol, _)| Endpoint { protocol, address }));
        }
        let world = Self { programs: Programs::new()?, _servers: Servers::start(&network, servers)?, network };
        fs::create_dir(world.programs.path().join("cluster"))?;
        fs::write(world.programs.path().join("cluster/all.yaml"), objects())?;
        Ok(world)
    }

    fn start_brain(&self) -> anyhow::Result<Running> {
        let folder = self.programs.path().join("cluster");
        self.programs.start_brain(self.network.node(), &format!("file:{}", folder.display()))
    }

    /// Starts the backend, and waits until it has applied a state.
    fn start_backend(&self) -> anyhow::Result<Running> {
        let applied = || self.programs.states_applied(BACKEND);
        let (before, began) = (applied(), Instant::now());
        let (api, pods) = (self.programs.api(), CLUSTER_CIDRS.join(","));
        let flags = ["--api", &api, "--cluster-cidr", &pods, "--traffic", "10"];
        let backend = self.programs.start(self.network.node(), BACKEND, &flags)?;
        while applied() == before {
            anyhow::ensure!(began.elapsed() < PATIENCE, "the backend applies no state: {}", self.programs.log(BACKEND));
            std::thread::park_timeout(Duration::from_millis(20));
        }
        Ok(backend)
    }

    /// Counts the client's packets with rules in the client's own namespace, which know nothing of Services.
    fn count_at_client(&self) -> anyhow::Result<()> {
        let mut rules = String::from("table inet client {\n");
        for (name, hook, address, port) in [("sent", "output", "daddr", "dport"), ("got", "input", "saddr", "sport")] {
            rules += &format!("chain {name} {{ type filter hook {hook} priority 0\n");
            for (ip, vip) in ["ip", "ip6"].iter().zip(VIPS) {
                for (_, protocol) in PORTS {
                    rules += &format!("{ip} {address} {vip} {protocol} {port} 53 counter comment \"{protocol}\"\n");
                }
            }
            rules += "}\n";
        }
        self.network.client().output_with_input(Command::new("nft").args(["-f", "-"]), &(rules + "}\n"))?;
        Ok(())
    }

    /// What the client has counted for each port, both families together, after so many connections.
    fn of_client(&self, connections: u64) -> anyhow::Result<BTreeMap<String, Counts>> {
        let listing = self.network.client().output(Command::new("nft").args(["list", "table", "inet", "client"]))?;
        let (mut all, mut direction) = (BTreeMap::<String, Counts>::new(), 0);
        for line in listing.lines() {
            match line.split_whitespace().collect::<Vec<_>>()[..] {
                ["chain", name, ..] => direction = if name == "got" { 2 } else { 0 },
                [.., "counter", "packets", packets, "bytes", bytes, "comment", name] => {
                    let counts = all.entry(name.trim_matches('"').to_owned()).or_default();
                    counts[0] = connections;
                    counts[1 + direction] += packets.parse::<u64>()?;
                    counts[2 + direction] += bytes.parse::<u64>()?;
                }
                _ => {}
            }
        }
        Ok(all)
    }

    /// What the metrics of the brain say for each port.
    fn of_metrics(&self) -> anyhow::Result<BTreeMap<String, Counts>> {
        let page = self.network.node().run(|| {
            let mut stream = TcpStream::connect("127.0.0.1:10249")?;
            stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")?;
            let mut page = String::new();
            stream.read_to_string(&mut page)?;
            Ok(page)
        })?;
        let mut all = BTreeMap::<String, Counts>::new();
        for line in page.lines().filter(|line| line.contains("service=\"web\"")) {
            let label = |name: &str| {
                let (_, rest) = line.split_once(&format!("{name}=\""))?;
                Some(rest.split_once('"')?.0)
            };
            let place = match (line.split('{').next(), label("direction")) {
                (Some("localnet_service_connections_total"), _) => 0,
                (Some("localnet_service_packets_total"), Some("original")) => 1,
                (Some("localnet_service_bytes_total"), Some("original")) => 2,
                (Some("localnet_service_packets_total"), Some("reply")) => 3,
                (Some("localnet_service_bytes_total"), Some("reply")) => 4,
                _ => continue,
            };
            let (port, value) = (label("port").context("no port")?, line.rsplit(' ').next().context("no value")?);
            all.entry(port.to_owned()).or_default()[place] += value.parse::<u64>()?;
        }
        Ok(all)
    }

    fn await_counted(&self, connections: u64) -> anyhow::Result<()> {
        let began = Instant::now();
        loop {
            let (counted, expected) = (self.of_metrics()?, self.of_client(connections)?);
            if counted == expected {
                return Ok(());
            }
            anyhow::ensure!(
                began.elapsed() < PATIENCE,
                "the metrics are {counted:?}, but the client counts {expected:?}\n{}",
                self.programs.log(BACKEND)
            );
            std::thread::park_timeout(Duration::from_millis(200));
        }
    }

    /// Opens `times` connections to each port in each family.
    fn connect(&self, times: usize) -> anyhow::Result<()> {
        for (protocol, _) in PORTS {
            for vip in VIPS {
                let probe = Probe::new(protocol, SocketAddr::new(vip.parse()?, 53)).timeout(PATIENCE);
                for _ in 0..times {
                    let outcome = self.network.client().probe(probe)?;
                    let is_pod = matches!(outcome, Outcome::Answer { by, .. } if by.port() == 5353);
                    anyhow::ensure!(is_pod, "{protocol} {vip}: {outcome}");
                }
            }
        }
        Ok(())
    }
}

fn objects() -> String {
    let list = |of: &[&str]| {
        of.iter().map(|ip| format!("{{addresses: [\"{ip}\"], nodeName: node-a}}")).collect::<Vec<_>>().join(", ")
    };
    let node: Vec<String> = NODE.iter().map(|ip| format!("{{type: InternalIP, address: \"{ip}\"}}")).collect();
    let ports = "[{name: tcp, protocol: TCP, port: 5353}, {name: udp, protocol: UDP, port: 5353}]";
    let slice = |name: &str, family: &str, pods: &[&str]| {
        format!(
            "---\n{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: {family}, ports: {ports}, endpoints: [{}],
             metadata: {{name: {name}, namespace: shop, labels: {{kubernetes.io/service-name: web}}}}}}\n",
            list(pods)
        )
    };
    format!(
        "{{apiVersion: v1, kind: Node, metadata: {{name: node-a}}, status: {{addresses: [{}]}}}}
---
apiVersion: v1
kind: Service
metadata: {{name: web, namespace: shop}}
spec:
  clusterIP: \"{}\"
  clusterIPs: [\"{}\", \"{}\"]
  ports: [{{name: tcp, protocol: TCP, port: 53}}, {{name: udp, protocol: UDP, port: 53}}]
{}{}",
        node.join(", "),
        VIPS[0],
        VIPS[0],
        VIPS[1],
        slice("web-v4", "IPv4", &PODS),
        slice("web-v6", "IPv6", &PODS_V6)
    )
}

fn ask(socket: &UdpSocket) -> anyhow::Result<()> {
    let mut answer = [0; 256];
    socket.send(b"hello?")?;
    socket.recv(&mut answer)?;
    Ok(())
}

#[test]
fn exported_traffic_is_the_traffic_of_clients_also_while_no_backend_runs() {
    on_ipvs(|| traffic().unwrap_or_else(|error| panic!("{error:#}")));
}

fn traffic() -> anyhow::Result<()> {
    let world = World::build()?;
    let _brain = world.start_brain()?;
    let backend = world.start_backend()?;
    world.count_at_client()?;
    world.connect(5)?;
    // One UDP flow stays open.
    let open = world.network.client().run(|| Ok(UdpSocket::bind("0.0.0.0:0")?))?;
    open.connect((VIPS[0], 53))?;
    open.set_read_timeout(Some(PATIENCE))?;
    ask(&open)?;
    // As many connections of each protocol, because the flow is one more.
    let tcp = Probe::new(Protocol::Tcp, SocketAddr::new(VIPS[1].parse()?, 53)).timeout(PATIENCE);
    world.network.client().probe(tcp)?;
    world.await_counted(11)?;
    // IPVS counts on while no backend runs.
    drop(backend);
    world.connect(3)?;
    ask(&open)?;
    let backend = world.start_backend()?;
    world.connect(2)?;
    ask(&open)?;
    world.await_counted(21)?;
    drop(backend);
    Ok(())
}
