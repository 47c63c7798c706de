//! What more than one Linux backend needs: nf_tables, connection tracking and IPVS over netlink, the node's own
//! addresses, a dummy interface for more of them, settings of the kernel, the pace of repairs.
//!
//! Knows nothing of Kubernetes, of Services or of the wire contract: its words are the kernel's.

pub mod addresses;
pub mod conntrack;
pub mod dummy;
pub mod ipvs;
mod netlink;
pub mod nft;
pub mod pace;
pub mod routes;
pub mod setup;
pub mod shortage;
pub mod sysctl;
