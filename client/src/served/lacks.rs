//! What a kernel cannot hold, whichever backend programs it. The comparison with the state excludes it. Pure.

use std::{collections::BTreeSet, fmt, net::IpAddr, net::SocketAddr, str::FromStr};

use localnet_proto::Verdict;

use super::{Entry, To};
use crate::vips::{Exposure, Vip};

/// Something that a kernel may be unable to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lack {
    /// Verdicts for destinations without endpoints: the kernel neither rejects nor drops them.
    Verdicts,
    /// Scopes: a destination has one set of endpoints, namely those for clients outside of the cluster.
    Scopes,
    /// The duration of session affinity: it reads as 0 seconds.
    Seconds,
    /// Several endpoint ports: a destination has one port on all endpoints. It is the most frequent one, or the lowest
    /// of several.
    Ports,
    /// Endpoints at the node's own addresses.
    HostNetwork,
    /// Source ranges: a destination whose ranges admit no client is not served at all.
    Sources,
}

impl Lack {
    /// Every value.
    pub const ALL: [Self; 6] =
        [Self::Verdicts, Self::Scopes, Self::Seconds, Self::Ports, Self::HostNetwork, Self::Sources];

    /// The word for it in text, for instance `host-network`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Verdicts => "verdicts",
            Self::Scopes => "scopes",
            Self::Seconds => "seconds",
            Self::Ports => "ports",
            Self::HostNetwork => "host-network",
            Self::Sources => "sources",
        }
    }
}

/// The error for a word that names no `Lack`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadLack(String);

impl std::error::Error for BadLack {}

impl fmt::Display for BadLack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not one of {}", self.0, Lack::ALL.map(Lack::as_str).join(", "))
    }
}

impl FromStr for Lack {
    type Err = BadLack;

    fn from_str(text: &str) -> Result<Self, BadLack> {
        Self::ALL.into_iter().find(|lack| lack.as_str() == text).ok_or_else(|| BadLack(text.to_owned()))
    }
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

    /// What such a kernel serves for a VIP. `node` has the addresses of the node.
    pub(super) fn leave(&self, vip: &Vip, node: &[IpAddr]) -> Entry {
        if self.has(Lack::Sources) && vip.sources.as_deref().is_some_and(<[_]>::is_empty) {
            return Entry::default();
        }
        let to = |endpoints: &[SocketAddr]| match To::new(self.endpoints(endpoints, node), vip.when_empty) {
            To::Nothing(Verdict::Reject | Verdict::Drop) if self.has(Lack::Verdicts) => None,
            to => Some(to),
        };
        let (to, outside) = match vip.exposure {
            Exposure::ExternalLocal if self.has(Lack::Scopes) => (to(&vip.local_endpoints), None),
            Exposure::ExternalLocal => (to(&vip.endpoints), to(&vip.local_endpoints)),
            Exposure::Internal | Exposure::External => (to(&vip.endpoints), None),
        };
        let affinity = vip.affinity.map(|seconds| if self.has(Lack::Seconds) { 0 } else { seconds });
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

    #[test]
    fn only_known_words_are_accepted() {
        for lack in Lack::ALL {
            assert_eq!(lack.as_str().parse(), Ok(lack));
        }
        let error = "affinity".parse::<Lack>().unwrap_err().to_string();
        assert_eq!(error, "\"affinity\" is not one of verdicts, scopes, seconds, ports, host-network, sources");
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
