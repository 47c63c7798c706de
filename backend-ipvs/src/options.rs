//! What an operator chooses of IPVS. Parsing of flags is [`crate::args`].

use std::{net::IpAddr, time::Duration};

use ipnet::IpNet;
use localnet_linux::ipvs::{Flags, InvalidScheduler, Scheduler, Timeouts};

/// How virtual servers are made, and whose are never touched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Who chooses the destination of a new connection, where the Service does not say.
    pub scheduler: Scheduler,
    /// Virtual servers with an address in there are somebody else's.
    pub exclude_cidrs: Vec<IpNet>,
    /// After so long the connections of an endpoint that is gone are cut off; `None`: never.
    pub drain_limit: Option<Duration>,
    /// Answer ARP for an address only at the interface that has it.
    pub strict_arp: bool,
    /// Those that are 0 stay as the kernel has them.
    pub timeouts: Timeouts,
}

impl Default for Options {
    /// kube-proxy's defaults.
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
    /// Whether virtual servers of that address are somebody else's.
    pub fn excludes(&self, address: IpAddr) -> bool {
        self.exclude_cidrs.iter().any(|cidr| cidr.contains(&address))
    }
}

/// Reads the name of a scheduler. `maglev` is what everybody but the kernel calls `mh`.
///
/// # Errors
/// No scheduler can have such a name.
pub fn scheduler(name: &str) -> Result<Scheduler, InvalidScheduler> {
    if name == "maglev" { "mh".parse() } else { name.parse() }
}

/// The flags of virtual servers with that scheduler: as in kube-proxy, `mh` looks at the client's port as well as its address.
pub fn flags(scheduler: &Scheduler) -> Flags {
    if scheduler.as_str() == "mh" { Flags::SCHEDULER_2 } else { Flags::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maglev_is_mh_and_hashes_ports() {
        assert_eq!(scheduler("maglev"), scheduler("mh"));
        assert_eq!(scheduler("maglev").map(|maglev| flags(&maglev)), Ok(Flags::SCHEDULER_2));
        assert_eq!(flags(&Scheduler::default()), Flags::default());
        assert!(scheduler("round robin").is_err());
    }

    #[test]
    fn addresses_of_both_families_are_excluded() {
        let exclude_cidrs = ["10.0.0.0/8", "fd00::/16"].map(|cidr| cidr.parse().unwrap()).into();
        let options = Options { exclude_cidrs, ..Options::default() };
        for (address, excluded) in [("10.1.2.3", true), ("11.0.0.1", false), ("fd00::1", true), ("fd01::1", false)] {
            assert_eq!(options.excludes(address.parse().unwrap()), excluded, "{address}");
        }
    }
}
