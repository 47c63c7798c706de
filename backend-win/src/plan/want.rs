//! What a frontend is to do, from the state alone.

use std::{net::SocketAddr, sync::Arc};

use localnet_client::vips::{Exposure, Vip, VipKey};
use localnet_proto::{Service, ServiceKey};

/// What a frontend is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Want {
    /// Whose it is.
    pub service: ServiceKey,
    /// `namespace/name:port`, for people.
    pub comment: Arc<str>,
    /// What kind of address it has.
    pub r#use: Use,
    /// Where it sends packets.
    pub endpoints: Arc<[SocketAddr]>,
    /// What comes from outside goes to endpoints on this node only: external traffic policy Local.
    pub external_local: bool,
    /// What is sent to load balancers' addresses keeps its destination.
    pub preserve_destination: bool,
    /// A client keeps its endpoint.
    pub affinity: bool,
    /// Who may reach it; see [`Sources`].
    pub sources: Sources,
    /// The port on which load balancers ask for the health of the service on this node, if it has one of its own.
    pub health_port: Option<u16>,
}

/// What kind of address a frontend has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Use {
    /// A ClusterIP.
    ClusterIp,
    /// The node's.
    NodePort,
    /// One of `externalIPs`.
    ExternalIp,
    /// That of a load balancer.
    LoadBalancerIp,
}

/// Who may reach a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sources {
    /// Everybody.
    All,
    /// Some; HNS has no rule for that, so it is everybody.
    Some,
    /// Nobody: none of the ranges is of its family.
    Nobody,
}

impl Want {
    /// What becomes of a VIP.
    pub fn of(key: &VipKey, vip: &Vip, service: &Service) -> Self {
        let external_local = vip.exposure == Exposure::ExternalLocal;
        let r#use = match vip.exposure {
            Exposure::Internal => Use::ClusterIp,
            _ if vip.by_node_port => Use::NodePort,
            _ if service.load_balancer_ips.contains(&key.address) => Use::LoadBalancerIp,
            _ => Use::ExternalIp,
        };
        // A load balancer has one set of endpoints: that for packets from outside, of which no other can be told.
        let endpoints = if external_local { &vip.local_endpoints } else { &vip.endpoints };
        Self {
            service: vip.service.clone(),
            comment: vip.comment.clone(),
            r#use,
            endpoints: endpoints.clone(),
            external_local,
            preserve_destination: service.preserve_destination,
            affinity: vip.affinity.is_some(),
            sources: match vip.sources.as_deref() {
                None => Sources::All,
                Some([]) => Sources::Nobody,
                Some(_) => Sources::Some,
            },
            health_port: service.health_check_node_port,
        }
    }
}
