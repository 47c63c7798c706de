//! `localnet explain --why-not`: gathers the evidence for [`crate::causes`] from the state, the brain, the backends' reports
//! and the kernel.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use localnet_client::route::{Origin, Outcome};
use localnet_linux::{nft::foreign, routes::Route};
use localnet_proto::{Family, Port, Protocol, Service, ServiceKey};
use tokio::time::timeout;

use crate::{
    evidence::{Evidence, Front, OnNode},
    explain::{self, outcome_name},
    flows::flows,
    hooks::{self, Translator},
    inspect::Inspected,
    kernel,
    listings::Listings,
    path::{self, Path},
    peer::Peer,
    question::{self, At, From, To},
    status::Status,
    world::{Judged, World},
};

/// The maximum number of endpoints that are checked. A rule or route that is wrong for one endpoint is usually wrong for all.
const MOST_ENDPOINTS: usize = 16;
/// How long to wait for the brain's reasons.
const PATIENCE: Duration = Duration::from_secs(5);

/// The port to explain.
#[derive(Clone, Debug)]
pub struct Question {
    /// The Service that has the port.
    pub service: ServiceKey,
    /// The port, by name or number.
    pub port: String,
    /// The protocol, if given.
    pub protocol: Option<Protocol>,
    /// The sender, if given.
    pub from: Option<From>,
    /// The address of the Service, if given.
    pub at: Option<IpAddr>,
}

impl Question {
    /// Builds the question from the flags `--why-not`, `--from` and `--to`.
    ///
    /// # Errors
    /// Returns an error if `why_not` is not a port of a Service, or if `to` is not an address.
    pub fn new(why_not: To, from: Option<From>, to: Option<&To>) -> Result<Self, String> {
        let At::Service(service, port) = why_not.at else {
            return Err("--why-not needs a port of a Service, such as shop/web:80".to_owned());
        };
        let at = match to.map(|to| &to.at) {
            Some(At::Address(address)) => Some(address.ip()),
            Some(At::Service(..)) => {
                return Err("with --why-not, --to must be an address and port of the Service".to_owned());
            }
            None => None,
        };
        Ok(Self { service, port, protocol: why_not.protocol, from, at })
    }
}

/// Gathers the evidence about a port of a Service. `status` is the status of the brain and the backends.
pub async fn gather(world: &mut World, question: &Question, brain: Option<&Peer>, status: Option<Status>) -> Evidence {
    let why = match brain {
        Some(brain) => timeout(PATIENCE, brain.why(&question.service)).await.ok().and_then(Result::ok),
        None => None,
    };
    let mut evidence = Evidence {
        service: question.service.clone(),
        port: question.port.clone(),
        why,
        status,
        configuration: Some(world.configuration.origin.clone()),
        kernel_unknown: world.kernel.as_ref().err().map(ToString::to_string),
        ..Evidence::default()
    };
    let (mut listed, mut beside) = (None, None);
    if let Some(backend) = Inspected::of(world) {
        let read = backend.read(world).await;
        evidence.kernel_unknown = read.as_ref().err().map(|error| format!("{error:#}"));
        listed = read.ok().map(|listings| (backend, listings));
        evidence.foreign_unread = backend == Inspected::Ebpf || world.kernel.is_err();
    }
    if let Some(maps) = Inspected::beside(world) {
        match maps.read(world).await {
            Ok(listings) => beside = Some(listings),
            Err(error) => evidence.kernel_unknown = Some(format!("{error:#}")),
        }
    }
    let Some(service) = world.state.services.get(&question.service).cloned() else {
        let keys = world.state.services.keys();
        let namesakes = keys.filter(|key| key.name == question.service.name).map(ToString::to_string);
        evidence.namesakes = namesakes.take(3).collect();
        return evidence;
    };
    evidence.is_served = true;
    let Some(port) = question::port_of(&service, &question.port, question.protocol) else {
        evidence.other_ports = Some(question::ports_of(&service));
        return evidence;
    };
    let family = question.at.or_else(|| question.from.and_then(From::address)).map(Family::of);
    if let Some(family) = family.filter(|family| !service.has_family(*family)) {
        evidence.lacks_family = Some(family);
        return evidence;
    }
    let mut destinations = destinations(world, &service, port, family);
    let answers = |address: &IpAddr| service.has_family(Family::of(*address));
    evidence.unanswered_node_port = port.node_port.filter(|_| !world.facts.node_port_addresses.iter().any(answers));
    if let Some(at) = question.at {
        destinations.retain(|(address, _)| *address == at);
        if destinations.is_empty() {
            evidence.not_its_address = Some(not_its(world, &service, port, at));
            return evidence;
        }
    }
    let tracked = match (&world.kernel, &listed) {
        (_, Some(_)) => world.observed().tracked,
        (kernel, None) => kernel.as_ref().ok().and_then(|kernel| kernel.tracked),
    };
    evidence.tracking_is_full = tracked.is_some_and(|(count, max)| max > 0 && count >= max);
    for destination in destinations {
        let front = check(world, (listed.as_ref(), beside.as_ref()), question, &service, port, destination).await;
        evidence.fronts.push(front);
    }
    evidence
}

/// Returns the addresses and port numbers that clients can connect to, ClusterIPs first.
fn destinations(world: &World, service: &Service, port: &Port, family: Option<Family>) -> Vec<(IpAddr, u16)> {
    let own = service.cluster_ips.iter().chain(&service.external_ips).chain(&service.load_balancer_ips);
    let own = own.map(|address| (*address, port.port));
    let on_node = port.node_port.into_iter().flat_map(|number| {
        let addresses = world.facts.node_port_addresses.iter();
        addresses.filter(|address| service.has_family(Family::of(**address))).map(move |address| (*address, number))
    });
    let mut seen = BTreeSet::new();
    let wanted = |address: &IpAddr| family.is_none_or(|family| Family::of(*address) == family);
    own.chain(on_node).filter(|to| wanted(&to.0) && seen.insert(*to)).collect()
}

fn not_its(world: &World, service: &Service, port: &Port, at: IpAddr) -> String {
    let key = &service.key;
    match port.node_port {
        Some(number) if world.has(at) => {
            let addresses: Vec<String> = world.facts.node_port_addresses.iter().map(ToString::to_string).collect();
            format!("NodePort {number} of Service {key} answers on {}, and not on {at}", addresses.join(", "))
        }
        None if world.has(at) => {
            format!("Service {key} has no NodePort for this port, and {at} is an address of the node")
        }
        _ => format!("Service {key} does not have the address {at}"),
    }
}

/// Determines what happens to a packet to one address, according to the state and the kernel.
async fn check(
    world: &mut World,
    (listed, beside): (Option<&(Inspected, Listings)>, Option<&Listings>),
    question: &Question,
    service: &Service,
    port: &Port,
    to: (IpAddr, u16),
) -> Front {
    let internal = service.cluster_ips.contains(&to.0);
    let from = question.from.unwrap_or(if internal { From::Pod(None) } else { From::Outside(None) });
    let has_source = from.address().is_some() || from == From::Node;
    let socket = SocketAddr::new(to.0, to.1);
    let packet = world.packet(from, (socket, port.protocol)).await;
    let judged = world.judge(packet);
    let family = Family::of(to.0);
    let ours = judged.service() == Some(&service.key);
    let explained = explain::from_state(world, &judged);
    let mut front = Front {
        to: socket,
        kind: explained.destination,
        port_name: port.name.to_string(),
        scope: judged.scope(),
        outcome: if ours { outcome_name(&judged.outcome) } else { "notOurs" },
        because: explained.why,
        filtered: filtered(&judged, has_source),
        taken_by: judged.service().filter(|_| !ours).map(ToString::to_string),
        node: OnNode::default(),
    };
    let Outcome::Endpoints { choices, .. } = &judged.outcome else { return front };
    if !ours {
        return front;
    }
    let choices: Vec<SocketAddr> = choices.iter().take(MOST_ENDPOINTS).copied().collect();
    let steps = judged.steps(world);
    let serving = judged.vip.as_ref().map(|vip| vip.serving.clone()).unwrap_or_default();
    let affinity = path::has_affinity(&world.state, &world.facts, family);
    let chains = Path::new(&world.facts, family, affinity, world.counts_refused()).chains().to_vec();
    drop(judged);

    let elements = beside.map(|listings| listings.elements(&packet)).unwrap_or_default();
    let rows = match listed {
        _ if !elements.is_empty() => elements,
        Some((backend, listings)) => backend.steps(listings, world, &packet).unwrap_or_default(),
        None => explain::in_kernel(world, family, &steps).0,
    };
    let leaves = choices.iter().any(|endpoint| !world.has(endpoint.ip()));
    let node = &mut front.node;
    let forwards = match (&mut world.kernel, listed) {
        (_, Some(_)) => world.observed().forwards[family],
        (Ok(kernel), None) => {
            node.no_table = matches!(kernel.chains(family), Ok(None));
            node.damaged = kernel.damaged(family, &chains).unwrap_or_default();
            kernel.forwards[family]
        }
        (Err(_), None) => return front,
    };
    node.missing = rows.into_iter().filter(|row| matches!(row.held, "no" | "other")).collect();
    node.does_not_forward = packet.origin != Origin::Node && leaves && forwards == Some(false);
    let backend = listed.map(|(backend, _)| *backend);
    let translator = match backend {
        None | Some(Inspected::Iptables) => Some(Translator::NfTables),
        // IPVS does not choose the endpoint of this traffic (docs/backends/ipvs.md, difference 4).
        Some(Inspected::Ipvs) if front.scope.short_circuit => Some(Translator::NfTables),
        Some(Inspected::Ipvs) => Some(Translator::Ipvs),
        Some(Inspected::Ebpf | Inspected::Win) => None,
    };
    if let Some(translator) = translator {
        // A program of the node that binds no address sends from the VIP, which is an address of the node.
        let from_vip = translator == Translator::Ipvs && from == From::Node;
        let source = if from_vip { Some(packet.destination) } else { has_source.then_some(packet.source) };
        let passed = hooks::passed(translator, &packet, source, &choices, |address| world.has(address));
        node.stops = stops(world, passed);
        // With iptables-nft, the backend's own rules are in tables of other programs.
        node.stops.retain(|(_, stop)| backend != Some(Inspected::Iptables) || !stop.chain.starts_with("KUBE-"));
    }
    if !world.is_here {
        // The routes and flows of this machine are not those of the node.
        return front;
    }
    if let Ok(routes) = kernel::routes(choices.iter().map(SocketAddr::ip).collect::<BTreeSet<_>>()).await {
        let none = routes.into_iter().filter_map(|(address, route)| match route {
            Route::None(why) => Some((address, why)),
            Route::Local | Route::Out { .. } => None,
        });
        node.no_routes = none.collect();
    }
    let source = has_source.then_some(packet.source);
    let flows = flows(&packet, source, &serving).unwrap_or_default();
    node.stale = flows.into_iter().filter(|flow| flow.stale).collect();
    front
}

/// Describes the source ranges of the destination if they exclude the sender, or if the sender is unknown.
fn filtered(judged: &Judged<'_>, has_source: bool) -> Option<String> {
    let target = judged.target.as_ref()?;
    let to = judged.packet.destination;
    let mut filters = target.service.source_filters.iter().filter(|filter| filter.targets.contains(&to));
    let ranges: Vec<String> = filters.next()?.source_ranges.iter().map(ToString::to_string).collect();
    let key = &target.service.key;
    match has_source {
        true if !judged.is_filtered() => None,
        true => Some(format!(
            "spec.loadBalancerSourceRanges of Service {key} admits only {} to {to}, but not {}",
            ranges.join(", "),
            judged.packet.source
        )),
        false => {
            Some(format!("spec.loadBalancerSourceRanges of Service {key} admits only {} to {to}", ranges.join(", ")))
        }
    }
}

/// Returns the rules of other programs that stop the packet at a hook, each with the packet's destination at that hook.
fn stops(world: &mut World, passed: Vec<foreign::Packet>) -> Vec<(String, foreign::Stop)> {
    let Ok(kernel) = &mut world.kernel else { return Vec::new() };
    let mut found: Vec<(String, foreign::Stop)> = Vec::new();
    for packet in passed {
        let to = SocketAddr::new(packet.destination, packet.port);
        for stop in kernel.stops(&packet).unwrap_or_default() {
            // A rule that stops packets to several endpoints is reported only once.
            let same = |other: &foreign::Stop| {
                (&other.table, &other.chain, other.handle) == (&stop.table, &stop.chain, stop.handle)
            };
            if !found.iter().any(|(_, other)| same(other)) {
                found.push((format!("to {to}"), stop));
            }
        }
    }
    found
}
