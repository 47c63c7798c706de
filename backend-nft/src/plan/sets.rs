//! The sets and maps. They are the same for all services; those of affinity exist only while a service has it.

use localnet_linux::nft::{Field, FieldType, Set};
use localnet_proto::Family;

/// One of the sets and maps of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SetId {
    /// ClusterIPs, whose unused ports reject packets.
    ClusterIps,
    /// VIPs whose traffic is masqueraded.
    External,
    /// VIPs that send traffic from outside to local endpoints only.
    ExternalLocal,
    /// VIP → the chain that picks one of its endpoints.
    Services,
    /// VIP and slot → endpoint.
    Endpoints,
    /// VIP → the chain that picks one of its local endpoints.
    LocalServices,
    /// VIP and slot → local endpoint.
    LocalEndpoints,
    /// VIP → the verdict while it has no endpoints.
    NoEndpoints,
    /// Connections of local endpoints to themselves.
    Hairpin,
    /// VIPs with source ranges.
    Firewalled,
    /// VIP and source range that may reach it.
    AllowedSources,
    /// VIP with session affinity → the number of its Service's port.
    AffinityVips,
    /// VIP and timeout in seconds.
    AffinityTimeouts,
    /// VIP and the number of endpoints to pick from.
    AffinitySizes,
    /// VIP and a slot that has an endpoint.
    AffinitySlots,
    /// VIP and number of an endpoint → the chain of its slot.
    AffinityPicks,
    /// VIP and the number of local endpoints to pick from.
    AffinityLocalSizes,
    /// VIP and a slot that has a local endpoint.
    AffinityLocalSlots,
    /// VIP and number of a local endpoint → the chain of its slot.
    AffinityLocalPicks,
    /// VIP and slot → endpoint.
    AffinityEndpoints,
}

impl SetId {
    /// All sets, in the order of their declaration.
    pub const ALL: [Self; 20] = [
        Self::ClusterIps,
        Self::External,
        Self::ExternalLocal,
        Self::Services,
        Self::Endpoints,
        Self::LocalServices,
        Self::LocalEndpoints,
        Self::NoEndpoints,
        Self::Hairpin,
        Self::Firewalled,
        Self::AllowedSources,
        Self::AffinityVips,
        Self::AffinityTimeouts,
        Self::AffinitySizes,
        Self::AffinitySlots,
        Self::AffinityPicks,
        Self::AffinityLocalSizes,
        Self::AffinityLocalSlots,
        Self::AffinityLocalPicks,
        Self::AffinityEndpoints,
    ];

    /// Whether it exists only while something has session affinity.
    pub fn is_of_affinity(self) -> bool {
        self >= Self::AffinityVips
    }

    /// The name in the kernel.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ClusterIps => "cluster-ips",
            Self::External => "external",
            Self::ExternalLocal => "external-local-vips",
            Self::Services => "services",
            Self::Endpoints => "endpoints",
            Self::LocalServices => "local-services",
            Self::LocalEndpoints => "local-endpoints",
            Self::NoEndpoints => "no-endpoints",
            Self::Hairpin => "hairpin",
            Self::Firewalled => "firewalled",
            Self::AllowedSources => "allowed-sources",
            Self::AffinityVips => "affinity-vips",
            Self::AffinityTimeouts => "affinity-timeouts",
            Self::AffinitySizes => "affinity-sizes",
            Self::AffinitySlots => "affinity-slots",
            Self::AffinityPicks => "affinity-picks",
            Self::AffinityLocalSizes => "affinity-local-sizes",
            Self::AffinityLocalSlots => "affinity-local-slots",
            Self::AffinityLocalPicks => "affinity-local-picks",
            Self::AffinityEndpoints => "affinity-endpoints",
        }
    }

    /// The set with that name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|id| id.name() == name)
    }

    /// The purpose of the set, which `nft list` shows as its comment.
    pub fn comment(self) -> &'static str {
        match self {
            Self::ClusterIps => "ClusterIPs: unused ports are rejected",
            Self::External => "VIPs whose traffic is masqueraded",
            Self::ExternalLocal => "VIPs that send traffic from outside to local endpoints",
            Self::Services => "VIP to the choice of an endpoint",
            Self::Endpoints => "VIP and slot to endpoint",
            Self::LocalServices => "VIP to the choice of a local endpoint",
            Self::LocalEndpoints => "VIP and slot to local endpoint",
            Self::NoEndpoints => "VIPs without an eligible endpoint",
            Self::Hairpin => "local endpoints that reach themselves",
            Self::Firewalled => "VIPs with source ranges",
            Self::AllowedSources => "sources that may reach these VIPs",
            Self::AffinityVips => "VIP to the number of the port whose clients keep their endpoint",
            Self::AffinityTimeouts => "VIP and seconds for which clients keep it",
            Self::AffinitySizes => "VIP and size to pick from",
            Self::AffinitySlots => "VIP and slot in use",
            Self::AffinityPicks => "VIP and number of an endpoint to its slot",
            Self::AffinityLocalSizes => "VIP and size to pick a local endpoint from",
            Self::AffinityLocalSlots => "VIP and slot in use by a local endpoint",
            Self::AffinityLocalPicks => "VIP and number of a local endpoint to its slot",
            Self::AffinityEndpoints => "VIP and slot to endpoint",
        }
    }

    /// The declaration in a family's table, with room for `size` elements.
    pub fn declaration(self, family: Family, size: u32) -> Set {
        let address = FieldType::address(family);
        let vip = [address, FieldType::InetProto, FieldType::InetService];
        let with = |field| [vip.as_slice(), &[field]].concat();
        let endpoint = [address, FieldType::InetService];
        let name = self.name();
        let set = match self {
            Self::ClusterIps => Set::new(name, [address]),
            Self::External | Self::ExternalLocal | Self::Firewalled => Set::new(name, vip),
            Self::AffinityVips => Set::map(name, vip, [FieldType::Priority]),
            Self::Services | Self::LocalServices | Self::NoEndpoints => Set::verdict_map(name, vip),
            Self::Endpoints | Self::LocalEndpoints | Self::AffinityEndpoints => {
                Set::map(name, with(FieldType::Index), endpoint)
            }
            Self::AffinityTimeouts
            | Self::AffinitySizes
            | Self::AffinitySlots
            | Self::AffinityLocalSizes
            | Self::AffinityLocalSlots => Set::new(name, with(FieldType::Index)),
            Self::AffinityPicks | Self::AffinityLocalPicks => Set::verdict_map(name, with(FieldType::Index)),
            Self::Hairpin => Set::new(name, [address, address, FieldType::InetProto, FieldType::InetService]),
            Self::AllowedSources => Set::new(name, with(address)).interval(),
        };
        set.size(size).comment(self.comment())
    }
}

/// The endpoints that one is chosen from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pool {
    /// All eligible endpoints of the VIP.
    Cluster,
    /// The endpoints on this node, for traffic from outside under policy Local.
    Local,
}

impl Pool {
    /// The map from VIP and slot to endpoint.
    pub fn endpoints(self) -> SetId {
        match self {
            Self::Cluster => SetId::Endpoints,
            Self::Local => SetId::LocalEndpoints,
        }
    }

    /// The map from VIP to the chain that picks an endpoint.
    pub fn services(self) -> SetId {
        match self {
            Self::Cluster => SetId::Services,
            Self::Local => SetId::LocalServices,
        }
    }
}

/// The fields of a packet that are the key of a VIP.
pub const VIP: [Field; 3] = [Field::DestinationAddress, Field::Protocol, Field::DestinationPort];

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
