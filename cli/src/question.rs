//! Parses a sender and a destination as a user writes them, and builds their packet on this node. Pure.
//!
//! | `--from` | |
//! |---|---|
//! | `10.244.0.7` | the sender with this address: the node, a pod that the detector recognizes, or any other sender |
//! | `pod`, `pod:10.244.0.7` | a pod of this node |
//! | `node` | the node itself |
//! | `outside`, `outside:203.0.113.2` | any other sender |
//!
//! | `--to` | |
//! |---|---|
//! | `10.96.0.10:53/udp` | address, port and protocol; TCP by default |
//! | `shop/web:http`, `web:80` | a port of a Service, by name or number, at its ClusterIP; the default namespace is `default` |

use std::{
    net::{IpAddr, SocketAddr},
    str::FromStr,
};

use localnet_client::{
    route::{Origin, Packet, Rules},
    vips::{Facts, PodSource},
};
use localnet_proto::{Family, Port, Protocol, Service, ServiceKey, Snapshot};

/// The sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// A pod of this node, with its address if given.
    Pod(Option<IpAddr>),
    /// The node itself.
    Node,
    /// Any other sender, with its address if given.
    Outside(Option<IpAddr>),
    /// The sender with this address: the node, a pod of this node, or any other sender.
    Address(IpAddr),
}

impl FromStr for From {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let address = |text: &str| {
            text.trim_matches(['[', ']'])
                .parse::<IpAddr>()
                .map_err(|_| format!("{text:?} is not a sender: use pod, node, outside or an IP address"))
        };
        match text.split_once(':') {
            _ if text == "node" => Ok(Self::Node),
            _ if text == "pod" => Ok(Self::Pod(None)),
            _ if text == "outside" => Ok(Self::Outside(None)),
            Some(("pod", rest)) => address(rest).map(|address| Self::Pod(Some(address))),
            Some(("outside", rest)) => address(rest).map(|address| Self::Outside(Some(address))),
            _ => address(text).map(Self::Address),
        }
    }
}

impl From {
    /// The sender's address, if known.
    pub fn address(self) -> Option<IpAddr> {
        match self {
            Self::Pod(address) | Self::Outside(address) => address,
            Self::Address(address) => Some(address),
            Self::Node => None,
        }
    }
}

/// The destination of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct To {
    /// The address or Service.
    pub at: At,
    /// The protocol, if given.
    pub protocol: Option<Protocol>,
}

/// An address or a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum At {
    /// An address and port.
    Address(SocketAddr),
    /// A port of a Service.
    Service(ServiceKey, String),
}

impl FromStr for To {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (rest, protocol) = match text.rsplit_once('/') {
            Some((rest, word)) if protocol(word).is_some() => (rest, protocol(word)),
            _ => (text, None),
        };
        if let Ok(address) = rest.parse() {
            return Ok(Self { at: At::Address(address), protocol });
        }
        let wrong = || {
            format!(
                "{text:?} is not a destination: use ADDRESS:PORT or NAMESPACE/SERVICE:PORT, each followed by /udp or /sctp if it is not TCP"
            )
        };
        let (service, port) = rest.rsplit_once(':').ok_or_else(wrong)?;
        let key = if service.contains('/') { service.parse() } else { format!("default/{service}").parse() };
        let key: ServiceKey = key.map_err(|_| wrong())?;
        let odd = |c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '.');
        if port.is_empty() || port.contains(odd) || key.name.contains(odd) {
            return Err(wrong());
        }
        Ok(Self { at: At::Service(key, port.to_owned()), protocol })
    }
}

fn protocol(word: &str) -> Option<Protocol> {
    Protocol::ALL.into_iter().find(|of| of.as_str().eq_ignore_ascii_case(word))
}

/// Finds a port of a Service by its name, else by its number.
pub fn port_of<'a>(service: &'a Service, text: &str, protocol: Option<Protocol>) -> Option<&'a Port> {
    let fits = |port: &&Port| protocol.is_none_or(|protocol| port.protocol == protocol);
    let ports = || service.ports.iter().filter(fits);
    ports()
        .find(|port| !text.is_empty() && *port.name == *text)
        .or_else(|| ports().find(|port| port.port.to_string() == text))
}

/// The ports of a Service, as a user would write them, or "no ports".
pub fn ports_of(service: &Service) -> String {
    let name = |port: &Port| match &*port.name {
        "" => format!("{}/{}", port.port, port.protocol),
        name => format!("{name} ({}/{})", port.port, port.protocol),
    };
    let ports: Vec<String> = service.ports.iter().map(name).collect();
    if ports.is_empty() { "no ports".to_owned() } else { ports.join(", ") }
}

/// Returns the facts about the node that the oracle needs.
pub fn rules(facts: &Facts, family: Family) -> Rules {
    Rules {
        masquerade_all: facts.masquerade_all,
        detects_pods: facts.pods(family).is_some(),
        node_port_addresses: facts.node_port_addresses.iter().copied().collect(),
    }
}

/// Returns the destination of a question.
///
/// # Errors
/// Returns an error if the state has no such Service, port or address family.
pub fn destination(to: &To, family: Option<Family>, state: &Snapshot) -> Result<(SocketAddr, Protocol), String> {
    match &to.at {
        At::Address(address) => Ok((*address, to.protocol.unwrap_or(Protocol::Tcp))),
        At::Service(key, port) => {
            let service = state.services.get(key).ok_or_else(|| format!("the state has no Service {key}"))?;
            let no_port = || format!("Service {key} has no such port; it has {}", ports_of(service));
            let port = port_of(service, port, to.protocol).ok_or_else(no_port)?;
            let mut ips = service.cluster_ips.iter();
            let ip = ips.find(|ip| family.is_none_or(|family| Family::of(**ip) == family));
            let family = family.unwrap_or(Family::V4);
            let ip = ip.ok_or_else(|| format!("Service {key} has no {family} ClusterIP"))?;
            Ok((SocketAddr::new(*ip, port.port), port.protocol))
        }
    }
}

/// The node's own addresses and links, as far as they are known.
#[derive(Clone, Copy, Debug, Default)]
pub struct Here<'a> {
    /// The addresses of the node's interfaces.
    pub local: &'a [IpAddr],
    /// The interface that leads to the sender, if the kernel was read. The sender's packets arrive at the same interface.
    pub interface: Option<&'a str>,
}

/// Builds the packet of a question. If the user gives no source, the packet gets a source that the source ranges accept.
pub fn packet(from: From, to: (SocketAddr, Protocol), state: &Snapshot, facts: &Facts, here: Here<'_>) -> Packet {
    let Here { local, interface } = here;
    let (to, protocol) = to;
    let family = Family::of(to.ip());
    let own = |address: &IpAddr| state.node.addresses.contains(address) || local.contains(address);
    let origin = match from {
        From::Node => Origin::Node,
        From::Pod(_) if facts.pods(family).is_some() => Origin::Pod,
        // Without a detector no sender counts as a pod.
        From::Pod(_) | From::Outside(_) => Origin::Outside,
        From::Address(address) if own(&address) => Origin::Node,
        From::Address(address) => match facts.pods(family) {
            Some(PodSource::Cidr(cidr)) if cidr.contains(&address) => Origin::Pod,
            Some(PodSource::Interface(name)) if interface.is_some_and(|of| *of == **name) => Origin::Pod,
            Some(PodSource::InterfacePrefix(prefix)) if interface.is_some_and(|of| of.starts_with(&**prefix)) => {
                Origin::Pod
            }
            // The sender's interface is unknown, because the kernel was not read. So the node's pod CIDRs determine whether the
            // sender is a pod.
            Some(PodSource::Interface(_) | PodSource::InterfacePrefix(_))
                if interface.is_none() && state.node.pod_cidrs.iter().any(|cidr| cidr.contains(&address)) =>
            {
                Origin::Pod
            }
            _ => Origin::Outside,
        },
    };
    let admitted = || {
        let services = state.services.values();
        let mut filters = services.flat_map(|service| &service.source_filters);
        let filter = filters.find(|filter| filter.targets.contains(&to.ip()))?;
        filter.source_ranges.first().map(ipnet::IpNet::network)
    };
    let unknown = match family {
        Family::V4 => IpAddr::from([0, 0, 0, 0]),
        Family::V6 => IpAddr::from([0_u16; 8]),
    };
    let source = match from {
        // A packet from the node to one of its own addresses has that address as its source.
        From::Node if own(&to.ip()) => Some(to.ip()),
        From::Node => state.node.primary_address(family),
        _ => from.address(),
    };
    let source = source.or_else(admitted).unwrap_or(unknown);
    Packet { source, destination: to.ip(), protocol, port: to.port(), origin }
}

#[cfg(test)]
mod tests {
    use localnet_client::vips::{Config, Detector};

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn senders_are_read() {
        for (text, expected) in [
            ("node", From::Node),
            ("pod", From::Pod(None)),
            ("pod:10.0.0.1", From::Pod(Some(ip("10.0.0.1")))),
            ("pod:fd00::1", From::Pod(Some(ip("fd00::1")))),
            ("outside", From::Outside(None)),
            ("outside:[fd00::1]", From::Outside(Some(ip("fd00::1")))),
            ("203.0.113.2", From::Address(ip("203.0.113.2"))),
            ("fd00::1", From::Address(ip("fd00::1"))),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        for text in ["", "pods", "pod:", "pod:x", "node:1", "10.0.0"] {
            assert!(text.parse::<From>().unwrap_err().contains("outside"), "{text}");
        }
    }

    #[test]
    fn destinations_are_read() {
        let address = |text: &str, protocol| To { at: At::Address(text.parse().unwrap()), protocol };
        let service =
            |key: &str, port: &str, protocol| To { at: At::Service(key.parse().unwrap(), port.to_owned()), protocol };
        for (text, expected) in [
            ("10.0.0.1:80", address("10.0.0.1:80", None)),
            ("10.0.0.1:53/udp", address("10.0.0.1:53", Some(Protocol::Udp))),
            ("[fd00::1]:53/SCTP", address("[fd00::1]:53", Some(Protocol::Sctp))),
            ("shop/web:http", service("shop/web", "http", None)),
            ("web:80", service("default/web", "80", None)),
            ("shop/tcp:80/tcp", service("shop/tcp", "80", Some(Protocol::Tcp))),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        for text in ["", "web", "10.0.0.1", "fd00::1:80/tcp/udp", "a/b/c:80", "shop/web:", "shop/web:8 0"] {
            assert!(text.parse::<To>().is_err(), "{text}");
        }
    }

    fn state() -> Snapshot {
        crate::source::read(
            "node: {name: n, addresses: [192.168.0.2], podCIDRs: [10.0.0.0/24]}
services:
- service: shop/web
  type: LoadBalancer
  clusterIPs: [10.96.0.1]
  loadBalancerIPs: [192.0.2.1]
  sourceFilters: [{targets: [192.0.2.1], sourceRanges: [203.0.113.0/25]}]
  ports: [{name: http, protocol: TCP, port: 80}, {name: dns, protocol: UDP, port: 80}]
- {service: shop/none, type: ClusterIP, clusterIPs: [10.96.0.2], ports: []}
",
        )
        .unwrap()
    }

    #[test]
    fn a_packet_to_a_service_goes_to_its_cluster_ip() {
        let to =
            |text: &str, family| destination(&text.parse().unwrap(), family, &state()).map_err(|no| no.to_string());
        let web = |port: u16, protocol| Ok((SocketAddr::new(ip("10.96.0.1"), port), protocol));
        assert_eq!(to("shop/web:http", None), web(80, Protocol::Tcp));
        assert_eq!(to("shop/web:80/udp", Some(Family::V4)), web(80, Protocol::Udp));
        assert_eq!(to("shop/web:dns", None), web(80, Protocol::Udp));
        assert_eq!(
            to("shop/web:443", None).unwrap_err(),
            "Service shop/web has no such port; it has http (80/TCP), dns (80/UDP)"
        );
        let none = destination(&"shop/none:80".parse().unwrap(), None, &state()).unwrap_err();
        assert_eq!(none, "Service shop/none has no such port; it has no ports");
        assert_eq!(to("shop/other:80", None).unwrap_err(), "the state has no Service shop/other");
        assert_eq!(to("shop/web:80", Some(Family::V6)).unwrap_err(), "Service shop/web has no IPv6 ClusterIP");
    }

    #[test]
    fn the_detector_recognizes_pods() {
        let origin_on = |detector, from: &str, interface: Option<&str>| {
            let config = Config { detector, ..Config::default() };
            let facts = Facts::new(&config, &state().node, &[]);
            let to = (SocketAddr::new(ip("10.96.0.1"), 80), Protocol::Tcp);
            let here = Here { local: &[ip("192.168.0.3")], interface };
            let packet = packet(from.parse().unwrap(), to, &state(), &facts, here);
            (packet.origin, packet.source.to_string())
        };
        let origin = |detector, from: &str| origin_on(detector, from, None);
        let cidr = || Detector::ClusterCidr(vec!["10.0.0.0/8".parse().unwrap()]);
        let is = |origin, source: &str| (origin, source.to_owned());
        assert_eq!(origin(cidr(), "10.1.2.3"), is(Origin::Pod, "10.1.2.3"));
        assert_eq!(origin(cidr(), "203.0.113.2"), is(Origin::Outside, "203.0.113.2"));
        assert_eq!(origin(cidr(), "192.168.0.3"), is(Origin::Node, "192.168.0.3"));
        assert_eq!(origin(cidr(), "node"), is(Origin::Node, "192.168.0.2"));
        assert_eq!(origin(cidr(), "pod"), is(Origin::Pod, "0.0.0.0"));
        assert_eq!(origin(Detector::None, "pod"), is(Origin::Outside, "0.0.0.0"));
        let bridge = || Detector::BridgeInterface("cni0".into());
        assert_eq!(origin(bridge(), "10.0.0.9"), is(Origin::Pod, "10.0.0.9"));
        assert_eq!(origin(bridge(), "10.0.1.9"), is(Origin::Outside, "10.0.1.9"));
        assert_eq!(origin_on(bridge(), "10.0.0.9", Some("eth0")), is(Origin::Outside, "10.0.0.9"));
        assert_eq!(origin_on(bridge(), "10.0.1.9", Some("cni0")), is(Origin::Pod, "10.0.1.9"));
        let prefix = || Detector::InterfaceNamePrefix("veth".into());
        assert_eq!(origin_on(prefix(), "10.0.1.9", Some("veth7")), is(Origin::Pod, "10.0.1.9"));
    }

    #[test]
    fn an_unknown_source_passes_filters() {
        let facts = Facts::new(&Config::default(), &state().node, &[]);
        let to = (SocketAddr::new(ip("192.0.2.1"), 80), Protocol::Tcp);
        assert_eq!(packet(From::Outside(None), to, &state(), &facts, Here::default()).source, ip("203.0.113.0"));
    }
}
