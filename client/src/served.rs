//! [`Served`]: a text form of what a kernel serves. `localnet-nft dump` and its counterparts print it after reading the
//! kernel. The conformance kit compares it with the state. Apart from [`print()`], this module does no I/O.
//!
//! ```text
//! 10.96.0.10 TCP 80 -> 10.1.0.1:8080 10.1.0.2:8080
//! 10.96.0.10 TCP 80 affinity 10800
//! fd00:96::10 UDP 53 -> [fd00:1::1]:53
//! 10.96.0.11 TCP 80 reject
//! 192.0.2.1 TCP 80 -> 10.1.0.1:8080 10.1.0.2:8080
//! 192.0.2.1 TCP 80 outside -> 10.1.0.1:8080
//! ```
//! Each line describes one destination: its address, protocol and port. After that come the endpoints over which new
//! connections are spread, or `reject` or `drop`.
//!
//! - `outside` marks the line for clients outside of the cluster, if they get other endpoints (external policy Local).
//! - `affinity` is followed by the seconds for which a client keeps its endpoint.
//! - A NodePort is a destination on each address that answers it. If all of the node's addresses answer it, the
//!   addresses `0.0.0.0` and `::` stand for all of them.
//!
//! The order of the lines, and of the endpoints in a line, does not matter. Lines that begin with `#` are comments. If a
//! kernel cannot hold some property of a destination at all, a [`Lacks`] excludes the property from the comparison.

mod lacks;

use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error,
    fmt,
    io::{self, Write as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use anyhow::Context as _;
use localnet_proto::{Affinity, Changes, Family, Protocol, Service, Snapshot, Verdict};

pub use lacks::{Lack, Lacks};

use crate::vips::{Config, Hairpin, Program, Vip, VipKey, Vips};

/// Where new connections to a destination go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum To {
    /// To one of these endpoints.
    Endpoints(BTreeSet<SocketAddr>),
    /// To no endpoint; the verdict applies.
    Nothing(Verdict),
}

impl To {
    /// These endpoints, or the verdict if there are none.
    pub fn new(endpoints: impl IntoIterator<Item = SocketAddr>, when_empty: Verdict) -> Self {
        let endpoints: BTreeSet<_> = endpoints.into_iter().collect();
        if endpoints.is_empty() { Self::Nothing(when_empty) } else { Self::Endpoints(endpoints) }
    }

    fn read(words: &[&str]) -> Option<Self> {
        match words {
            ["reject"] => Some(Self::Nothing(Verdict::Reject)),
            ["drop"] => Some(Self::Nothing(Verdict::Drop)),
            ["->", endpoints @ ..] if !endpoints.is_empty() => {
                endpoints.iter().map(|endpoint| endpoint.parse().ok()).collect::<Option<_>>().map(Self::Endpoints)
            }
            _ => None,
        }
    }
}

impl fmt::Display for To {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing(Verdict::Reject) => f.write_str("reject"),
            Self::Nothing(Verdict::Drop) => f.write_str("drop"),
            Self::Endpoints(endpoints) => {
                f.write_str("->")?;
                endpoints.iter().try_for_each(|endpoint| write!(f, " {endpoint}"))
            }
        }
    }
}

/// What a kernel serves at one destination.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Where new connections go. `None` if no line tells where they go.
    pub to: Option<To>,
    /// Where connections from outside of the cluster go, if this differs from `to`. No endpoints: nothing translates them.
    pub outside: Option<To>,
    /// The session affinity, if there is one.
    pub affinity: Option<Affinity>,
}

impl Entry {
    /// Removes redundant fields: `outside` if it equals `to`, and the affinity if no connections go to endpoints.
    #[must_use]
    pub fn plain(mut self) -> Self {
        if self.outside == self.to {
            self.outside = None;
        }
        if !matches!(self.to, Some(To::Endpoints(_))) && !matches!(self.outside, Some(To::Endpoints(_))) {
            self.affinity = None;
        }
        self
    }

    fn lines(&self, destination: &str) -> Vec<String> {
        let to = self.to.iter().map(|to| format!("{destination} {to}"));
        let outside = self.outside.iter().map(|to| format!("{destination} outside {to}"));
        let affinity = self.affinity.iter().map(|Affinity { seconds }| format!("{destination} affinity {seconds}"));
        to.chain(outside).chain(affinity).collect()
    }
}

/// What a kernel serves, by destination.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Served(pub BTreeMap<VipKey, Entry>);

/// The error for a line with invalid syntax.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadLine(String);

impl fmt::Display for BadLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let form = "ADDRESS PROTOCOL PORT, then one of: -> ENDPOINT…, reject, drop, affinity SECONDS";
        write!(f, "cannot read {:?}: expected {form}", self.0)
    }
}

impl Error for BadLine {}

impl Served {
    /// Parses the output of a `dump` command.
    ///
    /// # Errors
    /// Returns an error for the first line with invalid syntax.
    pub fn parse<'a>(lines: impl IntoIterator<Item = &'a str>) -> Result<Self, BadLine> {
        let mut served = Self::default();
        for line in lines.into_iter().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            served.line(line).ok_or_else(|| BadLine(line.to_owned()))?;
        }
        Ok(served)
    }

    fn line(&mut self, line: &str) -> Option<()> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [address, protocol, port, rest @ ..] = &words[..] else { return None };
        let protocol = Protocol::named(protocol)?;
        let key = VipKey { address: address.parse().ok()?, protocol, port: port.parse().ok()? };
        let entry = self.0.entry(key).or_default();
        match rest {
            ["affinity", seconds] => entry.affinity = Some(seconds.parse::<u32>().ok()?.into()),
            ["outside", "->"] => entry.outside = Some(To::Endpoints(BTreeSet::new())),
            ["outside", rest @ ..] => entry.outside = Some(To::read(rest)?),
            rest => entry.to = Some(To::read(rest)?),
        }
        Some(())
    }
}

impl fmt::Display for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = self.0.iter().flat_map(|(key, entry)| entry.lines(&destination(key)));
        lines.try_for_each(|line| writeln!(f, "{line}"))
    }
}

/// Prints `served` to standard output.
///
/// # Errors
/// Returns an error if standard output cannot be written.
pub fn print(served: &Served) -> anyhow::Result<()> {
    write!(io::stdout().lock(), "{served}").context("failed to write to standard output")
}

fn destination(key: &VipKey) -> String {
    format!("{} {} {}", key.address, key.protocol, key.port)
}

/// A NodePort, without the address of the node that answers it.
type NodePort = (Family, Protocol, u16);

/// What a state requires a kernel to serve. The configuration selects the addresses that answer NodePorts, but is unknown
/// here. Therefore it is enough if one address answers a NodePort.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    vips: Served,
    node_ports: BTreeMap<NodePort, Entry>,
    /// The NodePorts that at least one address must answer: those of the families in which the node has an address. A kernel
    /// need not answer other NodePorts.
    needed: BTreeSet<NodePort>,
}

/// Addresses that replace the node's addresses, one of each family. No Case uses them.
const STAND_INS: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(198, 19, 255, 254)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0xffff, 0, 0, 0, 0xfffe)),
];

impl Expected {
    /// What `state` requires.
    pub fn of(state: &Snapshot) -> Self {
        Self::without(state, &Lacks::default())
    }

    /// The requirements of `state` that a kernel with the limits in `lacks` can meet.
    pub fn without(state: &Snapshot, lacks: &Lacks) -> Self {
        let entry = |key: &VipKey, vip: &Vip| lacks.leave(key, vip, &state.node.addresses);
        let mut expected = Self::default();
        for (key, vip) in planned(state) {
            if vip.by_node_port {
                expected.needed.insert(node_port(&key));
            } else {
                let entry = entry(&key, &vip);
                expected.vips.0.insert(key, entry);
            }
        }
        let mut elsewhere = state.clone();
        elsewhere.node.addresses = STAND_INS.into();
        let node_ports = planned(&elsewhere).into_iter().filter(|(_, vip)| vip.by_node_port);
        expected.node_ports = node_ports.map(|(key, vip)| (node_port(&key), entry(&key, &vip))).collect();
        expected
    }

    /// The differences as text for people, one on each line: the first of the missing and the unexpected lines of `served`.
    /// Empty if there are none.
    pub fn differences(&self, served: &Served) -> String {
        const MOST: usize = 10;
        let (lacks, more) = self.compare(served);
        let lacks = lacks.iter().map(|line| format!("\n  lacks: {line}"));
        let more = more.iter().map(|line| format!("\n  has extra: {line}"));
        lacks.chain(more).take(MOST).collect()
    }

    /// The lines that `served` lacks, and its unexpected lines.
    pub fn compare(&self, served: &Served) -> (BTreeSet<String>, BTreeSet<String>) {
        let (mut lacks, mut more) = (BTreeSet::new(), BTreeSet::new());
        let mut differ = |destination: &str, expected: &Entry, found: &Entry| {
            let (expected, found) = (expected.lines(destination), found.lines(destination));
            lacks.extend(expected.iter().filter(|line| !found.contains(line)).cloned());
            more.extend(found.iter().filter(|line| !expected.contains(line)).cloned());
        };
        let nothing = Entry::default();
        for (key, expected) in &self.vips.0 {
            differ(&destination(key), expected, served.0.get(key).unwrap_or(&nothing));
        }
        let mut answered = BTreeSet::new();
        for (key, found) in served.0.iter().filter(|(key, _)| !self.vips.0.contains_key(*key)) {
            let expected = self.node_ports.get(&node_port(key));
            answered.extend(expected.map(|_| node_port(key)));
            differ(&destination(key), expected.unwrap_or(&nothing), found);
        }
        let missing = |node_port: &NodePort| self.needed.contains(node_port) && !answered.contains(node_port);
        for (node_port, expected) in self.node_ports.iter().filter(|(node_port, _)| missing(node_port)) {
            let (family, protocol, port) = node_port;
            differ(&format!("(an {family} address of the node) {protocol} {port}"), expected, &nothing);
        }
        (lacks, more)
    }
}

fn planned(state: &Snapshot) -> Vec<(VipKey, Vip)> {
    let mut vips = Vips::new(Config::default());
    vips.update(state, &Changes::everything(), &mut Nobody);
    vips.programmed().map(|(_, key, vip)| (key, vip)).collect()
}

fn node_port(key: &VipKey) -> NodePort {
    (key.family(), key.protocol, key.port)
}

/// Ignores the individual changes, because the complete result is read afterwards.
struct Nobody;

impl Program for Nobody {
    fn program(&mut self, _: &VipKey, _: &Vip, _: &Service) {}
    fn unprogram(&mut self, _: &VipKey, _: &Vip) {}
    fn cluster_ip(&mut self, _: IpAddr, _: bool) {}
    fn hairpin(&mut self, _: &Hairpin, _: bool) {}
}

#[cfg(test)]
mod tests {
    use localnet_proto::{Endpoint, EndpointPort, Node, Port, Scopes, Service, ServiceKey, SourceFilter};

    use super::*;

    fn read(text: &str) -> Served {
        Served::parse(text.lines()).unwrap()
    }

    fn expected(change: impl FnOnce(&mut Service)) -> Expected {
        Expected::of(&state(change))
    }

    fn state(change: impl FnOnce(&mut Service)) -> Snapshot {
        let endpoint = |last: u8, local: bool| Endpoint {
            address: [10, 1, 0, last].into(),
            ports: vec![EndpointPort { name: "http".into(), port: 8080 }],
            local,
            hostname: None,
            scopes: Scopes { internal: true, external: local, short_circuit: true, established: true },
            weight: None,
        };
        let mut service = Service::new(ServiceKey::new("default", "web"), vec![[10, 96, 0, 10].into()]);
        service.ports = vec![Port { name: "http".into(), port: 80, node_port: Some(30080), ..Port::default() }];
        service.endpoints = vec![endpoint(1, true), endpoint(2, false)];
        service.external_traffic_to_local = true;
        change(&mut service);
        let node = Node { name: "a".to_owned(), addresses: vec![[192, 0, 2, 1].into()], ..Node::default() };
        Snapshot { node, services: [(service.key.clone(), service.into())].into(), ..Snapshot::default() }
    }

    const BOTH: &str = "-> 10.1.0.2:8080 10.1.0.1:8080";

    #[test]
    fn the_order_of_lines_and_the_address_of_node_ports_do_not_matter() {
        for address in ["192.0.2.1", "192.0.2.7", "0.0.0.0"] {
            let served = read(&format!(
                "{address} TCP 30080 outside -> 10.1.0.1:8080\n# a comment\n\n10.96.0.10 TCP 80 {BOTH}\n{address} TCP 30080 {BOTH}"
            ));
            assert_eq!(expected(|_| {}).differences(&served), "");
            assert_eq!(read(&served.to_string()), served);
        }
    }

    #[test]
    fn a_vip_without_an_eligible_endpoint_has_a_verdict_and_no_affinity() {
        let nothing = expected(|service| {
            service.endpoints.truncate(0);
            service.client_ip_affinity = Some(60.into());
        });
        assert_eq!(nothing.differences(&read("10.96.0.10 TCP 80 reject\n192.0.2.1 TCP 30080 reject")), "");
    }

    #[test]
    fn features_that_a_backend_lacks_are_not_expected() {
        let affine = |service: &mut Service| service.client_ip_affinity = Some(60.into());
        let several_ports = |service: &mut Service| {
            service.endpoints[0].ports[0].port = 9090;
            service.endpoints[0].address = [192, 0, 2, 1].into();
        };
        let restricted = |service: &mut Service| {
            service.load_balancer_ips = vec![[198, 51, 100, 1].into()];
            let source_ranges = vec!["10.0.0.0/8".parse().unwrap()];
            service.source_filters = vec![SourceFilter { targets: service.load_balancer_ips.clone(), source_ranges }];
        };
        let local = "192.0.2.1 TCP 30080 -> 10.1.0.1:8080";
        let other = "10.96.0.10 TCP 80 -> 10.1.0.2:8080\n192.0.2.1 TCP 30080";
        for (lacks, change, served) in [
            (&[Lack::Verdicts][..], (|service| service.endpoints.clear()) as fn(&mut Service), String::new()),
            (&[Lack::Scopes], |_| {}, format!("10.96.0.10 TCP 80 {BOTH}\n{local}")),
            (
                &[Lack::Scopes, Lack::Seconds],
                affine,
                format!(
                    "10.96.0.10 TCP 80 {BOTH}\n10.96.0.10 TCP 80 affinity 0\n{local}\n192.0.2.1 TCP 30080 affinity 0"
                ),
            ),
            (&[Lack::Ports, Lack::Scopes], several_ports, format!("{other} -> 192.0.2.1:9090")),
            (&[Lack::HostNetwork, Lack::Scopes], several_ports, format!("{other} reject")),
            (
                &[Lack::HostNetwork, Lack::Scopes, Lack::Verdicts],
                several_ports,
                "10.96.0.10 TCP 80 -> 10.1.0.2:8080".to_owned(),
            ),
            (&[Lack::Outside], |_| {}, format!("10.96.0.10 TCP 80 {BOTH}\n192.0.2.1 TCP 30080 {BOTH}")),
            (&[Lack::Outside], |service| service.ports[0].protocol = Protocol::Sctp, String::new()),
            (&[Lack::Outside], restricted, format!("10.96.0.10 TCP 80 {BOTH}\n192.0.2.1 TCP 30080 {BOTH}")),
        ] {
            let expected = Expected::without(&state(change), &lacks.iter().copied().collect());
            assert_eq!(expected.differences(&read(&served)), "", "{lacks:?}");
            assert_ne!(Expected::of(&state(change)).differences(&read(&served)), "", "{lacks:?}");
        }
    }

    #[test]
    fn differences_are_listed() {
        let affine = expected(|service| service.client_ip_affinity = Some(60.into()));
        let differences = affine.differences(&read(&format!("10.96.0.10 TCP 80 {BOTH}\n10.96.0.10 TCP 81 drop")));
        for line in [
            "lacks: 10.96.0.10 TCP 80 affinity 60",
            "lacks: (an IPv4 address of the node) TCP 30080 outside -> 10.1.0.1:8080",
            "has extra: 10.96.0.10 TCP 81 drop",
        ] {
            assert!(differences.contains(line), "{differences}");
        }
        for bad in [
            "10.96.0.10",
            "x TCP 80 drop",
            "10.96.0.10 ICMP 80 drop",
            "10.96.0.10 TCP 80 ->",
            "10.96.0.10 TCP 80 perhaps",
        ] {
            assert!(Served::parse([bad]).is_err(), "{bad}");
        }
    }
}
