//! The names of chains that other chains jump to.

/// Translates traffic to VIPs to their endpoints.
pub const SERVICES: &str = "services";
/// Handles traffic to VIPs with external policy Local.
pub const EXTERNAL_LOCAL: &str = "external-local";
/// Marks packets for masquerading.
pub const MARK_MASQUERADE: &str = "mark-masquerade";
/// Masquerades marked packets and hairpins.
pub const MASQUERADING: &str = "masquerading";
/// Rejects packets with "port unreachable", which clients report as "connection refused".
pub const REJECT_PORT: &str = "reject-port";
/// Drops packets that the source ranges do not admit.
pub const FIREWALL: &str = "firewall";
/// Gives the verdicts for VIPs without endpoints.
pub const UNSERVED: &str = "unserved";
/// Drops traffic from outside to VIPs with external policy Local that have no local endpoint.
pub const UNSERVED_LOCAL: &str = "unserved-local";
/// Gives the verdicts for unused ports and addresses of Services.
pub const UNALLOCATED: &str = "unallocated";
/// Handles traffic to VIPs with session affinity.
pub const AFFINITY: &str = "affinity";
/// Like `AFFINITY`, for traffic that only goes to local endpoints.
pub const AFFINITY_LOCAL: &str = "affinity-local";
