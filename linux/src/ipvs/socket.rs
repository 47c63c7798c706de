//! The generic netlink socket of IPVS.
//!
//! Nothing here blocks. The kernel processes messages within `send`, so all answers are in the receive buffer when it returns;
//! the next part of a dump is available as soon as the previous one was read.

use std::io;

use netlink_sys::{Socket as Netlink, protocols::NETLINK_GENERIC};
use rustix::io::Errno;
use rustix::net::sockopt;

use super::uapi::NAME;
use super::{Change, Refused, Timeouts, encode, parse};
use crate::netlink::{self, Message, Writer, messages};

/// The size of the receive buffer in bytes. The answers fit into it even if all changes of a batch are refused.
const RECEIVE_BUFFER: usize = 4 << 20;
/// The maximum size of an answer in that buffer, in bytes.
const ANSWER: usize = 2048;
/// The maximum number of changes in a batch. Each takes less than 200 bytes, so a batch fits into the default send buffer.
const WINDOW: usize = 512;
/// The size of one read in bytes. The kernel fills at most 32 KiB.
const RECEIVE: usize = 64 << 10;

/// Why IPVS could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The process lacks `CAP_NET_ADMIN` in the initial user namespace.
    #[error(
        "not permitted: IPVS needs CAP_NET_ADMIN in the initial user namespace; run as root or grant the capability"
    )]
    NotPermitted,
    /// The kernel has no IPVS.
    #[error("this kernel has no IPVS: load the module ip_vs (modprobe ip_vs), or use another backend")]
    Unsupported,
    /// The kernel refused a request.
    #[error("the kernel refused to {action}: {errno}")]
    Refused {
        /// The request, in a form that follows "refused to".
        action: &'static str,
        /// The kernel's error.
        errno: io::Error,
    },
    /// Virtual servers changed during every attempt to list them.
    #[error("virtual servers keep changing while they are read: try again later")]
    Changing,
    /// An answer was lost, so it is unknown which changes succeeded.
    #[error("the kernel's answer was lost, so it is unknown which changes succeeded")]
    Unanswered,
    /// The netlink socket failed.
    #[error("the netlink socket of IPVS failed: {0}")]
    Io(#[from] io::Error),
}

/// A connection to IPVS in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Socket {
    netlink: Netlink,
    /// The ID of the generic netlink family of IPVS.
    family: u16,
    sequence: u32,
    /// The maximum number of changes in a batch. The answers fit into the receive buffer even if all changes are
    /// refused.
    window: usize,
    buffer: Vec<u8>,
}

/// The outcome of [`Socket::apply`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "the kernel may have refused some of the changes"]
pub struct Applied {
    /// How many changes were sent.
    pub changes: usize,
    /// How many batches the changes took.
    pub batches: usize,
    /// The changes that the kernel refused, in order.
    pub refused: Vec<Refused>,
}

impl Socket {
    /// Connects to the IPVS of the calling thread's network namespace. The kernel loads its module if it can.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] if the kernel has no IPVS, and [`Error::Io`] if the socket fails.
    pub fn open() -> Result<Self, Error> {
        let netlink = netlink::connect(NETLINK_GENERIC)?;
        // A smaller buffer makes batches smaller.
        netlink::enlarge_receive_buffer(&netlink, RECEIVE_BUFFER)?;
        let room = sockopt::socket_recv_buffer_size(&netlink).map_err(io::Error::from)?;
        let window = (room / ANSWER).clamp(1, WINDOW);
        let mut socket = Self { netlink, family: 0, sequence: 0, window, buffer: vec![0; RECEIVE] };
        socket.family = socket.find_family(NAME)?;
        Ok(socket)
    }

    /// Applies the changes in order. Refused changes are listed in the result and do not stop the others.
    ///
    /// # Errors
    /// Returns an error if the process lacks `CAP_NET_ADMIN`, an answer is lost, or the socket fails.
    pub fn apply(&mut self, changes: &[Change]) -> Result<Applied, Error> {
        let mut applied = Applied::default();
        for window in changes.chunks(self.window) {
            self.apply_window(applied.changes, window, &mut applied.refused)?;
            applied.changes += window.len();
            applied.batches += 1;
        }
        Ok(applied)
    }

    /// Applies one batch. Only the last change requests an acknowledgement, because the kernel always reports refusals.
    fn apply_window(&mut self, index: usize, changes: &[Change], refused: &mut Vec<Refused>) -> Result<(), Error> {
        let mut writer = Writer::default();
        let first = self.sequence.wrapping_add(1);
        let last = changes.len() - 1;
        for (at, change) in changes.iter().enumerate() {
            self.sequence = self.sequence.wrapping_add(1);
            let flags = if at == last { netlink::ACK } else { 0 };
            encode::change(&mut writer, self.family, flags, self.sequence, change);
        }
        let mut permitted = true;
        self.exchange(&writer.bytes, |_, message| {
            let at = message.sequence.wrapping_sub(first) as usize;
            let Some(change) = changes.get(at).filter(|_| message.kind == netlink::ERROR) else { return true };
            match message.error() {
                None => {}
                Some(Errno::PERM) => permitted = false,
                Some(errno) => refused.push(Refused::new(index + at, change, errno.raw_os_error())),
            }
            at < last
        })?;
        if permitted { Ok(()) } else { Err(Error::NotPermitted) }
    }

    /// The timeouts of IPVS.
    ///
    /// # Errors
    /// Returns an error if the process lacks `CAP_NET_ADMIN`, or if an answer is lost.
    pub fn timeouts(&mut self) -> Result<Timeouts, Error> {
        let mut timeouts = None;
        let each = |_, message: &Message<'_>| timeouts = Some(parse::timeouts(message.attributes()));
        match self.query(encode::timeouts_request, each)? {
            None => timeouts.ok_or(Error::Unanswered),
            Some(errno) => Err(refused("read the timeouts of IPVS", errno)),
        }
    }

    /// Sets the timeouts that are not 0, for new connections and for the next packets of existing ones.
    ///
    /// # Errors
    /// Returns an error if the process lacks `CAP_NET_ADMIN`, or if the kernel refuses the request.
    pub fn set_timeouts(&mut self, timeouts: &Timeouts) -> Result<(), Error> {
        let request = |writer: &mut Writer, family, sequence| encode::set_timeouts(writer, family, sequence, timeouts);
        match self.query(request, |_, _| ())? {
            None => Ok(()),
            Some(errno) => Err(refused("set the timeouts of IPVS", errno)),
        }
    }

    fn find_family(&mut self, name: &str) -> Result<u16, Error> {
        let mut id = None;
        let request = |writer: &mut Writer, _, sequence| encode::family_request(writer, sequence, name);
        match self.query(request, |_, message| id = parse::family_id(message.attributes()))? {
            None => id.ok_or(Error::Unanswered),
            Some(Errno::NOENT) => Err(Error::Unsupported),
            Some(errno) => Err(refused("find the generic netlink family of IPVS", errno)),
        }
    }

    /// Sends one query. Calls `each` for every message of the answer, with the index of the part that contained the
    /// message. Returns the error at the end of the answer.
    pub(super) fn query(
        &mut self,
        request: impl FnOnce(&mut Writer, u16, u32),
        mut each: impl FnMut(usize, &Message<'_>),
    ) -> Result<Option<Errno>, Error> {
        self.sequence = self.sequence.wrapping_add(1);
        let (family, sequence) = (self.family, self.sequence);
        let mut writer = Writer::default();
        request(&mut writer, family, sequence);
        let mut errno = None;
        self.exchange(&writer.bytes, |part, message| {
            if message.sequence != sequence {
                return true;
            }
            let last = matches!(message.kind, netlink::DONE | netlink::ERROR);
            if last {
                errno = message.error();
            } else {
                each(part, message);
            }
            !last
        })?;
        Ok(errno)
    }

    /// Sends messages and calls `each` for every message of the answer. The answer arrives in parts, one for each read;
    /// `each` also gets the index of the message's part. Stops when `each` returns `false`.
    fn exchange(&mut self, request: &[u8], mut each: impl FnMut(usize, &Message<'_>) -> bool) -> Result<(), Error> {
        netlink::discard(&self.netlink, &mut self.buffer)?;
        netlink::send(&self.netlink, request).map_err(io::Error::from)?;
        for part in 0.. {
            let Some(len) = netlink::next_part(&self.netlink, &mut self.buffer)? else { break };
            for message in messages(&self.buffer[..len]) {
                if !each(part, &message) {
                    return Ok(());
                }
            }
        }
        Err(Error::Unanswered)
    }
}

pub(super) fn refused(action: &'static str, errno: Errno) -> Error {
    match errno {
        Errno::PERM => Error::NotPermitted,
        errno => Error::Refused { action, errno: errno.into() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_family_is_reported_as_unsupported() {
        // Every kernel has the family that looks up families.
        let netlink = netlink::connect(NETLINK_GENERIC).unwrap();
        let mut socket = Socket { netlink, family: 0, sequence: 0, window: 1, buffer: vec![0; RECEIVE] };
        assert_eq!(socket.find_family("nlctrl").unwrap(), 0x10);
        let error = socket.find_family("NO_SUCH").unwrap_err();
        assert!(matches!(error, Error::Unsupported) && error.to_string().contains("modprobe ip_vs"), "{error}");
        // A failure does not disturb later queries.
        assert_eq!(socket.find_family("nlctrl").unwrap(), 0x10);
    }
}
