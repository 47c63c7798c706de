//! Counted refused packets are the packets that clients sent, with real packets.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use localnet_lab::{Network, Outcome, Probe, Protocol, Topology};
use localnet_proto::{
    Snapshot,
    traffic::{RefusalReason, Refusals},
};

use super::{
    config,
    live::{Live, PATIENCE},
    load,
};

/// Each Service that refuses packets: its name, the VIPs that clients use, and what happens to their packets.
const SERVICES: [(&str, [&str; 2], Outcome, RefusalReason); 4] = [
    ("empty", ["172.30.0.60", "fd00:172:30::60"], Outcome::Rejected, RefusalReason::NoEndpoints),
    ("elsewhere", ["198.51.100.61", "2001:db8:99::61"], Outcome::Dropped, RefusalReason::NoLocalEndpoint),
    ("nowhere", ["172.30.0.62", "fd00:172:30::62"], Outcome::Dropped, RefusalReason::NoLocalEndpoint),
    ("fenced", ["198.51.100.63", "2001:db8:99::63"], Outcome::Dropped, RefusalReason::SourceRanges),
];
const PROTOCOLS: [Protocol; 2] = [Protocol::Tcp, Protocol::Udp];
/// A port of each protocol.
const PORTS: &str = "{name: tcp, protocol: TCP, port: 53}, {name: udp, protocol: UDP, port: 53}";

/// The Services that refuse packets, and as many others as given.
fn state(others: u16) -> Snapshot {
    let pod = |address: &str| {
        format!(
            "{{address: '{address}', ports: [{{name: tcp, port: 53}}, {{name: udp, port: 53}}], scopes: {{internal: true, external: true}}}}"
        )
    };
    let pods = ["10.180.1.1", "fd00:10:180:1::1"].map(pod).join(", ");
    // Without a local endpoint, external traffic has no endpoint.
    let remote = pods.replace(", external: true", "");
    let ports = |verdicts: &str| {
        let when_empty = format!("whenEmptyIPv4: {{{verdicts}}}, whenEmptyIPv6: {{{verdicts}}}}}");
        PORTS.replace('}', &format!(", {when_empty}"))
    };
    let (rejects, drops) = ("internal: reject, external: reject", "internal: drop, external: drop");
    let lb = |ips: &str, more: &str| {
        let cluster_ips = ips.replace("198.51.100.", "172.30.1.").replace("2001:db8:99::", "fd00:172:30:1::");
        format!("type: LoadBalancer, clusterIPs: [{cluster_ips}], loadBalancerIPs: [{ips}], {more}")
    };
    let services = SERVICES.map(|(name, vips, ..)| {
        let vips = vips.map(|vip| format!("'{vip}'")).join(", ");
        let rest = match name {
            "empty" => format!("type: ClusterIP, clusterIPs: [{vips}], ports: [{}]", ports(rejects)),
            "elsewhere" => {
                let more = format!("externalTrafficToLocal: true, ports: [{}], endpoints: [{remote}]", ports(drops));
                lb(&vips, &more)
            }
            "nowhere" => format!("type: ClusterIP, clusterIPs: [{vips}], ports: [{}]", ports(drops)),
            _ => {
                let ranges = "203.0.113.128/25, '2001:db8:2::80/121'";
                let filter = format!("sourceFilters: [{{targets: [{vips}], sourceRanges: [{ranges}]}}]");
                lb(&vips, &format!("{filter}, ports: [{PORTS}], endpoints: [{pods}]"))
            }
        };
        format!("- {{service: default/{name}, {rest}}}\n")
    });
    let others = (0..others).map(|other| {
        let ip = format!("172.31.{}.{}", other / 250, other % 250);
        format!("- {{service: default/other-{other}, type: ClusterIP, clusterIPs: [{ip}], ports: [{PORTS}]}}\n")
    });
    let services: String = services.into_iter().chain(others).collect();
    let node = "{name: node-a, addresses: [192.168.0.2, '2001:db8::2']}";
    serde_saphyr::from_str(&format!("node: {node}\nservices:\n{services}")).unwrap()
}

/// Counts the client's packets with rules in the client's own namespace, which know nothing of Services.
fn build() -> Arc<Network> {
    let network = Network::build(Topology::default()).unwrap();
    let mut rules = "table inet client {\nchain sent { type filter hook output priority 0\n".to_owned();
    for (name, vips, ..) in SERVICES {
        for (ip, vip) in ["ip", "ip6"].iter().zip(vips) {
            for protocol in PROTOCOLS {
                let matched = protocol.to_string().to_lowercase();
                rules += &format!("{ip} daddr {vip} {matched} dport 53 counter comment \"{name}:{matched}\"\n");
            }
        }
    }
    load(network.client(), &(rules + "}\n}\n"));
    Arc::new(network)
}

/// How many packets the client has sent to each port, both families together.
fn sent(network: &Network) -> BTreeMap<String, u64> {
    let listing = network.client().output(Command::new("nft").args(["list", "table", "inet", "client"])).unwrap();
    let mut sent = BTreeMap::new();
    for line in listing.lines() {
        if let [.., "counter", "packets", packets, "bytes", _, "comment", name] =
            line.split_whitespace().collect::<Vec<_>>()[..]
        {
            *sent.entry(name.trim_matches('"').to_owned()).or_default() += packets.parse::<u64>().unwrap();
        }
    }
    sent
}

/// Connects to each port twice in each family. No endpoint answers.
#[track_caller]
fn probe_all(network: &Network) {
    for (name, vips, expected, _) in SERVICES {
        for protocol in PROTOCOLS {
            for vip in vips {
                let to = SocketAddr::new(vip.parse::<IpAddr>().unwrap(), 53);
                for _ in 0..2 {
                    let probe = Probe::new(protocol, to);
                    let probe = match expected {
                        Outcome::Dropped => probe.timeout(Duration::from_millis(20)),
                        _ => probe,
                    };
                    assert_eq!(network.client().probe(probe).unwrap(), expected, "{name} {protocol} {to}");
                }
            }
        }
    }
}

/// Waits until the backend has counted all packets that the client has sent, each for its reason.
#[track_caller]
fn await_counted(live: &Live, network: &Network) {
    let began = Instant::now();
    loop {
        let (counted, sent) = (live.traffic(), sent(network));
        let refused = counted.ports.iter().map(|of| {
            let name = of.service.as_ref().map(|service| service.name.clone()).unwrap_or_default();
            (format!("{name}:{}", of.port), of.refused.clone())
        });
        let refused: BTreeMap<String, Vec<Refusals>> = refused.collect();
        let expected = SERVICES.iter().flat_map(|(name, _, _, reason)| {
            PROTOCOLS.map(|protocol| {
                let port = format!("{name}:{protocol}").to_lowercase();
                let packets = sent.get(&port).copied().unwrap_or_default();
                (port, vec![Refusals { reason: (*reason).into(), packets }])
            })
        });
        let expected: BTreeMap<_, _> = expected.collect();
        if refused == expected && counted.rest_refused.is_empty() {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "counted {refused:#?}, rest {:?}, sent {sent:#?}", counted.rest_refused);
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn has_table(network: &Network) -> bool {
    network.node().output(Command::new("nft").args(["list", "map", "ip", "localnet", "no-endpoints"])).is_ok()
}

#[test]
fn refused_packets_count_whatever_happens_to_the_tables() {
    let network = build();
    let live = Live::counting(&network, config(), state(0), 100);
    probe_all(&network);
    await_counted(&live, &network);
    // Sets outgrow their sizes. The backend replaces these sets, and not the tables.
    probe_all(&network);
    live.set(state(3_000));
    probe_all(&network);
    await_counted(&live, &network);
    // Another program deletes a rule.
    load(network.node(), "flush chain ip localnet unserved");
    live.next_sync();
    probe_all(&network);
    await_counted(&live, &network);
    drop(live);

    // The rules count while no backend runs, and the next backend continues.
    probe_all(&network);
    let live = Live::counting(&network, config(), state(3_000), 100);
    await_counted(&live, &network);
    // Another program deletes a table, with what its sets have counted.
    load(network.node(), "delete table ip localnet");
    let began = Instant::now();
    while !has_table(&network) {
        assert!(began.elapsed() < PATIENCE);
    }
    probe_all(&network);
    await_counted(&live, &network);
}

#[test]
fn without_the_flag_no_set_counts() {
    let network = build();
    let is_counting = || {
        let listing = network.node().output(Command::new("nft").args(["list", "table", "ip6", "localnet"])).unwrap();
        listing.contains("refused-") || listing.contains("drop-port") || listing.contains("counter")
    };
    for (max_counted, expected) in [(0, false), (10, true), (0, false)] {
        let live = Live::counting(&network, config(), state(0), max_counted);
        assert_eq!(is_counting(), expected);
        probe_all(&network);
        drop(live);
    }
}
