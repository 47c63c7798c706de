//! The view for DNS: what DNS must know about the Services of a cluster, and its records.
//!
//! [`wire::View`] documents the view. Its records have the same wire types as those of the view for backends.

use std::{net::IpAddr, sync::Arc};

use super::{EndpointKey, encode, wire};
use crate::model::{Origin, Protocol, ServiceKey};

/// A Service in DNS. It is headless if it has neither `cluster_ips` nor an `external_name`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// The namespace and name.
    pub key: ServiceKey,
    /// `spec.type`.
    pub kind: String,
    /// The ClusterIPs, sorted.
    pub cluster_ips: Vec<IpAddr>,
    /// `spec.externalName` of an ExternalName Service.
    pub external_name: Option<Arc<str>>,
    /// The ports, sorted.
    pub ports: Vec<Port>,
    /// The ready endpoints on all nodes, sorted.
    pub endpoints: Vec<Endpoint>,
}

/// A port of a Service or of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Port {
    /// The name. May be empty.
    pub name: Arc<str>,
    /// The protocol.
    pub protocol: Protocol,
    /// The number.
    pub number: u16,
}

/// An endpoint in DNS.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Endpoint {
    /// The address.
    pub address: IpAddr,
    /// The host name, from which DNS forms the endpoint's name.
    pub hostname: Option<Arc<str>>,
    /// The ports, sorted. Endpoints of one slice share them.
    pub ports: Arc<[Port]>,
    /// Where the endpoint comes from.
    pub origin: Origin,
}

/// The record of a Service without its endpoints.
pub fn head(service: &Service) -> encode::Head {
    let addresses = service.cluster_ips.iter().map(|address| wire::ServiceAddress {
        address: address.to_string(),
        kind: wire::AddressKind::ClusterIp.into(),
    });
    let ports = service.ports.iter().map(|port| wire::ServicePort {
        name: port.name.to_string(),
        protocol: encode::protocol(port.protocol).into(),
        number: port.number.into(),
        ..Default::default()
    });
    let content = wire::Service {
        r#type: encode::kind(&service.kind).into(),
        addresses: addresses.collect(),
        ports: ports.collect(),
        external_name: service.external_name.as_deref().unwrap_or_default().to_owned(),
        ..Default::default()
    };
    let record = encode::record(Some(&service.key), &content, []);
    encode::Head { record, requires: Vec::new(), selectable: [].into() }
}

/// The records of a Service's endpoints, sorted by key. The endpoints of the Service must be sorted.
pub fn endpoints(service: &Service) -> impl Iterator<Item = encode::Tail> {
    let mut last: Option<EndpointKey> = None;
    service.endpoints.iter().map(move |endpoint| {
        let key = EndpointKey::after(last, endpoint.address);
        last = Some(key);
        let ports = endpoint.ports.iter().map(|port| wire::EndpointPort {
            name: port.name.to_string(),
            number: port.number.into(),
            protocol: encode::protocol(port.protocol).into(),
        });
        let content = wire::Endpoint {
            address: key.address.to_string(),
            ordinal: key.ordinal,
            ports: ports.collect(),
            hostname: endpoint.hostname.as_deref().unwrap_or_default().to_owned(),
            ..Default::default()
        };
        let details = encode::details(endpoint.origin.clone());
        let record = encode::record(Some(&service.key), &content, [&details]);
        encode::Tail { key, record, details }
    })
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    fn service() -> Service {
        let port = |name: &str, protocol, number| Port { name: name.into(), protocol, number };
        let endpoint = |last: u8, hostname: Option<&str>, node: &str| Endpoint {
            address: [10, 1, 0, last].into(),
            hostname: hostname.map(Into::into),
            ports: [port("dns", Protocol::Udp, 5353)].into(),
            origin: Origin { node: node.into(), ..Origin::default() },
        };
        Service {
            key: ServiceKey::new("shop", "web"),
            kind: "ClusterIP".to_owned(),
            cluster_ips: Vec::new(),
            external_name: None,
            ports: vec![port("dns", Protocol::Udp, 53)],
            endpoints: vec![endpoint(1, None, ""), endpoint(1, Some("web-0"), "node-a"), endpoint(2, None, "")],
        }
    }

    #[test]
    fn records_contain_what_dns_needs() {
        let service = service();
        let head = wire::Service::decode(head(&service).record.bytes).unwrap();
        assert_eq!((head.r#type(), head.addresses.len()), (wire::ServiceType::ClusterIp, 0));
        assert_eq!((head.ports[0].protocol(), head.ports[0].number), (wire::Protocol::Udp, 53));
        let tails: Vec<_> = endpoints(&service).collect();
        let keys: Vec<_> = tails.iter().map(|tail| (tail.key.address.to_string(), tail.key.ordinal)).collect();
        assert_eq!(keys, [("10.1.0.1".to_owned(), 0), ("10.1.0.1".to_owned(), 1), ("10.1.0.2".to_owned(), 0)]);
        let named = [&tails[1].record.bytes[..], &tails[1].details].concat();
        let named = wire::Endpoint::decode(&named[..]).unwrap();
        assert_eq!((&*named.hostname, named.details.unwrap().node_name), ("web-0", "node-a".to_owned()));
        assert_eq!(named.ports, [wire::EndpointPort { name: "dns".into(), number: 5353, protocol: 2 }]);
        assert!(tails[0].details.is_empty());
    }

    #[test]
    fn an_external_name_is_part_of_the_record() {
        let external = Service {
            kind: "ExternalName".to_owned(),
            external_name: Some("db.example.com".into()),
            endpoints: Vec::new(),
            ..service()
        };
        let record = wire::Service::decode(head(&external).record.bytes).unwrap();
        assert_eq!((record.r#type(), &*record.external_name), (wire::ServiceType::ExternalName, "db.example.com"));
    }
}
