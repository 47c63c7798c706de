//! The names of the chains that several backends share.

/// Handles traffic to VIPs with external policy Local.
pub const EXTERNAL_LOCAL: &str = "external-local";
/// Marks packets for masquerading.
pub const MARK_MASQUERADE: &str = "mark-masquerade";
/// Masquerades marked packets and hairpin connections.
pub const MASQUERADING: &str = "masquerading";
/// Rejects packets with "port unreachable", which clients report as "connection refused".
pub const REJECT_PORT: &str = "reject-port";
/// Drops packets that the source ranges do not admit.
pub const FIREWALL: &str = "firewall";
/// Rejects or drops packets to VIPs without eligible endpoints.
pub const UNSERVED: &str = "unserved";
/// Rejects or drops packets to unused ports and addresses of Services.
pub const UNALLOCATED: &str = "unallocated";
