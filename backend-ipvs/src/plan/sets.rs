//! The sets and maps of the table. They are the same for all Services.

use localnet_linux::nft::{Field, FieldType, Set};
use localnet_proto::Family;

/// One of the sets and maps of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SetId {
    /// All VIPs. After a restart, they show which virtual servers are ours.
    Vips,
    /// The addresses on our interface. Packets to them that match no VIP are rejected.
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
    /// The connections of local endpoints to themselves.
    Hairpin,
    /// The VIPs with source ranges.
    Firewalled,
    /// The sources that may reach these VIPs.
    AllowedSources,
}

impl SetId {
    /// All sets and maps, in the order in which they are declared.
    pub const ALL: [Self; 11] = [
        Self::Vips,
        Self::Addresses,
        Self::ClusterIps,
        Self::External,
        Self::ExternalLocal,
        Self::Services,
        Self::Endpoints,
        Self::NoEndpoints,
        Self::Hairpin,
        Self::Firewalled,
        Self::AllowedSources,
    ];

    /// The name in the kernel.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vips => "vips",
            Self::Addresses => "addresses",
            Self::ClusterIps => "cluster-ips",
            Self::External => "external",
            Self::ExternalLocal => "external-local-vips",
            Self::Services => "services",
            Self::Endpoints => "endpoints",
            Self::NoEndpoints => "no-endpoints",
            Self::Hairpin => "hairpin",
            Self::Firewalled => "firewalled",
            Self::AllowedSources => "allowed-sources",
        }
    }

    /// The set with that name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|id| id.name() == name)
    }

    /// The purpose of the set, as `nft list` shows it.
    pub fn comment(self) -> &'static str {
        match self {
            Self::Vips => "VIPs, each a virtual server of IPVS",
            Self::Addresses => "addresses of kube-ipvs0: ports without a VIP are refused",
            Self::ClusterIps => "ClusterIPs",
            Self::External => "VIPs whose traffic is masqueraded",
            Self::ExternalLocal => "VIPs that send traffic from outside to local endpoints",
            Self::Services => "VIP to the choice of an endpoint for this node's own traffic",
            Self::Endpoints => "VIP and slot to endpoint",
            Self::NoEndpoints => "VIPs without an eligible endpoint",
            Self::Hairpin => "local endpoints that reach themselves",
            Self::Firewalled => "VIPs with source ranges",
            Self::AllowedSources => "sources that may reach these VIPs",
        }
    }

    /// The declaration of the set in a family's table, with room for `size` elements.
    pub fn declaration(self, family: Family, size: u32) -> Set {
        let address = FieldType::address(family);
        let vip = [address, FieldType::InetProto, FieldType::InetService];
        let with = |field| [vip.as_slice(), &[field]].concat();
        let name = self.name();
        let set = match self {
            Self::Addresses | Self::ClusterIps => Set::new(name, [address]),
            Self::Vips | Self::External | Self::ExternalLocal | Self::Firewalled => Set::new(name, vip),
            Self::Services | Self::NoEndpoints => Set::verdict_map(name, vip),
            Self::Endpoints => Set::map(name, with(FieldType::Index), [address, FieldType::InetService]),
            Self::Hairpin => Set::new(name, [address, address, FieldType::InetProto, FieldType::InetService]),
            Self::AllowedSources => Set::new(name, with(address)).interval(),
        };
        set.size(size).comment(self.comment())
    }
}

/// The fields of a packet that form the key of a VIP.
pub const VIP: [Field; 3] = [Field::DestinationAddress, Field::Protocol, Field::DestinationPort];

/// The fields of a packet's connection that form the key of the VIP that the client addressed. IPVS rewrites packets between
/// the hooks, so their own fields may differ.
pub const ASKED_FOR: [Field; 3] = [Field::OriginalDestinationAddress, Field::Protocol, Field::OriginalDestinationPort];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for id in SetId::ALL {
            assert_eq!(SetId::of_name(id.name()), Some(id));
            assert_eq!(SetId::ALL[id as usize], id);
        }
    }
}
