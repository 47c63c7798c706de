//! Virtual servers and their destinations as plain values.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;

use localnet_core::Family;

use super::Frontend;

/// A virtual server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VirtualServer {
    /// The address, protocol and port that clients send to; unique among virtual servers.
    pub frontend: Frontend,
    /// The algorithm that chooses the destination of a new connection.
    pub scheduler: Scheduler,
    /// Options of the virtual server and its scheduler.
    pub flags: Flags,
    /// The persistence; `None` if the connections of a client may go to different destinations.
    pub persistence: Option<Persistence>,
}

impl VirtualServer {
    /// A virtual server without flags and persistence.
    pub fn new(frontend: Frontend, scheduler: Scheduler) -> Self {
        Self { frontend, scheduler, flags: Flags::default(), persistence: None }
    }
}

/// The name of a scheduler, such as `rr`. The kernel module `ip_vs_NAME` implements it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scheduler(Arc<str>);

impl Scheduler {
    /// `IP_VS_SCHEDNAME_MAXLEN` without the terminating zero.
    const LONGEST: usize = 15;

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The scheduler of a virtual server that the kernel reports, which is `none` if it has no scheduler.
    pub(super) fn reported(name: &str) -> Self {
        Self(name.into())
    }

    /// The name of the kernel module.
    pub fn module(&self) -> String {
        format!("ip_vs_{}", self.0)
    }
}

impl Default for Scheduler {
    /// `rr`: round robin.
    fn default() -> Self {
        Self("rr".into())
    }
}

impl FromStr for Scheduler {
    type Err = InvalidScheduler;

    /// Checks the name. The kernel would accept any name, and then report that no module of that name exists. With `none`, it creates
    /// a virtual server without a scheduler, which refuses all connections (`ip_vs_add_service`).
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let known = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        if name == "none" || name.is_empty() || name.len() > Self::LONGEST || !name.bytes().all(known) {
            return Err(InvalidScheduler(name.to_owned()));
        }
        Ok(Self(name.into()))
    }
}

impl fmt::Display for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A name that no scheduler can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not the name of an IPVS scheduler: use one of rr, wrr, lc, wlc, lblc, lblcr, dh, sh, sed, nq, fo, ovf, mh, or the NAME \
     of a kernel module ip_vs_NAME of your own"
)]
pub struct InvalidScheduler(String);

/// Flags of a virtual server: `IP_VS_SVC_F_*`, without those for persistence ([`Persistence`]) and for the kernel's internal use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags(u32);

impl Flags {
    /// `IP_VS_SVC_F_ONEPACKET`: schedules each datagram separately.
    pub const ONE_PACKET: Self = Self(0x4);
    /// The first flag of the scheduler. With `sh` and `mh`: fall back to another destination if the chosen one has weight 0.
    pub const SCHEDULER_1: Self = Self(0x8);
    /// The second flag of the scheduler. With `sh` and `mh`: hash the client's port in addition to its address.
    pub const SCHEDULER_2: Self = Self(0x10);
    /// The third flag of the scheduler.
    pub const SCHEDULER_3: Self = Self(0x20);

    const ALL: u32 = 0x3c;

    /// Whether all of `flags` are set.
    pub fn has(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// The union of both.
    #[must_use]
    pub fn with(self, flags: Self) -> Self {
        Self(self.0 | flags.0)
    }

    /// The flags in the kernel's bits. Bits that are not in [`Flags`] are ignored.
    pub(super) fn from_bits(bits: u32) -> Self {
        Self(bits & Self::ALL)
    }

    pub(super) fn bits(self) -> u32 {
        self.0
    }
}

/// Sends all connections of a client to one destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Persistence {
    /// How long the binding lasts after the client's last connection ended, in seconds.
    pub timeout: u32,
    /// The length of the prefix that defines a client: addresses with an equal prefix are one client.
    pub prefix_len: u8,
}

impl Persistence {
    /// Persistence for single addresses; `timeout` is in seconds.
    pub fn of_addresses(family: Family, timeout: u32) -> Self {
        Self { timeout, prefix_len: full_prefix(family) }
    }
}

/// The prefix length of a single address.
pub(super) fn full_prefix(family: Family) -> u8 {
    match family {
        Family::V4 => 32,
        Family::V6 => 128,
    }
}

/// A destination of a virtual server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Destination {
    /// The address and port; unique within the virtual server.
    pub address: SocketAddr,
    /// The weight for weighted schedulers, at most 2³¹-1. With weight 0, the destination gets no new connections, but keeps the
    /// existing ones.
    pub weight: u32,
    /// How packets are forwarded.
    pub forwarding: Forwarding,
    /// Once the destination has this many connections, it gets no new ones; 0 for no limit.
    pub upper_threshold: u32,
    /// Once an overloaded destination has fewer connections than this, it gets new ones again. At most `upper_threshold`.
    pub lower_threshold: u32,
}

impl Destination {
    /// A destination with masquerading and without thresholds.
    pub fn masqueraded(address: SocketAddr, weight: u32) -> Self {
        Self { address, weight, forwarding: Forwarding::MASQUERADE, upper_threshold: 0, lower_threshold: 0 }
    }
}

/// The forwarding method: part of `IP_VS_CONN_F_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Forwarding(pub(super) u32);

impl Forwarding {
    /// `MASQ`: rewrites destination and port, and restores them in replies.
    pub const MASQUERADE: Self = Self(0);
    /// `LOCALNODE`: delivers packets to this node unchanged.
    pub const LOCAL: Self = Self(1);
    /// `TUNNEL`: encapsulates packets to the destination.
    pub const TUNNEL: Self = Self(2);
    /// `DROUTE`: forwards packets unchanged to a destination that has the virtual address itself.
    pub const ROUTE: Self = Self(3);
}

/// The number of a destination's connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Connections {
    /// Established connections.
    pub active: u32,
    /// Connections that are closing, and flows of datagrams.
    pub inactive: u32,
    /// The number of clients that persistence binds to the destination.
    pub persistent: u32,
}

impl Connections {
    /// Whether no connection is left. Persistent clients do not count.
    pub fn is_drained(self) -> bool {
        self.active == 0 && self.inactive == 0
    }
}

/// The live state of a virtual server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerState {
    /// The virtual server.
    pub server: VirtualServer,
    /// The destinations, in the kernel's order.
    pub destinations: Vec<DestinationState>,
}

/// The live state of a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DestinationState {
    /// The destination as the kernel holds it.
    pub destination: Destination,
    /// The number of the destination's connections.
    pub connections: Connections,
}

/// Idle timeouts of connections, in seconds. In a change, 0 keeps the kernel's value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Timeouts {
    /// The timeout of an established TCP connection.
    pub tcp: u32,
    /// The timeout of a TCP connection that one side has closed.
    pub tcp_fin: u32,
    /// The timeout of a UDP flow.
    pub udp: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scheduler_names_are_valid_module_names() {
        for name in ["rr", "mh", "lblcr", "my_own-1", "fifteen_letters"] {
            assert_eq!(name.parse::<Scheduler>().unwrap().module(), format!("ip_vs_{name}"));
        }
        for name in ["", "sixteen_letters_", "r r", "rr\n", "../rr", "rré", "rr\0"] {
            let error = name.parse::<Scheduler>().unwrap_err().to_string();
            assert!(error.contains(&format!("{name:?}")) && error.contains("rr, wrr"), "{error}");
        }
    }

    #[test]
    fn flags_combine() {
        let flags = Flags::ONE_PACKET.with(Flags::SCHEDULER_2);
        assert!(flags.has(Flags::SCHEDULER_2) && !flags.has(Flags::SCHEDULER_1));
        assert!(!flags.has(Flags::SCHEDULER_1.with(Flags::SCHEDULER_2)));
        assert_eq!(Flags::from_bits(u32::MAX).bits(), 0x3c);
    }
}
