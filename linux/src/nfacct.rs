//! Named packet counters of the kernel (nfacct), over netlink. A rule of iptables counts packets in such a counter with
//! `-m nfacct`. The counters belong to the network namespace of the calling thread.

use std::io;

use localnet_core::Family;
use netlink_sys::protocols::NETLINK_NETFILTER;
use rustix::io::Errno;

use crate::netlink::{self, Head, Message, Writer, messages};

/// `NFNL_SUBSYS_ACCT`
const COUNTERS: u16 = 7;
/// `NFNL_MSG_ACCT_NEW`
const NEW: u16 = 0;
/// `NFNL_MSG_ACCT_GET`
const GET: u16 = 1;
/// `NFACCT_NAME`, which is also `NFTA_COMPAT_NAME`
const NAME: u16 = 1;
/// `NFACCT_PKTS`
const PACKETS: u16 = 2;

/// `NFNL_SUBSYS_NFT_COMPAT`, whose message 0 (`NFNL_MSG_COMPAT_GET`) looks up an extension of iptables.
const EXTENSIONS: u16 = 11;
/// `NFTA_COMPAT_REV`
const REVISION: u16 = 2;
/// `NFTA_COMPAT_TYPE`: 0 for a match.
const KIND: u16 = 3;

/// Checks that the kernel has counters, and the match `nfacct` of iptables. A kernel may have one without the other
/// (kubernetes/kubernetes#142068). Changes nothing.
///
/// # Errors
/// Returns an error if the kernel lacks one of them, or if the process lacks `CAP_NET_ADMIN`.
pub fn check() -> io::Result<()> {
    let unknown = request(COUNTERS << 8 | GET, 0, |writer| writer.string(NAME, "any"));
    if unknown.as_ref().is_err_and(|error| Errno::from_io_error(error) != Some(Errno::NOENT)) {
        return unknown.map(drop);
    }
    let look_up = |writer: &mut Writer| {
        writer.string(NAME, "nfacct");
        writer.u32(REVISION, 0);
        writer.u32(KIND, 0);
    };
    request(EXTENSIONS << 8, 0, look_up).map(drop)
}

/// Creates a counter unless it exists. `name`: at most 31 bytes.
///
/// # Errors
/// Returns an error if the kernel has no counters, or if the process lacks `CAP_NET_ADMIN`.
pub fn ensure(name: &str) -> io::Result<()> {
    match request(COUNTERS << 8 | NEW, netlink::CREATE, |writer| writer.string(NAME, name)) {
        // The counter exists.
        Err(error) if Errno::from_io_error(&error) == Some(Errno::BUSY) => Ok(()),
        result => result.map(drop),
    }
}

/// The number of packets in a counter.
///
/// # Errors
/// Returns an error if there is no such counter, or if the process lacks `CAP_NET_ADMIN`.
pub fn packets(name: &str) -> io::Result<u64> {
    let packets = request(COUNTERS << 8 | GET, 0, |writer| writer.string(NAME, name))?;
    packets.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Sends a request, and returns the packets in the counter of the answer, if there is one.
fn request(kind: u16, flags: u16, fill: impl FnOnce(&mut Writer)) -> io::Result<Option<u64>> {
    let socket = netlink::connect(NETLINK_NETFILTER)?;
    netlink::send(&socket, &encode(kind, flags, fill))?;
    let (mut buffer, mut packets) = (vec![0; 4 << 10], None);
    while let Some(len) = netlink::next_part(&socket, &mut buffer)? {
        if let Some(result) = messages(&buffer[..len]).find_map(|message| answer(&message, &mut packets)) {
            return result.map(|()| packets);
        }
    }
    Err(io::ErrorKind::UnexpectedEof.into())
}

fn encode(kind: u16, flags: u16, fill: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let flags = netlink::REQUEST | netlink::ACK | flags;
    let mut writer = Writer::default();
    // Counters have no family. The match has the same revisions in both families.
    let family = netlink::family_number(Family::V4);
    writer.message(Head { kind, flags, sequence: 1, family, resource: 0 }, fill);
    writer.bytes
}

/// Reads one message of an answer. Returns the outcome of the request if the message is the last one.
fn answer(message: &Message<'_>, packets: &mut Option<u64>) -> Option<io::Result<()>> {
    if message.kind == netlink::ERROR {
        return Some(message.error().map_or(Ok(()), |errno| Err(errno.into())));
    }
    if message.kind >> 8 == COUNTERS {
        *packets = message.attributes().u64(PACKETS);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The outcome of a request with this answer.
    fn outcome(answers: &[u8]) -> io::Result<Option<u64>> {
        let mut packets = None;
        let result = messages(answers).find_map(|message| answer(&message, &mut packets)).expect("a last message");
        result.map(|()| packets)
    }

    fn message(kind: u16, fill: impl FnOnce(&mut Writer)) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.message(Head { kind, flags: 0, sequence: 1, family: 0, resource: 0 }, fill);
        writer.bytes
    }

    /// The last message of an answer. It has only one header, so the error replaces the second one.
    fn end(errno: i32) -> Vec<u8> {
        let mut bytes = message(netlink::ERROR, |_| ());
        bytes.splice(netlink::HEADER.., (-errno).to_ne_bytes());
        bytes
    }

    #[test]
    fn a_request_contains_the_name() {
        let bytes = encode(COUNTERS << 8 | NEW, netlink::CREATE, |writer| writer.string(NAME, "abc"));
        let [read] = messages(&bytes).collect::<Vec<_>>()[..] else { panic!("{bytes:?}") };
        assert_eq!((read.kind, read.flags), (0x700, 0x405), "NLM_F_REQUEST, NLM_F_ACK, NLM_F_CREATE");
        assert_eq!(read.payload, [2, 0, 0, 0, 8, 0, 1, 0, b'a', b'b', b'c', 0]);
    }

    #[test]
    fn an_answer_contains_the_packets_or_an_error() {
        let counter = message(COUNTERS << 8 | NEW, |writer| {
            writer.string(NAME, "abc");
            writer.u64(PACKETS, 7 << 32);
            writer.u64(3, 99);
        });
        assert_eq!(outcome(&[counter.clone(), end(0)].concat()).unwrap(), Some(7 << 32));
        assert_eq!(outcome(&end(0)).unwrap(), None, "a new counter, or an extension that exists");
        // A kernel without counters answers EINVAL, and without the match ENOENT.
        for errno in [Errno::INVAL, Errno::NOENT, Errno::BUSY, Errno::PERM] {
            let error = outcome(&end(errno.raw_os_error())).unwrap_err();
            assert_eq!(Errno::from_io_error(&error), Some(errno));
        }
        assert!(outcome(&[counter, end(22)].concat()).is_err());
    }

    #[test]
    fn a_counter_is_created_once() {
        let test = || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("this test needs root");
            check().unwrap();
            let missing = packets("abc").unwrap_err();
            assert_eq!(Errno::from_io_error(&missing), Some(Errno::NOENT));
            for _ in 0..2 {
                ensure("abc").unwrap();
                assert_eq!(packets("abc").unwrap(), 0);
            }
            ensure(&"x".repeat(200)).unwrap_err();
        };
        std::thread::spawn(test).join().unwrap();
    }
}
