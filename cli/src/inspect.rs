//! Reads the plan and the live state of the backends other than nft, both as text. For nft, [`crate::path`] and [`crate::kernel`]
//! do this with types, because they also read single elements.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    net::{IpAddr, SocketAddr},
};

use anyhow::anyhow;
use localnet_client::{
    Snapshot,
    inspect::{Inspect, Listing, Place},
    route::{Origin, Outcome, Packet},
    vips::{Config, VipKey},
};
use localnet_ebpf::inspect::{self as ebpf, Inspector as Ebpf};
use localnet_iptables::inspect::Inspector as Iptables;
use localnet_ipvs::{Host, IpvsBackend};
use localnet_linux::{
    ipvs::{self, Change, Frontend},
    nft::family_name,
};
use localnet_proto::{Family, Protocol};
use localnet_win::{Recording, inspect as hns};

use crate::{
    explain::PathRow,
    listings::Listings,
    shadow::{iptables::Tables, verdict::Unknown},
    world::World,
};

/// A backend whose plan and live state are read as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inspected {
    /// iptables, with either flavour of the tools.
    Iptables,
    /// IPVS.
    Ipvs,
    /// The maps and programs of eBPF. They serve processes of this node, and another backend serves everything else.
    Ebpf,
    /// HNS of Windows, in a file.
    Win,
}

/// The maximum number of a VIP's endpoints whose elements are listed.
const MOST_ENDPOINTS: usize = 256;

impl Inspected {
    /// The backend that programs this machine; `None` if it is nft, or if its kernel objects cannot be read.
    pub fn of(world: &World) -> Option<Self> {
        Self::named(world.other.as_deref()?)
    }

    /// The ebpf backend, if it translates connections of this machine's processes beside the rules of another backend.
    pub fn beside(world: &World) -> Option<Self> {
        let is_known = world.is_here || world.listings.contains_key(Self::Ebpf.name());
        (is_known && world.has_ebpf && Self::of(world) != Some(Self::Ebpf)).then_some(Self::Ebpf)
    }

    /// The backend with that name, as backends report it.
    pub fn named(name: &str) -> Option<Self> {
        [Self::Iptables, Self::Ipvs, Self::Ebpf, Self::Win].into_iter().find(|backend| backend.name() == name)
    }

    /// The name, as backends report it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Iptables => "iptables",
            Self::Ipvs => "ipvs",
            Self::Ebpf => "ebpf",
            Self::Win => "win",
        }
    }

    /// The lists of a sysdump or of an HNS in a file. If there are none, plans the state of `world`, and reads the kernel of this network namespace.
    ///
    /// # Errors
    /// Returns an error if the kernel cannot be read.
    pub async fn read(self, world: &World) -> anyhow::Result<Listings> {
        if let Some(listings) = world.listings.get(self.name()) {
            return Ok(listings.clone());
        }
        let config = world.configuration.config.clone();
        match self {
            Self::Iptables => read(Iptables::open(config).await?, &world.state).await,
            Self::Ipvs => read(IpvsBackend::<Host>::open(config).await?, &world.state).await,
            Self::Ebpf => read(Ebpf::open(config).await?, &world.state).await,
            Self::Win => Err(anyhow!(world.kernel.as_ref().err().map_or_else(String::new, ToString::to_string))),
        }
    }

    /// Returns the steps of a packet, and whether the kernel holds each, for an answer. If they are unknown, also returns the reason.
    pub async fn path(self, world: &World, packet: &Packet) -> (Vec<PathRow>, Option<String>) {
        match self.read(world).await.and_then(|listings| self.steps(&listings, world, packet)) {
            Ok(steps) => (steps, None),
            Err(error) => (Vec::new(), Some(format!("{error:#}"))),
        }
    }

    /// Returns the steps of a packet, and whether the kernel holds each.
    ///
    /// # Errors
    /// Returns an error if the packet meets a rule that this program cannot evaluate.
    pub fn steps(self, listings: &Listings, world: &World, packet: &Packet) -> anyhow::Result<Vec<PathRow>> {
        match self {
            Self::Iptables => Ok(listings.rules(packet, &world.local)?),
            Self::Ipvs => Ok(listings.objects(packet)),
            Self::Ebpf => Ok(listings.elements(packet)),
            Self::Win => {
                let arrives = matches!(world.judge(*packet).outcome, Outcome::Endpoints { .. });
                Ok(listings.of_hns(packet, world.has(packet.destination), arrives))
            }
        }
    }
}

impl Listings {
    /// The planned rules of iptables that a packet meets, in order. `local` are the addresses of the node's interfaces.
    ///
    /// # Errors
    /// Returns an error if the packet meets a rule that this program cannot evaluate.
    pub fn rules(&self, packet: &Packet, local: &[IpAddr]) -> Result<Vec<PathRow>, Unknown> {
        let family = family_name(Family::of(packet.destination));
        let tables = tables(&self.planned, family);
        let row = |(table, rule): (&str, &str)| {
            let (chain, text) = rule.strip_prefix("-A ").and_then(|rule| rule.split_once(' ')).unwrap_or_default();
            self.row(&Place { table: format!("{family} {table}"), name: chain.to_owned() }, text)
        };
        Ok(tables.path(packet, local)?.into_iter().map(row).collect())
    }

    /// The planned objects of IPVS and its tables that name a packet's destination: the virtual server with its destinations, the
    /// address, and the elements of sets and maps.
    pub fn objects(&self, packet: &Packet) -> Vec<PathRow> {
        let to = SocketAddr::new(packet.destination, packet.port);
        let deletion = ipvs::script(&[Change::DeleteServer(Frontend::new(packet.protocol, to))]);
        let server = deletion.trim_start_matches("-D ").trim_end();
        let (address, protocol) = (packet.destination.to_string(), packet.protocol.as_lowercase());
        let element = format!("{address} . {protocol} . {}", packet.port);
        let names = |line: &str| {
            let begins =
                |with: &str| line.strip_prefix(with).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '));
            begins(&address) && !line.contains(" . ")
                || begins(&element)
                || begins(&format!("-A {server}"))
                || begins(&format!("-a {server}"))
        };
        let lines = self.planned.iter().flat_map(|(place, lines)| lines.iter().map(move |line| (place, line)));
        lines.filter(|(_, line)| names(line)).map(|(place, line)| self.row(place, line)).collect()
    }

    /// The planned programs and elements of eBPF that a connection of this node meets if it has the destination of a packet: the
    /// programs, the VIP, and its endpoints. None if the rules of another backend decide.
    pub fn elements(&self, packet: &Packet) -> Vec<PathRow> {
        if packet.origin == Origin::Outside || packet.protocol == Protocol::Sctp {
            return Vec::new();
        }
        let place = |name: &str| Place { table: ebpf::TABLE.to_owned(), name: name.to_owned() };
        let [programs, vips, endpoints] = [ebpf::PROGRAMS, "vips", "endpoints"].map(place);
        let find = |key: String| self.planned.get(&vips)?.iter().find(|line| line.starts_with(&key));
        let key = VipKey { address: packet.destination, protocol: packet.protocol, port: packet.port };
        let vip = find(format!("vip {key}: ")).or_else(|| find(format!("vip {} other ports: ", packet.destination)));
        let Some(vip) = vip else { return Vec::new() };
        let calls = if packet.protocol == Protocol::Udp { &["connect", "sendmsg"][..] } else { &["connect"] };
        let version = if packet.destination.is_ipv4() { '4' } else { '6' };
        let mut rows: Vec<_> = calls.iter().map(|call| self.row(&programs, &format!("{call}{version}"))).collect();
        rows.push(self.element(&vips, vip));
        // Only a VIP with endpoints names its group of endpoints.
        if let Some((group, _)) = vip.split_once(": ").and_then(|(_, value)| value.split_once(", ")) {
            let key = format!("endpoint {group} ");
            let of_vip = self.planned.get(&endpoints).into_iter().flatten().filter(|line| line.starts_with(&key));
            rows.extend(of_vip.take(MOST_ENDPOINTS).map(|line| self.element(&endpoints, line)));
        }
        rows
    }

    /// The planned objects of HNS that a packet meets: the network, the load balancer, and the endpoints that the load balancer
    /// names. `to_node` tells whether the destination is an address of the node. If the packet `arrives` at endpoints, it needs a
    /// load balancer.
    pub fn of_hns(&self, packet: &Packet, to_node: bool, arrives: bool) -> Vec<PathRow> {
        let place = |name: &str| Place { table: hns::TABLE.to_owned(), name: name.to_owned() };
        let [networks, balancers, endpoints] = [hns::NETWORKS, hns::BALANCERS, hns::ENDPOINTS].map(place);
        let planned = |place| self.planned.get(place).into_iter().flatten();
        let mut rows: Vec<_> = planned(&networks).map(|line| self.row(&networks, line)).collect();
        let vip = VipKey { address: packet.destination, protocol: packet.protocol, port: packet.port }.to_string();
        let (protocol, family) = (packet.protocol.as_lowercase(), Family::of(packet.destination));
        let node_port = to_node.then(|| format!("NodePort {}/{protocol} of {family}", packet.port));
        let is_of = |line: &&String| {
            let frontend = line.split(": ").next();
            frontend == Some(vip.as_str()) || node_port.is_some() && frontend == node_port.as_deref()
        };
        let Some(line) = planned(&balancers).find(is_of) else {
            if arrives {
                let live = self.live.get(&balancers).into_iter().flatten().find(is_of);
                let missing = self.row(&balancers, node_port.as_ref().unwrap_or(&vip));
                rows.push(PathRow {
                    held: if live.is_some() { "other" } else { "no" },
                    found: live.cloned(),
                    ..missing
                });
            }
            return rows;
        };
        rows.push(self.element(&balancers, line));
        let words = line.split([' ', ',', ';']);
        let mut named: BTreeSet<IpAddr> = words
            .filter_map(|word| word.parse::<SocketAddr>().map(|socket| socket.ip()).or_else(|_| word.parse()).ok())
            .collect();
        // On an overlay network, a ClusterIP is also a remote endpoint.
        named.insert(packet.destination);
        let is_named = |line: &&String| {
            let addresses = line.split(": ").next().unwrap_or_default().split(' ');
            addresses.filter_map(|address| address.parse().ok()).any(|address| named.contains(&address))
        };
        rows.extend(
            planned(&endpoints).filter(is_named).take(MOST_ENDPOINTS).map(|line| self.element(&endpoints, line)),
        );
        rows
    }

    /// The row of a planned element. If the kernel holds another value with the same key, the row contains it.
    fn element(&self, place: &Place, line: &str) -> PathRow {
        let mut row = self.row(place, line);
        let key = line.split_inclusive(": ").next().unwrap_or(line);
        let found = self.live.get(place).and_then(|lines| lines.iter().find(|held| held.starts_with(key)));
        if let Some(found) = found.filter(|found| *found != line) {
            (row.held, row.found) = ("other", Some(found.clone()));
        }
        row
    }

    /// The row of a planned line.
    fn row(&self, place: &Place, line: &str) -> PathRow {
        let is_held = self.live.get(place).is_some_and(|lines| lines.iter().any(|held| held == line));
        // The family is that of the packet.
        let table = place.table.split(' ').next_back().unwrap_or_default();
        let (place, held) = (format!("{table} {}", place.name), if is_held { "yes" } else { "no" });
        PathRow { place, text: line.to_owned(), handle: None, held, found: None }
    }
}

/// The iptables rules of a family (`ip` or `ip6`), for evaluation.
pub fn tables(listing: &Listing, family: &str) -> Tables {
    let mut text = String::new();
    for (place, rules) in listing {
        let Some(table) = place.table.strip_prefix(family).and_then(|table| table.strip_prefix(' ')) else { continue };
        // Writing to a string cannot fail.
        _ = writeln!(text, "*{table}");
        rules.iter().for_each(|rule| _ = writeln!(text, "-A {} {rule}", place.name));
    }
    Tables::parse(&text)
}

/// Plans a state for an HNS in a file, and lists what it holds.
///
/// # Errors
/// Returns an error if the state cannot be planned for this HNS.
pub async fn of_recording(recording: Recording, config: Config, state: &Snapshot) -> anyhow::Result<Listings> {
    let options = recording.options.clone();
    read(hns::Inspector::new(config, options, recording), state).await
}

async fn read(mut inspector: impl Inspect, state: &Snapshot) -> anyhow::Result<Listings> {
    let planned = inspector.planned(state);
    Ok(Listings { planned, live: inspector.live().await? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_of_ipvs_are_those_of_the_destination() {
        let place = |table: &str, name: &str| Place { table: table.to_owned(), name: name.to_owned() };
        let lines = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
        let planned = Listing::from([
            (
                place("IPVS", "virtual servers"),
                lines(&[
                    "-A -t 172.30.0.1:80 -s rr",
                    "-A -t 172.30.0.1:8080 -s rr",
                    "-A -u 172.30.0.1:80 -s rr",
                    "-a -t 172.30.0.1:80 -r 10.180.0.1:8080 -m -w 1",
                ]),
            ),
            (place("interface", "kube-ipvs0"), lines(&["172.30.0.1", "172.30.0.10"])),
            (place("ip localnet-ipvs", "cluster-ips"), lines(&["172.30.0.1"])),
            (
                place("ip localnet-ipvs", "vips"),
                lines(&["172.30.0.1 . tcp . 80 comment \"shop/web:http\"", "172.30.0.1 . tcp . 8080"]),
            ),
        ]);
        let mut live = planned.clone();
        live.get_mut(&place("IPVS", "virtual servers")).unwrap().pop();
        let packet = Packet {
            source: [10, 180, 0, 9].into(),
            destination: [172, 30, 0, 1].into(),
            protocol: Protocol::Tcp,
            port: 80,
            origin: Origin::Pod,
        };
        let rows = Listings { planned, live }.objects(&packet);
        let rows: Vec<_> = rows.iter().map(|row| format!("{} {}: {}", row.held, row.place, row.text)).collect();
        let expected = [
            "yes IPVS virtual servers: -A -t 172.30.0.1:80 -s rr",
            "no IPVS virtual servers: -a -t 172.30.0.1:80 -r 10.180.0.1:8080 -m -w 1",
            "yes interface kube-ipvs0: 172.30.0.1",
            "yes localnet-ipvs cluster-ips: 172.30.0.1",
            "yes localnet-ipvs vips: 172.30.0.1 . tcp . 80 comment \"shop/web:http\"",
        ];
        assert_eq!(rows, expected);
    }

    #[test]
    fn objects_of_hns_are_those_that_a_packet_meets() {
        let place = |name: &str| Place { table: hns::TABLE.to_owned(), name: name.to_owned() };
        let lines = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
        let planned = Listing::from([
            (place("networks"), lines(&["cbr0"])),
            (
                place("load balancers"),
                lines(&[
                    "172.30.0.1:80/tcp: to 10.180.0.1:8080, remote 10.180.1.2:8080; source VIP 10.180.0.250",
                    "172.30.0.1:8080/tcp: to 10.180.0.1:8080",
                    "NodePort 30080/tcp of IPv4: to 10.180.0.1:8080; LocalRoutedVIP; VipExternalIP",
                ]),
            ),
            (
                place("endpoints"),
                lines(&[
                    "10.180.0.250: local",
                    "10.180.1.2: remote, 02-11-0a-b4-01-02",
                    "10.180.1.3: remote, 02-11-0a-b4-01-03",
                    "172.30.0.1: remote, 00-15-5d-00-00-02",
                ]),
            ),
        ]);
        let live = Listing::from([
            (place("networks"), lines(&["cbr0"])),
            (
                place("load balancers"),
                lines(&["172.30.0.1:80/tcp: to 10.180.0.1:8080", "172.30.0.9:80/tcp: to no endpoint"]),
            ),
            (place("endpoints"), lines(&["10.180.0.250: local", "172.30.0.1: remote, 00-15-5d-00-00-02"])),
        ]);
        let listings = Listings { planned, live };
        let rows = |to: &str, to_node, arrives| -> Vec<String> {
            let to: SocketAddr = to.parse().unwrap();
            let (source, protocol, origin) = (to.ip(), Protocol::Tcp, Origin::Pod);
            let packet = Packet { source, destination: to.ip(), protocol, port: to.port(), origin };
            let found = |of: Option<String>| of.map(|of| format!(" ({of})")).unwrap_or_default();
            let rows = listings.of_hns(&packet, to_node, arrives).into_iter();
            rows.map(|row| format!("{} {}: {}{}", row.held, row.place, row.text, found(row.found))).collect()
        };
        let network = "yes HNS networks: cbr0";
        assert_eq!(
            rows("172.30.0.1:80", false, true),
            [
                network,
                "other HNS load balancers: 172.30.0.1:80/tcp: to 10.180.0.1:8080, remote 10.180.1.2:8080; source VIP 10.180.0.250 \
                 (172.30.0.1:80/tcp: to 10.180.0.1:8080)",
                "yes HNS endpoints: 10.180.0.250: local",
                "no HNS endpoints: 10.180.1.2: remote, 02-11-0a-b4-01-02",
                "yes HNS endpoints: 172.30.0.1: remote, 00-15-5d-00-00-02",
            ]
        );
        let node_port =
            "no HNS load balancers: NodePort 30080/tcp of IPv4: to 10.180.0.1:8080; LocalRoutedVIP; VipExternalIP";
        assert_eq!(rows("192.168.0.2:30080", true, true), [network, node_port]);
        // The backend plans no load balancer for what HNS cannot do. If the state sends packets to endpoints, one is missing.
        assert_eq!(rows("172.30.0.5:80", false, true), [network, "no HNS load balancers: 172.30.0.5:80/tcp"]);
        assert_eq!(
            rows("172.30.0.9:80", false, true),
            [network, "other HNS load balancers: 172.30.0.9:80/tcp (172.30.0.9:80/tcp: to no endpoint)"]
        );
        assert_eq!(rows("172.30.0.5:80", false, false), [network]);
    }

    #[test]
    fn elements_of_ebpf_are_those_that_a_connection_of_the_node_meets() {
        let place = |name: &str| Place { table: ebpf::TABLE.to_owned(), name: name.to_owned() };
        let lines = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
        let planned = Listing::from([
            (place("programs"), lines(&["connect4", "connect6", "sendmsg4"])),
            (
                place("vips"),
                lines(&[
                    "vip 172.30.0.1 other ports: reject",
                    "vip 172.30.0.1:80/tcp: 99b4055d internal, 2 endpoints, affinity 60 s",
                    "vip 172.30.0.1:53/udp: drop",
                    "vip [fd00::1]:80/tcp: 7d176321 internal, 1 endpoints",
                ]),
            ),
            (
                place("endpoints"),
                lines(&[
                    "endpoint 7d176321 internal 0: [fd00::2]:8080",
                    "endpoint 99b4055d internal 0: 10.180.0.1:8080",
                    "endpoint 99b4055d internal 1: 10.180.0.2:8080",
                    "endpoint 99b4055d external 0: 10.180.0.1:8080",
                ]),
            ),
        ]);
        let live = Listing::from([
            (place("programs"), lines(&["connect6", "sendmsg4"])),
            (
                place("vips"),
                lines(&[
                    "vip 172.30.0.1:80/tcp: 99b4055d internal, 1 endpoints, affinity 60 s",
                    "vip 172.30.0.1:53/udp: drop",
                    "vip [fd00::1]:80/tcp: 7d176321 internal, 1 endpoints",
                ]),
            ),
            (place("endpoints"), planned[&place("endpoints")][..2].to_vec()),
        ]);
        let listings = Listings { planned, live };
        let rows = |to: &str, protocol, origin| -> Vec<String> {
            let to: SocketAddr = to.parse().unwrap();
            let packet = Packet { source: to.ip(), destination: to.ip(), protocol, port: to.port(), origin };
            let rows = listings.elements(&packet).into_iter();
            rows.map(|row| {
                format!(
                    "{} {}: {}{}",
                    row.held,
                    row.place,
                    row.text,
                    row.found.map(|of| format!(" ({of})")).unwrap_or_default()
                )
            })
            .collect()
        };
        assert_eq!(
            rows("172.30.0.1:80", Protocol::Tcp, Origin::Pod),
            [
                "no bpf programs: connect4",
                "other bpf vips: vip 172.30.0.1:80/tcp: 99b4055d internal, 2 endpoints, affinity 60 s \
                 (vip 172.30.0.1:80/tcp: 99b4055d internal, 1 endpoints, affinity 60 s)",
                "yes bpf endpoints: endpoint 99b4055d internal 0: 10.180.0.1:8080",
                "no bpf endpoints: endpoint 99b4055d internal 1: 10.180.0.2:8080",
            ]
        );
        assert_eq!(
            rows("[fd00::1]:80", Protocol::Tcp, Origin::Node),
            [
                "yes bpf programs: connect6",
                "yes bpf vips: vip [fd00::1]:80/tcp: 7d176321 internal, 1 endpoints",
                "yes bpf endpoints: endpoint 7d176321 internal 0: [fd00::2]:8080",
            ]
        );
        let unserved = rows("172.30.0.1:53", Protocol::Udp, Origin::Pod);
        assert_eq!(
            unserved,
            ["no bpf programs: connect4", "yes bpf programs: sendmsg4", "yes bpf vips: vip 172.30.0.1:53/udp: drop"]
        );
        let unused = rows("172.30.0.1:81", Protocol::Tcp, Origin::Pod);
        assert_eq!(unused, ["no bpf programs: connect4", "no bpf vips: vip 172.30.0.1 other ports: reject"]);
        for (to, protocol, origin) in [
            ("172.30.0.1:80", Protocol::Tcp, Origin::Outside),
            ("172.30.0.1:80", Protocol::Sctp, Origin::Pod),
            ("172.30.0.9:80", Protocol::Tcp, Origin::Pod),
        ] {
            assert_eq!(rows(to, protocol, origin), [""; 0], "{to} {protocol:?} {origin:?}");
        }
    }
}
