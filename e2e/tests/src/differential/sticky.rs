//! Checks session affinity across questions. A client keeps its endpoint for all addresses of the Service, and whatever happens
//! to other Services, as long as the endpoint is eligible for the question. Under a policy Local, a client may get a second
//! endpoint from a place where the first is not eligible. It may then return to either of them.
//!
//! If the affinity timeout ends within the run, a client keeps its endpoint for that time. Afterwards, any endpoint is right.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use localnet_client::route::Outcome;
use localnet_proto::Service as Localized;

use super::{
    ask::{Asked, Seen, Span},
    cluster::Service,
    scene::Scene,
    world::Side,
};

/// A client of a Service's port.
type Client = (Side, IpAddr, PortKey);
/// The names of a Service and of its port.
type PortKey = (String, String);

/// A timeout in seconds that does not end within a run.
const LONG: u32 = 60;
/// Within this fraction of the timeout, a returning client must keep its endpoint.
const SURELY_WITHIN: f64 = 0.8;
/// A tolerance for the difference between the kernel's clock and ours.
const SURELY_AFTER: Duration = Duration::from_millis(200);

/// The endpoints of clients since the last change of their Service.
#[derive(Debug)]
pub(crate) struct Memory {
    clients: BTreeMap<Client, (Known, BTreeSet<SocketAddr>)>,
    /// Each answer to a client, for short timeouts.
    short: BTreeMap<Client, (Known, Vec<(SocketAddr, Span)>)>,
    pub(crate) returned: Returned,
}

/// Clients of our backend that returned after their timeout to a port with several endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Returned {
    pub(crate) count: usize,
    /// The number of clients that got another endpoint than before.
    pub(crate) elsewhere: usize,
}

/// A Service, and its state.
#[derive(Clone, Debug, PartialEq)]
struct Known {
    service: Service,
    localized: Arc<Localized>,
}

impl Memory {
    /// A memory without clients.
    pub(crate) fn new() -> Self {
        Self { clients: BTreeMap::new(), short: BTreeMap::new(), returned: Returned::default() }
    }

    /// Forgets the clients of Services that have changed, because endpoints may have been removed and added in between.
    pub(crate) fn enter(&mut self, scene: &Scene<'_>) {
        let stays = |known: &Known| Known::find(scene, &known.service.name).as_ref() == Some(known);
        self.clients.retain(|_, (known, _)| stays(known));
        self.short.retain(|_, (known, _)| stays(known));
    }

    /// Forgets the clients of a side whose rules have lost them.
    pub(crate) fn forget(&mut self, side: Side) {
        self.clients.retain(|(of, ..), _| *of != side);
        self.short.retain(|(of, ..), _| *of != side);
    }

    /// The error in an answer that is right apart from affinity, if there is one.
    pub(crate) fn check(&mut self, side: Side, asked: &Asked, seen: &Seen, scene: &Scene<'_>) -> Option<String> {
        let Outcome::Endpoints { choices, affinity: Some(seconds), .. } = &asked.expected else { return None };
        // kube-proxy may have used any of several Services.
        if side == Side::KubeProxy && scene.claims_of_port(&scene.claimants(asked.question.to.ip()), asked).count() > 1
        {
            return None;
        }
        let (by, _) = *seen.answers.keys().next()?;
        let port = port(scene, asked)?;
        let known = Known::find(scene, &port.0)?;
        if *seconds < LONG {
            let time = Duration::from_secs((*seconds).into());
            let client = (side, asked.question.source(), port);
            return self.check_short(client, choices, (by, seen.span?), known, time);
        }
        let client = (side, asked.question.source(), port);
        let (_, endpoints) = self.clients.entry(client).or_insert_with(|| (known, BTreeSet::new()));
        let left: Vec<_> = endpoints.intersection(choices).copied().collect();
        // A client may return to an endpoint that it got through another address, under another policy.
        (endpoints.insert(by) && !left.is_empty()).then(|| format!("{by} is new to a client of {left:?}"))
    }

    /// Checks all addresses of a Service together. If a client has several endpoints from different policies, each has its own
    /// timeout.
    fn check_short(
        &mut self,
        client: Client,
        choices: &BTreeSet<SocketAddr>,
        (by, span): (SocketAddr, Span),
        known: Known,
        time: Duration,
    ) -> Option<String> {
        let side = client.0;
        let (_, had) = self.short.entry(client).or_insert_with(|| (known, Vec::new()));
        let last = had.last().map(|(endpoint, _)| *endpoint);
        had.retain(|(_, before)| !is_over(*before, span, time));
        let over = last.filter(|_| had.is_empty() && choices.len() > 1);
        let lasting: Vec<_> = had
            .iter()
            .filter(|(endpoint, before)| choices.contains(endpoint) && still_lasts(*before, span, time))
            .map(|(endpoint, _)| *endpoint)
            .collect();
        let is_new = !had.iter().any(|(endpoint, _)| *endpoint == by);
        had.push((by, span));
        if let Some(last) = over {
            self.count(side, last != by);
        }
        (is_new && !lasting.is_empty()).then(|| format!("{by} is new to a client of {lasting:?}, within {time:?}"))
    }

    fn count(&mut self, side: Side, elsewhere: bool) {
        if side == Side::Ours {
            self.returned.count += 1;
            self.returned.elsewhere += usize::from(elsewhere);
        }
    }
}

/// Whether the timeout has certainly ended.
fn is_over(before: Span, now: Span, time: Duration) -> bool {
    now.began.duration_since(before.ended) > time + SURELY_AFTER
}

/// Whether the timeout has certainly not ended.
fn still_lasts(before: Span, now: Span, time: Duration) -> bool {
    now.ended.duration_since(before.began) < time.mul_f64(SURELY_WITHIN)
}

impl Known {
    fn find(scene: &Scene<'_>, name: &str) -> Option<Self> {
        let service = scene.cluster.services.values().find(|service| service.name == name)?;
        let localized = scene.state.services.values().find(|localized| *localized.key.name == *name)?;
        Some(Self { service: service.clone(), localized: Arc::clone(localized) })
    }
}

/// The port that the packet belongs to.
fn port(scene: &Scene<'_>, asked: &Asked) -> Option<PortKey> {
    let packet = scene.setup.packet(&asked.question);
    let to = packet.destination;
    let node_port_addresses = scene.setup.rules(to).node_port_addresses;
    scene.state.services.values().find_map(|service| {
        let vips = service.cluster_ips.iter().chain(&service.external_ips).chain(&service.load_balancer_ips);
        let is_vip = vips.into_iter().any(|vip| *vip == to);
        let mut ports = service.ports.iter().filter(|port| port.protocol == packet.protocol);
        let port = ports.find(|port| {
            is_vip && port.port == packet.port
                || node_port_addresses.contains(&to) && port.node_port == Some(packet.port)
        })?;
        Some((service.key.name.to_string(), port.name.to_string()))
    })
}
