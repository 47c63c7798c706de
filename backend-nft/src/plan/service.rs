//! One service and the node's facts → the VIPs it answers on this node. Total: an odd service gives an odd plan.

use std::{fmt, net::IpAddr, net::SocketAddr, sync::Arc};

use ipnet::IpNet;
use localnet_linux::nft::{Family, Name, Protocol};
use localnet_proto::{Port, Scopes, Service, Verdict};

use super::{Facts, protocol_of};

/// What a packet is addressed to: a ClusterIP, an external address or a node's address, with protocol and port.
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
    /// The family of its address.
    pub fn family(&self) -> Family {
        Family::of(&self.address)
    }
}

impl fmt::Display for VipKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", SocketAddr::new(self.address, self.port), self.protocol.as_str())
    }
}

/// What happens to packets to a VIP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vip {
    /// `namespace/name:port`, on every element.
    pub comment: Name,
    /// Who may reach which endpoints, and whether the source is kept.
    pub exposure: Exposure,
    /// Where packets go: sorted, without duplicates.
    pub endpoints: Arc<[SocketAddr]>,
    /// Under [`Exposure::ExternalLocal`]: where packets from outside go instead.
    pub local_endpoints: Arc<[SocketAddr]>,
    /// What happens where nothing serves.
    pub when_empty: Verdict,
    /// Who may reach it; `None`: everyone.
    pub sources: Option<Arc<[IpNet]>>,
}

/// How a VIP is exposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exposure {
    /// A ClusterIP.
    Internal,
    /// Reached from outside; masqueraded.
    External,
    /// Reached from outside; from there only local endpoints serve, and see the client's address.
    ExternalLocal,
}

/// An endpoint on this node that may reach itself through a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hairpin {
    /// Address and port of the endpoint.
    pub endpoint: SocketAddr,
    /// The transport protocol.
    pub protocol: Protocol,
}

/// All that one service asks of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServicePlan {
    /// Its VIPs; each once.
    pub vips: Vec<(VipKey, Vip)>,
    /// Its ClusterIPs.
    pub cluster_ips: Vec<IpAddr>,
    /// Its endpoints on this node; each once.
    pub hairpins: Vec<Hairpin>,
    /// What was left out, and why.
    pub skipped: Vec<String>,
}

/// Plans a service.
pub fn plan(service: &Service, facts: &Facts) -> ServicePlan {
    let mut plan = ServicePlan { cluster_ips: service.cluster_ips.clone(), ..ServicePlan::default() };
    for port in &service.ports {
        for family in localnet_proto::Family::BOTH {
            // Without a ClusterIP of a family the service does not exist in it, whatever other addresses it has.
            if service.has_family(family) {
                plan_port(service, port, family, facts, &mut plan);
            }
        }
    }
    if service.client_ip_affinity.is_some() {
        plan.skipped.push("session affinity ClientIP: each connection picks its endpoint anew".to_owned());
    }
    plan
}

fn plan_port(service: &Service, port: &Port, family: localnet_proto::Family, facts: &Facts, plan: &mut ServicePlan) {
    let comment = comment(service, port);
    let in_scope = |scope: fn(&Scopes) -> bool| {
        let mut endpoints: Vec<SocketAddr> = service.endpoints_of(port, family, scope).collect();
        endpoints.sort_unstable();
        endpoints.dedup();
        Arc::<[SocketAddr]>::from(endpoints)
    };
    let when_empty = port.when_empty(family);
    let of_family = |address: &&IpAddr| localnet_proto::Family::of(**address) == family;
    let protocol = protocol_of(port.protocol);
    let none: Arc<[SocketAddr]> = Arc::new([]);

    let internal = in_scope(|scopes| scopes.internal);
    for address in service.cluster_ips.iter().filter(of_family) {
        let vip = Vip {
            comment: comment.clone(),
            exposure: Exposure::Internal,
            endpoints: internal.clone(),
            local_endpoints: none.clone(),
            when_empty: when_empty.internal,
            sources: sources(service, *address),
        };
        claim(plan, VipKey { address: *address, protocol, port: port.port }, vip);
    }

    let addresses = service.external_ips.iter().chain(&service.load_balancer_ips).map(|address| (address, port.port));
    let node_ports = port
        .node_port
        .into_iter()
        .flat_map(|number| facts.node_port_addresses.iter().map(move |address| (address, number)));
    let external: Vec<_> = addresses.chain(node_ports).filter(|(address, _)| of_family(address)).collect();
    if !external.is_empty() {
        let (exposure, endpoints, local_endpoints) = if service.external_traffic_to_local {
            (Exposure::ExternalLocal, in_scope(|scopes| scopes.short_circuit), in_scope(|scopes| scopes.external))
        } else {
            (Exposure::External, in_scope(|scopes| scopes.external), none)
        };
        for (address, number) in external {
            let vip = Vip {
                comment: comment.clone(),
                exposure,
                endpoints: endpoints.clone(),
                local_endpoints: local_endpoints.clone(),
                when_empty: when_empty.external,
                sources: sources(service, *address),
            };
            claim(plan, VipKey { address: *address, protocol, port: number }, vip);
        }
    }

    for endpoint in &service.endpoints {
        let serves = endpoint.scopes.internal || endpoint.scopes.external || endpoint.scopes.short_circuit;
        if endpoint.local
            && serves
            && localnet_proto::Family::of(endpoint.address) == family
            && let Some(number) = endpoint.port(&port.name)
        {
            let hairpin = Hairpin { endpoint: SocketAddr::new(endpoint.address, number), protocol };
            if !plan.hairpins.contains(&hairpin) {
                plan.hairpins.push(hairpin);
            }
        }
    }
}

/// `namespace/name:port`, as nft can print it and read it again: at most 128 printable bytes without quotes.
fn comment(service: &Service, port: &Port) -> Name {
    let number = port.port.to_string();
    let port_name = if port.name.is_empty() { &number } else { &*port.name };
    let printable = |c: char| if c.is_ascii_graphic() && c != '"' && c != '\\' { c } else { '?' };
    let text: String = format!("{}:{port_name}", service.key).chars().map(printable).collect();
    match text.get(..COMMENT_MAX - 3) {
        Some(start) if text.len() > COMMENT_MAX => format!("{start}...").into(),
        _ => text.into(),
    }
}

/// nft refuses longer comments.
const COMMENT_MAX: usize = 128;

/// A service has each VIP once: an address that is both external and a load balancer's is named twice but is one.
fn claim(plan: &mut ServicePlan, key: VipKey, vip: Vip) {
    match plan.vips.iter().find(|(known, _)| *known == key) {
        None => plan.vips.push((key, vip)),
        Some((_, known)) if known.comment == vip.comment && known.exposure == vip.exposure => {}
        Some((_, known)) => plan.skipped.push(format!("{} on {key}: {} has it already", vip.comment, known.comment)),
    }
}

/// Who may reach an address. Without ranges nobody may.
fn sources(service: &Service, address: IpAddr) -> Option<Arc<[IpNet]>> {
    let mut filters = service.source_filters.iter().filter(|filter| filter.targets.contains(&address)).peekable();
    filters.peek()?;
    let ranges: Vec<IpNet> = filters
        .flat_map(|filter| &filter.source_ranges)
        .filter(|range| Family::of(&range.addr()) == Family::of(&address))
        .copied()
        .collect();
    // The kernel refuses ranges that overlap.
    Some(IpNet::aggregate(&ranges).into())
}
