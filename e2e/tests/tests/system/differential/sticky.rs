//! Session affinity from one question to the next: a client stays with its endpoint whichever address of the Service it asks,
//! and whatever happens to other Services, as long as the endpoint serves what it asks for. One that has got another endpoint
//! from where the first does not serve, under a policy Local, has two of them to return to.
//!
//! Where affinity ends within the run, a client stays for so long, and afterwards is sent anywhere.

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
    run::Scene,
    world::Side,
};

/// A client of a Service's port.
type Client = (Side, IpAddr, PortKey);
/// Names of a Service and of its port.
type PortKey = (String, String);

/// Affinity that lasts as long does not end within a run.
const LONG: u32 = 60;
/// A client that comes back after so long a part of its time stays for certain.
const SURELY_WITHIN: f64 = 0.8;
/// The kernel's clock is not ours.
const SURELY_AFTER: Duration = Duration::from_millis(200);

/// Where clients have been sent since their Service was as it is.
#[derive(Debug)]
pub(crate) struct Memory {
    clients: BTreeMap<Client, (Known, BTreeSet<SocketAddr>)>,
    /// Each time that a client was sent somewhere.
    short: BTreeMap<Client, (Known, Vec<(SocketAddr, Span)>)>,
    pub(crate) returned: Returned,
}

/// Clients of our backend that came back after their time was over, to one of several endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Returned {
    pub(crate) count: usize,
    /// So many of them were sent to another endpoint than before.
    pub(crate) elsewhere: usize,
}

/// A Service, and what the brain made of it.
#[derive(Clone, Debug, PartialEq)]
struct Known {
    service: Service,
    localized: Arc<Localized>,
}

impl Memory {
    /// Of nobody yet.
    pub(crate) fn new() -> Self {
        Self { clients: BTreeMap::new(), short: BTreeMap::new(), returned: Returned::default() }
    }

    /// Forgets the clients of Services that are not what they were: endpoints may have gone and come back between two questions.
    pub(crate) fn enter(&mut self, scene: &Scene<'_>) {
        let stays = |known: &Known| Known::find(scene, &known.service.name).as_ref() == Some(known);
        self.clients.retain(|_, (known, _)| stays(known));
        self.short.retain(|_, (known, _)| stays(known));
    }

    /// What is wrong with an answer that is right for itself.
    pub(crate) fn check(&mut self, side: Side, asked: &Asked, seen: &Seen, scene: &Scene<'_>) -> Option<String> {
        let Outcome::Endpoints { choices, affinity: Some(seconds), .. } = &asked.expected else { return None };
        // kube-proxy may have sent it to any of several Services.
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
        // A client may return to an endpoint that it has by another address, under another policy.
        (endpoints.insert(by) && !left.is_empty()).then(|| format!("{by} is new to a client of {left:?}"))
    }

    /// All addresses together. Each of several endpoints that a client has from different policies lasts for itself.
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

/// A client that was seen then has certainly been forgotten now.
fn is_over(before: Span, now: Span, time: Duration) -> bool {
    now.began.duration_since(before.ended) > time + SURELY_AFTER
}

/// It certainly has not.
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

/// Whose the packet is.
fn port(scene: &Scene<'_>, asked: &Asked) -> Option<PortKey> {
    let packet = asked.question.packet(scene.setup);
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
