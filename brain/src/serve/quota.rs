//! Quotas of connections and calls for each peer of a listener, so that one peer cannot lock out the others. The tests
//! `connections_and_calls_of_a_peer_are_limited` and `six_hundred_connections_that_do_not_read_cost_at_most_32_mib`
//! require these quotas.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, PoisonError, Weak},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum number of connections of one listener. A node has a handful of backends; more connections than this are a fault
/// or an attack.
pub(super) const MAX_CONNECTIONS: usize = 1024;
/// Maximum number of connections of one peer.
pub(super) const MAX_OF_PEER: usize = MAX_CONNECTIONS / 2;
/// Maximum number of calls in progress on one listener. Each call can occupy about 8 KiB while the peer does not read the
/// answer.
pub(super) const MAX_CALLS: usize = 2 * MAX_CONNECTIONS;
/// Maximum number of calls in progress of one peer, on all of its connections together. A backend has one long poll, and
/// occasionally sends a report.
pub(super) const MAX_CALLS_OF_PEER: usize = MAX_OF_PEER * 3 / 2;

/// The identity of a peer. Connections with the same identity share a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum PeerId {
    /// A user, on a unix socket.
    User(u32),
    /// A host. For IPv6, this is a /64, because one host may own all addresses of a /64.
    Host(IpAddr),
}

impl PeerId {
    /// The identity of the host at `address`.
    pub(crate) fn host(address: IpAddr) -> Self {
        Self::Host(match address.to_canonical() {
            IpAddr::V6(v6) => Ipv6Addr::from(u128::from(v6) & !u128::from(u64::MAX)).into(),
            v4 @ IpAddr::V4(_) => v4,
        })
    }
}

/// The error for a connection beyond a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum TooMany {
    #[error("the listener has {MAX_CONNECTIONS} connections, its maximum")]
    Connections,
    #[error("the peer has {MAX_OF_PEER} connections, its maximum")]
    OfPeer,
}

/// The connected peers of a listener. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct Peers {
    connections: Arc<Semaphore>,
    calls: Arc<Semaphore>,
    /// The quota of each peer. A quota exists for as long as the peer has connections or calls.
    quotas: Arc<Mutex<HashMap<PeerId, Weak<Quota>>>>,
}

/// The remaining quota of one peer.
#[derive(Debug)]
struct Quota {
    connections: Arc<Semaphore>,
    calls: Arc<Semaphore>,
}

impl Default for Peers {
    fn default() -> Self {
        Self {
            connections: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            calls: Arc::new(Semaphore::new(MAX_CALLS)),
            quotas: Arc::default(),
        }
    }
}

impl Peers {
    /// Counts one more connection of `peer`.
    ///
    /// # Errors
    /// Returns [`TooMany`] if the listener or the peer has reached its maximum.
    pub(super) fn admit(&self, peer: PeerId) -> Result<Admitted, TooMany> {
        let of_all = Arc::clone(&self.connections).try_acquire_owned().map_err(|_| TooMany::Connections)?;
        let quota = self.quota(peer);
        let of_peer = Arc::clone(&quota.connections).try_acquire_owned().map_err(|_| TooMany::OfPeer)?;
        Ok(Admitted { _permits: [of_all, of_peer], calls: Calls { quota, of_all: Arc::clone(&self.calls) } })
    }

    fn quota(&self, peer: PeerId) -> Arc<Quota> {
        let mut quotas = self.quotas.lock().unwrap_or_else(PoisonError::into_inner);
        quotas.retain(|_, quota| quota.strong_count() > 0);
        if let Some(quota) = quotas.get(&peer).and_then(Weak::upgrade) {
            return quota;
        }
        let quota = Arc::new(Quota {
            connections: Arc::new(Semaphore::new(MAX_OF_PEER)),
            calls: Arc::new(Semaphore::new(MAX_CALLS_OF_PEER)),
        });
        quotas.insert(peer, Arc::downgrade(&quota));
        quota
    }
}

/// An admitted connection. Dropping it returns its share of the quota.
#[derive(Debug)]
pub(super) struct Admitted {
    _permits: [OwnedSemaphorePermit; 2],
    calls: Calls,
}

impl Admitted {
    /// The calls of the peer.
    pub(super) fn calls(&self) -> &Calls {
        &self.calls
    }
}

/// The calls of one peer, on all of its connections.
#[derive(Clone, Debug)]
pub(super) struct Calls {
    quota: Arc<Quota>,
    of_all: Arc<Semaphore>,
}

/// A call in progress. Dropping it returns its share of the quota.
pub(super) type InProgress = [OwnedSemaphorePermit; 2];

impl Calls {
    /// Counts one more call. Returns `None` if the peer or the listener has reached its maximum.
    pub(super) fn begin(&self) -> Option<InProgress> {
        let of_peer = Arc::clone(&self.quota.calls).try_acquire_owned().ok()?;
        Some([of_peer, Arc::clone(&self.of_all).try_acquire_owned().ok()?])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_limited_for_each_peer_and_for_the_listener() {
        let peers = Peers::default();
        let many = |peer, count: usize| -> Vec<_> { (0..count).map_while(|_| peers.admit(peer).ok()).collect() };
        let mut first = many(PeerId::User(1), MAX_OF_PEER);
        assert_eq!(peers.admit(PeerId::User(1)).unwrap_err(), TooMany::OfPeer);
        let second = many(PeerId::User(2), MAX_OF_PEER - 1);
        drop(peers.admit(PeerId::User(3)).unwrap());
        let last = peers.admit(PeerId::User(3)).unwrap();
        assert_eq!(peers.admit(PeerId::User(4)).unwrap_err(), TooMany::Connections);
        first.pop();
        assert!(peers.admit(PeerId::User(4)).is_ok());
        drop((first, second, last));
        let _one = peers.admit(PeerId::User(5)).unwrap();
        assert_eq!(peers.quotas.lock().unwrap().len(), 1, "disconnected peers are forgotten");
    }

    #[test]
    fn calls_are_limited_for_each_peer_and_for_the_listener() {
        let peers = Peers::default();
        let host = PeerId::host("192.0.2.1".parse().unwrap());
        let (one, other) = (peers.admit(host).unwrap(), peers.admit(host).unwrap());
        let mut calls: Vec<_> = (0..MAX_CALLS_OF_PEER).map(|_| one.calls().begin().unwrap()).collect();
        assert!(other.calls().begin().is_none());
        assert!(other.calls().begin().is_none(), "a refused call is not counted");
        calls.pop();
        assert!(other.calls().begin().is_some());
        let others: Vec<_> = (0..9).map(|user| peers.admit(PeerId::User(user)).unwrap()).collect();
        while let Some(call) = others.iter().find_map(|other| other.calls().begin()) {
            calls.push(call);
        }
        assert_eq!(calls.len(), MAX_CALLS);
        calls.clear();
        assert!(others.iter().all(|other| other.calls().begin().is_some()));
    }

    #[test]
    fn hosts_are_distinguished_by_ipv4_address_or_ipv6_64() {
        let host = |text: &str| PeerId::host(text.parse().unwrap());
        assert_eq!(host("192.0.2.1"), host("::ffff:192.0.2.1"));
        assert_ne!(host("192.0.2.1"), host("192.0.2.2"));
        assert_eq!(host("2001:db8:0:1::1"), host("2001:db8:0:1:ffff::2"));
        assert_ne!(host("2001:db8:0:1::1"), host("2001:db8:0:2::1"));
    }
}
