//! Objects for the tables of the unit tests.

use std::net::IpAddr;

use localnet_proto::{Family, Protocol};

use crate::objects::{Conditions, Parsed, ServiceObject, ServicePort, SliceEndpoint, SliceObject, SlicePort};

/// `default/web` with a ClusterIP and ports. The name of each port is `p` and its number, such as `p80`.
pub fn service(ip: &str, ports: &[(i32, &str)]) -> ServiceObject {
    ServiceObject {
        namespace: "default".into(),
        name: "web".into(),
        cluster_ips: addresses(&[ip]),
        ports: ports
            .iter()
            .map(|(port, protocol)| ServicePort {
                name: format!("p{port}").into(),
                protocol: protocol_of(protocol),
                port: *port,
                node_port: 0,
            })
            .collect(),
        ..ServiceObject::default()
    }
}

/// A slice of `default/web` with named ports.
pub fn slice(name: &str, ports: &[(&str, i32)], endpoints: Vec<SliceEndpoint>) -> SliceObject {
    SliceObject {
        triggered: None,
        version: None,
        namespace: "default".into(),
        name: name.into(),
        service: Some("web".into()),
        headless: false,
        pushed: false,
        family: Parsed::Good(Family::V4),
        ports: ports
            .iter()
            .map(|(name, port)| SlicePort {
                name: Some((*name).into()),
                protocol: Parsed::Good(Protocol::Tcp),
                port: Some(*port),
            })
            .collect(),
        endpoints: endpoints.into(),
        weight: None,
    }
}

/// A ready endpoint without a node.
pub fn endpoint(address: &str) -> SliceEndpoint {
    SliceEndpoint {
        address: Some(parsed(address)),
        hostname: None,
        node: None,
        zone: None,
        conditions: Conditions::READY,
        zone_hints: [].into(),
        node_hints: [].into(),
        target: None,
    }
}

/// One ClusterIP.
pub fn cluster_ip(ip: &str) -> Box<[Parsed<IpAddr>]> {
    addresses(&[ip])
}

/// Addresses in the form in which an object contains them.
pub fn addresses(texts: &[&str]) -> Box<[Parsed<IpAddr>]> {
    texts.iter().map(|text| parsed(text)).collect()
}

/// Valid addresses.
pub fn ips(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().expect("an address")).collect()
}

fn parsed(text: &str) -> Parsed<IpAddr> {
    text.parse().map_or_else(|_| Parsed::Bad(text.into()), Parsed::Good)
}

fn protocol_of(text: &str) -> Parsed<Protocol> {
    Protocol::named(text).map_or_else(|| Parsed::Bad(text.into()), Parsed::Good)
}
