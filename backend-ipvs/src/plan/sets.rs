//! The sets and maps of the table. They are the same for all Services.

use localnet_linux::nft::Field;
use localnet_linux_backend::sets::Shape;
pub use localnet_linux_backend::sets::{HAIRPIN, Sets, VIP};

/// One of the sets and maps of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SetId {
    /// All VIPs. After a restart, they show which virtual servers are ours.
    Vips,
    /// The addresses on our interface. Packets to these addresses are rejected if no VIP has their protocol and port.
    Addresses,
    /// The ClusterIPs.
    ClusterIps,
    /// The VIPs whose traffic is masqueraded.
    External,
    /// The VIPs that send traffic from outside only to local endpoints.
    ExternalLocal,
    /// Maps a VIP with external policy Local to the chain that picks an endpoint for this node's own traffic.
    Services,
    /// Maps a VIP and a slot to an endpoint.
    Endpoints,
    /// Maps a VIP without eligible endpoints to its verdict.
    NoEndpoints,
    /// The addresses and ports that identify a hairpin: the connection of a local endpoint to itself.
    Hairpin,
    /// The VIPs with source ranges.
    Firewalled,
    /// The sources that may connect to VIPs with source ranges.
    AllowedSources,
}

impl Sets for SetId {
    const TABLE: &'static str = super::TABLE;

    const ALL: &'static [(Self, &'static str, Shape, &'static str)] = &[
        (Self::Vips, "vips", Shape::Vips, "VIPs, each a virtual server of IPVS"),
        (Self::Addresses, "addresses", Shape::Addresses, "addresses of kube-ipvs0: ports without a VIP are refused"),
        (Self::ClusterIps, "cluster-ips", Shape::Addresses, "ClusterIPs"),
        (Self::External, "external", Shape::Vips, "VIPs whose traffic is masqueraded"),
        (
            Self::ExternalLocal,
            "external-local-vips",
            Shape::Vips,
            "VIPs that send traffic from outside to local endpoints",
        ),
        (
            Self::Services,
            "services",
            Shape::VipToVerdict,
            "VIP to the choice of an endpoint for this node's own traffic",
        ),
        (Self::Endpoints, "endpoints", Shape::NumberedToEndpoint, "VIP and slot to endpoint"),
        (Self::NoEndpoints, "no-endpoints", Shape::VipToVerdict, "VIPs without an eligible endpoint"),
        (Self::Hairpin, "hairpin", Shape::Hairpins, "local endpoints that reach themselves"),
        (Self::Firewalled, "firewalled", Shape::Vips, "VIPs with source ranges"),
        (Self::AllowedSources, "allowed-sources", Shape::Sources, "sources that may reach these VIPs"),
    ];

    fn index(self) -> usize {
        self as usize
    }
}

/// The fields of a packet's connection that identify the VIP to which the client connected. IPVS rewrites packets between the
/// hooks, so the fields of the packet itself may differ.
pub const ASKED_FOR: [Field; 3] = [Field::OriginalDestinationAddress, Field::Protocol, Field::OriginalDestinationPort];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for (id, ..) in SetId::ALL {
            assert_eq!(SetId::of_name(id.name()), Some(*id));
            assert_eq!(SetId::ALL[id.index()].0, *id);
        }
    }
}
