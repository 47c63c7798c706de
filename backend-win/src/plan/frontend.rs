//! What packets are sent to, as HNS tells load balancers apart.

use std::{fmt, net::IpAddr};

use localnet_client::vips::{Vip, VipKey};
use localnet_proto::{Family, Protocol};

use crate::hcn::{
    Guid,
    schema::{LoadBalancer, LoadBalancerFlags},
};

/// Address, protocol and port of a load balancer. No two can have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frontend {
    /// Where.
    pub address: Address,
    /// The protocol.
    pub protocol: Protocol,
    /// The port.
    pub port: u16,
}

/// Where a load balancer answers.
///
/// One without an address answers on all of the node's, and takes from its processes what is theirs on that port. So a service without an
/// address must never become one (CVE-2021-25736): only NodePorts are without, and nothing else can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Address {
    /// At this address.
    Vip(IpAddr),
    /// On the node's addresses of a family: a NodePort.
    Node(Family),
}

impl Frontend {
    /// That of a VIP. All addresses of the node are one: a load balancer for NodePorts has none to choose.
    pub fn of(key: &VipKey, vip: &Vip) -> Self {
        let address = if vip.by_node_port { Address::Node(key.family()) } else { Address::Vip(key.address) };
        Self { address, protocol: key.protocol, port: key.port }
    }

    /// Its family.
    pub fn family(&self) -> Family {
        match self.address {
            Address::Vip(address) => Family::of(address),
            Address::Node(family) => family,
        }
    }

    /// The identifier of the load balancer that we make for it.
    pub fn id(&self) -> Guid {
        Guid::of_load_balancer(&self.to_string())
    }

    /// Those of a load balancer, with the port that each has on endpoints. What it has of other protocols is none.
    pub fn all_of(balancer: &LoadBalancer) -> Vec<Self> {
        let family = if balancer.flags.contains(LoadBalancerFlags::IPV6) { Family::V6 } else { Family::V4 };
        let addresses: Vec<Address> = match balancer.frontend_vips.as_slice() {
            [] => vec![Address::Node(family)],
            vips => vips.iter().copied().map(Address::Vip).collect(),
        };
        let ports = balancer.port_mappings.iter().filter_map(|mapping| {
            let protocol = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
            let protocol = protocol.into_iter().find(|protocol| u32::from(protocol.number()) == mapping.protocol)?;
            Some((protocol, mapping.external_port))
        });
        let ports: Vec<_> = ports.collect();
        let of_port = |address: Address| {
            ports.iter().map(move |(protocol, port)| Self { address, protocol: *protocol, port: *port })
        };
        addresses.into_iter().flat_map(of_port).collect()
    }
}

impl fmt::Display for Frontend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = match self.protocol {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Sctp => "sctp",
        };
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
    fn frontends_of_a_listed_load_balancer_are_all_that_it_takes() {
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
