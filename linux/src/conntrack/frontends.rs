//! The destinations that a backend serves (frontends), and the endpoints of each.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use localnet_core::{Family, Protocol};

use super::Selection;

/// A destination that clients send to: a virtual address, or an address of the node with a NodePort.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frontend {
    /// The transport protocol.
    pub protocol: Protocol,
    /// The address and port.
    pub address: SocketAddr,
}

impl Frontend {
    /// Combines a protocol and an address.
    pub fn new(protocol: Protocol, address: SocketAddr) -> Self {
        Self { protocol, address }
    }

    /// The smallest selection that covers all flows to the frontend.
    pub fn selection(&self) -> Selection {
        Selection { family: Family::of(self.address.ip()), protocol: self.protocol, established: false }
    }
}

impl fmt::Display for Frontend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.protocol.as_lowercase(), self.address)
    }
}

/// The endpoints that may answer in flows to a frontend: those that are eligible in any scope, and those that only
/// drain. Cloning is cheap, and the frontends of one Service share one list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoints(Arc<[SocketAddr]>);

impl Endpoints {
    /// The endpoints, sorted.
    pub fn iter(&self) -> impl Iterator<Item = &SocketAddr> {
        self.0.iter()
    }

    /// Whether `endpoint` is one of these endpoints.
    pub fn contains(&self, endpoint: &SocketAddr) -> bool {
        self.0.binary_search(endpoint).is_ok()
    }

    /// Whether there are no endpoints.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether any of these endpoints is missing from `next`. `None` means that the frontend no longer exists.
    pub fn any_missing_from(&self, next: Option<&Self>) -> bool {
        !self.is_empty() && !next.is_some_and(|next| self.is_subset(next))
    }

    /// Whether `others` contains all of these endpoints.
    pub fn is_subset(&self, others: &Self) -> bool {
        Arc::ptr_eq(&self.0, &others.0) || self.0.iter().all(|endpoint| others.contains(endpoint))
    }
}

impl From<Arc<[SocketAddr]>> for Endpoints {
    /// Shares the list if it is sorted and without duplicates, and copies it otherwise.
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

/// The current frontends of the backend, and the former ones, which it served until recently. All others are foreign.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frontends {
    current: HashMap<Frontend, Endpoints>,
    former: HashSet<Frontend>,
}

/// Whether the backend serves a frontend, or served it before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serving<'a> {
    /// The backend serves the frontend with these endpoints. If there are none, no flow to the frontend is legitimate.
    Now(&'a Endpoints),
    /// The backend served the frontend before. Another program may serve the frontend now.
    Formerly,
}

impl Frontends {
    /// Sets the endpoints of a frontend and returns the previous ones.
    pub fn set(&mut self, frontend: Frontend, endpoints: Endpoints) -> Option<Endpoints> {
        self.former.remove(&frontend);
        self.current.insert(frontend, endpoints)
    }

    /// Makes the frontend a foreign one.
    pub fn hand_over(&mut self, frontend: &Frontend) {
        self.former.remove(frontend);
        self.current.remove(frontend);
    }

    /// Makes the frontend a former one and returns its endpoints.
    pub fn retire(&mut self, frontend: &Frontend) -> Option<Endpoints> {
        self.former.insert(*frontend);
        self.current.remove(frontend)
    }

    /// Removes a former frontend, so that it counts as foreign.
    pub fn forget(&mut self, frontend: &Frontend) {
        self.former.remove(frontend);
    }

    /// The status of a frontend; `None` if it is foreign.
    pub fn find(&self, frontend: &Frontend) -> Option<Serving<'_>> {
        match self.current.get(frontend) {
            Some(endpoints) => Some(Serving::Now(endpoints)),
            None => self.former.contains(frontend).then_some(Serving::Formerly),
        }
    }

    /// The endpoints of a current frontend; `None` for former and foreign ones.
    pub fn endpoints(&self, frontend: &Frontend) -> Option<&Endpoints> {
        self.current.get(frontend)
    }

    /// The current frontends, in no order.
    pub fn current(&self) -> impl Iterator<Item = &Frontend> {
        self.current.keys()
    }

    /// The former frontends, in no order.
    pub fn former(&self) -> impl Iterator<Item = &Frontend> {
        self.former.iter()
    }

    /// Whether there are no current and no former frontends.
    pub fn is_empty(&self) -> bool {
        self.current.is_empty() && self.former.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{address, endpoints};

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
