//! Counted traffic is the traffic that clients sent and received, with real packets.

use std::{
    collections::BTreeMap,
    net::{SocketAddr, UdpSocket},
    process::Command,
    sync::Arc,
    time::Instant,
};

use localnet_lab::{Endpoint, Network, Outcome, Probe, Protocol, Servers, Topology};
use localnet_linux::conntrack::{self, Conntrack as _, Selection};
use localnet_proto::{
    Family, Snapshot,
    traffic::{PortTraffic, TrafficTotal, Volume},
};

use super::{
    config,
    live::{Live, PATIENCE},
    load,
};

const PODS: [&str; 2] = ["10.180.0.1", "10.180.0.2"];
const PODS_V6: [&str; 2] = ["fd00:10:180::1", "fd00:10:180::2"];
const VIPS: [&str; 2] = ["172.30.0.53", "fd00:172:30::53"];
const PORTS: [(Protocol, &str); 3] = [(Protocol::Tcp, "tcp"), (Protocol::Udp, "udp"), (Protocol::Sctp, "sctp")];
/// How many ports have totals of their own: fewer than the Services of the test.
const MAX_PORTS: usize = 10;

/// A Service with a port of each protocol, and as many others as given.
fn state(others: u16) -> Snapshot {
    let ports: String = PORTS.iter().map(|(_, name)| format!("{{name: {name}, port: 5353}}, ")).collect();
    let endpoint = |address: &&str| {
        format!("{{address: '{address}', ports: [{ports}], local: true, scopes: {{internal: true, external: true}}}}")
    };
    let endpoints: Vec<String> = PODS.iter().chain(&PODS_V6).map(endpoint).collect();
    let ports: String =
        PORTS.iter().map(|(protocol, name)| format!("{{name: {name}, protocol: {protocol}, port: 53}}, ")).collect();
    let service = |name: &str, ips: &str, endpoints: &str| {
        format!(
            "- {{service: default/{name}, type: ClusterIP, clusterIPs: [{ips}], ports: [{ports}], endpoints: [{endpoints}]}}\n"
        )
    };
    let mut yaml = "node: {name: node-a, addresses: [192.168.0.2]}\nservices:\n".to_owned();
    yaml += &service("counted", &VIPS.map(|vip| format!("'{vip}'")).join(", "), &endpoints.join(", "));
    for other in 0..others {
        yaml += &service(&format!("other-{other}"), &format!("172.31.{}.{}", other / 250, other % 250), &endpoints[0]);
    }
    serde_saphyr::from_str(&yaml).unwrap()
}

struct World {
    network: Arc<Network>,
    _servers: Servers,
}

impl World {
    /// Counts the client's packets with rules in the client's own namespace, which know nothing of Services.
    fn build() -> Self {
        let network = Network::build(Topology::with_pods(PODS).unwrap()).unwrap();
        let endpoint =
            |pod: &str, protocol| Endpoint { protocol, address: SocketAddr::new(pod.parse().unwrap(), 5353) };
        let all = PODS.iter().chain(&PODS_V6);
        let all = all.flat_map(|pod| PORTS.map(|(protocol, _)| endpoint(pod, protocol)));
        let servers = Servers::start(&network, all.collect::<Vec<_>>()).unwrap();
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
        load(network.client(), &(rules + "}\n"));
        // The open flow lasts as long as the test.
        let timeouts = ["nf_conntrack_udp_timeout", "nf_conntrack_udp_timeout_stream"];
        let timeouts = timeouts.map(|name| (format!("net/netfilter/{name}"), "600"));
        network.node().sysctl(&timeouts.each_ref().map(|(name, seconds)| (name.as_str(), *seconds))).unwrap();
        Self { network: Arc::new(network), _servers: servers }
    }

    /// What the client has sent to and got from each port: packets and bytes of both families together.
    fn of_client(&self) -> BTreeMap<String, [Volume; 2]> {
        let listing =
            self.network.client().output(Command::new("nft").args(["list", "table", "inet", "client"])).unwrap();
        let (mut all, mut direction) = (BTreeMap::<String, [Volume; 2]>::new(), 0);
        for line in listing.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                ["chain", name, ..] => direction = usize::from(name == "got"),
                [.., "counter", "packets", packets, "bytes", bytes, "comment", name] => {
                    let volume = &mut all.entry(name.trim_matches('"').to_owned()).or_default()[direction];
                    volume.packets += packets.parse::<u64>().unwrap();
                    volume.bytes += bytes.parse::<u64>().unwrap();
                }
                _ => {}
            }
        }
        all
    }

    /// Whether a pod answers. Without rules, the namespace outside answers.
    fn is_served(&self, protocol: Protocol, to: SocketAddr) -> bool {
        let outcome = self.network.client().probe(Probe::new(protocol, to)).unwrap();
        let is_pod = |by: SocketAddr| PODS.iter().chain(&PODS_V6).any(|pod| *pod == by.ip().to_string());
        matches!(outcome, Outcome::Answer { by, .. } if is_pod(by))
    }

    #[track_caller]
    fn probe(&self, protocol: Protocol, to: SocketAddr) {
        assert!(self.is_served(protocol, to), "{protocol} {to}");
    }

    fn delete_sctp_flows(&self) {
        let delete = || {
            let (mut kernel, mut flows) = (conntrack::Kernel::open()?, Vec::new());
            for family in Family::BOTH {
                let selection = Selection { family, protocol: Protocol::Sctp, established: false };
                kernel.dump(selection, &mut |flow| flows.push(*flow))?;
            }
            Ok(kernel.delete(&flows)?)
        };
        assert!(self.network.node().run(delete).unwrap() > 0);
    }

    /// Connects to each port `times` times in each family.
    fn probe_all(&self, times: usize) {
        for (protocol, _) in PORTS {
            for vip in VIPS {
                let to = SocketAddr::new(vip.parse().unwrap(), 53);
                (0..times).for_each(|_| self.probe(protocol, to));
            }
        }
    }

    /// Waits until the backend has counted so many connections of each port, and what the client has sent and got since `before`.
    #[track_caller]
    fn await_counted(&self, live: &Live, connections: u64, before: &BTreeMap<String, [Volume; 2]>) {
        let began = Instant::now();
        loop {
            let counted = live.traffic();
            let now = self.of_client();
            let expected = PORTS.map(|(_, name)| {
                let since = |at: usize| {
                    let [now, before] = [&now, before].map(|of| of.get(name).copied().unwrap_or_default()[at]);
                    Some(Volume { packets: now.packets - before.packets, bytes: now.bytes - before.bytes })
                };
                TrafficTotal { connections, original: since(0), reply: since(1) }
            });
            let of = |name: &str| {
                counted
                    .ports
                    .iter()
                    .find(|of| of.port == name && of.service.as_ref().is_some_and(|key| key.name == "counted"))
            };
            let found = PORTS.map(|(_, name)| of(name).and_then(|of| of.total).unwrap_or_default());
            if found == expected {
                PORTS.iter().filter_map(|(_, name)| of(name)).for_each(check_endpoints);
                return;
            }
            assert!(began.elapsed() < PATIENCE, "counted {found:#?}, but the client counts {expected:#?}");
        }
    }
}

/// The endpoints' totals add up to the port's total.
fn check_endpoints(of: &PortTraffic) {
    let mut sum = TrafficTotal::default();
    for endpoint in of.endpoints.iter().filter_map(|of| of.total) {
        sum.connections += endpoint.connections;
        for (sum, more) in [(&mut sum.original, endpoint.original), (&mut sum.reply, endpoint.reply)] {
            let (sum, more) = (sum.get_or_insert_default(), more.unwrap_or_default());
            (sum.packets, sum.bytes) = (sum.packets + more.packets, sum.bytes + more.bytes);
        }
    }
    assert_eq!(Some(sum), of.total);
}

fn ask(socket: &UdpSocket) {
    let mut answer = [0; 256];
    socket.send(b"hello?").unwrap();
    socket.recv(&mut answer).unwrap();
}

#[test]
fn counted_traffic_is_the_traffic_of_clients_through_growth_repair_and_restart() {
    let world = World::build();
    let nothing = BTreeMap::new();
    let live = Live::counting(&world.network, config(), state(0), MAX_PORTS);
    live.await_traffic();
    world.probe_all(5);
    // One flow stays open.
    let open = world.network.client().run(|| {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.connect((VIPS[0], 53))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(socket)
    });
    let open = open.unwrap();
    ask(&open);
    // The sets outgrow their sizes, so the backend replaces the tables.
    live.set(state(3_000));
    world.probe_all(5);
    // Another program deletes a table, and the backend restores it.
    load(world.network.node(), "delete table ip localnet");
    let began = Instant::now();
    while !world.is_served(Protocol::Tcp, "172.31.0.0:53".parse().unwrap()) {
        assert!(began.elapsed() < PATIENCE);
    }
    world.probe_all(5);
    ask(&open);
    // The events of deleted flows are like those of flows that end.
    world.delete_sctp_flows();
    world.probe(Protocol::Udp, SocketAddr::new(VIPS[0].parse().unwrap(), 53));
    world.probe(Protocol::Tcp, SocketAddr::new(VIPS[0].parse().unwrap(), 53));
    world.probe(Protocol::Sctp, SocketAddr::new(VIPS[1].parse().unwrap(), 53));
    world.probe(Protocol::Tcp, SocketAddr::new(VIPS[1].parse().unwrap(), 53));
    world.probe(Protocol::Sctp, SocketAddr::new(VIPS[1].parse().unwrap(), 53));
    world.await_counted(&live, 32, &nothing);
    drop(live);

    // After a restart, open flows count from then on, and the flows of the earlier run do not count again.
    let before = world.of_client();
    let live = Live::counting(&world.network, config(), state(3_000), MAX_PORTS);
    live.await_traffic();
    ask(&open);
    let to = SocketAddr::new(VIPS[1].parse().unwrap(), 53);
    PORTS.iter().for_each(|(protocol, _)| world.probe(*protocol, to));
    world.await_counted(&live, 1, &before);
    assert_eq!(live.traffic().lost, 0);
}

#[test]
fn init_sets_the_sysctl_only_if_traffic_is_counted() {
    let network = Network::build(Topology::default()).unwrap();
    let node = network.node();
    node.sysctl(&[("net/netfilter/nf_conntrack_acct", "0")]).unwrap();
    for (arguments, expected) in [(&[][..], "0"), (&["--traffic=0"], "0"), (&["--traffic=1"], "1")] {
        let mut init = Command::new(env!("CARGO_BIN_EXE_localnet-nft"));
        node.output(init.args(["init", "--conntrack-max-per-core=0"]).args(arguments)).unwrap();
        let read = || Ok(std::fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_acct")?);
        assert_eq!(node.run(read).unwrap().trim(), expected, "{arguments:?}");
    }
}
