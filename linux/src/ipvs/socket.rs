//! The conversation with the kernel.
//!
//! The kernel works on messages while they are sent, so when `send` returns all answers are in the receive buffer, and the
//! next part of a dump is there as soon as one was taken: nothing here waits.

use std::io;

use netlink_sys::{Socket as Netlink, SocketAddr, protocols::NETLINK_GENERIC};
use rustix::io::Errno;
use rustix::net::{SendFlags, sockopt};

use super::kernel::NAME;
use super::{Change, Refused, Timeouts, encode, parse};
use crate::netlink::{self, Message, Writer, messages};

/// Room for the answers to changes that are all refused.
const RECEIVE_BUFFER: usize = 4 << 20;
/// The room that an answer takes in it, at most.
const ANSWER: usize = 2048;
/// Most changes sent at once. Each is some hundred bytes, and all of them far below what a socket may send by default.
const WINDOW: usize = 512;
/// The kernel fills at most 32 KiB.
const RECEIVE: usize = 64 << 10;

/// Why IPVS could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The process may not.
    #[error("not permitted: IPVS needs CAP_NET_ADMIN in the first user namespace; run as root or grant the capability")]
    NotPermitted,
    /// The kernel has no IPVS.
    #[error("this kernel has no IPVS: load the module ip_vs (modprobe ip_vs), or use another backend")]
    Unsupported,
    /// The kernel refused.
    #[error("the kernel refused to {action}: {errno}")]
    Refused {
        /// What was asked for.
        action: &'static str,
        /// Its answer.
        errno: io::Error,
    },
    /// Virtual servers came and went during every attempt to list them.
    #[error("virtual servers keep changing while they are read: try again later")]
    Changing,
    /// An answer was lost: which changes were made is not known.
    #[error("the kernel's answer was lost: list the virtual servers before going on")]
    Unanswered,
    /// The socket failed.
    #[error("netlink socket for IPVS: {0}")]
    Io(#[from] io::Error),
}

/// A connection to IPVS in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Socket {
    netlink: Netlink,
    /// The number of the family IPVS.
    family: u16,
    sequence: u32,
    /// Changes sent at once; even if all of them are refused, the answers fit into the receive buffer.
    window: usize,
    buffer: Vec<u8>,
}

/// What became of changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "the kernel may have refused some of the changes"]
pub struct Applied {
    /// Changes that were sent.
    pub changes: usize,
    /// Times that the kernel was talked to.
    pub conversations: usize,
    /// Those that it refused, in order.
    pub refused: Vec<Refused>,
}

impl Socket {
    /// Opens a connection to the IPVS of this thread's network namespace. The kernel loads its module for this if it may.
    pub fn open() -> Result<Self, Error> {
        let mut netlink = Netlink::new(NETLINK_GENERIC)?;
        netlink.bind_auto()?;
        netlink.connect(&SocketAddr::new(0, 0))?;
        netlink.set_cap_ack(true)?;
        // Without the privilege to force it the limit of the system applies, and fewer changes are sent at once.
        if sockopt::set_socket_recv_buffer_size_force(&netlink, RECEIVE_BUFFER).is_err() {
            sockopt::set_socket_recv_buffer_size(&netlink, RECEIVE_BUFFER).map_err(io::Error::from)?;
        }
        let room = sockopt::socket_recv_buffer_size(&netlink).map_err(io::Error::from)?;
        let window = (room / ANSWER).clamp(1, WINDOW);
        let mut socket = Self { netlink, family: 0, sequence: 0, window, buffer: vec![0; RECEIVE] };
        socket.family = socket.find_family(NAME)?;
        Ok(socket)
    }

    /// Makes the changes one after the other, and tells which of them the kernel refused.
    pub fn apply(&mut self, changes: &[Change]) -> Result<Applied, Error> {
        let mut applied = Applied::default();
        for window in changes.chunks(self.window) {
            self.apply_window(applied.changes, window, &mut applied.refused)?;
            applied.changes += window.len();
            applied.conversations += 1;
        }
        Ok(applied)
    }

    /// Only the last change asks for an answer: those that are refused get one anyway.
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

    /// The timeouts.
    pub fn timeouts(&mut self) -> Result<Timeouts, Error> {
        let mut found = None;
        let each = |_, message: &Message<'_>| found = Some(parse::timeouts(message.attributes()));
        match self.ask(encode::timeouts_request, each)? {
            None => found.ok_or(Error::Unanswered),
            Some(errno) => Err(refused("tell the timeouts of IPVS", errno)),
        }
    }

    /// Sets the timeouts that are not 0, for connections to come and for packets of those that there are.
    pub fn set_timeouts(&mut self, timeouts: &Timeouts) -> Result<(), Error> {
        let request = |writer: &mut Writer, family, sequence| encode::set_timeouts(writer, family, sequence, timeouts);
        match self.ask(request, |_, _| ())? {
            None => Ok(()),
            Some(errno) => Err(refused("set the timeouts of IPVS", errno)),
        }
    }

    fn find_family(&mut self, name: &str) -> Result<u16, Error> {
        let mut found = None;
        let request = |writer: &mut Writer, _, sequence| encode::family_request(writer, sequence, name);
        match self.ask(request, |_, message| found = parse::family_id(message.attributes()))? {
            None => found.ok_or(Error::Unanswered),
            Some(Errno::NOENT) => Err(Error::Unsupported),
            Some(errno) => Err(refused("say where IPVS is", errno)),
        }
    }

    /// One question. Hands each message of the answer to `each`, with the number of the part that it came in, and returns the
    /// error at its end.
    pub(super) fn ask(
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

    /// Sends messages, and hands what comes back to `each`, with the number of the part that it came in, until that breaks off.
    fn exchange(&mut self, request: &[u8], mut each: impl FnMut(usize, &Message<'_>) -> bool) -> Result<(), Error> {
        netlink::discard(&self.netlink, &mut self.buffer)?;
        rustix::io::retry_on_intr(|| rustix::net::send(&self.netlink, request, SendFlags::empty()))
            .map_err(io::Error::from)?;
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
    fn a_kernel_without_the_family_is_told_from_one_that_has_it() {
        // Any kernel has the family that tells about families.
        let netlink = Netlink::new(NETLINK_GENERIC).unwrap();
        netlink.connect(&SocketAddr::new(0, 0)).unwrap();
        let mut socket = Socket { netlink, family: 0, sequence: 0, window: 1, buffer: vec![0; RECEIVE] };
        assert_eq!(socket.find_family("nlctrl").unwrap(), 0x10);
        let error = socket.find_family("NO_SUCH").unwrap_err();
        assert!(matches!(error, Error::Unsupported) && error.to_string().contains("modprobe ip_vs"), "{error}");
        // One failure disturbs nothing later.
        assert_eq!(socket.find_family("nlctrl").unwrap(), 0x10);
    }
}
