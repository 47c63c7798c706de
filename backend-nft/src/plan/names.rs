//! The names of chains that other chains jump to.

pub use localnet_linux::nft::chain_names::{
    EXTERNAL_LOCAL, FIREWALL, MARK_MASQUERADE, MASQUERADING, REJECT_PORT, UNALLOCATED, UNSERVED,
};

/// Translates traffic to VIPs to their endpoints.
pub const SERVICES: &str = "services";
/// Drops traffic from outside to VIPs with external policy Local that have no local endpoint.
pub const UNSERVED_LOCAL: &str = "unserved-local";
/// Counts and drops packets to VIPs that may only have local endpoints, but have none.
pub const DROP_PORT: &str = "drop-port";
/// Counts and drops packets that the source ranges do not admit.
pub const DROP_SOURCE: &str = "drop-source";
/// Handles traffic to VIPs with session affinity.
pub const AFFINITY: &str = "affinity";
/// Like `AFFINITY`, for traffic that only goes to local endpoints.
pub const AFFINITY_LOCAL: &str = "affinity-local";
