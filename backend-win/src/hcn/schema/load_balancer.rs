//! The document `HostComputeLoadBalancer`.

use std::{
    net::IpAddr,
    ops::{BitOr, BitOrAssign},
};

use serde::{Deserialize, Serialize};

use super::{Guid, SchemaVersion, address, addresses, id, is_default, or_default};

/// A load balancer, which distributes the packets to its frontends among its endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct LoadBalancer {
    /// The load balancer's identifier; `None` in a document that creates the load balancer.
    #[serde(rename = "ID", deserialize_with = "id", skip_serializing_if = "Option::is_none")]
    pub id: Option<Guid>,
    /// The identifiers of the endpoints.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub host_compute_endpoints: Vec<Guid>,
    /// The source address of the load balancer's packets to remote endpoints.
    #[serde(rename = "SourceVIP", deserialize_with = "address", skip_serializing_if = "Option::is_none")]
    pub source_vip: Option<IpAddr>,
    /// The addresses that packets are sent to. A load balancer without addresses answers on the addresses of the node.
    #[serde(rename = "FrontendVIPs", deserialize_with = "addresses", skip_serializing_if = "Vec::is_empty")]
    pub frontend_vips: Vec<IpAddr>,
    /// The ports that packets are sent to, each with the port of the endpoints.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub port_mappings: Vec<PortMapping>,
    /// Always 2.0.
    #[serde(skip_deserializing)]
    pub schema_version: SchemaVersion,
    /// Options of the load balancer, such as direct server return.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "is_default")]
    pub flags: LoadBalancerFlags,
}

/// A port of a load balancer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct PortMapping {
    /// The protocol number in the IP header.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "is_default")]
    pub protocol: u32,
    /// The port of the endpoints.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "is_default")]
    pub internal_port: u16,
    /// The port of the load balancer's addresses.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "is_default")]
    pub external_port: u16,
    /// The values of a packet that select the endpoint.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "is_default")]
    pub distribution_type: Distribution,
    /// Options of this port.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "is_default")]
    pub flags: PortMappingFlags,
}

/// The values of a packet that select the endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Distribution(pub u32);

impl Distribution {
    /// The packet's addresses, ports and protocol.
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

            /// Returns the flags without unknown bits.
            #[must_use]
            pub fn without_unknown(self) -> Self {
                Self(self.0 & (0 $(| $value)+))
            }

            /// Whether all of these flags are set.
            pub fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// Returns these flags if the condition is true, else no flags.
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
        /// Replies go to the client directly and bypass the load balancer: direct server return.
        DSR = 1,
        /// The load balancer is for IPv6.
        IPV6 = 2,
    }
}

flags! {
    /// The flags of a port.
    PortMappingFlags {
        /// Internal load balancing within the node. We never set this flag, so a load balancer that has it differs from
        /// the plan.
        ILB = 1,
        /// The load balancer's addresses can be reached from the node itself.
        LOCAL_ROUTED_VIP = 2,
        /// Replies to packets for an address of the node go to the client directly.
        USE_MUX = 4,
        /// The packet keeps its original destination.
        PRESERVE_DIP = 8,
        /// The load balancer's addresses can be reached from outside the cluster. kube-proxy defines the flag; Microsoft's
        /// library does not.
        VIP_EXTERNAL_IP = 16,
    }
}
