//! Which destinations are ours, and who may answer for each.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use super::{Family, Protocol, Selection};

/// A destination that clients send to: a virtual address, or one of the node's with a node port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frontend {
    /// The protocol.
    pub protocol: Protocol,
    /// Address and port.
    pub address: SocketAddr,
}

impl Frontend {
    /// A frontend.
    pub fn new(protocol: Protocol, address: SocketAddr) -> Self {
        Self { protocol, address }
    }

    /// The flows among which those to it are.
    pub fn selection(&self) -> Selection {
        Selection { family: Family::of(&self.address.ip()), protocol: self.protocol }
    }
}

impl fmt::Display for Frontend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.protocol.as_str(), self.address)
    }
}

/// The endpoints that may answer, of all scopes together: local and cluster-wide, ready and, where they still serve,
/// terminating. Cheap to clone: the frontends of one service share theirs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoints(Arc<[SocketAddr]>);

impl Endpoints {
    /// Whether it is one of them.
    pub fn contains(&self, endpoint: &SocketAddr) -> bool {
        self.0.binary_search(endpoint).is_ok()
    }

    /// Whether nothing serves.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether some of these are not among those that answer now; none if it is no frontend any more.
    pub fn loses(&self, now: Option<&Self>) -> bool {
        !self.is_empty() && !now.is_some_and(|now| self.is_subset(now))
    }

    /// Whether all of these are among `others`.
    pub fn is_subset(&self, others: &Self) -> bool {
        Arc::ptr_eq(&self.0, &others.0) || self.0.iter().all(|endpoint| others.contains(endpoint))
    }
}

impl From<Arc<[SocketAddr]>> for Endpoints {
    /// Shares them if they are sorted and without duplicates.
    fn from(endpoints: Arc<[SocketAddr]>) -> Self {
        if endpoints.is_sorted_by(|a, b| a < b) { Self(endpoints) } else { endpoints.iter().copied().collect() }
    }
}

impl FromIterator<SocketAddr> for Endpoints {
    fn from_iter<I: IntoIterator<Item = SocketAddr>>(endpoints: I) -> Self {
        let mut endpoints: Vec<_> = endpoints.into_iter().collect();
        endpoints.sort_unstable();
        endpoints.dedup();
        Self(endpoints.into())
    }
}

/// All frontends that are ours, and those that were until lately.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frontends {
    current: HashMap<Frontend, Endpoints>,
    former: HashSet<Frontend>,
}

/// What a frontend is to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serving<'a> {
    /// These answer for it; if there are none, nothing does.
    Now(&'a Endpoints),
    /// It was ours: nothing of ours answers for it any more, somebody else may.
    Formerly,
}

impl Frontends {
    /// Makes `endpoints` the ones that answer; returns those that did.
    pub fn set(&mut self, frontend: Frontend, endpoints: Endpoints) -> Option<Endpoints> {
        self.former.remove(&frontend);
        self.current.insert(frontend, endpoints)
    }

    /// Makes it a former frontend; returns the endpoints that answered.
    pub fn retire(&mut self, frontend: &Frontend) -> Option<Endpoints> {
        self.former.insert(*frontend);
        self.current.remove(frontend)
    }

    /// Makes a former frontend a foreign one.
    pub fn forget(&mut self, frontend: &Frontend) {
        self.former.remove(frontend);
    }

    /// What the destination is to us; none if it is foreign.
    pub fn find(&self, frontend: &Frontend) -> Option<Serving<'_>> {
        match self.current.get(frontend) {
            Some(endpoints) => Some(Serving::Now(endpoints)),
            None => self.former.contains(frontend).then_some(Serving::Formerly),
        }
    }

    /// The endpoints of a frontend that is ours now.
    pub fn endpoints(&self, frontend: &Frontend) -> Option<&Endpoints> {
        self.current.get(frontend)
    }

    /// The frontends that are ours now, in no order.
    pub fn current(&self) -> impl Iterator<Item = &Frontend> {
        self.current.keys()
    }

    /// The frontends that were ours, in no order.
    pub fn former(&self) -> impl Iterator<Item = &Frontend> {
        self.former.iter()
    }

    /// Whether no frontend is known.
    pub fn is_empty(&self) -> bool {
        self.current.is_empty() && self.former.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::{address, endpoints};

    #[test]
    fn endpoints_are_a_set() {
        let [a, b, c] = ["10.244.0.2:53", "10.244.0.3:53", "10.244.0.4:53"];
        let all = endpoints(&[c, a, b]);
        assert_eq!(all, endpoints(&[a, b, c, b, a]));
        for (text, expected) in [(a, true), (b, true), (c, true), ("10.244.0.2:54", false), ("[fd00::1]:53", false)] {
            assert_eq!(all.contains(&address(text)), expected, "{text}");
        }
        for (left, right, expected) in [
            (&[a][..], &[a, b][..], true),
            (&[a, b], &[a], false),
            (&[], &[a], true),
            (&[], &[], true),
            (&[c], &[a], false),
        ] {
            assert_eq!(endpoints(left).is_subset(&endpoints(right)), expected, "{left:?} in {right:?}");
        }
    }
}
