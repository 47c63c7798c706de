//! Kubernetes objects, reduced to the fields that the brain needs.
//!
//! [`reduce`] reduces an object as soon as it arrives, and the brain keeps only the reduced object. This saves memory, and
//! the brain ignores updates that change no field of the reduced object. If a field should contain an address but contains
//! other text, the reduced object keeps the text, so that the code that needs the address can report it.

mod address;
mod conditions;
mod event;
mod publish;
pub mod reduce;

use std::{
    net::IpAddr,
    num::{NonZeroI64, NonZeroU64},
    sync::Arc,
};

use ipnet::IpNet;
use localnet_core::Diagnostic;
use localnet_proto::{Affinity, Facts, Family, HashBy, ServiceKey, TargetRef};

pub use conditions::Conditions;
pub use event::{Event, Kind, Object};
pub use publish::Publish;

/// What few Services have. Most of it comes from annotations that kube-proxy does not know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extensions {
    /// The annotation `localnet.dev/close-connections-after`, in seconds.
    pub close_after: Option<Parsed<u32>>,
    /// The annotation `localnet.dev/hash`.
    pub hash: Option<Parsed<HashBy>>,
    /// The annotation `localnet.dev/zone-weights`: the weight of the endpoints in each zone.
    pub zone_weights: Option<Parsed<ZoneWeights>>,
    /// `spec.externalName` of a Service of type ExternalName.
    pub external_name: Option<Arc<str>>,
}

/// A parsed value, or the text that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed<T> {
    /// The parsed value.
    Good(T),
    /// The text that cannot be parsed.
    Bad(Box<str>),
}

/// Zones, each with the weight of its endpoints.
pub type ZoneWeights = Box<[(Arc<str>, u32)]>;

localnet_core::names! {
    /// The type of a Service.
    #[derive(Default)]
    ServiceType {
        /// ClusterIP, and every unknown type.
        #[default]
        ClusterIp = "ClusterIP",
        /// NodePort.
        NodePort = "NodePort",
        /// LoadBalancer.
        LoadBalancer = "LoadBalancer",
        /// ExternalName: only a DNS name.
        ExternalName = "ExternalName",
    }
}

/// A Service.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServiceObject {
    /// `metadata.namespace`.
    pub namespace: Arc<str>,
    /// `metadata.name`.
    pub name: Arc<str>,
    /// The number of the source, in the order of precedence. The cluster sets it if there are several sources; it is the same for
    /// all pushed Services. If two Services claim the same address and port, the Service of the first source is the owner.
    pub source: u16,
    /// `metadata.creationTimestamp` in seconds since 1970; 0 if unknown. If two Services of a source claim the same address and
    /// port, the older Service is the owner.
    pub created: i64,
    /// Whether another program has pushed the Service. Only its own pushed slices then belong to it.
    pub pushed: bool,
    /// Parts of the Service that the source has left out of this object.
    pub skipped: Box<[Diagnostic]>,
    /// Value of the label `service.kubernetes.io/service-proxy-name`, if there is one.
    pub proxy_name: Option<Arc<str>>,
    /// `spec.type`.
    pub kind: ServiceType,
    /// Whether `spec.clusterIP` is `None`.
    pub headless: bool,
    /// `spec.clusterIPs`. If that is empty, `spec.clusterIP`.
    pub cluster_ips: Box<[Parsed<IpAddr>]>,
    /// `spec.ipFamilies` without unknown families.
    pub families: Box<[Family]>,
    /// `spec.externalIPs`.
    pub external_ips: Box<[Parsed<IpAddr>]>,
    /// `status.loadBalancer.ingress[].ip` of `ipMode` VIP.
    pub load_balancer_ips: Box<[Parsed<IpAddr>]>,
    /// `spec.loadBalancerSourceRanges`.
    pub source_ranges: Box<[Parsed<IpNet>]>,
    /// `spec.ports`.
    pub ports: Box<[ServicePort]>,
    /// Whether `spec.internalTrafficPolicy` is `Local`.
    pub internal_local: bool,
    /// Whether `spec.externalTrafficPolicy` is `Local`.
    pub external_local: bool,
    /// The `ClientIP` session affinity. `None` without affinity.
    pub affinity: Option<Affinity>,
    /// `spec.healthCheckNodePort`; 0 for none.
    pub health_check_node_port: i32,
    /// The trimmed value of the annotation `localnet.dev/ipvs-scheduler`, if it is not empty.
    pub ipvs_scheduler: Option<Arc<str>>,
    /// Whether the annotation `preserve-destination` is `true`.
    pub preserve_destination: bool,
    /// What few Services have. `None` if the Service has nothing of it.
    pub extensions: Option<Box<Extensions>>,
    /// What only readers of the draft `localnet.v1` get, without the origins of endpoints. `None` if the brain does not serve
    /// them.
    pub facts: Option<Arc<Facts>>,
    /// `metadata.resourceVersion`, if it is a number. Only the history of changes uses it, and it is not part of the object's
    /// content.
    pub version: Option<NonZeroU64>,
}

impl ServiceObject {
    /// The namespace and name of the Service.
    pub fn key(&self) -> ServiceKey {
        ServiceKey { namespace: Arc::clone(&self.namespace), name: Arc::clone(&self.name) }
    }
}

/// One of `spec.ports` of a Service.
#[derive(Clone, Debug, PartialEq)]
pub struct ServicePort {
    /// The name of the port. May be empty.
    pub name: Arc<str>,
    /// The protocol of the port.
    pub protocol: Parsed<localnet_proto::Protocol>,
    /// The number of the port.
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
    /// Value of the label `kubernetes.io/service-name`: the Service that the slice belongs to.
    pub service: Option<Arc<str>>,
    /// Whether the slice has the label `service.kubernetes.io/headless`.
    pub headless: bool,
    /// Whether another program has pushed the slice. Only the pushed Service of this name then uses it.
    pub pushed: bool,
    /// `addressType`. `Parsed::Bad` if it is neither IPv4 nor IPv6.
    pub family: Parsed<Family>,
    /// `ports`.
    pub ports: Box<[SlicePort]>,
    /// `endpoints`.
    pub endpoints: Box<[SliceEndpoint]>,
    /// The annotation `localnet.dev/weight`: the weight of each endpoint.
    pub weight: Option<Parsed<u32>>,
    /// The time of the event that caused the last change, in microseconds since 1970: the annotation
    /// `endpoints.kubernetes.io/last-change-trigger-time`. Only latency metrics use it, and it is not part of the slice's
    /// content.
    pub triggered: Option<NonZeroI64>,
    /// `metadata.resourceVersion`, if it is a number. Only the history of changes uses it, and it is not part of the object's
    /// content.
    pub version: Option<NonZeroU64>,
}

impl SliceObject {
    /// The Service that the slice belongs to.
    pub fn owner(&self) -> Option<ServiceKey> {
        let name = self.service.as_ref().filter(|name| !name.is_empty())?;
        Some(ServiceKey { namespace: Arc::clone(&self.namespace), name: Arc::clone(name) })
    }
}

/// One of `ports` of an EndpointSlice.
#[derive(Clone, Debug, PartialEq)]
pub struct SlicePort {
    /// The name of the port. If it is `None`, no Service port matches.
    pub name: Option<Arc<str>>,
    /// The protocol of the port.
    pub protocol: Parsed<localnet_proto::Protocol>,
    /// The number of the port. `None` means "all ports", which no service proxy implements.
    pub port: Option<i32>,
}

/// One of `endpoints` of an EndpointSlice.
#[derive(Clone, Debug, PartialEq)]
pub struct SliceEndpoint {
    /// The first of `addresses`. Service proxies ignore the others.
    pub address: Option<Parsed<IpAddr>>,
    /// `hostname`.
    pub hostname: Option<Arc<str>>,
    /// `nodeName`.
    pub node: Option<Arc<str>>,
    /// `zone`.
    pub zone: Option<Arc<str>>,
    /// `conditions`.
    pub conditions: Conditions,
    /// `hints.forZones`.
    pub zone_hints: Box<[Arc<str>]>,
    /// `hints.forNodes`.
    pub node_hints: Box<[Arc<str>]>,
    /// `targetRef`. `None` if the brain does not serve readers of the draft `localnet.v1`, who alone get it.
    pub target: Option<Arc<TargetRef>>,
}

/// A Node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeObject {
    /// `metadata.name`.
    pub name: Arc<str>,
    /// Value of the label `topology.kubernetes.io/zone`. Empty if the Node does not have the label.
    pub zone: Arc<str>,
    /// `status.addresses`: first the internal addresses, then the external ones.
    pub addresses: Box<[Parsed<IpAddr>]>,
    /// `spec.podCIDRs`. If that is empty, `spec.podCIDR`.
    pub pod_cidrs: Box<[Parsed<IpNet>]>,
    /// Keys of `spec.taints`.
    pub taints: Box<[Arc<str>]>,
    /// Whether the Node has a `metadata.deletionTimestamp`.
    pub deleting: bool,
    /// `metadata.resourceVersion`, if it is a number. Only the history of changes uses it, and it is not part of the object's
    /// content.
    pub version: Option<NonZeroU64>,
}

/// A ServiceCIDR.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceCidrObject {
    /// `metadata.name`.
    pub name: Arc<str>,
    /// `spec.cidrs`.
    pub cidrs: Box<[Parsed<IpNet>]>,
}

/// Parses the name of a Node, and returns it in the canonical form: without surrounding white space, and in lower case.
///
/// # Errors
/// Returns the problem and the remedy if the name is empty, or contains other characters than ASCII letters, digits, `-`, `_` and `.`.
pub fn node_name(text: &str) -> Result<String, &'static str> {
    let name = text.trim().to_lowercase();
    let good = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    if good { Ok(name) } else { Err("not a valid Node name: use letters, digits, '-', '_' and '.'") }
}
