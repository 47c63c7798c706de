//! The sets and maps of the table: always these, whatever the services.

use localnet_linux::nft::{Family, Field, FieldType, Set};

/// One of the sets and maps of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SetId {
    /// All VIPs: whose virtual servers are ours, also after a restart.
    Vips,
    /// Addresses that the interface has for VIPs: what is no VIP there is refused.
    Addresses,
    /// ClusterIPs.
    ClusterIps,
    /// VIPs whose traffic is masqueraded.
    External,
    /// VIPs that send traffic from outside to local endpoints only.
    ExternalLocal,
    /// Of those, VIP → the chain that picks one of its endpoints for this node's own traffic.
    Services,
    /// VIP and slot → endpoint.
    Endpoints,
    /// VIP → what happens as nothing serves it.
    NoEndpoints,
    /// Connections of local endpoints to themselves.
    Hairpin,
    /// VIPs that not everyone may reach.
    Firewalled,
    /// Who may reach them.
    AllowedSources,
}

impl SetId {
    /// All, in the order in which they are declared.
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

    /// Its name in the kernel.
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

    /// The set of that name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|id| id.name() == name)
    }

    /// What it is for, as `nft list` shows it.
    pub fn comment(self) -> &'static str {
        match self {
            Self::Vips => "VIPs, each a virtual server of IPVS",
            Self::Addresses => "addresses of kube-ipvs0: what is no VIP there is refused",
            Self::ClusterIps => "ClusterIPs",
            Self::External => "VIPs whose traffic is masqueraded",
            Self::ExternalLocal => "VIPs that send traffic from outside to local endpoints",
            Self::Services => "VIP to the choice of an endpoint for this node's own traffic",
            Self::Endpoints => "VIP and slot to endpoint",
            Self::NoEndpoints => "VIPs that nothing serves",
            Self::Hairpin => "local endpoints that reach themselves",
            Self::Firewalled => "VIPs that not everyone may reach",
            Self::AllowedSources => "who may reach them",
        }
    }

    /// Its declaration in a family's table, for so many elements.
    pub fn declaration(self, family: Family, size: u32) -> Set {
        let address = family.address_type();
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

/// What of a packet is the key of a VIP.
pub const VIP: [Field; 3] = [Field::DestinationAddress, Field::Protocol, Field::DestinationPort];

/// What of a packet's connection is the key of the VIP that was asked for: IPVS rewrites packets on their way from one hook to
/// the next.
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
