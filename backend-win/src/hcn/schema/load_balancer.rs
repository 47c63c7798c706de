//! `HostComputeLoadBalancer`

use std::{
    net::IpAddr,
    ops::{BitOr, BitOrAssign},
};

use serde::{Deserialize, Serialize};

use super::{Guid, SchemaVersion, address, addresses, id, is_default, or_default};

/// A load balancer: what is sent to its frontends goes to one of its endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct LoadBalancer {
    /// Its identifier; none in a document that is to make it.
    #[serde(rename = "ID", deserialize_with = "id", skip_serializing_if = "Option::is_none")]
    pub id: Option<Guid>,
    /// Its endpoints.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub host_compute_endpoints: Vec<Guid>,
    /// The address that its packets to remote endpoints come from.
    #[serde(rename = "SourceVIP", deserialize_with = "address", skip_serializing_if = "Option::is_none")]
    pub source_vip: Option<IpAddr>,
    /// Its addresses. Without any it answers on those of the node.
    #[serde(rename = "FrontendVIPs", deserialize_with = "addresses", skip_serializing_if = "Vec::is_empty")]
    pub frontend_vips: Vec<IpAddr>,
    /// Its ports.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub port_mappings: Vec<PortMapping>,
    /// Always 2.0.
    #[serde(skip_deserializing)]
    pub schema_version: SchemaVersion,
    /// Bits.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "is_default")]
    pub flags: LoadBalancerFlags,
}

/// A port of a load balancer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct PortMapping {
    /// The number in the IP header.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "is_default")]
    pub protocol: u32,
    /// The port on endpoints.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "is_default")]
    pub internal_port: u16,
    /// The port on its addresses.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "is_default")]
    pub external_port: u16,
    /// What of a packet says where it goes.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "is_default")]
    pub distribution_type: Distribution,
    /// Bits.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "is_default")]
    pub flags: PortMappingFlags,
}

/// What of a packet says to which endpoint it goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Distribution(pub u32);

impl Distribution {
    /// Both addresses, both ports and the protocol.
    pub const CONNECTION: Self = Self(0);
    /// The source address.
    pub const SOURCE_IP: Self = Self(2);
}

macro_rules! flags {
    ($(#[$comment:meta])* $name:ident { $($(#[$about:meta])* $constant:ident = $value:literal,)+ }) => {
        $(#[$comment])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u32);

        impl $name {
            $($(#[$about])* pub const $constant: Self = Self($value);)+

            /// Without bits that have no name here.
            #[must_use]
            pub fn known(self) -> Self {
                Self(self.0 & (0 $(| $value)+))
            }

            /// Whether all of those are set.
            pub fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// These, or none.
            #[must_use]
            pub fn when(self, condition: bool) -> Self {
                if condition { self } else { Self::default() }
            }
        }

        impl BitOr for $name {
            type Output = Self;

            fn bitor(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }
        }

        impl BitOrAssign for $name {
            fn bitor_assign(&mut self, other: Self) {
                *self = *self | other;
            }
        }
    };
}

flags! {
    /// The flags of a load balancer.
    LoadBalancerFlags {
        /// Answers go to the client without passing the load balancer again: direct server return.
        DSR = 1,
        /// It is for IPv6.
        IPV6 = 2,
    }
}

flags! {
    /// The flags of a port.
    PortMappingFlags {
        /// It balances within the node. Nobody sets it; what has it is not what is wanted.
        ILB = 1,
        /// Its addresses are reached from the node itself.
        LOCAL_ROUTED_VIP = 2,
        /// Answers to what came to a node's address go directly.
        USE_MUX = 4,
        /// The packet keeps the destination that its sender gave it.
        PRESERVE_DIP = 8,
        /// Its addresses are reached from outside the cluster. Microsoft's library does not name it; kube-proxy does.
        VIP_EXTERNAL_IP = 16,
    }
}
