//! The netlink socket: sends a transaction as one batch and says which change the kernel refused.
//!
//! The kernel works on a batch while it is sent, so when `send` returns all answers are already in the receive
//! buffer, and the next part of a dump is there as soon as one was taken; nothing here waits.

use std::io;

use netlink_sys::{Socket as Netlink, SocketAddr, protocols::NETLINK_NETFILTER};
use rustix::io::Errno;
use rustix::net::{SendFlags, sockopt};

use super::Transaction;
use super::answer::{Answer, Error};
use super::encode::{Batch, encode};
use super::wire::{self, Message, messages};

/// Room for the answers to a batch in which many changes are refused.
const RECEIVE_BUFFER: usize = 4 << 20;
/// What the kernel keeps of the send buffer for itself.
const SEND_OVERHEAD: usize = 64 << 10;

/// A connection to nf_tables in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Socket {
    netlink: Netlink,
    port: u32,
    sequence: u32,
    send_buffer: usize,
    buffer: Vec<u8>,
}

/// What a transaction cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Netlink messages, not counting the two that frame the batch.
    pub messages: usize,
    /// Bytes, all messages together.
    pub bytes: usize,
    /// Elements added and deleted.
    pub elements: usize,
}

impl Socket {
    /// Opens a connection to the nf_tables of this thread's network namespace.
    pub fn open() -> Result<Self, Error> {
        let mut netlink = Netlink::new(NETLINK_NETFILTER).map_err(unsupported)?;
        let port = netlink.bind_auto()?.port_number();
        netlink.connect(&SocketAddr::new(0, 0))?;
        netlink.set_ext_ack(true)?;
        netlink.set_cap_ack(true)?;
        // Without the privilege to force it the limit of the system applies, which is enough for small batches.
        if sockopt::set_socket_recv_buffer_size_force(&netlink, RECEIVE_BUFFER).is_err() {
            sockopt::set_socket_recv_buffer_size(&netlink, RECEIVE_BUFFER).map_err(io::Error::from)?;
        }
        Ok(Self { netlink, port, sequence: 0, send_buffer: 0, buffer: vec![0; 256 << 10] })
    }

    /// The netlink port, by which others see whose change it was.
    pub fn port(&self) -> u32 {
        self.port
    }

    /// Makes all changes at once, or none of them. An empty transaction costs nothing.
    pub fn commit(&mut self, transaction: &Transaction) -> Result<Sent, Error> {
        if transaction.is_empty() {
            return Ok(Sent::default());
        }
        let first = self.sequence.wrapping_add(1);
        let batch = encode(transaction, first);
        self.sequence = first.wrapping_add(batch.messages.len() as u32 + 1);
        wire::discard(&self.netlink, &mut self.buffer)?;
        self.send(&batch.bytes)?;
        self.read_answers(&batch, first, transaction)?;
        Ok(Sent { messages: batch.messages.len(), bytes: batch.bytes.len(), elements: batch.elements })
    }

    /// Sends a request and hands each message of the answer to `each`.
    pub(super) fn dump(&mut self, request: &[u8], sequence: u32, mut each: impl FnMut(&Message<'_>)) -> DumpResult {
        wire::discard(&self.netlink, &mut self.buffer)?;
        self.send(request)?;
        loop {
            let len = wire::next_part(&self.netlink, &mut self.buffer)?.ok_or(Error::Lost)?;
            for message in messages(&self.buffer[..len]) {
                if message.sequence != sequence {
                    continue;
                }
                if message.flags & wire::DUMP_INTERRUPTED != 0 {
                    return Ok(Dumped::Interrupted);
                }
                match message.kind {
                    wire::DONE | wire::ERROR => match Answer::of(&message).errno {
                        0 => return Ok(Dumped::Complete),
                        errno if errno == Errno::NOENT.raw_os_error() => return Ok(Dumped::Absent),
                        errno if errno == Errno::INTR.raw_os_error() => return Ok(Dumped::Interrupted),
                        errno if errno == Errno::PERM.raw_os_error() => return Err(Error::NotPermitted),
                        // The requests are well formed: so says nfnetlink when it knows no nf_tables.
                        errno if errno == Errno::INVAL.raw_os_error() => return Err(Error::Unsupported),
                        errno => return Err(Error::RefusedWhole { errno, message: None }),
                    },
                    _ => each(&message),
                }
            }
        }
    }

    /// The next sequence number.
    pub(super) fn next_sequence(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        self.sequence
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let wanted = bytes.len() + SEND_OVERHEAD;
        if wanted > self.send_buffer && bytes.len() > SEND_OVERHEAD {
            // Without the privilege the send below fails with EMSGSIZE, or EPERM, and says so.
            if sockopt::set_socket_send_buffer_size_force(&self.netlink, wanted).is_ok() {
                self.send_buffer = wanted;
            }
        }
        let sent = rustix::io::retry_on_intr(|| rustix::net::send(&self.netlink, bytes, SendFlags::empty()));
        match sent {
            Ok(_) => Ok(()),
            Err(Errno::PERM) => Err(Error::NotPermitted),
            Err(error) => Err(Error::Io(error.into())),
        }
    }

    fn read_answers(&mut self, batch: &Batch, first: u32, transaction: &Transaction) -> Result<(), Error> {
        let mut refused: Option<(u32, Error)> = None;
        let mut acknowledged = false;
        let mut overflowed = false;
        loop {
            let len = match wire::receive(&self.netlink, &mut self.buffer) {
                Ok(len) => len,
                // More answers than room: those that did arrive are read, the first of them is what counts.
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

/// How a dump ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dumped {
    /// All was read.
    Complete,
    /// What was asked for does not exist.
    Absent,
    /// Something changed meanwhile: what was read is not one state.
    Interrupted,
}

type DumpResult = Result<Dumped, Error>;

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

    /// What is no request the kernel does not answer: so it is when an answer is lost.
    #[test]
    fn a_dump_that_is_not_answered_is_an_error_and_no_wait() {
        let mut socket = Socket::open().unwrap();
        let sequence = socket.next_sequence();
        let head = Head { kind: wire::DONE, flags: 0, sequence, family: 0, resource: 0 };
        let mut unanswered = Writer::default();
        unanswered.message(head, |_| {});
        let dumped = socket.dump(&unanswered.bytes, sequence, |_| {});
        assert!(matches!(dumped, Err(Error::Lost)), "{dumped:?}");
    }
}
