//! The connections of one port, and which of them makes room for a new one.
//!
//! A health answer must not wait for peers that connect and then say nothing: a load balancer would drain the node. So a new
//! connection is always taken. When the port, or the share of its peer, is full, the connection that has been silent for
//! longest is closed.

use std::collections::BTreeMap;

use crate::serve::Who;

/// Connections of one port.
pub(super) const MAX: usize = 256;
/// Connections of one peer on one port.
pub(super) const MAX_OF_PEER: usize = 32;

/// The connections of a port; `H` closes one.
#[derive(Debug)]
pub(super) struct Connections<H> {
    /// Grows with each event. Orders connections by their last one.
    turn: u64,
    present: BTreeMap<u64, Connection<H>>,
}

#[derive(Debug)]
struct Connection<H> {
    who: Who,
    /// A request of it is being answered.
    busy: bool,
    /// Its last event: it came, its request came, or its answer was ready.
    last: u64,
    handle: H,
}

impl<H> Default for Connections<H> {
    fn default() -> Self {
        Self { turn: 0, present: BTreeMap::new() }
    }
}

impl<H> Connections<H> {
    /// Adds a connection. Returns its number, and the handle of the one to close for it, if there must be one.
    pub(super) fn admit(&mut self, who: Who, handle: H) -> (u64, Option<H>) {
        let of_peer = self.present.values().filter(|connection| connection.who == who).count();
        let evicted = if of_peer >= MAX_OF_PEER {
            self.evict(|connection| connection.who == who)
        } else if self.present.len() >= MAX {
            self.evict(|_| true)
        } else {
            None
        };
        self.turn += 1;
        self.present.insert(self.turn, Connection { who, busy: false, last: self.turn, handle });
        (self.turn, evicted)
    }

    /// A request has come (`busy`), or its answer is ready.
    pub(super) fn set_busy(&mut self, number: u64, busy: bool) {
        self.turn += 1;
        if let Some(connection) = self.present.get_mut(&number) {
            (connection.busy, connection.last) = (busy, self.turn);
        }
    }

    /// A connection has ended.
    pub(super) fn remove(&mut self, number: u64) {
        self.present.remove(&number);
    }

    /// Removes the connection that was silent for longest; one that is being answered only if there is no other.
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

    fn host(last: u8) -> Who {
        Who::host([192, 0, 2, last].into())
    }

    #[test]
    fn a_full_peer_loses_its_own_oldest_silent_connection() {
        let mut connections = Connections::default();
        let (other, _) = connections.admit(host(1), "other");
        let (asking, _) = connections.admit(host(2), "asking");
        connections.set_busy(asking, true);
        let (first, _) = connections.admit(host(2), "first");
        for _ in 2..MAX_OF_PEER {
            assert_eq!(connections.admit(host(2), "more").1, None);
        }
        assert_eq!(connections.admit(host(2), "new").1, Some("first"));
        // What has ended already ends once more when its task is done.
        connections.remove(first);
        connections.remove(other);
        assert_eq!(connections.present.len(), MAX_OF_PEER);
    }

    #[test]
    fn a_full_port_loses_the_connection_that_was_silent_for_longest() {
        let mut connections = Connections::default();
        let mut numbers = Vec::new();
        for number in 0..MAX {
            let (number, evicted) = connections.admit(host((number / MAX_OF_PEER) as u8), number);
            assert_eq!(evicted, None);
            numbers.push(number);
        }
        // The first asked a moment ago; the second is being answered.
        connections.set_busy(numbers[0], true);
        connections.set_busy(numbers[0], false);
        connections.set_busy(numbers[1], true);
        assert_eq!(connections.admit(host(100), 1000).1, Some(2));
        assert_eq!(connections.admit(host(101), 1001).1, Some(3));
        numbers.iter().for_each(|number| connections.remove(*number));
        assert_eq!(connections.present.len(), 2);
    }

    #[test]
    fn where_all_are_being_answered_the_oldest_goes() {
        let mut connections = Connections::default();
        for number in 0..MAX_OF_PEER {
            let (admitted, _) = connections.admit(host(1), number);
            connections.set_busy(admitted, true);
        }
        assert_eq!(connections.admit(host(1), 1000).1, Some(0));
    }
}
