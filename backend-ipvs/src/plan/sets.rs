//! The sets and maps of the table, which all Services share.

use localnet_linux::nft::Field;
pub use localnet_linux_backend::sets::{HAIRPIN, Sets, VIP};

localnet_linux_backend::sets! {
    SetId of super::TABLE {
        /// After a restart, this set shows which virtual servers are ours.
        Vips: Vips = "vips", "VIPs, each a virtual server of IPVS";
        /// Packets to these addresses are rejected if their protocol and port belong to no VIP.
        Addresses: Addresses = "addresses", "addresses of kube-ipvs0: ports without a VIP are rejected";
        ClusterIps: Addresses = "cluster-ips", "ClusterIPs";
        External: Vips = "external", "VIPs whose traffic is masqueraded";
        ExternalLocal: Vips = "external-local-vips", "VIPs that send traffic from outside to local endpoints";
        /// Only for VIPs with external policy Local.
        Services: VipToVerdict = "services", "VIP to the choice of an endpoint for this node's own traffic";
        Endpoints: NumberedToEndpoint = "endpoints", "VIP and slot to endpoint";
        /// Maps each VIP without an eligible endpoint to its verdict.
        NoEndpoints: VipToVerdict = "no-endpoints", "VIPs without an eligible endpoint";
        Hairpin: Hairpins = "hairpin", "local endpoints that reach themselves";
        Firewalled: Vips = "firewalled", "VIPs with source ranges";
        AllowedSources: Sources = "allowed-sources", "sources that may reach these VIPs";
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
