//! The sets and maps. They are the same for all services. The sets of session affinity exist only while a service has it.

use localnet_linux::nft::{FieldType, Name, Set, Table};
use localnet_linux_backend::sets::Shape;
pub use localnet_linux_backend::sets::{HAIRPIN, Sets, VIP};
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
    /// VIP and a source range that may reach this VIP.
    AllowedSources,
    /// VIP with session affinity → the ID of its Service's port.
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

impl Sets for SetId {
    const TABLE: &'static str = super::TABLE;

    const ALL: &'static [(Self, &'static str, Shape, &'static str)] = &[
        (Self::ClusterIps, "cluster-ips", Shape::Addresses, "ClusterIPs: unused ports are rejected"),
        (Self::External, "external", Shape::Vips, "VIPs whose traffic is masqueraded"),
        (
            Self::ExternalLocal,
            "external-local-vips",
            Shape::Vips,
            "VIPs that send traffic from outside to local endpoints",
        ),
        (Self::Services, "services", Shape::VipToVerdict, "VIP to the choice of an endpoint"),
        (Self::Endpoints, "endpoints", Shape::NumberedToEndpoint, "VIP and slot to endpoint"),
        (Self::LocalServices, "local-services", Shape::VipToVerdict, "VIP to the choice of a local endpoint"),
        (Self::LocalEndpoints, "local-endpoints", Shape::NumberedToEndpoint, "VIP and slot to local endpoint"),
        (Self::NoEndpoints, "no-endpoints", Shape::VipToVerdict, "VIPs without an eligible endpoint"),
        (Self::Hairpin, "hairpin", Shape::Hairpins, "local endpoints that reach themselves"),
        (Self::Firewalled, "firewalled", Shape::Vips, "VIPs with source ranges"),
        (Self::AllowedSources, "allowed-sources", Shape::Sources, "sources that may reach these VIPs"),
        (
            Self::AffinityVips,
            "affinity-vips",
            Shape::VipToNumber,
            "VIP to the number of the port whose clients keep their endpoint",
        ),
        (Self::AffinityTimeouts, "affinity-timeouts", Shape::Numbered, "VIP and seconds for which clients keep it"),
        (Self::AffinitySizes, "affinity-sizes", Shape::Numbered, "VIP and size to pick from"),
        (Self::AffinitySlots, "affinity-slots", Shape::Numbered, "VIP and slot in use"),
        (Self::AffinityPicks, "affinity-picks", Shape::NumberedToVerdict, "VIP and number of an endpoint to its slot"),
        (
            Self::AffinityLocalSizes,
            "affinity-local-sizes",
            Shape::Numbered,
            "VIP and size to pick a local endpoint from",
        ),
        (Self::AffinityLocalSlots, "affinity-local-slots", Shape::Numbered, "VIP and slot in use by a local endpoint"),
        (
            Self::AffinityLocalPicks,
            "affinity-local-picks",
            Shape::NumberedToVerdict,
            "VIP and number of a local endpoint to its slot",
        ),
        (Self::AffinityEndpoints, "affinity-endpoints", Shape::NumberedToEndpoint, "VIP and slot to endpoint"),
    ];

    fn index(self) -> usize {
        self as usize
    }

    /// Whether the set exists only while a VIP has session affinity.
    fn is_optional(self) -> bool {
        self >= Self::AffinityVips
    }

    fn substitute(family: Family) -> Option<Table> {
        Some(super::substitute(family))
    }

    fn numbered(family: Family, slot: u32) -> Option<Set> {
        Some(clients(family, slot))
    }

    fn number_of(name: &str) -> Option<u32> {
        slot_of_clients(name)
    }
}

/// The set of a slot's clients. If it is full, a new client is served but not remembered.
pub fn clients(family: Family, slot: u32) -> Set {
    Set::new(clients_name(slot), [FieldType::address(family), FieldType::Priority])
        .dynamic(None)
        .size(CLIENTS)
        .comment("clients that stay with this slot, with the number of a port")
}

/// How many clients each slot remembers.
const CLIENTS: u32 = 65_536;

/// The slot whose set of clients has this name; `None` if no set of clients can have it.
pub fn slot_of_clients(name: &str) -> Option<u32> {
    let number = name.strip_prefix("affinity-")?.parse().ok()?;
    (*clients_name(number) == *name).then_some(number)
}

/// The name of the set of a slot's clients.
pub fn clients_name(slot: u32) -> Name {
    format!("affinity-{slot}").into()
}

/// The endpoints among which the rules choose.
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

    #[test]
    fn names_of_sets_of_clients_are_read_back() {
        for slot in [0, 7, 4_000_000_000] {
            assert_eq!(slot_of_clients(&clients(Family::V4, slot).name), Some(slot));
        }
        for name in ["affinity-", "affinity-vips", "affinity-07", "affinity-+7", "slot-7"] {
            assert_eq!(slot_of_clients(name), None, "{name}");
        }
    }
}
