//! Plans the desired state of the kernel from the state. Pure: no I/O, no clock, no environment, no logging.
//!
//! ```text
//!  client::vips::Vip ──┬─► server     its virtual server and destinations
//!                      └─► elements   its elements in the sets and maps of the table
//!  client::vips::Facts ──► chains     the chains and their rules, which depend on no Service
//! ```

pub mod chains;
pub mod elements;
pub mod server;
pub mod sets;

use localnet_client::vips::VipKey;
use localnet_linux::{
    ipvs::Frontend,
    nft::{self, Family, Table},
};

/// The name of both tables.
pub const TABLE: &str = "localnet-ipvs";
/// The interface for the addresses of VIPs. kube-proxy uses the same name.
pub const INTERFACE: &str = "kube-ipvs0";

/// The table of a family.
pub fn table(family: Family) -> Table {
    Table::new(family, TABLE)
}

/// Converts an address family of the state to the kernel's type.
pub fn family_of(family: localnet_proto::Family) -> Family {
    match family {
        localnet_proto::Family::V4 => Family::V4,
        localnet_proto::Family::V6 => Family::V6,
    }
}

/// Converts an address family of the kernel to the type of the state.
pub fn model_family(family: Family) -> localnet_proto::Family {
    match family {
        Family::V4 => localnet_proto::Family::V4,
        Family::V6 => localnet_proto::Family::V6,
    }
}

/// Converts a protocol of the state to the kernel's type.
pub fn protocol_of(protocol: localnet_proto::Protocol) -> nft::Protocol {
    match protocol {
        localnet_proto::Protocol::Tcp => nft::Protocol::Tcp,
        localnet_proto::Protocol::Udp => nft::Protocol::Udp,
        localnet_proto::Protocol::Sctp => nft::Protocol::Sctp,
    }
}

/// The VIP of a virtual server.
pub fn vip(frontend: &Frontend) -> VipKey {
    let protocol = match frontend.protocol {
        nft::Protocol::Tcp => localnet_proto::Protocol::Tcp,
        nft::Protocol::Udp => localnet_proto::Protocol::Udp,
        nft::Protocol::Sctp => localnet_proto::Protocol::Sctp,
    };
    VipKey { address: frontend.address.ip(), protocol, port: frontend.address.port() }
}

/// The key that IPVS and connection tracking have for a VIP.
pub fn frontend(vip: &VipKey) -> Frontend {
    Frontend::new(protocol_of(vip.protocol), vip.socket())
}
