//! Events: the changes that a source reports.

use std::sync::Arc;

use localnet_proto::ServiceKey;

use super::{NodeObject, ServiceCidrObject, ServiceObject, SliceObject};

localnet_core::names! {
    /// A kind of object that the cluster consists of.
    Kind {
        /// Services.
        Service = "Service",
        /// EndpointSlices.
        Slice = "EndpointSlice",
        /// The Node object of this node.
        Node = "Node",
        /// ServiceCIDRs.
        ServiceCidr = "ServiceCIDR",
    }
}

/// An object of any kind.
#[derive(Clone, Debug, PartialEq)]
pub enum Object {
    /// A Service.
    Service(ServiceObject),
    /// An EndpointSlice.
    Slice(SliceObject),
    /// A Node.
    Node(NodeObject),
    /// A ServiceCIDR.
    ServiceCidr(ServiceCidrObject),
}

impl Object {
    /// The kind of the object.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Service(_) => Kind::Service,
            Self::Slice(_) => Kind::Slice,
            Self::Node(_) => Kind::Node,
            Self::ServiceCidr(_) => Kind::ServiceCidr,
        }
    }

    /// The namespace of the object. Empty for kinds without namespaces.
    pub fn namespace(&self) -> &str {
        match self {
            Self::Service(service) => &service.namespace,
            Self::Slice(slice) => &slice.namespace,
            Self::Node(_) | Self::ServiceCidr(_) => "",
        }
    }

    /// The name of the object.
    pub fn name(&self) -> &str {
        match self {
            Self::Service(service) => &service.name,
            Self::Slice(slice) => &slice.name,
            Self::Node(node) => &node.name,
            Self::ServiceCidr(cidr) => &cidr.name,
        }
    }

    /// The namespace and name of the object.
    pub fn key(&self) -> ServiceKey {
        let (namespace, name) = match self {
            Self::Service(service) => return service.key(),
            Self::Slice(slice) => (Arc::clone(&slice.namespace), &slice.name),
            Self::Node(node) => (Arc::default(), &node.name),
            Self::ServiceCidr(cidr) => (Arc::default(), &cidr.name),
        };
        ServiceKey { namespace, name: Arc::clone(name) }
    }
}

/// A change that a source reports.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The object is new or has changed.
    Apply(Object),
    /// The object was deleted.
    Delete {
        /// The kind of the object.
        kind: Kind,
        /// The namespace of the object. Empty for kinds without namespaces.
        namespace: Arc<str>,
        /// The name of the object.
        name: Arc<str>,
    },
    /// A complete list of a kind: the first list, or a list after an interruption. Objects that are not in the list were
    /// deleted.
    Replace {
        /// The kind of the objects.
        kind: Kind,
        /// The objects. Objects of other kinds are ignored.
        objects: Vec<Object>,
    },
}
