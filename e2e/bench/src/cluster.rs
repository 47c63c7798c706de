//! The Services and EndpointSlices of a run, as the bodies of requests. Pure.
//!
//! ```text
//!   service-00000 … service-NNNNN   172.16.1.0 + number, port 80    endpoints 10.64.0.0 + …, port 8080, on another node
//!   probe                           172.31.255.1,        port 80    one endpoint: 10.180.0.2 or 10.180.0.3, pods of the node
//! ```
//!
//! The order of the names is that of the addresses, so "the last one" is the same by name and by address.

use std::{
    fmt,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    str::FromStr,
};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

/// The name of the measured node.
pub(crate) const NODE: &str = "node-a";
/// The name of the node of all endpoints but the probe's.
pub(crate) const OTHER_NODE: &str = "node-b";

/// The namespace of all objects.
pub(crate) const NAMESPACE: &str = "bench";
/// The ranges from which the API server allocates ClusterIPs.
pub(crate) const SERVICE_CIDRS: [&str; 2] = ["172.16.0.0/12", "fd00:172:30::/112"];
/// The port of the Services.
pub(crate) const PORT: u16 = 80;
/// The port of the endpoints.
pub(crate) const TARGET_PORT: u16 = 8080;

/// A port at which each connection receives the address that it reached.
pub(crate) const TELLING_PORT: u16 = 8081;

const FIRST_SERVICE: u32 = u32::from_be_bytes([172, 16, 1, 0]);
const FIRST_ENDPOINT: u32 = u32::from_be_bytes([10, 64, 0, 0]);
const ENDPOINTS: u64 = 1 << 20;
/// The maximum number of endpoints of a slice, as the controller's default.
const IN_SLICE: u32 = 100;
const AFFINITY: &str = "-affinity";
/// Endpoints that replace others: about a million addresses, and then from the first one again.
const FIRST_REPLACEMENT: u32 = u32::from_be_bytes([10, 80, 0, 0]);
const REPLACEMENTS: u32 = 1 << 20;

const PROBE: Ipv4Addr = Ipv4Addr::new(172, 31, 255, 1);
const SERVER: Ipv4Addr = Ipv4Addr::new(172, 31, 255, 2);
const PROBE_SLICE: &str = "probe-1";

/// The number of Services, and of endpoints of each. Written as `10000x3`, or as `5000x3-affinity` with session affinity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Size {
    pub(crate) services: u32,
    pub(crate) endpoints: u32,
    /// Whether the Services have session affinity.
    pub(crate) affinity: bool,
}

impl FromStr for Size {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (numbers, affinity) = text.strip_suffix(AFFINITY).map_or((text, false), |numbers| (numbers, true));
        let (services, endpoints) = numbers.split_once('x').context("expected SERVICESxENDPOINTS, such as 10000x3")?;
        let size = Self { affinity, ..Self::new(services.parse()?, endpoints.parse()?) };
        ensure!((1..=100_000).contains(&size.services), "1 to 100000 Services fit into the names, not {services}");
        let all = u64::from(size.services) * u64::from(size.endpoints);
        ensure!((1..=ENDPOINTS).contains(&all), "1 to {ENDPOINTS} endpoints fit into the addresses, not {all}");
        Ok(size)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}{}", self.services, self.endpoints, if self.affinity { AFFINITY } else { "" })
    }
}

impl Size {
    /// A size without session affinity.
    pub(crate) const fn new(services: u32, endpoints: u32) -> Self {
        Self { services, endpoints, affinity: false }
    }

    /// Whether the size belongs to the series in which only the number of Services grows.
    pub(crate) fn is_usual(self) -> bool {
        self.endpoints <= 3 && !self.affinity
    }

    /// The address and port of the Service with this number.
    pub(crate) fn vip(self, number: u32) -> SocketAddr {
        SocketAddrV4::new(cluster_ip(number), PORT).into()
    }

    /// The name of the Service with this number.
    pub(crate) fn name(self, number: u32) -> String {
        name(number)
    }

    /// The addresses of a sample: the first Service, the last one, and some in equal distances between them.
    pub(crate) fn sample(self) -> Vec<SocketAddr> {
        const BETWEEN: u32 = 32;
        let last = self.services - 1;
        let mut numbers: Vec<u32> = (0..=BETWEEN).map(|part| (u64::from(last) * u64::from(part) / 32) as u32).collect();
        numbers.dedup();
        numbers.into_iter().map(|number| self.vip(number)).collect()
    }

    /// An endpoint of the first Service.
    pub(crate) fn direct(self) -> SocketAddr {
        SocketAddrV4::new(self.endpoint(0, 0), TARGET_PORT).into()
    }

    fn endpoint(self, number: u32, slot: u32) -> Ipv4Addr {
        Ipv4Addr::from(FIRST_ENDPOINT + number * self.endpoints + slot)
    }

    /// The bodies of the Services, including the probe's.
    pub(crate) fn services(self) -> impl Iterator<Item = Value> {
        let with_affinity = move |mut body: Value| {
            if self.affinity {
                body["spec"]["sessionAffinity"] = "ClientIP".into();
            }
            body
        };
        let services = (0..self.services).map(move |number| with_affinity(service(&name(number), cluster_ip(number))));
        services.chain([service("probe", PROBE)])
    }

    /// The bodies of the EndpointSlices, including the probe's.
    pub(crate) fn slices(self) -> impl Iterator<Item = Value> {
        let parts = (0..self.services).flat_map(move |number| (0..self.parts()).map(move |part| (number, part)));
        parts.map(move |(number, part)| self.part(number, part, None).body).chain([Probe::Open.slice().body])
    }

    /// The number of slices of each Service.
    pub(crate) fn parts(self) -> u32 {
        self.endpoints.div_ceil(IN_SLICE)
    }

    /// The first slice of a Service. A change replaces its first endpoint.
    pub(crate) fn slice(self, number: u32, change: Option<u32>) -> Slice {
        self.part(number, 0, change)
    }

    fn part(self, number: u32, part: u32, change: Option<u32>) -> Slice {
        let replaced = change.map(|change| Ipv4Addr::from(FIRST_REPLACEMENT + change % REPLACEMENTS));
        let slots = part * IN_SLICE..self.endpoints.min((part + 1) * IN_SLICE);
        let endpoints = slots.map(|slot| match replaced {
            Some(address) if slot == 0 => address,
            _ => self.endpoint(number, slot),
        });
        slice(&name(number), part, endpoints, OTHER_NODE)
    }
}

/// The two possible endpoints of the probe's Service. A server listens at one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Probe {
    Open,
    Closed,
}

impl Probe {
    /// The address and port of the probe's Service.
    pub(crate) fn vip() -> SocketAddr {
        SocketAddrV4::new(PROBE, PORT).into()
    }

    /// Selects the probe's slice in a watch.
    pub(crate) fn field_selector() -> String {
        format!("metadata.name={PROBE_SLICE}")
    }

    /// The other endpoint.
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Open => Self::Closed,
            Self::Closed => Self::Open,
        }
    }

    /// The address of the pod.
    pub(crate) fn address(self) -> Ipv4Addr {
        match self {
            Self::Closed => Ipv4Addr::new(10, 180, 0, 2),
            Self::Open => Ipv4Addr::new(10, 180, 0, 3),
        }
    }

    /// The slice with this endpoint.
    pub(crate) fn slice(self) -> Slice {
        slice("probe", 0, [self.address()].into_iter(), NODE)
    }
}

/// The Service whose server reads what it gets, on TCP and on UDP. It exists from the measurement of the traffic on.
pub(crate) struct Server;

impl Server {
    /// The port of the server.
    pub(crate) const PORT: u16 = 8082;

    /// The address and port of the Service, for TCP and for UDP.
    pub(crate) fn vip() -> SocketAddr {
        SocketAddrV4::new(SERVER, PORT).into()
    }

    /// The only endpoint, which is also one of the first Service.
    pub(crate) fn direct(size: Size) -> SocketAddr {
        SocketAddrV4::new(size.endpoint(0, 0), Self::PORT).into()
    }

    pub(crate) fn service() -> Value {
        let mut body = service("server", SERVER);
        let port =
            |name, protocol| json!({ "name": name, "port": PORT, "targetPort": Self::PORT, "protocol": protocol });
        body["spec"]["ports"] = json!([port("tcp", "TCP"), port("udp", "UDP")]);
        body
    }

    pub(crate) fn slice(size: Size) -> Slice {
        let mut slice = slice("server", 0, [size.endpoint(0, 0)].into_iter(), "node-b");
        let port = |name, protocol| json!({ "name": name, "port": Self::PORT, "protocol": protocol });
        slice.body["ports"] = json!([port("tcp", "TCP"), port("udp", "UDP")]);
        slice
    }
}

/// An EndpointSlice.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Slice {
    pub(crate) name: String,
    pub(crate) body: Value,
}

fn name(number: u32) -> String {
    format!("service-{number:05}")
}

fn cluster_ip(number: u32) -> Ipv4Addr {
    Ipv4Addr::from(FIRST_SERVICE + number)
}

fn service(name: &str, address: Ipv4Addr) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": name, "namespace": NAMESPACE, "labels": { "app.kubernetes.io/name": name } },
        "spec": {
            "type": "ClusterIP", "clusterIP": address, "clusterIPs": [address], "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack",
            "ports": [{ "name": "http", "port": PORT, "targetPort": TARGET_PORT, "protocol": "TCP" }],
        },
    })
}

/// A slice as the endpointslice controller writes it.
fn slice(service: &str, part: u32, addresses: impl Iterator<Item = Ipv4Addr>, node: &str) -> Slice {
    let name = format!("{service}-{}", part + 1);
    let endpoint = |(slot, address)| {
        json!({
            "addresses": [address], "nodeName": node, "zone": "zone-a",
            "conditions": { "ready": true, "serving": true, "terminating": false },
            "targetRef": { "kind": "Pod", "namespace": NAMESPACE, "name": format!("{service}-{part}-{slot}") },
        })
    };
    let endpoints: Vec<Value> = addresses.enumerate().map(endpoint).collect();
    let body = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": name, "namespace": NAMESPACE,
            // Do not track the managers of fields. This would be most of the API server's work, and proxies do not read it.
            "managedFields": [{}],
            "labels": {
                "kubernetes.io/service-name": service,
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
            },
        },
        "addressType": "IPv4", "endpoints": endpoints,
        "ports": [{ "name": "http", "protocol": "TCP", "port": TARGET_PORT }],
    });
    Slice { name, body }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_address_is_used_once() {
        for (services, endpoints) in [(1, 1), (1_000, 3), (45_000, 2)] {
            let size = Size::new(services, endpoints);
            let vips: BTreeSet<_> = (0..services).map(|number| size.vip(number)).chain([Probe::vip()]).collect();
            assert_eq!(vips.len(), services as usize + 1);
            let of = |slice: Slice| -> Vec<String> {
                let endpoints = slice.body["endpoints"].as_array().unwrap().clone();
                endpoints.iter().map(|endpoint| endpoint["addresses"][0].to_string()).collect()
            };
            let all: Vec<_> = (0..services).flat_map(|number| of(size.slice(number, None))).collect();
            assert_eq!(all.len(), (services * endpoints) as usize);
            assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
            assert!(!all.contains(&of(size.slice(0, Some(0)))[0]), "a replacement was there before");
        }
    }

    #[test]
    fn many_endpoints_are_in_several_slices() {
        let size = Size::new(2, 250);
        let slices: Vec<Value> = size.slices().collect();
        let lengths = slices.iter().map(|slice| slice["endpoints"].as_array().unwrap().len());
        assert_eq!(lengths.collect::<Vec<_>>(), [100, 100, 50, 100, 100, 50, 1]);
        let names: BTreeSet<String> = slices.iter().map(|slice| slice["metadata"]["name"].to_string()).collect();
        assert_eq!(names.len(), slices.len());
    }

    #[test]
    fn samples_have_the_first_and_the_last() {
        for services in [1, 2, 10, 33, 45_000] {
            let size = Size::new(services, 1);
            let sample = size.sample();
            assert_eq!(sample.first(), Some(&size.vip(0)));
            assert_eq!(sample.last(), Some(&size.vip(services - 1)));
            assert!(sample.is_sorted() && sample.len() <= 33, "{sample:?}");
        }
    }

    #[test]
    fn sizes_are_text() {
        assert_eq!("45000x2".parse::<Size>().unwrap(), Size::new(45_000, 2));
        let affinity = "5000x3-affinity".parse::<Size>().unwrap();
        assert_eq!(
            (affinity, affinity.to_string()),
            (Size { affinity: true, ..Size::new(5_000, 3) }, "5000x3-affinity".to_owned())
        );
        for wrong in ["", "10", "0x1", "x", "10x0", "100001x1", "10x200000"] {
            assert!(wrong.parse::<Size>().is_err(), "{wrong}");
        }
    }
}
