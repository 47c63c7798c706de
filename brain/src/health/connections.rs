//! The connections of one port, and the choice of a connection to close when the port is full.
//!
//! Peers that connect and then send nothing must not block a health check, or a load balancer would drain the node. The
//! port therefore always accepts a new connection. If the port or the quota of the peer is full, the connection that has
//! been idle for longest is closed. The test `probes_are_answered_among_six_hundred_slow_clients` requires this.

use std::collections::BTreeMap;

use crate::serve::PeerId;

/// Maximum number of connections of one port.
pub(super) const MAX: usize = 256;
/// Maximum number of connections of one peer on one port.
pub(super) const MAX_OF_PEER: usize = 32;

/// The connections of a port. `H` is the type of the handle that closes a connection.
#[derive(Debug)]
pub(super) struct Connections<H> {
    /// The sequence number of the latest event on any connection.
    turn: u64,
    present: BTreeMap<u64, Connection<H>>,
}

#[derive(Debug)]
struct Connection<H> {
    peer: PeerId,
    /// Whether a request on this connection is in progress.
    busy: bool,
    /// The sequence number of the connection's last event. An event is the acceptance of the connection, the arrival of a
    /// request, or the completion of an answer.
    last: u64,
    handle: H,
}

impl<H> Default for Connections<H> {
    fn default() -> Self {
        Self { turn: 0, present: BTreeMap::new() }
    }
}

impl<H> Connections<H> {
    /// Adds a connection. Returns its ID. If another connection has to be closed to make room, also returns the handle of
    /// that connection.
    pub(super) fn admit(&mut self, peer: PeerId, handle: H) -> (u64, Option<H>) {
        let of_peer = self.present.values().filter(|connection| connection.peer == peer).count();
        let evicted = if of_peer >= MAX_OF_PEER {
            self.evict(|connection| connection.peer == peer)
        } else if self.present.len() >= MAX {
            self.evict(|_| true)
        } else {
            None
        };
        self.turn += 1;
        self.present.insert(self.turn, Connection { peer, busy: false, last: self.turn, handle });
        (self.turn, evicted)
    }

    /// Records that a request has arrived (`busy`), or that its answer is ready.
    pub(super) fn set_busy(&mut self, number: u64, busy: bool) {
        self.turn += 1;
        if let Some(connection) = self.present.get_mut(&number) {
            (connection.busy, connection.last) = (busy, self.turn);
        }
    }

    /// Records that a connection has ended.
    pub(super) fn remove(&mut self, number: u64) {
        self.present.remove(&number);
    }

    /// Removes the connection that has been idle for longest. If all connections are busy, removes the one whose last
    /// event is the oldest.
    fn evict(&mut self, among: impl Fn(&Connection<H>) -> bool) -> Option<H> {
        let candidates = self.present.iter().filter(|(_, connection)| among(connection));
        let (number, _) = candidates.min_by_key(|(_, connection)| (connection.busy, connection.last))?;
        let number = *number;
        self.present.remove(&number).map(|connection| connection.handle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(last: u8) -> PeerId {
        PeerId::host([192, 0, 2, last].into())
    }

    #[test]
    fn a_peer_over_its_quota_loses_its_own_longest_idle_connection() {
        let mut connections = Connections::default();
        let (other, _) = connections.admit(host(1), "other");
        let (asking, _) = connections.admit(host(2), "asking");
        connections.set_busy(asking, true);
        let (first, _) = connections.admit(host(2), "first");
        for _ in 2..MAX_OF_PEER {
            assert_eq!(connections.admit(host(2), "more").1, None);
        }
        assert_eq!(connections.admit(host(2), "new").1, Some("first"));
        // After an eviction, the task of the evicted connection ends and removes the connection again.
        connections.remove(first);
        connections.remove(other);
        assert_eq!(connections.present.len(), MAX_OF_PEER);
    }

    #[test]
    fn a_full_port_loses_the_connection_that_was_idle_for_longest() {
        let mut connections = Connections::default();
        let mut numbers = Vec::new();
        for number in 0..MAX {
            let (number, evicted) = connections.admit(host((number / MAX_OF_PEER) as u8), number);
            assert_eq!(evicted, None);
            numbers.push(number);
        }
        // The first sent a request a moment ago; the request of the second is in progress.
        connections.set_busy(numbers[0], true);
        connections.set_busy(numbers[0], false);
        connections.set_busy(numbers[1], true);
        assert_eq!(connections.admit(host(100), 1000).1, Some(2));
        assert_eq!(connections.admit(host(101), 1001).1, Some(3));
        numbers.iter().for_each(|number| connections.remove(*number));
        assert_eq!(connections.present.len(), 2);
    }

    #[test]
    fn if_all_connections_are_busy_the_oldest_is_closed() {
        let mut connections = Connections::default();
        for number in 0..MAX_OF_PEER {
            let (admitted, _) = connections.admit(host(1), number);
            connections.set_busy(admitted, true);
        }
        assert_eq!(connections.admit(host(1), 1000).1, Some(0));
    }
}
