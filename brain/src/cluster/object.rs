//! Kubernetes objects, reduced to what the model is made of.
//!
//! An object is reduced the moment it arrives ([`super::reduce`]): what is kept here is all that the brain holds of it, so
//! that memory stays small and a change of anything else is no change at all. Texts that are no addresses are kept as
//! they are, to be reported by whoever would have used them.

use std::{net::IpAddr, num::NonZeroI64, sync::Arc};

use ipnet::IpNet;
use localnet_proto::{Family, ServiceKey};

/// A text that should be something else, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed<T> {
    /// It is.
    Good(T),
    /// It is not; this is the text.
    Bad(Box<str>),
}

/// What the type of a Service means to a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServiceType {
    /// ClusterIP, and whatever is not known.
    #[default]
    ClusterIp,
    /// NodePort.
    NodePort,
    /// LoadBalancer.
    LoadBalancer,
    /// ExternalName: DNS alone.
    ExternalName,
}

impl ServiceType {
    /// As Kubernetes writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ClusterIp => "ClusterIP",
            Self::NodePort => "NodePort",
            Self::LoadBalancer => "LoadBalancer",
            Self::ExternalName => "ExternalName",
        }
    }
}

/// A Service.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceObject {
    /// `metadata.namespace`.
    pub namespace: Arc<str>,
    /// `metadata.name`.
    pub name: Arc<str>,
    /// `metadata.creationTimestamp` in seconds since 1970; 0 when unknown. The older of two claimants wins.
    pub created: i64,
    /// Value of the label `service.kubernetes.io/service-proxy-name`, if it is there.
    pub proxy_name: Option<Arc<str>>,
    /// `spec.type`.
    pub kind: ServiceType,
    /// `spec.clusterIP` is `None`.
    pub headless: bool,
    /// `spec.clusterIPs`, or `spec.clusterIP` where there is only that.
    pub cluster_ips: Box<[Parsed<IpAddr>]>,
    /// `spec.ipFamilies`; those that are unknown are left out.
    pub families: Box<[Family]>,
    /// `spec.externalIPs`.
    pub external_ips: Box<[Parsed<IpAddr>]>,
    /// `status.loadBalancer.ingress[].ip` of `ipMode` VIP.
    pub load_balancer_ips: Box<[Parsed<IpAddr>]>,
    /// `spec.loadBalancerSourceRanges`.
    pub source_ranges: Box<[Parsed<IpNet>]>,
    /// `spec.ports`.
    pub ports: Box<[ServicePort]>,
    /// `spec.internalTrafficPolicy` is `Local`.
    pub internal_local: bool,
    /// `spec.externalTrafficPolicy` is `Local`.
    pub external_local: bool,
    /// Seconds of `ClientIP` session affinity.
    pub affinity: Option<u32>,
    /// `spec.healthCheckNodePort`; 0 for none.
    pub health_check_node_port: i32,
    /// Value of the annotation `localnet.dev/ipvs-scheduler`, without spaces around it, if there is anything.
    pub ipvs_scheduler: Option<Arc<str>>,
    /// The annotation `preserve-destination` is `true`.
    pub preserve_destination: bool,
}

impl ServiceObject {
    /// Its name in the model.
    pub fn key(&self) -> ServiceKey {
        ServiceKey { namespace: Arc::clone(&self.namespace), name: Arc::clone(&self.name) }
    }
}

/// One of `spec.ports` of a Service.
#[derive(Clone, Debug, PartialEq)]
pub struct ServicePort {
    /// Its name; may be empty.
    pub name: Arc<str>,
    /// Its protocol.
    pub protocol: Parsed<localnet_proto::Protocol>,
    /// Its number.
    pub port: i32,
    /// `nodePort`; 0 for none.
    pub node_port: i32,
}

/// An EndpointSlice.
#[derive(Clone, Debug, PartialEq)]
pub struct SliceObject {
    /// `metadata.namespace`.
    pub namespace: Arc<str>,
    /// `metadata.name`.
    pub name: Arc<str>,
    /// Value of the label `kubernetes.io/service-name`: whose endpoints these are.
    pub service: Option<Arc<str>>,
    /// Has the label `service.kubernetes.io/headless`.
    pub headless: bool,
    /// `addressType`; bad when it is neither IPv4 nor IPv6.
    pub family: Parsed<Family>,
    /// `ports`.
    pub ports: Box<[SlicePort]>,
    /// `endpoints`.
    pub endpoints: Box<[SliceEndpoint]>,
    /// When what changed it last happened, in microseconds since 1970: the annotation
    /// `endpoints.kubernetes.io/last-change-trigger-time`. It says how late a change is, and is no content of it.
    pub triggered: Option<NonZeroI64>,
}

impl SliceObject {
    /// The service that it belongs to.
    pub fn owner(&self) -> Option<ServiceKey> {
        let name = self.service.as_ref().filter(|name| !name.is_empty())?;
        Some(ServiceKey { namespace: Arc::clone(&self.namespace), name: Arc::clone(name) })
    }
}

/// One of `ports` of an EndpointSlice.
#[derive(Clone, Debug, PartialEq)]
pub struct SlicePort {
    /// Its name; `None` is a port that no Service port can mean.
    pub name: Option<Arc<str>>,
    /// Its protocol.
    pub protocol: Parsed<localnet_proto::Protocol>,
    /// Its number; `None` is "all ports", which no service proxy implements.
    pub port: Option<i32>,
}

/// One of `endpoints` of an EndpointSlice.
#[derive(Clone, Debug, PartialEq)]
pub struct SliceEndpoint {
    /// The first of `addresses`; the others mean nothing.
    pub address: Option<Parsed<IpAddr>>,
    /// `hostname`.
    pub hostname: Option<Arc<str>>,
    /// `nodeName`.
    pub node: Option<Arc<str>>,
    /// `conditions`.
    pub conditions: Conditions,
    /// `hints.forZones`.
    pub zone_hints: Box<[Arc<str>]>,
    /// `hints.forNodes`.
    pub node_hints: Box<[Arc<str>]>,
}

/// The conditions of an endpoint, with what is not said filled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conditions {
    /// Gets new connections.
    pub ready: bool,
    /// Answers.
    pub serving: bool,
    /// Is about to go.
    pub terminating: bool,
}

/// A Node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeObject {
    /// `metadata.name`.
    pub name: Arc<str>,
    /// Value of the label `topology.kubernetes.io/zone`; empty when it is not there.
    pub zone: Arc<str>,
    /// `status.addresses`: the internal addresses, then the external ones.
    pub addresses: Box<[Parsed<IpAddr>]>,
    /// `spec.podCIDRs`, or `spec.podCIDR`.
    pub pod_cidrs: Box<[Parsed<IpNet>]>,
    /// Keys of `spec.taints`.
    pub taints: Box<[Arc<str>]>,
    /// Has a `metadata.deletionTimestamp`.
    pub deleting: bool,
}

/// A ServiceCIDR.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceCidrObject {
    /// `metadata.name`.
    pub name: Arc<str>,
    /// `spec.cidrs`.
    pub cidrs: Box<[Parsed<IpNet>]>,
}
