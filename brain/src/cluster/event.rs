//! What a source says has happened.

use std::sync::Arc;

use crate::cluster::object::{NodeObject, ServiceCidrObject, ServiceObject, SliceObject};

/// A kind of object that the model is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Services.
    Service,
    /// EndpointSlices.
    Slice,
    /// The Node of this node.
    Node,
    /// ServiceCIDRs.
    ServiceCidr,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::Service, Self::Slice, Self::Node, Self::ServiceCidr];

    /// As Kubernetes writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Service => "Service",
            Self::Slice => "EndpointSlice",
            Self::Node => "Node",
            Self::ServiceCidr => "ServiceCIDR",
        }
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
    /// Its kind.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Service(_) => Kind::Service,
            Self::Slice(_) => Kind::Slice,
            Self::Node(_) => Kind::Node,
            Self::ServiceCidr(_) => Kind::ServiceCidr,
        }
    }

    /// Its namespace; empty for the kinds that have none.
    pub fn namespace(&self) -> &str {
        match self {
            Self::Service(service) => &service.namespace,
            Self::Slice(slice) => &slice.namespace,
            Self::Node(_) | Self::ServiceCidr(_) => "",
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Self::Service(service) => &service.name,
            Self::Slice(slice) => &slice.name,
            Self::Node(node) => &node.name,
            Self::ServiceCidr(cidr) => &cidr.name,
        }
    }
}

/// What a source says has happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The object is new, or now like this.
    Apply(Object),
    /// The object is gone.
    Delete {
        /// Its kind.
        kind: Kind,
        /// Its namespace; empty for the kinds that have none.
        namespace: Arc<str>,
        /// Its name.
        name: Arc<str>,
    },
    /// These are all objects of the kind: a first list, or one after an interruption. What is not in it is gone.
    Replace {
        /// The kind.
        kind: Kind,
        /// The objects. Those of another kind are ignored.
        objects: Vec<Object>,
    },
}
