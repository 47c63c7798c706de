//! The netlink socket of nf_tables: sends a transaction as one batch, and reports which change the kernel refused.
//!
//! Nothing here waits for a message. The kernel processes a batch within `send`, so all answers are in the receive buffer when it returns.
//! The next part of a dump is available as soon as the previous one was read. `send` may wait for commits of other processes.

use std::io;

use netlink_sys::{Socket as Netlink, SocketAddr, protocols::NETLINK_NETFILTER};
use rustix::io::Errno;
use rustix::net::sockopt;

use super::Transaction;
use super::answer::{Answer, Error};
use super::encode::{Batch, encode};
use super::tape::{self, Answers, Tape};
use super::wire::{self, Message, messages};

/// The size of the receive buffer in bytes. The answers fit into it even if many changes are refused.
const RECEIVE_BUFFER: usize = 4 << 20;
/// The part of the send buffer that the kernel keeps for itself, in bytes.
const SEND_OVERHEAD: usize = 64 << 10;

/// A connection to nf_tables in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Socket {
    netlink: Netlink,
    port: u32,
    sequence: u32,
    send_buffer: usize,
    buffer: Vec<u8>,
    /// A recording of the answers, if there is one.
    tape: Option<Tape>,
}

/// The size of a transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransactionSize {
    /// Netlink messages, without the two that frame the batch.
    pub messages: usize,
    /// The total size of the messages in bytes.
    pub bytes: usize,
    /// Elements that were added or deleted.
    pub elements: usize,
}

impl Socket {
    /// Connects to the nf_tables of the calling thread's network namespace.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] if the kernel has no nf_tables, and [`Error::Io`] if the socket fails.
    pub fn open() -> Result<Self, Error> {
        let netlink = wire::connect(NETLINK_NETFILTER).map_err(unsupported)?;
        netlink.set_ext_ack(true)?;
        let mut address = SocketAddr::new(0, 0);
        netlink.get_address(&mut address)?;
        let port = address.port_number();
        // A smaller buffer is enough for small batches.
        wire::enlarge_receive_buffer(&netlink, RECEIVE_BUFFER)?;
        Ok(Self { netlink, port, sequence: 0, send_buffer: 0, buffer: vec![0; 256 << 10], tape: None })
    }

    /// The netlink port, by which notifications identify this socket's commits.
    pub fn port(&self) -> u32 {
        self.port
    }

    /// Applies all changes atomically, or none of them. An empty transaction costs nothing.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses a change or does not answer. After [`Error::Unanswered`], the outcome is
    /// unknown.
    pub fn commit(&mut self, transaction: &Transaction) -> Result<TransactionSize, Error> {
        if transaction.is_empty() {
            return Ok(TransactionSize::default());
        }
        let first = self.sequence.wrapping_add(1);
        let batch = encode(transaction, first);
        self.sequence = first.wrapping_add(batch.messages.len() as u32 + 1);
        wire::discard(&self.netlink, &mut self.buffer)?;
        self.send(&batch.bytes)?;
        self.read_answers(&batch, first, transaction)?;
        Ok(TransactionSize { messages: batch.messages.len(), bytes: batch.bytes.len(), elements: batch.elements })
    }

    /// Waits until no commit of any process is in progress.
    ///
    /// A commit announces its generation first, and then removes the elements that it deletes (`nf_tables_commit`). A dump of that
    /// generation in several parts lacks elements, because the kernel resumes it by counting, and counts deleted elements until
    /// they are removed. An empty batch waits for the lock of commits, and changes nothing.
    pub(super) fn await_commits(&mut self) -> Result<(), Error> {
        if self.replays() {
            return Ok(());
        }
        let first = self.sequence.wrapping_add(1);
        self.sequence = first.wrapping_add(1);
        let empty = encode(&Transaction::new(), first);
        self.send(&empty.bytes)
    }

    /// As [`Self::dump`], but never uses a recording.
    fn ask(&mut self, request: &[u8], sequence: u32, mut each: impl FnMut(&Message<'_>)) -> Result<bool, Error> {
        wire::discard(&self.netlink, &mut self.buffer)?;
        self.send(request)?;
        loop {
            let len = wire::next_part(&self.netlink, &mut self.buffer)?.ok_or(Error::Lost)?;
            for message in messages(&self.buffer[..len]) {
                if message.sequence != sequence {
                    continue;
                }
                if message.flags & wire::DUMP_INTERRUPTED != 0 {
                    return Err(Error::Changing);
                }
                match message.kind {
                    wire::DONE | wire::ERROR => match Answer::of(&message).errno {
                        0 => return Ok(true),
                        errno if errno == Errno::NOENT.raw_os_error() => return Ok(false),
                        errno if errno == Errno::INTR.raw_os_error() => return Err(Error::Changing),
                        errno if errno == Errno::PERM.raw_os_error() => return Err(Error::NotPermitted),
                        // Our requests are well formed, so nfnetlink returns this error only without nf_tables.
                        errno if errno == Errno::INVAL.raw_os_error() => return Err(Error::Unsupported),
                        errno => return Err(Error::TransactionRefused { errno, message: None }),
                    },
                    _ => each(&message),
                }
            }
        }
    }

    /// Records the answers to all further requests that read.
    pub fn record(&mut self) {
        self.tape = Some(Tape::Recording(Answers::new()));
    }

    /// Answers all further requests that read from a recording. Requests that were not recorded fail.
    pub fn replay(&mut self, answers: Answers) {
        self.tape = Some(Tape::Replaying(answers));
    }

    /// Whether the socket replays a recording.
    pub fn replays(&self) -> bool {
        matches!(self.tape, Some(Tape::Replaying(_)))
    }

    /// Ends a recording and returns it.
    pub fn recorded(&mut self) -> Answers {
        match self.tape.take() {
            Some(Tape::Recording(answers) | Tape::Replaying(answers)) => answers,
            None => Answers::new(),
        }
    }

    /// Sends a request and calls `each` for every message of the answer. Returns whether the requested object exists, or
    /// [`Error::Changing`] if the ruleset changed during the dump.
    pub(super) fn dump(
        &mut self,
        request: &[u8],
        sequence: u32,
        mut each: impl FnMut(&Message<'_>),
    ) -> Result<bool, Error> {
        if self.tape.is_none() {
            return self.ask(request, sequence, each);
        }
        let key = tape::key(request);
        if let Some(Tape::Replaying(answers)) = &self.tape {
            let answer = answers.get(&key).ok_or(Error::Unrecorded)?;
            for payload in &answer.messages {
                each(&Message { kind: 0, flags: 0, sequence: 0, port: 0, payload });
            }
            return Ok(answer.exists);
        }
        let mut messages = Vec::new();
        let exists = self.ask(request, sequence, |message| {
            messages.push(message.payload.to_vec());
            each(message);
        })?;
        if let Some(Tape::Recording(answers)) = &mut self.tape {
            answers.insert(key, tape::Answer { messages, exists });
        }
        Ok(exists)
    }

    /// The next sequence number.
    pub(super) fn next_sequence(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        self.sequence
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let needed = bytes.len() + SEND_OVERHEAD;
        if needed > self.send_buffer && bytes.len() > SEND_OVERHEAD {
            // If this fails, the send below reports EMSGSIZE or EPERM.
            if sockopt::set_socket_send_buffer_size_force(&self.netlink, needed).is_ok() {
                self.send_buffer = needed;
            }
        }
        wire::send(&self.netlink, bytes).map_err(|error| match error {
            Errno::PERM => Error::NotPermitted,
            error => Error::Io(error.into()),
        })
    }

    fn read_answers(&mut self, batch: &Batch, first: u32, transaction: &Transaction) -> Result<(), Error> {
        let mut refused: Option<(u32, Error)> = None;
        let mut acknowledged = false;
        let mut overflowed = false;
        loop {
            let len = match wire::receive(&self.netlink, &mut self.buffer) {
                Ok(len) => len,
                // The answers do not all fit into the buffer. Only the first refusal matters, and it is among the answers that
                // arrived.
                Err(Errno::NOBUFS) => {
                    overflowed = true;
                    continue;
                }
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(Error::Io(error.into())),
            };
            for message in messages(&self.buffer[..len]).filter(|message| message.kind == wire::ERROR) {
                let answer = Answer::of(&message);
                if answer.errno == 0 {
                    acknowledged = true;
                    continue;
                }
                let at = message.sequence.wrapping_sub(first);
                if refused.as_ref().is_none_or(|(earlier, _)| at < *earlier) {
                    refused = Some((at, answer.error(at, batch, transaction)));
                }
            }
        }
        match refused {
            Some((_, error)) => Err(error),
            None if acknowledged && !overflowed => Ok(()),
            None => Err(Error::Unanswered),
        }
    }
}

fn unsupported(error: io::Error) -> Error {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::PROTONOSUPPORT | Errno::AFNOSUPPORT) => Error::Unsupported,
        _ => Error::Io(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::{Head, Writer};

    /// The kernel does not answer a message that is not a request. This simulates a lost answer.
    #[test]
    fn a_dump_without_an_answer_fails_and_does_not_block() {
        let mut socket = Socket::open().unwrap();
        let sequence = socket.next_sequence();
        let head = Head { kind: wire::DONE, flags: 0, sequence, family: 0, resource: 0 };
        let mut unanswered = Writer::default();
        unanswered.message(head, |_| {});
        let dumped = socket.dump(&unanswered.bytes, sequence, |_| {});
        assert!(matches!(dumped, Err(Error::Lost)), "{dumped:?}");
    }
}
