//! Netlink messages and attributes as bytes: a writer, and a reader that accepts any bytes without panicking. The
//! module also has non-blocking reads from a netlink socket.
//!
//! The module knows the framing (RFC 3549, nested attributes) and the four-byte headers of nfnetlink and generic
//! netlink, but nothing of tables, rules, flows or virtual servers.

use std::io;
use std::os::fd::AsFd;

use localnet_core::Family;
use netlink_sys::{Socket, SocketAddr};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, sockopt};

/// The size of a netlink header in bytes.
pub(crate) const HEADER: usize = 16;
/// The size of the second header (of nfnetlink or generic netlink) in bytes.
const SECOND_HEADER: usize = 4;
/// `NLA_F_NESTED`
const NESTED: u16 = 0x8000;
/// The mask of an attribute's type, without the flags for nesting and byte order.
const KIND: u16 = 0x3fff;

/// `NLM_F_REQUEST`
pub(crate) const REQUEST: u16 = 0x1;
/// `NLM_F_ACK`
pub(crate) const ACK: u16 = 0x4;
/// `NLM_F_DUMP_INTR`
pub(crate) const DUMP_INTERRUPTED: u16 = 0x10;
/// `NLM_F_DUMP`
pub(crate) const DUMP: u16 = 0x300;
/// `NLM_F_CREATE`
pub(crate) const CREATE: u16 = 0x400;
/// `NLM_F_APPEND`
pub(crate) const APPEND: u16 = 0x800;
/// `NLM_F_CAPPED`: an error contains only the header of the request.
pub(crate) const CAPPED: u16 = 0x100;
/// `NLM_F_ACK_TLVS`: an error contains attributes.
pub(crate) const ACK_TLVS: u16 = 0x200;

/// `AF_INET` and `AF_INET6`, which are also `NFPROTO_IPV4` and `NFPROTO_IPV6`.
pub(crate) fn family_number(family: Family) -> u8 {
    match family {
        Family::V4 => 2,
        Family::V6 => 10,
    }
}

/// The family with this `AF_*` number; `None` if the number is neither `AF_INET` nor `AF_INET6`.
pub(crate) fn family_of_number(number: u8) -> Option<Family> {
    Family::BOTH.into_iter().find(|family| family_number(*family) == number)
}

/// `NLMSG_ERROR`
pub(crate) const ERROR: u16 = 2;
/// `NLMSG_DONE`
pub(crate) const DONE: u16 = 3;

/// Connects to the kernel, in the network namespace of the calling thread.
pub(crate) fn connect(protocol: isize) -> io::Result<Socket> {
    let mut socket = Socket::new(protocol)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.set_cap_ack(true)?;
    Ok(socket)
}

/// Reads a part of the answer without blocking. The kernel processes a request within `send`, and prepares the next
/// part of a dump within `recv`. So if no part is available now, none will come. This function then returns
/// [`Errno::AGAIN`].
pub(crate) fn receive(socket: impl AsFd, buffer: &mut [u8]) -> Result<usize, Errno> {
    let socket = socket.as_fd();
    rustix::io::retry_on_intr(|| rustix::net::recv(socket, &mut *buffer, RecvFlags::DONTWAIT)).map(|(len, _)| len)
}

/// Reads the next part of an unfinished answer; `None` if it was lost for lack of memory or buffer space.
pub(crate) fn next_part(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    match receive(socket, buffer) {
        Ok(len) => Ok(Some(len)),
        Err(Errno::AGAIN | Errno::NOBUFS) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Sends a request.
pub(crate) fn send(socket: impl AsFd, request: &[u8]) -> Result<(), Errno> {
    let socket = socket.as_fd();
    rustix::io::retry_on_intr(|| rustix::net::send(socket, request, SendFlags::empty())).map(drop)
}

/// Enlarges the receive buffer. Without `CAP_NET_ADMIN`, the system's limit applies.
pub(crate) fn enlarge_receive_buffer(socket: impl AsFd, bytes: usize) -> io::Result<()> {
    let socket = socket.as_fd();
    let forced = sockopt::set_socket_recv_buffer_size_force(socket, bytes);
    Ok(forced.or_else(|_| sockopt::set_socket_recv_buffer_size(socket, bytes))?)
}

/// Discards leftovers of an earlier exchange that failed.
pub(crate) fn discard(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<()> {
    let socket = socket.as_fd();
    loop {
        match receive(socket, buffer) {
            Ok(_) | Err(Errno::NOBUFS) => {}
            Err(Errno::AGAIN) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Appends messages to a buffer.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    pub(crate) bytes: Vec<u8>,
}

impl Writer {
    /// Appends a message of nfnetlink; `fill` writes its attributes.
    pub(crate) fn message(&mut self, head: Head, fill: impl FnOnce(&mut Self)) {
        let [high, low] = head.resource.to_be_bytes();
        self.framed(head.kind, head.flags, head.sequence, [head.family, 0, high, low], fill);
    }

    /// Appends a message of generic netlink; `fill` writes its attributes.
    pub(crate) fn command(&mut self, command: Command, fill: impl FnOnce(&mut Self)) {
        self.framed(command.kind, command.flags, command.sequence, [command.command, command.version, 0, 0], fill);
    }

    fn framed(
        &mut self,
        kind: u16,
        flags: u16,
        sequence: u32,
        second: [u8; SECOND_HEADER],
        fill: impl FnOnce(&mut Self),
    ) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(&flags.to_ne_bytes());
        self.bytes.extend_from_slice(&sequence.to_ne_bytes());
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(&second);
        fill(self);
        let len = (self.bytes.len() - start) as u32;
        self.bytes[start..start + 4].copy_from_slice(&len.to_ne_bytes());
    }

    /// Begins an attribute of bytes, which the caller appends. Returns its offset for [`Self::close_bytes`].
    pub(crate) fn open_bytes(&mut self, kind: u16) -> usize {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 2]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        start
    }

    /// Ends the attribute that began at `start`.
    pub(crate) fn close_bytes(&mut self, start: usize) {
        self.close(start);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// Appends an attribute.
    pub(crate) fn bytes(&mut self, kind: u16, value: &[u8]) {
        self.bytes.extend_from_slice(&((value.len() + 4) as u16).to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(value);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// Appends a one-byte number.
    pub(crate) fn u8(&mut self, kind: u16, value: u8) {
        self.bytes(kind, &[value]);
    }

    /// Appends a 32-bit number in network byte order, as nf_tables expects.
    pub(crate) fn u32(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_be_bytes());
    }

    /// Appends a 16-bit number in the machine's byte order.
    pub(crate) fn host_u16(&mut self, kind: u16, value: u16) {
        self.bytes(kind, &value.to_ne_bytes());
    }

    /// Appends a 32-bit number in the machine's byte order.
    pub(crate) fn host_u32(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_ne_bytes());
    }

    /// Appends a 64-bit number in network byte order.
    pub(crate) fn u64(&mut self, kind: u16, value: u64) {
        self.bytes(kind, &value.to_be_bytes());
    }

    /// Appends a string with the terminating zero that the kernel expects.
    pub(crate) fn string(&mut self, kind: u16, value: &str) {
        self.bytes.extend_from_slice(&((value.len() + 5) as u16).to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(value.as_bytes());
        self.bytes.push(0);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// Appends a nested attribute; `fill` writes its content.
    pub(crate) fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let start = self.open(kind);
        fill(self);
        self.close(start);
    }

    /// Begins a nested attribute. Returns its offset for [`Self::close`].
    pub(crate) fn open(&mut self, kind: u16) -> usize {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 2]);
        self.bytes.extend_from_slice(&(kind | NESTED).to_ne_bytes());
        start
    }

    /// Ends the nested attribute that began at `start`.
    pub(crate) fn close(&mut self, start: usize) {
        let len = (self.bytes.len() - start) as u16;
        self.bytes[start..start + 2].copy_from_slice(&len.to_ne_bytes());
    }
}

/// The two headers of a message of nfnetlink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) sequence: u32,
    pub(crate) family: u8,
    pub(crate) resource: u16,
}

/// The two headers of a message of generic netlink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Command {
    /// The ID of the generic netlink family.
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) sequence: u32,
    pub(crate) command: u8,
    /// The version of the family's API.
    pub(crate) version: u8,
}

/// A received message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message<'a> {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) sequence: u32,
    /// The netlink port of the process that caused the message; 0 for the kernel itself.
    pub(crate) port: u32,
    /// Everything after the netlink header.
    pub(crate) payload: &'a [u8],
}

impl<'a> Message<'a> {
    /// The family in nfnetlink's header.
    pub(crate) fn family(&self) -> Option<u8> {
        self.payload.first().copied()
    }

    /// The attributes after the second header.
    pub(crate) fn attributes(&self) -> Attributes<'a> {
        Attributes(self.payload.get(SECOND_HEADER..).unwrap_or_default())
    }

    /// The error in an acknowledgement or at the end of a dump; `None` for success. A message that is cut off or invalid yields
    /// [`Errno::BADMSG`].
    pub(crate) fn error(&self) -> Option<Errno> {
        match array(self.payload).map(i32::from_ne_bytes) {
            Some(0) => None,
            Some(code @ -4095..=-1) => Some(Errno::from_raw_os_error(-code)),
            Some(_) | None => Some(Errno::BADMSG),
        }
    }
}

/// The messages in the received bytes, up to the first that is cut off.
pub(crate) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let len = u32::from_ne_bytes(array(bytes)?) as usize;
        let message = Message {
            kind: u16::from_ne_bytes(array(bytes.get(4..)?)?),
            flags: u16::from_ne_bytes(array(bytes.get(6..)?)?),
            sequence: u32::from_ne_bytes(array(bytes.get(8..)?)?),
            port: u32::from_ne_bytes(array(bytes.get(12..)?)?),
            payload: bytes.get(HEADER..len)?,
        };
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

/// The attributes in a payload, up to the first that is cut off.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attributes<'a>(pub(crate) &'a [u8]);

impl<'a> Attributes<'a> {
    /// The value of the first attribute of that kind.
    pub(crate) fn find(self, kind: u16) -> Option<&'a [u8]> {
        self.into_iter().find_map(|(candidate, value)| (candidate == kind).then_some(value))
    }

    /// The attributes nested in the first attribute of that kind; empty if it is absent.
    pub(crate) fn nested(self, kind: u16) -> Attributes<'a> {
        Attributes(self.find(kind).unwrap_or_default())
    }

    /// The number in the first attribute of that kind. The attribute contains it in network byte order.
    pub(crate) fn u32(self, kind: u16) -> Option<u32> {
        self.find(kind).and_then(array).map(u32::from_be_bytes)
    }

    /// The number in the first attribute of that kind. The attribute contains it in the byte order of the machine.
    pub(crate) fn host_u16(self, kind: u16) -> Option<u16> {
        self.find(kind).and_then(array).map(u16::from_ne_bytes)
    }

    /// The number in the first attribute of that kind. The attribute contains it in the byte order of the machine.
    pub(crate) fn host_u32(self, kind: u16) -> Option<u32> {
        self.find(kind).and_then(array).map(u32::from_ne_bytes)
    }

    /// The number in the first attribute of that kind. The attribute contains it in the byte order of the machine.
    pub(crate) fn host_u64(self, kind: u16) -> Option<u64> {
        self.find(kind).and_then(array).map(u64::from_ne_bytes)
    }

    /// The number in the first attribute of that kind. The attribute contains it in network byte order.
    pub(crate) fn u64(self, kind: u16) -> Option<u64> {
        self.find(kind).and_then(array).map(u64::from_be_bytes)
    }

    /// The string in the first attribute of that kind.
    pub(crate) fn string(self, kind: u16) -> Option<&'a str> {
        self.find(kind).and_then(string)
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let len = usize::from(u16::from_ne_bytes(array(self.0)?));
        let kind = u16::from_ne_bytes(array(self.0.get(2..)?)?) & KIND;
        let value = self.0.get(4..len)?;
        self.0 = self.0.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    }
}

/// The first `N` bytes; `None` if there are fewer.
pub(crate) fn array<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
    bytes.first_chunk().copied()
}

/// A string up to its terminating zero; `None` if it is not UTF-8.
pub(crate) fn string(bytes: &[u8]) -> Option<&str> {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    std::str::from_utf8(&bytes[..end]).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn nfnetlink_messages_round_trip() {
        let mut writer = Writer::default();
        let head = Head { kind: 7, flags: REQUEST, sequence: 9, family: 2, resource: 10 };
        writer.message(head, |w| {
            w.string(1, "abc");
            w.nest(2, |w| w.u32(3, 77));
        });
        writer.message(head, |_| ());
        let read: Vec<_> = messages(&writer.bytes).collect();
        assert_eq!(read.len(), 2);
        assert_eq!((read[0].kind, read[0].flags, read[0].sequence, read[0].family()), (7, REQUEST, 9, Some(2)));
        assert_eq!(read[0].attributes().string(1), Some("abc"));
        assert_eq!(read[0].attributes().nested(2).u32(3), Some(77));
        assert_eq!(read[1].attributes().count(), 0);
    }

    #[test]
    fn generic_netlink_messages_round_trip() {
        let mut writer = Writer::default();
        let command = Command { kind: 33, flags: REQUEST | ACK, sequence: 9, command: 4, version: 1 };
        writer.command(command, |w| {
            w.host_u16(1, 0x1234);
            w.host_u32(2, 0x1234_5678);
        });
        let read: Vec<_> = messages(&writer.bytes).collect();
        assert_eq!(
            (read[0].kind, read[0].flags, read[0].sequence, &read[0].payload[..4]),
            (33, 5, 9, &[4, 1, 0, 0][..])
        );
        let attributes = read[0].attributes();
        assert_eq!((attributes.host_u16(1), attributes.host_u32(2)), (Some(0x1234), Some(0x1234_5678)));
        assert_eq!((attributes.host_u32(1), attributes.host_u16(3)), (None, None));
    }

    #[test]
    fn an_invalid_answer_is_an_error() {
        let error = |payload: &[u8]| Message { kind: ERROR, flags: 0, sequence: 0, port: 0, payload }.error();
        assert_eq!(error(&0_i32.to_ne_bytes()), None);
        assert_eq!(error(&(-Errno::NOENT.raw_os_error()).to_ne_bytes()), Some(Errno::NOENT));
        assert_eq!(error(&[0, 0, 0]), Some(Errno::BADMSG));
        for code in [i32::MIN, -4096, 1, i32::MAX] {
            assert_eq!(error(&code.to_ne_bytes()), Some(Errno::BADMSG), "{code}");
        }
    }

    proptest! {
        #[test]
        fn the_reader_accepts_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut seen = 0;
            for message in messages(&bytes) {
                seen += message.payload.len() + message.attributes().map(|(_, value)| value.len()).sum::<usize>();
            }
            seen += Attributes(&bytes).map(|(_, value)| value.len()).sum::<usize>();
            prop_assert!(seen <= 3 * bytes.len());
        }
    }
}
