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

use crate::Backend;

use super::{
    ask::{Asked, Seen, Span},
    cluster::Service,
    ipvs,
    pair::Side,
    scene::Scene,
};

/// A client of a Service's port.
type Client = (Side, IpAddr, PortKey);
/// The names of a Service and of its port, and the destination if each destination has its own clients.
type PortKey = (String, String, Option<SocketAddr>);

/// A timeout in seconds that does not end within a run.
const LONG: u32 = 60;
/// Within this fraction of the timeout, a returning client must keep its endpoint.
const SURELY_WITHIN: f64 = 0.8;
/// A tolerance for the difference between the kernel's clock and ours.
const SURELY_AFTER: Duration = Duration::from_millis(200);

/// The endpoints of clients.
#[derive(Debug)]
pub(crate) struct Memory {
    backend: Backend,
    clients: BTreeMap<Client, (Known, Endpoints)>,
    /// Each answer to a client, for short timeouts.
    short: BTreeMap<Client, (Known, Vec<Short>)>,
    pub(crate) returned: Returned,
}

/// The endpoints of a client.
#[derive(Debug, Default)]
struct Endpoints {
    /// Those that have answered since the last change of the Service, or edit of the rules.
    certain: BTreeSet<SocketAddr>,
    /// Those that answered earlier. The kernel may remember them, unless they were removed and added in between.
    possible: BTreeSet<SocketAddr>,
}

/// An answer to a client of a Service with a short timeout.
#[derive(Clone, Copy, Debug)]
struct Short {
    by: SocketAddr,
    span: Span,
    /// Whether neither the Service nor the rules have been edited since.
    certain: bool,
}

/// Clients of our backend that returned after their timeout to a port with several endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Returned {
    pub(crate) count: usize,
    /// The number of clients that got a different endpoint than before.
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
    pub(crate) fn new(backend: Backend) -> Self {
        Self { backend, clients: BTreeMap::new(), short: BTreeMap::new(), returned: Returned::default() }
    }

    /// Adopts the Services of a new state. If a Service has changed, its endpoints may have been removed and added in between, so
    /// the kernel may or may not remember its clients.
    pub(crate) fn enter(&mut self, scene: &Scene<'_>) {
        self.clients.retain(|_, (known, endpoints)| known.follow(scene, || endpoints.doubt()));
        self.short.retain(|_, (known, answers)| known.follow(scene, || doubt(answers)));
    }

    /// Doubts the clients of a side after an edit of its rules. The edit removed clients of one family or table, and the kernel
    /// still remembers the others.
    pub(crate) fn doubt(&mut self, side: Side) {
        let clients = self.clients.iter_mut().filter(|((of, ..), _)| *of == side);
        clients.for_each(|(_, (_, endpoints))| endpoints.doubt());
        let short = self.short.iter_mut().filter(|((of, ..), _)| *of == side);
        short.for_each(|(_, (_, answers))| doubt(answers));
    }

    /// The error in an answer that is right apart from affinity, if there is one.
    pub(crate) fn check(&mut self, side: Side, asked: &Asked, seen: &Seen, scene: &Scene<'_>) -> Option<String> {
        let Outcome::Endpoints { choices, affinity: Some(affinity), .. } = &asked.expected else { return None };
        // kube-proxy may have used any of several Services.
        if side == Side::KubeProxy && scene.claims_of_port(&scene.claimants(asked.question.to.ip()), asked).count() > 1
        {
            return None;
        }
        let (by, _) = *seen.answers.keys().next()?;
        let (service, port) = port(scene, asked)?;
        let port = (service, port, ipvs::keeps_clients_apart(self.backend, side).then_some(asked.question.to));
        let known = Known::find(scene, &port.0)?;
        if affinity.seconds < LONG {
            let time = Duration::from_secs(affinity.seconds.into());
            let client = (side, asked.question.source(), port);
            return self.check_short(client, choices, (by, seen.span?), known, time);
        }
        let client = (side, asked.question.source(), port);
        self.clients.entry(client).or_insert_with(|| (known, Endpoints::default())).1.answer(by, choices)
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
        let last = had.last().map(|answer| answer.by);
        had.retain(|answer| !is_over(answer.span, span, time));
        let over = last.filter(|_| had.is_empty() && choices.len() > 1);
        let lasting: Vec<_> = had
            .iter()
            .filter(|answer| answer.certain && choices.contains(&answer.by) && still_lasts(answer.span, span, time))
            .map(|answer| answer.by)
            .collect();
        let is_new = !had.iter().any(|answer| answer.by == by);
        had.push(Short { by, span, certain: true });
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

impl Endpoints {
    /// Records an answer. Returns the error if the client has another endpoint that is eligible.
    fn answer(&mut self, by: SocketAddr, choices: &BTreeSet<SocketAddr>) -> Option<String> {
        let left: Vec<_> = self.certain.intersection(choices).copied().collect();
        // A client may return to an endpoint that it got through another address, under another policy.
        let is_new = self.certain.insert(by) && !self.possible.contains(&by);
        (is_new && !left.is_empty()).then(|| format!("{by} is new to a client of {left:?}"))
    }

    /// From now on, the kernel may or may not remember the endpoints.
    fn doubt(&mut self) {
        self.possible.append(&mut self.certain);
    }
}

/// From now on, the kernel may or may not remember the answers.
fn doubt(answers: &mut [Short]) {
    answers.iter_mut().for_each(|answer| answer.certain = false);
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
    /// Adopts the state of the Service, and calls `changed` if it differs. Returns `false` if there is no such Service any more.
    fn follow(&mut self, scene: &Scene<'_>, changed: impl FnOnce()) -> bool {
        let Some(found) = Self::find(scene, &self.service.name) else { return false };
        if found != *self {
            *self = found;
            changed();
        }
        true
    }

    fn find(scene: &Scene<'_>, name: &str) -> Option<Self> {
        let service = scene.cluster.services.values().find(|service| service.name == name)?;
        let localized = scene.state.services.values().find(|localized| *localized.key.name == *name)?;
        Some(Self { service: service.clone(), localized: Arc::clone(localized) })
    }
}

/// The port that the packet belongs to.
fn port(scene: &Scene<'_>, asked: &Asked) -> Option<(String, String)> {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Seed 1529470374: a client had endpoint 1 before a change, got endpoint 2 through an address that has no other, and then
    /// returned to endpoint 1 through a third address. Seed 3890210140: the same, but `iptables -F` took the place of the change;
    /// IPv6 kept its clients.
    #[test]
    fn a_client_may_return_to_an_endpoint_from_before_a_change_or_an_edit() {
        let [one, two, three] = [1, 2, 3].map(|host| SocketAddr::from(([10, 0, 0, host], 80)));
        let (all, local) = (BTreeSet::from([one, two, three]), BTreeSet::from([two]));
        let mut endpoints = Endpoints::default();
        assert_eq!(endpoints.answer(one, &all), None);
        endpoints.doubt();
        assert_eq!(endpoints.answer(two, &local), None);
        assert_eq!(endpoints.answer(one, &all), None);
        assert!(endpoints.answer(three, &all).is_some());
    }
}
