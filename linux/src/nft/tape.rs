//! Records the kernel's answers about nf_tables, and replays them later, also on another machine. Only diagnosis uses this.

use std::collections::BTreeMap;

/// The kernel's answer to one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The content of each message, in the byte order of the machine that recorded it.
    pub messages: Vec<Vec<u8>>,
    /// Whether the requested object exists.
    pub exists: bool,
}

/// Answers by request. The sequence number of a request is 0.
pub type Answers = BTreeMap<Vec<u8>, Answer>;

/// What a socket does with answers.
#[derive(Debug)]
pub(super) enum Tape {
    Recording(Answers),
    Replaying(Answers),
}

/// The bytes of the sequence number in the header of a message.
const SEQUENCE: std::ops::Range<usize> = 8..12;

/// The request by which an answer is recorded.
pub(super) fn key(request: &[u8]) -> Vec<u8> {
    let mut key = request.to_vec();
    if let Some(number) = key.get_mut(SEQUENCE) {
        number.fill(0);
    }
    key
}
