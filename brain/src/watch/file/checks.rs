//! What an API server would have refused, and the types let pass. In a file nobody else looks at it.

use std::{collections::BTreeSet, net::IpAddr};

use ipnet::IpNet;
use k8s_openapi::api::core::v1::Service;

use super::problem;
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
    problem::spoken(object.kind(), object.namespace(), object.name())
}

/// All that is wrong with an object.
pub(super) fn check(object: &Object) -> Vec<Wrong> {
    let mut list = List::default();
    list.names(object);
    match object {
        Object::Service(service) => list.service(service),
        Object::Slice(slice) => list.slice(slice),
        Object::Node(node) => list.node(node),
        Object::ServiceCidr(cidr) => list.service_cidr(cidr),
    }
    list.0
}

/// What is wrong with the words of a Service that stand for a choice; afterwards they are only what they mean.
pub(super) fn choices(service: &Service) -> Vec<Wrong> {
    let mut list = List::default();
    let Some(spec) = &service.spec else { return list.0 };
    let policies = ["Cluster", "Local"];
    let rows: [(&str, &Option<String>, &[&str], &str); 4] = [
        (
            "spec.type",
            &spec.type_,
            &["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"],
            "use ClusterIP, NodePort, LoadBalancer or ExternalName",
        ),
        ("spec.externalTrafficPolicy", &spec.external_traffic_policy, &policies, "use Cluster or Local"),
        ("spec.internalTrafficPolicy", &spec.internal_traffic_policy, &policies, "use Cluster or Local"),
        ("spec.sessionAffinity", &spec.session_affinity, &["None", "ClientIP"], "use None or ClientIP"),
    ];
    for (field, said, known, remedy) in rows {
        let said = said.as_deref().filter(|said| !said.is_empty() && !known.contains(said));
        if let Some(said) = said {
            list.push(field, format!("{said:?} is not known"), remedy);
        }
    }
    list.0
}

const LABEL: &str = "use at most 63 lower case letters, digits and '-', and a letter or digit at each end";
const SUBDOMAIN: &str = "use at most 253 lower case letters, digits, '-' and '.', and a letter or digit at each end";

/// A label of DNS (RFC 1123), as Kubernetes has it.
fn is_label(text: &str) -> bool {
    text.len() <= 63 && is_part(text)
}

/// Labels with dots between them.
fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_part)
}

fn is_part(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let ends = [text.bytes().next(), text.bytes().last()];
    text.bytes().all(|byte| plain(byte) || byte == b'-') && ends.iter().all(|end| end.is_some_and(plain))
}

/// The value of a label of an object; may be empty.
fn is_label_value(text: &str) -> bool {
    let ends = [text.bytes().next(), text.bytes().last()];
    text.len() <= 63
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        && ends.iter().flatten().all(u8::is_ascii_alphanumeric)
}

#[derive(Default)]
struct List(Vec<Wrong>);

impl List {
    fn push(&mut self, field: impl Into<String>, problem: impl Into<String>, remedy: &'static str) {
        self.0.push(Wrong { field: field.into(), problem: problem.into(), remedy });
    }

    fn names(&mut self, object: &Object) {
        let (is_name, remedy): (fn(&str) -> bool, _) = match object {
            Object::Service(_) => (is_label, LABEL),
            _ => (is_subdomain, SUBDOMAIN),
        };
        match object.name() {
            "" => self.push("metadata.name", "is missing", "every object has a name"),
            name if !is_name(name) => self.push("metadata.name", format!("{name:?} is not a name"), remedy),
            _ => {}
        }
        if !object.namespace().is_empty() {
            self.label("metadata.namespace", object.namespace());
        }
    }

    fn label(&mut self, field: impl Into<String>, text: &str) {
        if !is_label(text) {
            self.push(field, format!("{text:?} is not a name"), LABEL);
        }
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
        if service.health_check_node_port != 0 {
            self.port_number("spec.healthCheckNodePort".to_owned(), service.health_check_node_port);
        }
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
            if !port.name.is_empty() {
                self.label(field("name"), &port.name);
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
            if let Some(name) = port.name.as_deref().filter(|name| !name.is_empty()) {
                self.label(format!("ports[{position}].name"), name);
            }
            if let Some(number) = port.port {
                self.port_number(format!("ports[{position}].port"), number);
            }
        }
        for (position, endpoint) in slice.endpoints.iter().enumerate() {
            if let Some(hostname) = &endpoint.hostname {
                self.label(format!("endpoints[{position}].hostname"), hostname);
            }
            // It is compared with names of Nodes, so it may be none; it must not outgrow a message.
            let odd = |node: &&str| node.len() > 253 || node.contains(char::is_control);
            if let Some(node) = endpoint.node.as_deref().filter(odd) {
                self.push(format!("endpoints[{position}].nodeName"), format!("{node:?} is not a name"), SUBDOMAIN);
            }
        }
        let is_fqdn = matches!(slice.family, Parsed::Bad(_));
        for (position, endpoint) in slice.endpoints.iter().enumerate().filter(|_| !is_fqdn) {
            let address = endpoint.address.as_slice();
            self.addresses(|_| format!("endpoints[{position}].addresses[0]"), address);
        }
    }

    fn node(&mut self, node: &NodeObject) {
        if !is_label_value(&node.zone) {
            let remedy = "use at most 63 letters, digits, '-', '_' and '.', and a letter or digit at each end";
            self.push("metadata.labels", format!("{:?} is not the name of a zone", node.zone), remedy);
        }
        self.addresses(|_| "status.addresses".to_owned(), &node.addresses);
        self.cidrs("spec.podCIDRs", &node.pod_cidrs);
    }

    fn service_cidr(&mut self, object: &ServiceCidrObject) {
        self.cidrs("spec.cidrs", &object.cidrs);
    }
}
