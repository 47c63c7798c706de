//! The sets and maps, which all Services share. The sets of session affinity exist only while a Service has affinity.

use localnet_linux::{
    nft::{FieldType, Name, Set, Table},
    traffic::Reason,
};
pub use localnet_linux_backend::sets::{HAIRPIN, Sets, VIP};
use localnet_proto::Family;

localnet_linux_backend::sets! {
    SetId of super::TABLE {
        ClusterIps: Addresses = "cluster-ips", "ClusterIPs: unused ports are rejected";
        External: Vips = "external", "VIPs whose traffic is masqueraded";
        ExternalLocal: Vips = "external-local-vips", "VIPs that send traffic from outside to local endpoints";
        Services: VipToNumber = "services", "VIP to the number of its slots";
        Sizes: NumberToVerdict = "sizes", "number of slots to the choice of a slot";
        Endpoints: NumberedToEndpoint = "endpoints", "VIP and slot to endpoint";
        LocalServices: VipToNumber = "local-services", "VIP to the number of its slots for local endpoints";
        LocalSizes: NumberToVerdict = "local-sizes", "number of slots to the choice of a slot for local endpoints";
        LocalEndpoints: NumberedToEndpoint = "local-endpoints", "VIP and slot to local endpoint";
        /// Maps each VIP without an eligible endpoint to its verdict.
        NoEndpoints: VipToVerdict = "no-endpoints", "VIPs without an eligible endpoint";
        Hairpin: Hairpins = "hairpin", "local endpoints that reach themselves";
        Firewalled: Vips = "firewalled", "VIPs with source ranges";
        AllowedSources: Sources = "allowed-sources", "sources that may reach these VIPs";
        AffinityVips: VipToNumber = "affinity-vips", "VIP to the ID of its Service port";
        AffinityTimeouts: Numbered = "affinity-timeouts", "VIP and timeout in seconds";
        AffinitySizes: Numbered = "affinity-sizes", "VIP and size of its pool";
        AffinitySlots: Numbered = "affinity-slots", "VIP and slot in use";
        AffinityPicks: NumberedToVerdict = "affinity-picks", "VIP and index of an endpoint to its slot";
        AffinityLocalSizes: Numbered = "affinity-local-sizes", "VIP and size of its local pool";
        AffinityLocalSlots: Numbered = "affinity-local-slots", "VIP and slot in use by a local endpoint";
        AffinityLocalPicks: NumberedToVerdict = "affinity-local-picks", "VIP and index of a local endpoint to its slot";
        AffinityEndpoints: NumberedToEndpoint = "affinity-endpoints", "VIP and slot to endpoint";
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

    fn counting(family: Family) -> Vec<Set> {
        Reason::ALL.into_iter().map(|reason| refused(family, reason)).collect()
    }
}

/// The set that counts the packets to each VIP that are refused for this reason. If it is full, further VIPs are not counted.
pub fn refused(family: Family, reason: Reason) -> Set {
    let vip = [FieldType::address(family), FieldType::InetProto, FieldType::InetService];
    Set::new(refused_name(reason), vip)
        .dynamic(Some(REFUSED_FOR))
        .size(REFUSED)
        .comment("counts refused packets by VIP")
}

/// How many VIPs the set of each reason counts.
const REFUSED: u32 = 65_536;
/// How long a VIP stays in the set after its last refused packet, in seconds. The backend reads the set every few seconds.
const REFUSED_FOR: u32 = 3600;

/// The name of the set that counts the packets that are refused for this reason.
pub fn refused_name(reason: Reason) -> Name {
    let name = match reason {
        Reason::NoEndpoints => "refused-no-endpoints",
        Reason::NoLocalEndpoint => "refused-no-local",
        Reason::SourceRanges => "refused-source",
    };
    name.into()
}

/// The set of a slot's clients. If it is full, a new client is served but not remembered.
pub fn clients(family: Family, slot: u32) -> Set {
    Set::new(clients_name(slot), [FieldType::address(family), FieldType::Priority])
        .dynamic(None)
        .size(CLIENTS)
        .comment("clients of this slot, each with the ID of a Service port")
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

    /// The map from a number of slots to the chain that picks one of them.
    pub fn sizes(self) -> SetId {
        match self {
            Self::Cluster => SetId::Sizes,
            Self::Local => SetId::LocalSizes,
        }
    }

    /// The map from VIP to the number of its slots.
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
