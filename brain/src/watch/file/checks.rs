//! Checks values that the Rust types accept but an API server would refuse. Objects from a file do not pass through an
//! API server.

use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::Service;
use localnet_core::{Code, Diagnostic, Subject};
use localnet_proto::Protocol;

use localnet_cluster::{
    localize::{self, Here},
    objects::{NodeObject, Object, Parsed, ServiceCidrObject, ServiceObject, SliceObject},
};

/// All problems of an object.
pub(super) fn check(object: &Object) -> Vec<Diagnostic> {
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

/// Problems with the enumerated values of a Service, such as its type. The reduced object does not contain the text of these values.
pub(super) fn choices(service: &Service) -> Vec<Diagnostic> {
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
    for (field, value, allowed, remedy) in rows {
        let value = value.as_deref().filter(|value| !value.is_empty() && !allowed.contains(value));
        if let Some(value) = value {
            list.push(Code::ValueUnsupported, field, format!("{value:?} is not supported"), remedy);
        }
    }
    list.0
}

/// The codes of the cluster's diagnostics for values that an API server would refuse.
const INVALID: [Code; 5] =
    [Code::AddressInvalid, Code::CidrInvalid, Code::PortInvalid, Code::PortTwice, Code::ProtocolInvalid];
const LABEL: &str = "use at most 63 lower case letters, digits and '-', and a letter or digit at each end";
const SUBDOMAIN: &str = "use at most 253 lower case letters, digits, '-' and '.', and a letter or digit at each end";

/// Whether the text is a DNS label (RFC 1123), as Kubernetes defines it.
fn is_label(text: &str) -> bool {
    text.len() <= 63 && is_part(text)
}

/// Whether the text consists of DNS labels, separated by dots.
fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_part)
}

fn is_part(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let ends = [text.bytes().next(), text.bytes().last()];
    text.bytes().all(|byte| plain(byte) || byte == b'-') && ends.iter().all(|end| end.is_some_and(plain))
}

/// Whether the text is a valid value of an object's label. May be empty.
pub(crate) fn is_label_value(text: &str) -> bool {
    let ends = [text.bytes().next(), text.bytes().last()];
    text.len() <= 63
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        && ends.iter().flatten().all(u8::is_ascii_alphanumeric)
}

/// Whether the text is a valid key of an object's label: a name, or a DNS subdomain, a slash and a name.
pub(crate) fn is_label_key(text: &str) -> bool {
    let (prefix, name) = text.split_once('/').map_or((None, text), |(prefix, name)| (Some(prefix), name));
    prefix.is_none_or(is_subdomain) && !name.is_empty() && is_label_value(name)
}

#[derive(Default)]
struct List(Vec<Diagnostic>);

impl List {
    /// Adds a problem. The caller adds the position of the object.
    fn push(&mut self, code: Code, field: impl Into<String>, problem: impl Into<String>, remedy: &'static str) {
        self.0.push(Diagnostic::new(code, Subject::text(0), problem).field(field).remedy(remedy));
    }

    fn names(&mut self, object: &Object) {
        let (is_name, remedy): (fn(&str) -> bool, _) = match object {
            Object::Service(_) => (is_label, LABEL),
            _ => (is_subdomain, SUBDOMAIN),
        };
        match object.name() {
            "" => self.push(Code::FieldMissing, "metadata.name", "is missing", "give the object a name"),
            name if !is_name(name) => {
                self.push(Code::NameInvalid, "metadata.name", format!("{name:?} is not a name"), remedy);
            }
            _ => {}
        }
        if !object.namespace().is_empty() {
            self.label("metadata.namespace", object.namespace());
        }
    }

    fn label(&mut self, field: impl Into<String>, text: &str) {
        if !is_label(text) {
            self.push(Code::NameInvalid, field, format!("{text:?} is not a name"), LABEL);
        }
    }

    fn addresses(&mut self, field: impl Fn(usize) -> String, addresses: &[Parsed<IpAddr>]) {
        for (position, address) in addresses.iter().enumerate() {
            if let Parsed::Bad(text) = address {
                let problem = format!("{text:?} is not an IP address");
                self.push(Code::AddressInvalid, field(position), problem, "write it like 10.0.0.1 or 2001:db8::1");
            }
        }
    }

    fn cidrs(&mut self, field: &str, cidrs: &[Parsed<IpNet>]) {
        for (position, cidr) in cidrs.iter().enumerate() {
            if let Parsed::Bad(text) = cidr {
                let problem = format!("{text:?} is not a CIDR");
                let field = format!("{field}[{position}]");
                self.push(Code::CidrInvalid, field, problem, "write it like 10.0.0.0/8 or 2001:db8::/32");
            }
        }
    }

    fn service(&mut self, service: &ServiceObject) {
        // The cluster skips invalid values that an API server would refuse. Report these values as problems.
        let (_, skipped) = localize::service(service, [], &Here::new(""), &[]);
        self.0.extend(skipped.into_iter().filter(|found| INVALID.contains(&found.code)));
        if service.health_check_node_port != 0 {
            self.port_number("spec.healthCheckNodePort".to_owned(), service.health_check_node_port);
        }
        for (position, port) in service.ports.iter().enumerate().filter(|(_, port)| !port.name.is_empty()) {
            self.label(format!("spec.ports[{position}].name"), &port.name);
        }
    }

    fn protocol(&mut self, field: String, protocol: &Parsed<Protocol>) -> Option<Protocol> {
        match protocol {
            Parsed::Good(protocol) => Some(*protocol),
            Parsed::Bad(text) => {
                let problem = format!("{text:?} is not a protocol");
                self.push(Code::ProtocolInvalid, field, problem, "use TCP, UDP or SCTP");
                None
            }
        }
    }

    fn port_number(&mut self, field: String, number: i32) {
        if u16::try_from(number).is_ok_and(|number| number > 0) {
            return;
        }
        self.push(Code::PortInvalid, field, format!("{number} is not a port"), "use a number from 1 to 65535");
    }

    fn slice(&mut self, slice: &SliceObject) {
        if matches!(&slice.family, Parsed::Bad(text) if &**text != "FQDN") {
            self.push(Code::ValueUnsupported, "addressType", "is not an address type", "use IPv4 or IPv6");
        }
        for (position, port) in slice.ports.iter().enumerate() {
            self.protocol(format!("ports[{position}].protocol"), &port.protocol);
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
            // A node name is only compared with the names of Nodes, so it need not be valid. But it must fit into a
            // message on the wire.
            let odd = |node: &&str| node.len() > 253 || node.contains(char::is_control);
            if let Some(node) = endpoint.node.as_deref().filter(odd) {
                let field = format!("endpoints[{position}].nodeName");
                self.push(Code::NameInvalid, field, format!("{node:?} is not a name"), SUBDOMAIN);
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
            let problem = format!("{:?} is not a valid zone", node.zone);
            self.push(Code::NameInvalid, "metadata.labels", problem, remedy);
        }
        self.addresses(|_| "status.addresses".to_owned(), &node.addresses);
        self.cidrs("spec.podCIDRs", &node.pod_cidrs);
    }

    fn service_cidr(&mut self, object: &ServiceCidrObject) {
        self.cidrs("spec.cidrs", &object.cidrs);
    }
}
