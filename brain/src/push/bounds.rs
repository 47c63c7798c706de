//! Converts a pushed Service to objects, and leaves out everything that the grant does not contain. Pure.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use localnet_cluster::objects::{
    Conditions, Object, Parsed, ServiceObject, ServicePort, ServiceType, SliceEndpoint, SliceObject, SlicePort,
    reduce::{parsed_address, parsed_cidr},
};
use localnet_core::{Code, Diagnostic, Subject};
use localnet_proto::{
    Affinity, Family, Protocol, ServiceKey,
    source::{self as wire, AddressKind, EndpointCondition, PushedService, TrafficPolicy},
};

use super::grants::{Grant, is_label};

/// Maximum number of addresses, and of source ranges, of a Service.
const ADDRESSES: usize = 64;
/// Maximum number of ports of a Service.
const PORTS: usize = 256;
/// Maximum length of an address or CIDR as text, in bytes.
const ADDRESS: usize = 64;
/// Maximum length of the name of a port, in bytes, as in Kubernetes.
const PORT_NAME: usize = 63;
/// Maximum length of the name of a node, in bytes, as in Kubernetes.
const NODE_NAME: usize = 253;
/// Maximum number of problems of one Service that are reported one by one.
const PROBLEMS: usize = 20;
/// The default timeout of session affinity in the API server, in seconds.
const AFFINITY: u32 = 10_800;

/// The objects of a pushed Service, all within the grant.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Objects {
    /// The Service. It contains the problems of the parts that were left out.
    pub(super) service: ServiceObject,
    /// The slices with its endpoints.
    pub(super) slices: Vec<SliceObject>,
}

impl Objects {
    /// All objects.
    pub(super) fn all(self) -> impl Iterator<Item = Object> {
        std::iter::once(Object::Service(self.service)).chain(self.slices.into_iter().map(Object::Slice))
    }
}

/// The key of the Service. A part that is too long to be valid is shortened to an invalid one.
pub(super) fn key(pushed: &PushedService) -> ServiceKey {
    key_of(pushed.key.as_ref())
}

/// The same for a key on the wire.
pub(super) fn key_of(key: Option<&wire::ServiceKey>) -> ServiceKey {
    let part = |text: Option<&String>| -> Arc<str> {
        let text = text.map_or("", String::as_str);
        if text.len() > 63 { text.chars().take(16).chain(['…']).collect::<String>().into() } else { text.into() }
    };
    ServiceKey { namespace: part(key.map(|key| &key.namespace)), name: part(key.map(|key| &key.name)) }
}

/// The name of a slice of a Service. No EndpointSlice of an API server contains a slash in its name.
pub(super) fn slice_name(service: &ServiceKey, number: usize) -> ServiceKey {
    ServiceKey::new(Arc::clone(&service.namespace), format!("{}/{number}", service.name))
}

/// The number of endpoints of a Service. An endpoint counts once for each of its ports.
pub(super) fn count_endpoints(pushed: &PushedService) -> usize {
    pushed.endpoints.iter().map(|endpoint| endpoint.ports.len().max(1)).sum()
}

/// Checks what bounds the memory of a Service, and what the whole Service needs to be usable.
///
/// # Errors
/// Returns a problem that makes the whole Service unusable.
pub(super) fn check(grant: &Grant, pushed: &PushedService) -> Result<(), Diagnostic> {
    let key = key(pushed);
    let refused = |code, field: &str, problem: String, remedy: &str| {
        Err(Diagnostic::new(code, Subject::service(&key), problem).field(field).remedy(remedy))
    };
    for (field, text) in [("key.namespace", &key.namespace), ("key.name", &key.name)] {
        if !is_label(text) {
            let problem = format!("{text:?} is not a valid name");
            return refused(Code::NameInvalid, field, problem, "use up to 63 lower case letters, digits and '-'");
        }
    }
    if !grant.namespaces.iter().any(|namespace| namespace.0 == key.namespace) {
        let problem = format!("the grant {:?} does not contain the namespace {:?}", grant.name.0, key.namespace);
        return refused(
            Code::PushNotGranted,
            "key.namespace",
            problem,
            "use another namespace, or add it to namespaces of the grant",
        );
    }
    if count_endpoints(pushed) > grant.max_endpoints as usize {
        let problem = format!(
            "has {} endpoints, and the grant {:?} allows {}",
            count_endpoints(pushed),
            grant.name.0,
            grant.max_endpoints
        );
        return refused(
            Code::PushNotGranted,
            "endpoints",
            problem,
            "push fewer endpoints, or raise maxEndpoints of the grant",
        );
    }
    let counts = [
        ("addresses", pushed.addresses.len(), ADDRESSES),
        ("ports", pushed.ports.len(), PORTS),
        ("source_ranges", pushed.source_ranges.len(), ADDRESSES),
    ];
    for (field, count, most) in counts {
        if count > most {
            let problem = format!("has {count} items, and at most {most} are possible");
            return refused(Code::ServiceTooLarge, field, problem, "split the Service into several Services");
        }
    }
    let addresses = pushed.addresses.iter().map(|address| ("addresses", &address.address, ADDRESS));
    let ranges = pushed.source_ranges.iter().map(|range| ("source_ranges", range, ADDRESS));
    let ports = pushed.ports.iter().map(|port| ("ports", &port.name, PORT_NAME));
    let endpoints = pushed.endpoints.iter().flat_map(|endpoint| {
        let ports = endpoint.ports.iter().map(|port| ("endpoints", &port.name, PORT_NAME));
        [("endpoints", &endpoint.address, ADDRESS), ("endpoints", &endpoint.node_name, NODE_NAME)]
            .into_iter()
            .chain(ports)
    });
    if let Some((field, text, most)) =
        addresses.chain(ranges).chain(ports).chain(endpoints).find(|(_, text, most)| text.len() > *most)
    {
        let start: String = text.chars().take(16).collect();
        let problem = format!("{start:?}… has {} bytes, and at most {most} are possible", text.len());
        return refused(Code::ValueInvalid, field, problem, "shorten it");
    }
    for (field, policy) in [("internal_policy", pushed.internal_policy), ("external_policy", pushed.external_policy)] {
        if TrafficPolicy::try_from(policy).is_err() {
            let problem = format!("{policy} is not a policy that this version knows");
            return refused(Code::ValueUnsupported, field, problem, "use a value of TrafficPolicy");
        }
    }
    Ok(())
}

/// Converts a Service. `proxy_name` is the name of this proxy, if it has one: only Services with this label are served.
///
/// # Errors
/// Returns the problem if the grant contains no part of the Service, or if the whole Service is unusable.
pub(super) fn objects(
    grant: &Grant,
    pushed: &PushedService,
    proxy_name: Option<&Arc<str>>,
) -> Result<Objects, Diagnostic> {
    check(grant, pushed)?;
    let key = key(pushed);
    let mut found = Found { grant, subject: Subject::service(&key), problems: Vec::new(), more: 0 };
    let mut service = ServiceObject {
        namespace: Arc::clone(&key.namespace),
        name: Arc::clone(&key.name),
        pushed: true,
        proxy_name: proxy_name.cloned(),
        source_ranges: pushed.source_ranges.iter().map(|range| parsed_cidr(range)).collect(),
        ports: ports(pushed, &mut found),
        internal_local: pushed.internal_policy() == TrafficPolicy::Local,
        external_local: pushed.external_policy() == TrafficPolicy::Local,
        affinity: pushed.client_ip_affinity.as_ref().map(affinity),
        ..ServiceObject::default()
    };
    addresses(pushed, &mut service, &mut found);
    let slices = slices(pushed, &key, &mut found);
    let has_node_port = service.ports.iter().any(|port| port.node_port != 0);
    if has_node_port || !service.load_balancer_ips.is_empty() {
        service.kind = ServiceType::NodePort;
    }
    service.skipped = found.all();
    Ok(Objects { service, slices })
}

fn affinity(affinity: &wire::ClientIpAffinity) -> Affinity {
    match affinity.timeout_seconds {
        0 => AFFINITY.into(),
        seconds => seconds.into(),
    }
}

/// The problems of one Service.
struct Found<'a> {
    grant: &'a Grant,
    subject: Subject,
    problems: Vec<Diagnostic>,
    /// The number of problems that are not in the list.
    more: usize,
}

impl Found<'_> {
    fn add(&mut self, code: Code, field: String, problem: String, remedy: impl Into<String>) {
        if self.problems.len() == PROBLEMS {
            self.more += 1;
            return;
        }
        self.problems.push(Diagnostic::new(code, self.subject.clone(), problem).field(field).remedy(remedy));
    }

    /// A value that the grant does not contain. `list` is the field of the grant.
    fn not_granted(&mut self, field: String, value: impl std::fmt::Display, list: &str) {
        let problem = format!("the grant {:?} does not contain {value}", self.grant.name.0);
        self.add(Code::PushNotGranted, field, problem, format!("use another value, or add it to {list} of the grant"));
    }

    fn address(&mut self, field: String, text: &str) -> Option<IpAddr> {
        match parsed_address(text) {
            Parsed::Good(address) => Some(address),
            Parsed::Bad(text) => {
                let problem = format!("{text:?} is not an IP address");
                self.add(Code::AddressInvalid, field, problem, "write it like 10.0.0.1 or 2001:db8::1");
                None
            }
        }
    }

    fn all(mut self) -> Box<[Diagnostic]> {
        if let (Some(last), 1..) = (self.problems.last_mut(), self.more) {
            last.problem += &format!(" (and {} more problems of this Service)", self.more);
        }
        self.problems.into()
    }
}

fn addresses(pushed: &PushedService, service: &mut ServiceObject, found: &mut Found<'_>) {
    let grant = found.grant;
    let (mut cluster_ips, mut external_ips, mut load_balancer_ips) = (Vec::new(), Vec::new(), Vec::new());
    for (position, item) in pushed.addresses.iter().enumerate() {
        let field = format!("addresses[{position}].address");
        let (to, granted, list) = match AddressKind::try_from(item.kind) {
            Ok(AddressKind::ClusterIp) => (&mut cluster_ips, &grant.cluster_ips, "clusterIPs"),
            Ok(AddressKind::ExternalIp) => (&mut external_ips, &grant.external_ips, "externalIPs"),
            Ok(AddressKind::LoadBalancerIp) => (&mut load_balancer_ips, &grant.external_ips, "externalIPs"),
            Ok(AddressKind::Unspecified) | Err(_) => {
                let problem = format!("{} is not a kind that this version knows", item.kind);
                let field = format!("addresses[{position}].kind");
                found.add(Code::ValueUnsupported, field, problem, "use a value of AddressKind");
                continue;
            }
        };
        let Some(address) = found.address(field.clone(), &item.address) else { continue };
        if granted.contain(address) {
            to.push(Parsed::Good(address));
        } else {
            found.not_granted(field, address, list);
        }
    }
    service.cluster_ips = cluster_ips.into();
    service.external_ips = external_ips.into();
    service.load_balancer_ips = load_balancer_ips.into();
}

fn protocol(port: &wire::ServicePort) -> Parsed<Protocol> {
    match wire::Protocol::try_from(port.protocol) {
        Ok(wire::Protocol::Unspecified | wire::Protocol::Tcp) => Parsed::Good(Protocol::Tcp),
        Ok(wire::Protocol::Udp) => Parsed::Good(Protocol::Udp),
        Ok(wire::Protocol::Sctp) => Parsed::Good(Protocol::Sctp),
        Err(_) => Parsed::Bad(port.protocol.to_string().into()),
    }
}

/// A number that is too large stays too large, so that it is reported like that of any other Service.
fn number(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

fn ports(pushed: &PushedService, found: &mut Found<'_>) -> Box<[ServicePort]> {
    let grant = found.grant;
    let port = |(position, port): (usize, &wire::ServicePort)| {
        let is_granted = |node_port| grant.node_ports.is_some_and(|range| range.contain(node_port));
        let mut node_port = port.node_port;
        if node_port != 0 && !is_granted(node_port) {
            found.not_granted(format!("ports[{position}].node_port"), node_port, "nodePorts");
            node_port = 0;
        }
        ServicePort {
            name: port.name.as_str().into(),
            protocol: protocol(port),
            port: number(port.number),
            node_port: number(node_port),
        }
    };
    pushed.ports.iter().enumerate().map(port).collect()
}

/// What the endpoints of a slice have in common: their family, and the names and numbers of their ports.
type Shape<'a> = (Family, Vec<(&'a str, u32)>);

/// The slices with the endpoints that the grant contains.
fn slices(pushed: &PushedService, key: &ServiceKey, found: &mut Found<'_>) -> Vec<SliceObject> {
    let mut shapes: BTreeMap<Shape<'_>, Vec<SliceEndpoint>> = BTreeMap::new();
    for (position, endpoint) in pushed.endpoints.iter().enumerate() {
        let field = format!("endpoints[{position}].address");
        let Some(address) = found.address(field.clone(), &endpoint.address) else { continue };
        if !found.grant.endpoints.contain(address) {
            found.not_granted(field, address, "endpoints");
            continue;
        }
        let mut names = Vec::new();
        for (number, port) in endpoint.ports.iter().enumerate() {
            if pushed.ports.iter().any(|of| of.name == port.name) {
                names.push((port.name.as_str(), port.number));
            } else {
                let field = format!("endpoints[{position}].ports[{number}].name");
                let problem = format!("the Service has no port with the name {:?}", port.name);
                found.add(Code::PortAbsent, field, problem, "use the name of one of its ports");
            }
        }
        names.sort_unstable();
        let conditions = conditions(endpoint, position, found);
        let node = Some(endpoint.node_name.as_str()).filter(|name| !name.is_empty());
        shapes.entry((Family::of(address), names)).or_default().push(SliceEndpoint {
            address: Some(Parsed::Good(address)),
            hostname: None,
            node: node.map(Into::into),
            zone: None,
            conditions,
            zone_hints: [].into(),
            node_hints: [].into(),
            target: None,
        });
    }
    let slice = |(position, ((family, names), endpoints)): (usize, (Shape<'_>, Vec<SliceEndpoint>))| {
        let port = |(name, port): (&str, u32)| SlicePort {
            name: Some(name.into()),
            protocol: pushed.ports.iter().find(|of| of.name == name).map_or(Parsed::Good(Protocol::Tcp), protocol),
            port: Some(number(port)),
        };
        let name = slice_name(key, position);
        SliceObject {
            namespace: name.namespace,
            name: name.name,
            service: Some(Arc::clone(&key.name)),
            headless: false,
            pushed: true,
            family: Parsed::Good(family),
            ports: names.into_iter().map(port).collect(),
            endpoints: endpoints.into(),
            weight: None,
            triggered: None,
            version: None,
        }
    };
    shapes.into_iter().enumerate().map(slice).collect()
}

fn conditions(endpoint: &wire::PushedEndpoint, position: usize, found: &mut Found<'_>) -> Conditions {
    const NOT_READY: Conditions = Conditions { ready: false, serving: false, terminating: false };
    match EndpointCondition::try_from(endpoint.condition) {
        Ok(EndpointCondition::Unspecified | EndpointCondition::Ready) => Conditions::READY,
        Ok(EndpointCondition::Terminating) => Conditions { ready: false, serving: true, terminating: true },
        Ok(EndpointCondition::NotReady) => NOT_READY,
        Err(_) => {
            let problem = format!("{} is not a condition that this version knows", endpoint.condition);
            let field = format!("endpoints[{position}].condition");
            found.add(Code::ValueUnsupported, field, problem, "use a value of EndpointCondition");
            NOT_READY
        }
    }
}

#[cfg(test)]
mod tests;
