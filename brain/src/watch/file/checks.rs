//! What an API server would have refused, and the types let pass. In a file nobody else looks at it.

use std::{collections::BTreeSet, net::IpAddr};

use ipnet::IpNet;

use crate::cluster::{NodeObject, Object, Parsed, ServiceCidrObject, ServiceObject, SliceObject};

/// The list of ClusterIPs; a file may say only [`CLUSTER_IP`] instead.
pub(super) const CLUSTER_IPS: &str = "clusterIPs";
/// The one ClusterIP.
pub(super) const CLUSTER_IP: &str = "clusterIP";

/// A field that is wrong.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    pub(super) field: String,
    pub(super) problem: String,
    pub(super) remedy: &'static str,
}

/// The object as it is spoken of: `Service default/web`.
pub(super) fn spoken(object: &Object) -> String {
    let (kind, name) = (object.kind().as_str(), object.name());
    match object.namespace() {
        "" => format!("{kind} {name}"),
        namespace => format!("{kind} {namespace}/{name}"),
    }
}

/// All that is wrong with an object.
pub(super) fn check(object: &Object) -> Vec<Wrong> {
    let mut list = List::default();
    if object.name().is_empty() {
        list.push("metadata.name", "is missing", "every object has a name");
    }
    match object {
        Object::Service(service) => list.service(service),
        Object::Slice(slice) => list.slice(slice),
        Object::Node(node) => list.node(node),
        Object::ServiceCidr(cidr) => list.service_cidr(cidr),
    }
    list.0
}

#[derive(Default)]
struct List(Vec<Wrong>);

impl List {
    fn push(&mut self, field: impl Into<String>, problem: impl Into<String>, remedy: &'static str) {
        self.0.push(Wrong { field: field.into(), problem: problem.into(), remedy });
    }

    fn addresses(&mut self, field: impl Fn(usize) -> String, addresses: &[Parsed<IpAddr>]) {
        for (position, address) in addresses.iter().enumerate() {
            if let Parsed::Bad(text) = address {
                let problem = format!("{text:?} is not an IP address");
                self.push(field(position), problem, "write it like 10.0.0.1 or 2001:db8::1");
            }
        }
    }

    fn cidrs(&mut self, field: &str, cidrs: &[Parsed<IpNet>]) {
        for (position, cidr) in cidrs.iter().enumerate() {
            if let Parsed::Bad(text) = cidr {
                let problem = format!("{text:?} is not a CIDR");
                self.push(format!("{field}[{position}]"), problem, "write it like 10.0.0.0/8 or 2001:db8::/32");
            }
        }
    }

    fn service(&mut self, service: &ServiceObject) {
        self.addresses(|position| format!("spec.{CLUSTER_IPS}[{position}]"), &service.cluster_ips);
        self.addresses(|position| format!("spec.externalIPs[{position}]"), &service.external_ips);
        self.addresses(|position| format!("status.loadBalancer.ingress[{position}].ip"), &service.load_balancer_ips);
        self.cidrs("spec.loadBalancerSourceRanges", &service.source_ranges);
        let (mut names, mut numbers, mut node_ports) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for (position, port) in service.ports.iter().enumerate() {
            let field = |name: &str| format!("spec.ports[{position}].{name}");
            let protocol = match &port.protocol {
                Parsed::Good(protocol) => *protocol,
                Parsed::Bad(text) => {
                    self.push(field("protocol"), format!("{text:?} is not a protocol"), "use TCP, UDP or SCTP");
                    continue;
                }
            };
            self.port_number(field("port"), port.port);
            if port.node_port != 0 {
                self.port_number(field("nodePort"), port.node_port);
            }
            if !names.insert(&port.name) {
                let problem = format!("the name {:?} is used twice", port.name);
                self.push(field("name"), problem, "give each port a name of its own");
            }
            if !numbers.insert((protocol, port.port)) {
                let problem = format!("{}/{protocol} is used twice", port.port);
                self.push(field("port"), problem, "give each port a number of its own");
            }
            if port.node_port != 0 && !node_ports.insert((protocol, port.node_port)) {
                let problem = format!("{}/{protocol} is used twice", port.node_port);
                self.push(field("nodePort"), problem, "give each port a nodePort of its own");
            }
        }
    }

    fn port_number(&mut self, field: String, number: i32) {
        if u16::try_from(number).is_ok_and(|number| number > 0) {
            return;
        }
        self.push(field, format!("{number} is not a port"), "use a number from 1 to 65535");
    }

    fn slice(&mut self, slice: &SliceObject) {
        if matches!(&slice.family, Parsed::Bad(text) if &**text != "FQDN") {
            self.push("addressType", "is not an address type", "use IPv4 or IPv6");
        }
        for (position, port) in slice.ports.iter().enumerate() {
            if let Parsed::Bad(text) = &port.protocol {
                let problem = format!("{text:?} is not a protocol");
                self.push(format!("ports[{position}].protocol"), problem, "use TCP, UDP or SCTP");
            }
            if let Some(number) = port.port {
                self.port_number(format!("ports[{position}].port"), number);
            }
        }
        let is_fqdn = matches!(slice.family, Parsed::Bad(_));
        for (position, endpoint) in slice.endpoints.iter().enumerate().filter(|_| !is_fqdn) {
            let address = endpoint.address.as_slice();
            self.addresses(|_| format!("endpoints[{position}].addresses[0]"), address);
        }
    }

    fn node(&mut self, node: &NodeObject) {
        self.addresses(|_| "status.addresses".to_owned(), &node.addresses);
        self.cidrs("spec.podCIDRs", &node.pod_cidrs);
    }

    fn service_cidr(&mut self, object: &ServiceCidrObject) {
        self.cidrs("spec.cidrs", &object.cidrs);
    }
}
