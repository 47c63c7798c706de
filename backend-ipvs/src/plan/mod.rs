//! Snapshot → what the kernel should hold. Pure: no I/O, no clock, no environment, no logging.
//!
//! ```text
//!  client::vips::Vip ──┬─► server     its virtual server and destinations
//!                      └─► elements   what it is in each set and map of the table
//!  client::vips::Facts ──► chains     the chains and their rules; none of them depends on a service
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
/// The interface that has the addresses of VIPs, as in kube-proxy.
pub const INTERFACE: &str = "kube-ipvs0";

/// The table of a family.
pub fn table(family: Family) -> Table {
    Table::new(family, TABLE)
}

/// The kernel's word for an address family of the model.
pub fn family_of(family: localnet_proto::Family) -> Family {
    match family {
        localnet_proto::Family::V4 => Family::V4,
        localnet_proto::Family::V6 => Family::V6,
    }
}

/// The model's word for an address family of the kernel.
pub fn model_family(family: Family) -> localnet_proto::Family {
    match family {
        Family::V4 => localnet_proto::Family::V4,
        Family::V6 => localnet_proto::Family::V6,
    }
}

/// The kernel's word for a protocol of the model.
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

/// What a VIP's virtual server, and its flows, are known by.
pub fn frontend(vip: &VipKey) -> Frontend {
    Frontend::new(protocol_of(vip.protocol), vip.socket())
}
