//! The Services of the cluster, indexed by name and by address.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    net::IpAddr,
};

use localnet_proto::v1::wire;

/// Namespace and name of a Service.
pub(crate) type Key = (String, String);

/// The records of a Service and of its endpoints, by address and ordinal.
#[derive(Clone, Default)]
pub(crate) struct Records {
    pub(crate) service: wire::Service,
    pub(crate) endpoints: BTreeMap<(String, u32), wire::Endpoint>,
}

/// The Services of the cluster.
#[derive(Default)]
pub(crate) struct Names {
    /// By namespace and name.
    services: BTreeMap<String, BTreeMap<String, Service>>,
    /// The Services that have a ClusterIP or an endpoint with this address.
    addresses: BTreeMap<IpAddr, BTreeSet<Key>>,
    /// How often the names have changed.
    pub(crate) serial: u32,
}

/// A Service. It is headless if it has neither `cluster_ips` nor an `external_name`.
pub(crate) struct Service {
    pub(crate) cluster_ips: Vec<IpAddr>,
    /// Empty if the Service is not an ExternalName Service.
    pub(crate) external_name: String,
    pub(crate) ports: Vec<Port>,
    pub(crate) endpoints: Vec<Endpoint>,
}

pub(crate) struct Endpoint {
    pub(crate) address: IpAddr,
    /// The first label of the endpoint's name.
    pub(crate) label: String,
    pub(crate) ports: Vec<Port>,
}

/// A port. A Service or an endpoint without ports has one `Port::default()`, because it nevertheless has a name.
#[derive(Default)]
pub(crate) struct Port {
    pub(crate) name: String,
    /// The protocol in lower case.
    pub(crate) protocol: &'static str,
    pub(crate) number: Option<u16>,
}

impl Names {
    /// Removes all Services.
    pub(crate) fn clear(&mut self) {
        self.services.clear();
        self.addresses.clear();
    }

    /// Sets or removes a Service.
    pub(crate) fn set(&mut self, key: &Key, records: Option<&Records>) {
        self.serial = self.serial.wrapping_add(1);
        let (namespace, name) = key;
        let services = self.services.entry(namespace.clone()).or_default();
        for address in services.remove(name).iter().flat_map(Service::addresses) {
            if let Entry::Occupied(mut keys) = self.addresses.entry(address) {
                keys.get_mut().remove(key);
                if keys.get().is_empty() {
                    keys.remove();
                }
            }
        }
        if let Some(service) = records.map(Service::of) {
            for address in service.addresses() {
                self.addresses.entry(address).or_default().insert(key.clone());
            }
            services.insert(name.clone(), service);
        } else if services.is_empty() {
            self.services.remove(namespace);
        }
    }

    pub(crate) fn service(&self, namespace: &str, name: &str) -> Option<&Service> {
        self.services.get(namespace)?.get(name)
    }

    /// Whether a namespace has Services.
    pub(crate) fn has_namespace(&self, namespace: &str) -> bool {
        self.services.contains_key(namespace)
    }

    /// The Services that have a ClusterIP or an endpoint with this address.
    pub(crate) fn at(&self, address: IpAddr) -> impl Iterator<Item = (&Key, &Service)> {
        let keys = self.addresses.get(&address).into_iter().flatten();
        keys.filter_map(|key| Some((key, self.service(&key.0, &key.1)?)))
    }
}

impl Service {
    fn of(Records { service, endpoints }: &Records) -> Self {
        let ports = service.ports.iter().map(|port| Port::of(&port.name, port.protocol(), port.number));
        Self {
            cluster_ips: service.addresses.iter().filter_map(|address| address.address.parse().ok()).collect(),
            external_name: service.external_name.clone(),
            ports: at_least_one(ports),
            endpoints: endpoints.values().filter_map(Endpoint::of).collect(),
        }
    }

    fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.cluster_ips.iter().copied().chain(self.endpoints.iter().map(|endpoint| endpoint.address))
    }

    pub(crate) fn is_headless(&self) -> bool {
        self.cluster_ips.is_empty() && self.external_name.is_empty()
    }
}

impl Endpoint {
    fn of(record: &wire::Endpoint) -> Option<Self> {
        let ports = record.ports.iter().map(|port| Port::of(&port.name, port.protocol(), port.number));
        let dashed = record.address.replace(['.', ':'], "-");
        let label = match record.hostname.as_str() {
            // A label must not end with a hyphen, as that of `fd00::` would.
            "" if dashed.ends_with('-') => dashed + "0",
            "" => dashed,
            hostname => hostname.to_owned(),
        };
        Some(Self { address: record.address.parse().ok()?, label, ports: at_least_one(ports) })
    }
}

impl Port {
    fn of(name: &str, protocol: wire::Protocol, number: u32) -> Self {
        let protocol = match protocol {
            wire::Protocol::Tcp => "tcp",
            wire::Protocol::Udp => "udp",
            wire::Protocol::Sctp => "sctp",
            wire::Protocol::Unspecified => "",
        };
        Self { name: name.to_owned(), protocol, number: u16::try_from(number).ok() }
    }
}

fn at_least_one(ports: impl Iterator<Item = Port>) -> Vec<Port> {
    let ports: Vec<Port> = ports.collect();
    if ports.is_empty() { vec![Port::default()] } else { ports }
}
