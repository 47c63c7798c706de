//! Frontends: what clients connect to, and what identifies a load balancer in HNS.

use std::{fmt, net::IpAddr};

use localnet_client::vips::{Vip, VipKey};
use localnet_proto::{Family, Protocol};

use crate::hcn::{
    Guid,
    schema::{LoadBalancer, LoadBalancerFlags, PortMapping},
};

/// The address, protocol and port of a load balancer. No two load balancers have the same frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frontend {
    /// The address that clients send to.
    pub address: Address,
    /// The protocol of the packets.
    pub protocol: Protocol,
    /// The port that clients send to.
    pub port: u16,
}

/// The address of a load balancer.
///
/// A load balancer without an address answers on all addresses of the node, and takes packets to its port away from the node's
/// processes. A Service without an address must therefore never become such a load balancer (CVE-2021-25736). This type allows
/// only NodePorts to have no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Address {
    /// A single address.
    Vip(IpAddr),
    /// All of the node's addresses of one family: a NodePort.
    Node(Family),
}

impl Frontend {
    /// Returns the frontend of a VIP. A NodePort has the same frontend on all addresses of the node, because a load balancer for
    /// NodePorts has no address.
    pub fn of(key: &VipKey, vip: &Vip) -> Self {
        let address = if vip.by_node_port { Address::Node(key.family()) } else { Address::Vip(key.address) };
        Self { address, protocol: key.protocol, port: key.port }
    }

    /// The address family.
    pub fn family(&self) -> Family {
        match self.address {
            Address::Vip(address) => Family::of(address),
            Address::Node(family) => family,
        }
    }

    /// The identifier that we give to the frontend's load balancer.
    pub fn id(&self) -> Guid {
        Guid::of_load_balancer(&self.to_string())
    }

    /// Returns the frontends of a load balancer. Unknown protocols are skipped.
    pub fn all_of(balancer: &LoadBalancer) -> Vec<Self> {
        Self::mappings_of(balancer).into_iter().map(|(frontend, _)| frontend).collect()
    }

    /// Returns the frontends of a load balancer, each with its port mapping.
    pub fn mappings_of(balancer: &LoadBalancer) -> Vec<(Self, PortMapping)> {
        let family = if balancer.flags.contains(LoadBalancerFlags::IPV6) { Family::V6 } else { Family::V4 };
        let addresses: Vec<Address> = match balancer.frontend_vips.as_slice() {
            [] => vec![Address::Node(family)],
            vips => vips.iter().copied().map(Address::Vip).collect(),
        };
        let mappings = balancer.port_mappings.iter().filter_map(|mapping| {
            let protocol = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
            let protocol = protocol.into_iter().find(|protocol| u32::from(protocol.number()) == mapping.protocol)?;
            Some((protocol, *mapping))
        });
        let mappings: Vec<_> = mappings.collect();
        let of_address = |address: Address| {
            let frontend =
                move |protocol, mapping: PortMapping| Self { address, protocol, port: mapping.external_port };
            mappings.iter().map(move |(protocol, mapping)| (frontend(*protocol, *mapping), *mapping))
        };
        addresses.into_iter().flat_map(of_address).collect()
    }
}

impl fmt::Display for Frontend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = self.protocol.as_lowercase();
        match self.address {
            Address::Vip(IpAddr::V4(address)) => write!(f, "{address}:{}/{protocol}", self.port),
            Address::Vip(IpAddr::V6(address)) => write!(f, "[{address}]:{}/{protocol}", self.port),
            Address::Node(family) => write!(f, "NodePort {}/{protocol} of {family}", self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hcn::schema;

    #[test]
    fn a_load_balancer_has_a_frontend_for_each_address_and_port() {
        let of = |json: &str| {
            let frontends = Frontend::all_of(&schema::read("load balancer", json).unwrap());
            frontends.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        };
        for (json, expected) in [
            (r#"{"FrontendVIPs":["10.0.0.1"],"PortMappings":[{"Protocol":6,"ExternalPort":80}]}"#, "10.0.0.1:80/tcp"),
            (r#"{"PortMappings":[{"Protocol":17,"ExternalPort":30053}],"Flags":2}"#, "NodePort 30053/udp of IPv6"),
            (
                r#"{"FrontendVIPs":["fd00::1"],"PortMappings":[{"Protocol":132,"ExternalPort":1}],"Flags":3}"#,
                "[fd00::1]:1/sctp",
            ),
            (
                r#"{"FrontendVIPs":["10.0.0.1","10.0.0.2"],"PortMappings":[{"Protocol":6,"ExternalPort":80},{"Protocol":99},{"Protocol":17,"ExternalPort":53}]}"#,
                "10.0.0.1:80/tcp, 10.0.0.1:53/udp, 10.0.0.2:80/tcp, 10.0.0.2:53/udp",
            ),
            ("{}", ""),
        ] {
            assert_eq!(of(json), expected);
        }
    }
}
