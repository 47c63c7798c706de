//! The operator's options for IPVS. `program` parses them from flags.

use std::{net::IpAddr, time::Duration};

use ipnet::IpNet;
use localnet_client::vips::Vip;
use localnet_linux::ipvs::{Flags, InvalidScheduler, Scheduler, Timeouts};
use localnet_proto::HashBy;

/// How virtual servers are created, and which ones the backend never changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The scheduler that chooses the destination of a new connection, unless the Service requests another one.
    pub scheduler: Scheduler,
    /// Virtual servers with an address in these CIDRs belong to other programs.
    pub exclude_cidrs: Vec<IpNet>,
    /// How long the connections of a removed endpoint may continue; `None` for no limit.
    pub drain_limit: Option<Duration>,
    /// Whether the node answers ARP for an address only on the interface that has the address.
    pub strict_arp: bool,
    /// The timeouts of connections. A timeout of 0 leaves the kernel's value unchanged.
    pub timeouts: Timeouts,
}

impl Default for Options {
    /// The defaults of kube-proxy.
    fn default() -> Self {
        Self {
            scheduler: Scheduler::default(),
            exclude_cidrs: Vec::new(),
            drain_limit: None,
            strict_arp: false,
            timeouts: Timeouts::default(),
        }
    }
}

impl Options {
    /// Whether virtual servers with that address belong to other programs.
    pub fn excludes(&self, address: IpAddr) -> bool {
        self.exclude_cidrs.iter().any(|cidr| cidr.contains(&address))
    }
}

/// The kernel's schedulers that treat all destinations alike, except those of weight 0.
pub const WITHOUT_WEIGHTS: [&str; 3] = ["rr", "lc", "dh"];

/// Parses the name of a scheduler. `maglev` is the common name of what the kernel calls `mh`.
///
/// # Errors
/// Returns an error if no scheduler can have that name.
pub fn scheduler(name: &str) -> Result<Scheduler, InvalidScheduler> {
    if name == "maglev" { "mh".parse() } else { name.parse() }
}

/// The scheduler that hashes consistently.
pub const HASHING: &str = "mh";

/// The scheduler that a VIP's Service requests, by the scheduler's name or by hashing; `None` for the default.
pub fn requested(vip: &Vip) -> Option<&str> {
    vip.ipvs_scheduler.as_deref().or(vip.hash.is_some().then_some(HASHING))
}

/// The flags of virtual servers with that scheduler. As in kube-proxy, `mh` hashes the client's port as well as its address, unless the
/// Service requests otherwise. `mh` and `sh` still choose destinations with weight 0, which drain. Without the fallback, the kernel would
/// refuse these connections.
pub fn flags(scheduler: &Scheduler, by: Option<HashBy>) -> Flags {
    match scheduler.as_str() {
        HASHING if by != Some(HashBy::Source) => Flags::SCHEDULER_1.with(Flags::SCHEDULER_2),
        HASHING | "sh" => Flags::SCHEDULER_1,
        _ => Flags::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maglev_is_an_alias_of_mh_with_hashed_ports() {
        assert_eq!(scheduler("maglev"), scheduler("mh"));
        let maglev = scheduler("maglev").unwrap();
        let with_port = Flags::SCHEDULER_1.with(Flags::SCHEDULER_2);
        assert_eq!(flags(&maglev, None), with_port);
        assert_eq!(flags(&maglev, Some(HashBy::Connection)), with_port);
        assert_eq!(flags(&maglev, Some(HashBy::Source)), Flags::SCHEDULER_1);
        assert_eq!(flags(&Scheduler::default(), None), Flags::default());
        assert!(scheduler("round robin").is_err());
    }

    #[test]
    fn a_hash_that_chooses_a_draining_endpoint_falls_back_to_another_one() {
        for name in ["mh", "sh"] {
            assert!(flags(&scheduler(name).unwrap(), None).has(Flags::SCHEDULER_1), "{name}");
        }
    }

    #[test]
    fn cidrs_exclude_addresses_of_both_families() {
        let exclude_cidrs = ["10.0.0.0/8", "fd00::/16"].map(|cidr| cidr.parse().unwrap()).into();
        let options = Options { exclude_cidrs, ..Options::default() };
        for (address, excluded) in [("10.1.2.3", true), ("11.0.0.1", false), ("fd00::1", true), ("fd01::1", false)] {
            assert_eq!(options.excludes(address.parse().unwrap()), excluded, "{address}");
        }
    }
}
