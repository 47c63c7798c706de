//! Virtual servers and their destinations as plain values.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;

use super::{Family, Frontend};

/// A virtual server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VirtualServer {
    /// What clients send to. There is one virtual server at most for each.
    pub frontend: Frontend,
    /// Who chooses the destination of a new connection.
    pub scheduler: Scheduler,
    /// How.
    pub flags: Flags,
    /// Whether the connections of a client go to one destination.
    pub persistence: Option<Persistence>,
}

impl VirtualServer {
    /// One without flags and persistence.
    pub fn new(frontend: Frontend, scheduler: Scheduler) -> Self {
        Self { frontend, scheduler, flags: Flags::default(), persistence: None }
    }
}

/// The name of a scheduler, such as `rr`; the module `ip_vs_NAME` has it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scheduler(Arc<str>);

impl Scheduler {
    /// `IP_VS_SCHEDNAME_MAXLEN` without the zero byte at the end.
    const LONGEST: usize = 15;

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The module of the kernel that has it.
    pub fn module(&self) -> String {
        format!("ip_vs_{}", self.0)
    }
}

impl Default for Scheduler {
    /// `rr`: one after the other.
    fn default() -> Self {
        Self("rr".into())
    }
}

impl FromStr for Scheduler {
    type Err = InvalidScheduler;

    /// The kernel takes any name, asks for the module of that name, and says that it found none: a name that
    /// no module can have is refused here.
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let known = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        if name.is_empty() || name.len() > Self::LONGEST || !name.bytes().all(known) {
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

/// No scheduler has such a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no name of an IPVS scheduler: use one of rr, wrr, lc, wlc, lblc, lblcr, dh, sh, sed, nq, fo, ovf, mh, or that of \
     a module ip_vs_NAME of your own"
)]
pub struct InvalidScheduler(String);

/// Flags of a virtual server: bits of `IP_VS_SVC_F_*`, without those that say that it is persistent ([`Persistence`]) and
/// hashed (the kernel's own).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags(u32);

impl Flags {
    /// Each datagram is scheduled by itself.
    pub const ONE_PACKET: Self = Self(0x4);
    /// The first flag of the scheduler. `sh`, `mh`: another destination where the chosen one has weight 0.
    pub const SCHEDULER_1: Self = Self(0x8);
    /// The second flag of the scheduler. `sh`, `mh`: the client's port counts as well as its address.
    pub const SCHEDULER_2: Self = Self(0x10);
    /// The third flag of the scheduler.
    pub const SCHEDULER_3: Self = Self(0x20);

    const ALL: u32 = 0x3c;

    /// Whether all of these are set.
    pub fn has(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// These and those.
    #[must_use]
    pub fn with(self, flags: Self) -> Self {
        Self(self.0 | flags.0)
    }

    /// As the kernel has them, others left out.
    pub(super) fn from_bits(bits: u32) -> Self {
        Self(bits & Self::ALL)
    }

    pub(super) fn bits(self) -> u32 {
        self.0
    }
}

/// All connections of a client go to one destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Persistence {
    /// For how many seconds after the last of them ended.
    pub timeout: u32,
    /// Clients whose addresses have that many first bits in common are one client.
    pub prefix_len: u8,
}

impl Persistence {
    /// Each address is a client.
    pub fn of_addresses(family: Family, timeout: u32) -> Self {
        Self { timeout, prefix_len: full_prefix(family) }
    }
}

/// The length of a prefix that is one address.
pub(super) fn full_prefix(family: Family) -> u8 {
    match family {
        Family::V4 => 32,
        Family::V6 => 128,
    }
}

/// A destination of a virtual server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Destination {
    /// Where it is. A virtual server has one destination at most for each.
    pub address: SocketAddr,
    /// Its share of new connections, for schedulers that weigh; 0: no new ones, those that there are stay. At most 2³¹-1.
    pub weight: u32,
    /// How packets get there.
    pub forwarding: Forwarding,
    /// No new connections from that many on; 0: any number.
    pub upper_threshold: u32,
    /// New ones again when fewer than that many are left; not above the upper one.
    pub lower_threshold: u32,
}

impl Destination {
    /// One whose connections are translated, with any number of them.
    pub fn masqueraded(address: SocketAddr, weight: u32) -> Self {
        Self { address, weight, forwarding: Forwarding::MASQUERADE, upper_threshold: 0, lower_threshold: 0 }
    }
}

/// `IP_VS_CONN_F_*`, as far as they say how packets are forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Forwarding(pub(super) u32);

impl Forwarding {
    /// Destination and port are rewritten, and back in replies.
    pub const MASQUERADE: Self = Self(0);
    /// Delivered on this node, unchanged.
    pub const LOCAL: Self = Self(1);
    /// Wrapped into packets to the destination.
    pub const TUNNEL: Self = Self(2);
    /// Sent on unchanged: the destination has the virtual address itself.
    pub const ROUTE: Self = Self(3);
}

/// What a destination has to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Connections {
    /// Established connections.
    pub active: u32,
    /// Others that are still remembered: closing ones, and flows of datagrams.
    pub inactive: u32,
    /// Clients that are bound to it.
    pub persistent: u32,
}

impl Connections {
    /// Whether no connection is left. A client that is bound to it is none.
    pub fn is_drained(self) -> bool {
        self.active == 0 && self.inactive == 0
    }
}

/// After how many seconds without a packet IPVS forgets a connection; 0 in a change leaves the kernel's as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Timeouts {
    /// An established TCP connection.
    pub tcp: u32,
    /// A TCP connection of which one side has closed.
    pub tcp_fin: u32,
    /// A flow of UDP datagrams.
    pub udp: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedulers_have_names_that_modules_can_have() {
        for name in ["rr", "mh", "lblcr", "my_own-1", "fifteen_letters"] {
            assert_eq!(name.parse::<Scheduler>().unwrap().module(), format!("ip_vs_{name}"));
        }
        for name in ["", "sixteen_letters_", "r r", "rr\n", "../rr", "rré", "rr\0"] {
            let error = name.parse::<Scheduler>().unwrap_err().to_string();
            assert!(error.contains(&format!("{name:?}")) && error.contains("rr, wrr"), "{error}");
        }
    }

    #[test]
    fn flags_add_up() {
        let flags = Flags::ONE_PACKET.with(Flags::SCHEDULER_2);
        assert!(flags.has(Flags::SCHEDULER_2) && !flags.has(Flags::SCHEDULER_1));
        assert!(!flags.has(Flags::SCHEDULER_1.with(Flags::SCHEDULER_2)));
        assert_eq!(Flags::from_bits(u32::MAX).bits(), 0x3c);
    }
}
