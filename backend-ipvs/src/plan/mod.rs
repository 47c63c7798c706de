//! Plans the desired state of the kernel from a snapshot. Pure: no I/O, no clock, no environment, no logging.
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
use localnet_linux::{ipvs::Frontend, nft::Table};
pub use localnet_linux_backend::elements::frontend;
use localnet_proto::Family;
use sets::Sets as _;

/// The name of both tables.
pub const TABLE: &str = "localnet-ipvs";
/// The interface for the addresses of VIPs. kube-proxy uses the same name.
pub const INTERFACE: &str = "kube-ipvs0";

/// The table of a family.
pub fn table(family: Family) -> Table {
    sets::SetId::table(family)
}

/// The VIP of a virtual server.
pub fn vip(frontend: &Frontend) -> VipKey {
    VipKey { address: frontend.address.ip(), protocol: frontend.protocol, port: frontend.address.port() }
}
