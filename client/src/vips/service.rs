//! Plans one Service: computes its VIPs on this node from the Service and the facts about the node. This never fails,
//! even if the Service is inconsistent.

use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use ipnet::IpNet;
use localnet_core::{Code, Diagnostic, Subject};
use localnet_proto::{Affinity, ByFamily, Endpoint, Family, Port, Protocol, Scopes, Service, ServiceKey, Verdict};

use super::{Facts, Hashing, Weights};

/// An address, protocol and port that clients connect to. The address is a ClusterIP, an external address or an address
/// of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VipKey {
    /// The destination address.
    pub address: IpAddr,
    /// The transport protocol.
    pub protocol: Protocol,
    /// The destination port.
    pub port: u16,
}

impl VipKey {
    /// The family of the address.
    pub fn family(&self) -> Family {
        Family::of(self.address)
    }

    /// The address and port.
    pub fn socket(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.port)
    }
}

impl fmt::Display for VipKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.socket(), self.protocol.as_lowercase())
    }
}

/// What happens to packets that are sent to a VIP. The default value is a ClusterIP without endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vip {
    /// The Service that owns the VIP.
    pub service: ServiceKey,
    /// The name of the Service's port; may be empty.
    pub port_name: Arc<str>,
    /// The number of the Service's port. Unlike the port of a NodePort's [`VipKey`], it is the same for all VIPs of the port.
    pub port_number: u16,
    /// `namespace/name:port` for the comments of rules, at most 128 printable bytes without quotes. A port without a
    /// name is represented by its number. All VIPs of the port share the text.
    pub comment: Arc<str>,
    /// Whether this VIP is a NodePort. If another Service has a VIP with the same address and port that is not a NodePort,
    /// that Service gets the VIP instead.
    pub by_node_port: bool,
    /// Which clients reach which endpoints, and whether the source address is kept.
    pub exposure: Exposure,
    /// The endpoints for packets, sorted and without duplicates.
    pub endpoints: Arc<[SocketAddr]>,
    /// Under [`Exposure::ExternalLocal`]: the endpoints for packets from outside, instead of `endpoints`.
    pub local_endpoints: Arc<[SocketAddr]>,
    /// The weights of the endpoints.
    pub weights: Weights,
    /// How endpoints are chosen by hashing; `None`: at random.
    pub hash: Option<Hashing>,
    /// The endpoints that may answer in existing flows: endpoints that are eligible in any scope, and endpoints that only
    /// drain. Sorted and without duplicates.
    pub serving: Arc<[SocketAddr]>,
    /// The session affinity, if there is one.
    pub affinity: Option<Affinity>,
    /// The IPVS scheduler that the Service requests, if any.
    pub ipvs_scheduler: Option<Arc<str>>,
    /// How long after an endpoint has stopped serving its established TCP connections are closed; `None`: never.
    pub close_after: Option<Duration>,
    /// The verdict if no endpoint is eligible.
    pub when_empty: Verdict,
    /// The source ranges that may reach the VIP; `None` if all clients may.
    pub sources: Option<Arc<[IpNet]>>,
}

/// The kind of address that a VIP has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Exposure {
    /// A ClusterIP.
    #[default]
    Internal,
    /// An external address. Packets are masqueraded.
    External,
    /// An external address under policy Local. Packets from outside go to local endpoints only and keep their source
    /// address.
    ExternalLocal,
}

/// An endpoint on this node that may reach itself through a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hairpin {
    /// The address and port of the endpoint.
    pub endpoint: SocketAddr,
    /// The transport protocol.
    pub protocol: Protocol,
}

/// Everything that one Service needs on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServicePlan {
    /// The VIPs, without duplicates.
    pub vips: Vec<(VipKey, Vip)>,
    /// The ClusterIPs.
    pub cluster_ips: Vec<IpAddr>,
    /// The endpoints on this node, without duplicates.
    pub hairpins: Vec<Hairpin>,
    /// The parts of the Service that are skipped.
    pub skipped: Vec<Diagnostic>,
}

/// Plans a Service in linear time, because a Service may have thousands of ports, endpoint ports and addresses.
pub fn plan(service: &Service, facts: &Facts) -> ServicePlan {
    let mut plan = ServicePlan { cluster_ips: service.cluster_ips.clone(), ..ServicePlan::default() };
    let mut planner = Planner {
        service,
        facts,
        endpoints: EndpointsByPort::of(service),
        sources: sources(service),
        claimed: HashMap::new(),
        hairpins: HashSet::new(),
        plan: &mut plan,
    };
    for port in &service.ports {
        for family in Family::BOTH {
            // If the Service has no ClusterIP of a family, it has no VIPs of that family, whatever other addresses it
            // has.
            if service.has_family(family) {
                planner.port(port, family);
            }
        }
    }
    plan
}

/// Endpoints by port name, sorted. If an endpoint contains a port name twice, its first port number applies.
struct EndpointsByPort<'a>(Vec<(&'a str, &'a Endpoint, u16)>);

impl<'a> EndpointsByPort<'a> {
    fn of(service: &'a Service) -> Self {
        let ports_of =
            |endpoint: &'a Endpoint| endpoint.ports.iter().map(move |port| (&*port.name, endpoint, port.port));
        let mut all: Vec<_> = service.endpoints.iter().flat_map(ports_of).collect();
        all.sort_by_key(|(name, ..)| *name);
        all.dedup_by(|later, first| later.0 == first.0 && std::ptr::eq(later.1, first.1));
        Self(all)
    }

    /// The endpoints of a port, with their port numbers.
    fn port(&self, name: &str) -> &[(&'a str, &'a Endpoint, u16)] {
        let start = self.0.partition_point(|(of, ..)| *of < name);
        let count = self.0[start..].partition_point(|(of, ..)| *of == name);
        &self.0[start..start + count]
    }
}

/// A plan in progress.
struct Planner<'a> {
    service: &'a Service,
    facts: &'a Facts,
    endpoints: EndpointsByPort<'a>,
    /// The source ranges of each restricted address. All clients may reach the other addresses.
    sources: HashMap<IpAddr, Arc<[IpNet]>>,
    /// The index of each VIP in the plan.
    claimed: HashMap<VipKey, usize>,
    /// The hairpins in the plan.
    hairpins: HashSet<Hairpin>,
    plan: &'a mut ServicePlan,
}

impl Planner<'_> {
    fn port(&mut self, port: &Port, family: Family) {
        let Self { service, facts, .. } = *self;
        let of_port =
            self.endpoints.port(&port.name).iter().filter(|(_, endpoint, _)| Family::of(endpoint.address) == family);
        let of_port: Vec<(&Endpoint, SocketAddr)> =
            of_port.map(|(_, endpoint, number)| (*endpoint, SocketAddr::new(endpoint.address, *number))).collect();
        let in_scope = |scope: fn(&Scopes) -> bool| {
            let in_scope = of_port.iter().filter(|(endpoint, _)| scope(&endpoint.scopes));
            let mut endpoints: Vec<SocketAddr> = in_scope.map(|(_, address)| *address).collect();
            endpoints.sort_unstable();
            endpoints.dedup();
            endpoints
        };
        let when_empty = port.when_empty(family);
        let of_family = |address: &&IpAddr| Family::of(**address) == family;
        let protocol = port.protocol;
        let none = &facts.no_endpoints;

        let serving = Arc::<[SocketAddr]>::from(in_scope(|scopes| scopes.established || scopes.is_eligible()));
        // Usually the same endpoints are eligible in every scope. One list is then enough.
        let in_scope = |scope: fn(&Scopes) -> bool| {
            let endpoints = in_scope(scope);
            if *endpoints == *serving { serving.clone() } else { endpoints.into() }
        };

        let weigh = |(endpoint, address): &(&Endpoint, SocketAddr)| Some((*address, endpoint.weight?.get()));
        let vip = Vip {
            service: service.key.clone(),
            port_name: port.name.clone(),
            port_number: port.port,
            comment: comment(service, port),
            by_node_port: false,
            exposure: Exposure::Internal,
            endpoints: in_scope(|scopes| scopes.internal),
            local_endpoints: none.clone(),
            weights: of_port.iter().filter_map(weigh).collect(),
            hash: service.hash.filter(|_| facts.hashes).map(Hashing::new),
            serving: serving.clone(),
            affinity: service.client_ip_affinity,
            ipvs_scheduler: service.ipvs_scheduler.clone(),
            close_after: service.close_after.map(|seconds| Duration::from_secs(seconds.into())),
            when_empty: when_empty.internal,
            sources: None,
        };
        for address in service.cluster_ips.iter().filter(of_family) {
            let vip = Vip { sources: self.sources.get(address).cloned(), ..vip.clone() };
            self.claim(VipKey { address: *address, protocol, port: port.port }, vip);
        }

        let addresses =
            service.external_ips.iter().chain(&service.load_balancer_ips).map(|address| (address, port.port, false));
        let node_ports = port
            .node_port
            .into_iter()
            .flat_map(|number| facts.node_port_addresses.iter().map(move |address| (address, number, true)));
        let external: Vec<_> = addresses.chain(node_ports).filter(|(address, ..)| of_family(address)).collect();
        if !external.is_empty() {
            let (exposure, endpoints, local_endpoints) = if service.external_traffic_to_local {
                (Exposure::ExternalLocal, in_scope(|scopes| scopes.short_circuit), in_scope(|scopes| scopes.external))
            } else {
                (Exposure::External, in_scope(|scopes| scopes.external), none.clone())
            };
            let vip = Vip { exposure, endpoints, local_endpoints, when_empty: when_empty.external, ..vip };
            for (address, number, by_node_port) in external {
                let vip = Vip { by_node_port, sources: self.sources.get(address).cloned(), ..vip.clone() };
                self.claim(VipKey { address: *address, protocol, port: number }, vip);
            }
        }

        for (endpoint, address) in of_port {
            let hairpin = Hairpin { endpoint: address, protocol };
            if endpoint.local && endpoint.scopes.is_eligible() && self.hairpins.insert(hairpin) {
                self.plan.hairpins.push(hairpin);
            }
        }
    }

    /// Adds a VIP to the plan once, even if its address is both an external IP and a load balancer IP.
    fn claim(&mut self, key: VipKey, vip: Vip) {
        let plan = &mut *self.plan;
        match self.claimed.entry(key) {
            Entry::Vacant(vacant) => {
                vacant.insert(plan.vips.len());
                plan.vips.push((key, vip));
            }
            Entry::Occupied(first) => {
                let (_, first) = &plan.vips[*first.get()];
                if first.comment != vip.comment || first.exposure != vip.exposure {
                    let problem = format!("{} cannot have {key}: {} already has it", vip.comment, first.comment);
                    plan.skipped.push(Diagnostic::new(Code::PortTwice, Subject::service(&vip.service), problem));
                }
            }
        }
    }
}

/// `namespace/name:port` in a form that nft can print and parse: at most 128 printable bytes without quotes.
fn comment(service: &Service, port: &Port) -> Arc<str> {
    let number = port.port.to_string();
    let port_name = if port.name.is_empty() { &number } else { &*port.name };
    let printable = |c: char| if c.is_ascii_graphic() && c != '"' && c != '\\' { c } else { '?' };
    let text: String = format!("{}:{port_name}", service.key).chars().map(printable).collect();
    match text.get(..COMMENT_MAX - 3) {
        Some(start) if text.len() > COMMENT_MAX => format!("{start}...").into(),
        _ => text.into(),
    }
}

/// The longest comment that nft accepts, in bytes.
const COMMENT_MAX: usize = 128;

/// The source ranges of each address. An empty list admits no client. If an address has several filters, the first one
/// applies.
fn sources(service: &Service) -> HashMap<IpAddr, Arc<[IpNet]>> {
    let mut sources = HashMap::new();
    for filter in &service.source_filters {
        let of_family = ByFamily::from_fn(|family| {
            let ranges = filter.source_ranges.iter().filter(|range| Family::of(range.addr()) == family);
            // The kernel refuses overlapping ranges.
            Arc::<[IpNet]>::from(IpNet::aggregate(&ranges.copied().collect()))
        });
        for target in &filter.targets {
            sources.entry(*target).or_insert_with(|| Arc::clone(&of_family[Family::of(*target)]));
        }
    }
    sources
}

#[cfg(test)]
mod tests {
    use localnet_proto::{ServiceKey, SourceFilter};

    use super::*;
    use crate::vips::Config;

    fn service(yaml: &str) -> Service {
        serde_saphyr::from_str(yaml).unwrap()
    }

    fn facts() -> Facts {
        let addresses = ["192.168.0.2", "192.168.0.3", "fd00::2"].map(|address| address.parse().unwrap()).into();
        Facts::new(&Config::default(), &localnet_proto::Node { addresses, ..localnet_proto::Node::default() }, &[])
    }

    const WEB: &str =
        "{service: default/web, type: NodePort, clusterIPs: [172.30.0.1], externalIPs: [1.1.1.1, \"fd00::9\"],
        loadBalancerIPs: [1.1.1.1], ports: [{name: http, protocol: TCP, port: 80, nodePort: 30080}], endpoints: [
        {address: 10.0.0.2, ports: [{name: http, port: 8080}], local: true, scopes: {internal: true}},
        {address: 10.0.0.1, ports: [{name: http, port: 8080}], scopes: {external: true}},
        {address: 10.0.0.3, ports: [{name: other, port: 8080}], local: true, scopes: {internal: true, external: true}},
        {address: 10.0.0.4, ports: [{name: http, port: 8080}], local: true, scopes: {established: true}}]}";

    #[test]
    fn a_service_has_vips_only_in_families_of_its_cluster_ips_and_node_ports_on_primary_addresses() {
        let plan = plan(&service(WEB), &facts());
        let vips: Vec<String> =
            plan.vips.iter().map(|(key, vip)| format!("{key} {:?} {:?}", vip.exposure, vip.endpoints)).collect();
        assert_eq!(
            vips,
            [
                "172.30.0.1:80/tcp Internal [10.0.0.2:8080]",
                "1.1.1.1:80/tcp External [10.0.0.1:8080]",
                "192.168.0.2:30080/tcp External [10.0.0.1:8080]",
            ]
        );
        let hairpin = Hairpin { endpoint: "10.0.0.2:8080".parse().unwrap(), protocol: Protocol::Tcp };
        assert_eq!(plan.hairpins, [hairpin]);
        assert_eq!(plan.skipped, [], "a duplicate address counts once");
    }

    #[test]
    fn endpoints_match_the_port_by_name_and_the_first_of_a_duplicate_name_applies() {
        let mut web = service(WEB);
        web.ports.push(Port { name: "dns".into(), port: 53, ..web.ports[0].clone() });
        let port = |name: &str, port| localnet_proto::EndpointPort { name: name.into(), port };
        let endpoint = |address: &str, ports: &[(&str, u16)]| Endpoint {
            address: address.parse().unwrap(),
            ports: ports.iter().map(|(name, number)| port(name, *number)).collect(),
            local: false,
            hostname: None,
            scopes: Scopes { internal: true, ..Scopes::default() },
            weight: None,
        };
        web.endpoints = vec![
            endpoint("10.0.0.2", &[("http", 8080), ("dns", 5353), ("http", 1)]),
            endpoint("10.0.0.1", &[("https", 8443), ("http", 8080)]),
            endpoint("10.0.0.2", &[("http", 8081), ("http", 8080)]),
        ];
        let plan = plan(&web, &facts());
        let of = |number| {
            let (_, vip) = plan.vips.iter().find(|(key, _)| key.port == number).unwrap();
            vip.endpoints.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(of(80), ["10.0.0.1:8080", "10.0.0.2:8080", "10.0.0.2:8081"]);
        assert_eq!(of(53), ["10.0.0.2:5353"]);
    }

    #[test]
    fn flows_may_stay_at_endpoints_eligible_in_any_scope() {
        let serving = plan(&service(WEB), &facts()).vips[0].1.serving.clone();
        let expected = ["10.0.0.1:8080", "10.0.0.2:8080", "10.0.0.4:8080"].map(|text| text.parse().unwrap());
        assert_eq!(*serving, expected);
    }

    #[test]
    fn impossible_ports_are_skipped_with_a_diagnostic() {
        let mut odd = service(WEB);
        odd.ports.push(Port { name: "again".into(), ..odd.ports[0].clone() });
        let plan = plan(&odd, &facts());
        assert_eq!(plan.vips.len(), 3);
        assert_eq!(
            plan.skipped[0].problem,
            "default/web:again cannot have 172.30.0.1:80/tcp: default/web:http already has it"
        );
    }

    #[test]
    fn comments_are_printable_and_short_enough_for_nft() {
        let mut odd = service(WEB);
        odd.key = ServiceKey::new("n".repeat(63), "say \"hi\"\n");
        odd.ports[0].name = "p".repeat(63).into();
        let comment = comment(&odd, &odd.ports[0]);
        assert_eq!(comment.len(), COMMENT_MAX);
        assert!(comment.contains("/say??hi??:ppp") && comment.ends_with("ppp..."), "{comment}");
        odd.ports[0].name = "".into();
        assert!(super::comment(&odd, &odd.ports[0]).ends_with(":80"));
    }

    #[test]
    fn allowed_sources_do_not_overlap_and_an_empty_list_admits_none() {
        let mut web = service(WEB);
        let filter = |ranges: &[&str]| SourceFilter {
            targets: vec!["1.1.1.1".parse().unwrap()],
            source_ranges: ranges.iter().map(|range| range.parse().unwrap()).collect(),
        };
        for (filters, expected) in [
            (vec![filter(&["10.0.0.0/8", "10.1.0.0/16", "fd00::/8"])], Some("[10.0.0.0/8]")),
            (vec![filter(&["10.0.0.0/8", "11.0.0.0/8"])], Some("[10.0.0.0/7]")),
            (vec![filter(&[])], Some("[]")),
            (vec![], None),
        ] {
            web.source_filters = filters;
            let plan = plan(&web, &facts());
            let of =
                |port| plan.vips.iter().find(|(key, _)| key.address.to_string() == port).unwrap().1.sources.clone();
            assert_eq!(of("1.1.1.1").map(|sources| format!("{sources:?}")).as_deref(), expected);
            assert_eq!(of("172.30.0.1"), None);
        }
    }
}
