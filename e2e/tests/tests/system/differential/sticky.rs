//! Session affinity from one question to the next: a client stays with its endpoint whichever address of the Service it asks,
//! and whatever happens to other Services, as long as the endpoint serves what it asks for. One that has got another endpoint
//! from where the first does not serve, under a policy Local, has two of them to return to.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use localnet_client::route::Outcome;

use super::{
    ask::{Asked, Seen},
    cluster::Service,
    run::Scene,
    world::Side,
};

/// A client of a Service's port.
type Client = (Side, IpAddr, PortKey);
/// Names of a Service and of its port.
type PortKey = (String, String);

/// Where clients have been sent since their Service was as it is.
#[derive(Debug, Default)]
pub(crate) struct Memory(BTreeMap<Client, (Service, Endpoints)>);

/// Endpoints of a client, and what it asked for when it was sent there.
type Endpoints = BTreeMap<SocketAddr, BTreeSet<SocketAddr>>;

/// A client that has left its endpoint.
#[derive(Debug)]
pub(crate) struct Left {
    pub(crate) wrong: String,
    /// It was sent elsewhere by another address of the Service only.
    pub(crate) by_another_address: bool,
}

impl Memory {
    /// What is wrong with an answer that is right for itself.
    pub(crate) fn check(&mut self, side: Side, asked: &Asked, seen: &Seen, scene: &Scene<'_>) -> Option<Left> {
        let Outcome::Endpoints { choices, affinity: Some(_), .. } = &asked.expected else { return None };
        let (by, _) = *seen.answers.keys().next()?;
        let port = port(scene, asked)?;
        let service = scene.cluster.services.values().find(|service| service.name == port.0)?;
        let client = (side, asked.question.source(), port);
        let (then, known) = self.0.entry(client).or_insert_with(|| (service.clone(), Endpoints::new()));
        if then != service {
            (*then, *known) = (service.clone(), Endpoints::new());
        }
        let to = asked.question.to;
        let left: Endpoints = known.clone().into_iter().filter(|(endpoint, _)| choices.contains(endpoint)).collect();
        let had = known.entry(by).or_default();
        let (is_new, is_new_here) = (had.is_empty(), had.insert(to));
        // kube-proxy may return to an endpoint that the client has by another address, under another policy.
        let left_here = (is_new || side == Side::Ours && is_new_here) && left.values().any(|asked| asked.contains(&to));
        (left_here || is_new && !left.is_empty()).then(|| Left {
            wrong: format!("{by} is new to a client of {:?}", left.keys()),
            by_another_address: !left_here,
        })
    }
}

/// Whose the packet is. No two Services claim the same address and port.
fn port(scene: &Scene<'_>, asked: &Asked) -> Option<PortKey> {
    let packet = asked.question.packet();
    let to = packet.destination;
    scene.state.services.values().find_map(|service| {
        let vips = service.cluster_ips.iter().chain(&service.external_ips).chain(&service.load_balancer_ips);
        let is_vip = vips.into_iter().any(|vip| *vip == to);
        let mut ports = service.ports.iter().filter(|port| port.protocol == packet.protocol);
        let port = ports.find(|port| {
            is_vip && port.port == packet.port
                || scene.rules.node_port_addresses.contains(&to) && port.node_port == Some(packet.port)
        })?;
        Some((service.key.name.to_string(), port.name.to_string()))
    })
}
