//! The purpose of a frontend, computed only from the state.

use std::{net::SocketAddr, sync::Arc};

use localnet_client::vips::{Exposure, Vip, VipKey};
use localnet_proto::{Affinity, Service, ServiceKey};

/// The purpose of a frontend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Want {
    /// The Service that the frontend belongs to.
    pub service: ServiceKey,
    /// The port as `namespace/name:port`, for messages.
    pub comment: Arc<str>,
    /// The kind of the frontend's address.
    pub r#use: Use,
    /// The endpoints that receive the frontend's packets.
    pub endpoints: Arc<[SocketAddr]>,
    /// Whether external traffic goes only to local endpoints: external traffic policy Local.
    pub external_local: bool,
    /// Whether packets to load balancer addresses keep their destination.
    pub preserve_destination: bool,
    /// The session affinity, if there is one.
    pub affinity: Option<Affinity>,
    /// The clients that may connect; see [`Sources`].
    pub sources: Sources,
    /// The Service's own port for health checks on this node; `None` if load balancers check the health of the node instead.
    pub health_port: Option<u16>,
}

/// The kind of a frontend's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Use {
    /// A ClusterIP.
    ClusterIp,
    /// An address of the node.
    NodePort,
    /// One of `externalIPs`.
    ExternalIp,
    /// The address of a load balancer.
    LoadBalancerIp,
}

/// The clients that may connect to a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sources {
    /// All clients.
    All,
    /// Some clients. HNS cannot restrict clients, so all clients can connect.
    Some,
    /// No clients: none of the ranges has the family of the frontend.
    Nobody,
}

impl Want {
    /// Computes the purpose of a VIP's frontend.
    pub fn of(key: &VipKey, vip: &Vip, service: &Service) -> Self {
        let external_local = vip.exposure == Exposure::ExternalLocal;
        let r#use = match vip.exposure {
            Exposure::Internal => Use::ClusterIp,
            _ if vip.by_node_port => Use::NodePort,
            _ if service.load_balancer_ips.contains(&key.address) => Use::LoadBalancerIp,
            _ => Use::ExternalIp,
        };
        // A load balancer has a single set of endpoints. It is the set for external traffic, since HNS cannot distinguish
        // it from internal traffic.
        let endpoints = if external_local { &vip.local_endpoints } else { &vip.endpoints };
        Self {
            service: vip.service.clone(),
            comment: vip.comment.clone(),
            r#use,
            endpoints: endpoints.clone(),
            external_local,
            preserve_destination: service.preserve_destination,
            affinity: vip.affinity,
            sources: match vip.sources.as_deref() {
                None => Sources::All,
                Some([]) => Sources::Nobody,
                Some(_) => Sources::Some,
            },
            health_port: service.health_check_node_port,
        }
    }
}
