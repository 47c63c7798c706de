//! Properties that a kernel may be unable to hold, whichever backend programs the kernel. The comparison of a kernel with the
//! state excludes the properties that this kernel lacks. Pure.

use std::{collections::BTreeSet, net::IpAddr, net::SocketAddr};

use localnet_proto::{Affinity, Protocol, Verdict};

use super::{Entry, To};
use crate::vips::{Exposure, Vip, VipKey};

/// Something that a kernel may be unable to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "program", derive(clap::ValueEnum))]
pub enum Lack {
    /// Verdicts for destinations without endpoints: the kernel neither rejects nor drops packets to them.
    Verdicts,
    /// Scopes: a destination has only one set of endpoints, the set for clients outside of the cluster.
    Scopes,
    /// The duration of session affinity: a dump shows 0 seconds.
    Seconds,
    /// Different ports of a destination's endpoints: all endpoints get the most frequent port, or the lowest of several
    /// equally frequent ports.
    Ports,
    /// Endpoints at the node's own addresses.
    HostNetwork,
    /// Source ranges: a destination whose ranges admit no client is not served at all.
    Sources,
    /// Clients outside of the node: the kernel translates only when a process of the node connects. It then serves neither SCTP nor
    /// source ranges, because it can translate no SCTP sockets, and most sockets have no source address yet.
    Outside,
}

/// A set of `Lack` values; empty for a kernel that can hold everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lacks(BTreeSet<Lack>);

impl FromIterator<Lack> for Lacks {
    fn from_iter<I: IntoIterator<Item = Lack>>(lacks: I) -> Self {
        Self(lacks.into_iter().collect())
    }
}

impl Lacks {
    fn has(&self, lack: Lack) -> bool {
        self.0.contains(&lack)
    }

    /// What a kernel that lacks these properties serves for a VIP. `node` has the addresses of the node.
    pub(super) fn leave(&self, key: &VipKey, vip: &Vip, node: &[IpAddr]) -> Entry {
        let admits_nobody = self.has(Lack::Sources) && vip.sources.as_deref().is_some_and(<[_]>::is_empty);
        let is_beyond = key.protocol == Protocol::Sctp || vip.sources.is_some();
        if admits_nobody || self.has(Lack::Outside) && is_beyond {
            return Entry::default();
        }
        let to = |endpoints: &[SocketAddr]| match To::new(self.endpoints(endpoints, node), vip.when_empty) {
            To::Nothing(Verdict::Reject | Verdict::Drop) if self.has(Lack::Verdicts) => None,
            to => Some(to),
        };
        let (to, outside) = match vip.exposure {
            Exposure::ExternalLocal if self.has(Lack::Scopes) => (to(&vip.local_endpoints), None),
            Exposure::ExternalLocal if !self.has(Lack::Outside) => (to(&vip.endpoints), to(&vip.local_endpoints)),
            Exposure::Internal | Exposure::External | Exposure::ExternalLocal => (to(&vip.endpoints), None),
        };
        let affinity = vip.affinity.map(|held| if self.has(Lack::Seconds) { Affinity::default() } else { held });
        Entry { to, outside, affinity }.plain()
    }

    fn endpoints(&self, endpoints: &[SocketAddr], node: &[IpAddr]) -> Vec<SocketAddr> {
        let port = self.has(Lack::Ports).then(|| most_frequent_port(endpoints)).flatten();
        let is_held = |endpoint: &&SocketAddr| {
            let on_host = self.has(Lack::HostNetwork) && node.contains(&endpoint.ip());
            !on_host && port.is_none_or(|port| endpoint.port() == port)
        };
        endpoints.iter().filter(is_held).copied().collect()
    }
}

fn most_frequent_port(endpoints: &[SocketAddr]) -> Option<u16> {
    let of = |port: u16| endpoints.iter().filter(|endpoint| endpoint.port() == port).count();
    endpoints.iter().map(SocketAddr::port).max_by_key(|port| (of(*port), std::cmp::Reverse(*port)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "program")]
    #[test]
    fn only_known_words_are_accepted() {
        use clap::ValueEnum as _;

        let words = ["verdicts", "scopes", "seconds", "ports", "host-network", "sources", "outside"];
        let lacks: Result<Vec<Lack>, String> = words.iter().map(|word| Lack::from_str(word, false)).collect();
        assert_eq!(lacks.as_deref(), Ok(Lack::value_variants()));
        assert!(Lack::from_str("affinity", false).is_err());
    }

    #[test]
    fn the_most_frequent_port_is_used_and_the_lowest_of_several() {
        for (endpoints, expected) in [
            (&["10.0.0.1:2", "10.0.0.2:1", "10.0.0.3:2"][..], Some(2)),
            (&["10.0.0.1:2", "10.0.0.2:1"], Some(1)),
            (&[], None),
        ] {
            let endpoints: Vec<SocketAddr> = endpoints.iter().map(|one| one.parse().unwrap()).collect();
            assert_eq!(most_frequent_port(&endpoints), expected);
        }
    }
}
