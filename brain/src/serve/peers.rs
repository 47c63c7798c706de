//! How much of a listener one peer may take, so that it cannot keep the others out.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

/// Connections of one listener. A node has a handful of backends; more than this is a fault, or an attack.
pub(super) const MAX_CONNECTIONS: usize = 1024;
/// Those of one peer.
pub(super) const MAX_OF_PEER: usize = MAX_CONNECTIONS / 2;
/// Calls that are under way on one listener. Each may cost some 8 KiB while its answer is not read.
pub(super) const MAX_CALLS: usize = 2 * MAX_CONNECTIONS;
/// Those of one peer, on all of its connections: a backend has one that waits, and reports now and then.
pub(super) const MAX_CALLS_OF_PEER: usize = MAX_OF_PEER * 3 / 2;

/// Who is at the other end, in so far as limits are shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Who {
    /// A user, on a unix socket.
    User(u32),
    /// A host. Of IPv6 a /64, which one host may have all of.
    Host(IpAddr),
}

impl Who {
    /// The host at an address.
    pub(crate) fn host(address: IpAddr) -> Self {
        Self::Host(match address.to_canonical() {
            IpAddr::V6(v6) => Ipv6Addr::from(u128::from(v6) & !u128::from(u64::MAX)).into(),
            v4 @ IpAddr::V4(_) => v4,
        })
    }
}

/// Why a peer is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum TooMany {
    #[error("there are {MAX_CONNECTIONS} connections already")]
    Connections,
    #[error("this peer has {MAX_OF_PEER} connections already")]
    OfPeer,
}

/// The peers of a listener.
#[derive(Clone, Debug, Default)]
pub(super) struct Peers {
    present: Arc<Mutex<HashMap<Who, Present>>>,
    /// Calls of all of them.
    calls: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct Present {
    connections: usize,
    calls: Arc<AtomicUsize>,
}

impl Peers {
    /// Lets a peer in, if there is room.
    pub(super) fn admit(&self, who: Who) -> Result<Admitted, TooMany> {
        let mut peers = self.lock();
        if peers.values().map(|present| present.connections).sum::<usize>() >= MAX_CONNECTIONS {
            return Err(TooMany::Connections);
        }
        let present = peers.entry(who).or_default();
        if present.connections >= MAX_OF_PEER {
            return Err(TooMany::OfPeer);
        }
        present.connections += 1;
        let calls = Calls { of_peer: Arc::clone(&present.calls), of_all: Arc::clone(&self.calls) };
        Ok(Admitted { who, of: self.clone(), calls })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Who, Present>> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection that was let in, until this is dropped.
#[derive(Debug)]
pub(super) struct Admitted {
    who: Who,
    of: Peers,
    calls: Calls,
}

impl Admitted {
    /// The calls of its peer.
    pub(super) fn calls(&self) -> &Calls {
        &self.calls
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut peers = self.of.lock();
        if let Some(present) = peers.get_mut(&self.who) {
            present.connections -= 1;
            if present.connections == 0 {
                peers.remove(&self.who);
            }
        }
    }
}

/// Counts the calls of a peer that are under way.
#[derive(Clone, Debug, Default)]
pub(super) struct Calls {
    of_peer: Arc<AtomicUsize>,
    of_all: Arc<AtomicUsize>,
}

impl Calls {
    /// One more; `None` if there are too many.
    pub(super) fn begin(&self) -> Option<UnderWay> {
        let of_peer = self.of_peer.fetch_add(1, Ordering::Relaxed);
        let of_all = self.of_all.fetch_add(1, Ordering::Relaxed);
        let one = UnderWay(self.clone());
        (of_peer < MAX_CALLS_OF_PEER && of_all < MAX_CALLS).then_some(one)
    }
}

/// A call, until this is dropped.
#[derive(Debug)]
pub(super) struct UnderWay(Calls);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.of_peer.fetch_sub(1, Ordering::Relaxed);
        self.0.of_all.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_has_half_of_the_connections_and_all_have_no_more_than_there_are() {
        let peers = Peers::default();
        let many = |who, count: usize| -> Vec<_> { (0..count).map_while(|_| peers.admit(who).ok()).collect() };
        let mut first = many(Who::User(1), MAX_OF_PEER);
        assert_eq!(peers.admit(Who::User(1)).unwrap_err(), TooMany::OfPeer);
        let second = many(Who::User(2), MAX_OF_PEER - 1);
        drop(peers.admit(Who::User(3)).unwrap());
        let last = peers.admit(Who::User(3)).unwrap();
        assert_eq!(peers.admit(Who::User(4)).unwrap_err(), TooMany::Connections);
        first.pop();
        assert!(peers.admit(Who::User(4)).is_ok());
        drop((first, second, last));
        assert!(peers.lock().is_empty(), "nothing is kept of those that are gone");
    }

    #[test]
    fn calls_are_counted_over_all_connections_of_a_peer() {
        let peers = Peers::default();
        let host = Who::host("192.0.2.1".parse().unwrap());
        let (one, other) = (peers.admit(host).unwrap(), peers.admit(host).unwrap());
        let mut calls: Vec<_> = (0..MAX_CALLS_OF_PEER).map(|_| one.calls().begin().unwrap()).collect();
        assert!(other.calls().begin().is_none());
        assert!(other.calls().begin().is_none(), "one that was refused does not count");
        calls.pop();
        assert!(other.calls().begin().is_some());
        let others: Vec<_> = (0..9).map(|user| peers.admit(Who::User(user)).unwrap()).collect();
        while let Some(call) = others.iter().find_map(|other| other.calls().begin()) {
            calls.push(call);
        }
        assert_eq!(calls.len(), MAX_CALLS);
        calls.clear();
        assert!(others.iter().all(|other| other.calls().begin().is_some()));
    }

    #[test]
    fn hosts_are_told_apart() {
        let host = |text: &str| Who::host(text.parse().unwrap());
        assert_eq!(host("192.0.2.1"), host("::ffff:192.0.2.1"));
        assert_ne!(host("192.0.2.1"), host("192.0.2.2"));
        assert_eq!(host("2001:db8:0:1::1"), host("2001:db8:0:1:ffff::2"));
        assert_ne!(host("2001:db8:0:1::1"), host("2001:db8:0:2::1"));
    }
}
