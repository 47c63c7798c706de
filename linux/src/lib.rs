//! What more than one Linux backend needs: nf_tables and connection tracking over netlink, the node's own
//! addresses.
//!
//! Knows nothing of Kubernetes, of Services or of the wire contract: its words are the kernel's.

pub mod addresses;
pub mod conntrack;
mod netlink;
pub mod nft;
