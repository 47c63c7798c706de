//! Ends sockets of processes, over sock_diag (man 7 sock_diag): for clients whose connected UDP sockets would otherwise keep a
//! destination that no longer exists.
//!
//! sock_diag lists the sockets of one network namespace. So [`end_udp`] enters every namespace that it finds in `/proc` and
//! `/run/netns`, in a thread of its own.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io,
    os::{fd::AsFd as _, unix::fs::MetadataExt as _},
    path::{Path, PathBuf},
};

use localnet_core::Family;
use netlink_sys::{Socket, protocols::NETLINK_SOCK_DIAG};
use rustix::{
    io::Errno,
    thread::{LinkNameSpaceType, move_into_link_name_space},
};

use crate::netlink::{self, Command, Message, Writer, array, messages};

/// The outcome of [`end_udp`].
#[derive(Debug, Default)]
#[must_use = "some namespaces may be inaccessible"]
pub struct Ended {
    /// How many sockets were ended.
    pub sockets: usize,
    /// How many network namespaces could not be searched.
    pub unsearched: usize,
    /// The first error of a namespace that could not be searched.
    pub error: Option<io::Error>,
}

/// Ends the connected UDP sockets with these cookies (`SO_COOKIE`), in all network namespaces. Their next call fails with
/// `ECONNABORTED`, and they are no longer connected. A namespace needs `CAP_NET_ADMIN`, and, unless it is that of this process,
/// `CAP_SYS_ADMIN` and `CAP_SYS_PTRACE`.
///
/// # Errors
/// Returns an error if no thread can be started.
pub fn end_udp(cookies: &BTreeSet<u64>) -> io::Result<Ended> {
    let search = || {
        let mut ended = Ended::default();
        let mut record = |searched: io::Result<usize>| match searched {
            Ok(sockets) => ended.sockets += sockets,
            Err(error) => {
                ended.unsearched += 1;
                ended.error.get_or_insert(error);
            }
        };
        // The sockets of this namespace need no other namespace.
        record(end_here(cookies));
        let own = fs::metadata("/proc/thread-self/ns/net").map(|own| own.ino()).ok();
        let (namespaces, hidden) = namespaces();
        for (_, namespace) in namespaces.into_iter().filter(|(inode, _)| Some(*inode) != own) {
            record(enter(&namespace).and_then(|()| end_here(cookies)));
        }
        hidden.into_iter().for_each(|error| record(Err(error)));
        ended
    };
    // The thread ends in another namespace, so it must not be a thread of the runtime.
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("sockets".to_owned()).spawn_scoped(scope, search)?;
        thread.join().map_err(|_| io::Error::other("the thread that ends sockets has crashed"))
    })
}

/// A path to each network namespace, by the namespace's inode; and an error for each process whose namespace is hidden from this
/// process.
fn namespaces() -> (BTreeMap<u64, PathBuf>, Vec<io::Error>) {
    let of_processes = children(Path::new("/proc")).into_iter().map(|process| process.join("ns/net"));
    let (mut found, mut hidden) = (BTreeMap::new(), Vec::new());
    for path in of_processes.chain(children(Path::new("/run/netns"))) {
        match fs::metadata(&path) {
            Ok(metadata) => _ = found.insert(metadata.ino(), path),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => hidden.push(error),
            // Not a process, or one that has ended.
            Err(_) => {}
        }
    }
    (found, hidden)
}

fn children(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

fn enter(namespace: &Path) -> io::Result<()> {
    let file = match File::open(namespace) {
        Ok(file) => file,
        // The process has ended. If it was the last one, so have its sockets.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    Ok(move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?)
}

/// `SOCK_DIAG_BY_FAMILY`
const LIST: u16 = 20;
/// `SOCK_DESTROY`
const DESTROY: u16 = 21;
/// `IPPROTO_UDP`
const UDP: u8 = 17;
/// The bit of `TCP_ESTABLISHED`, which is also the state of connected UDP sockets.
const CONNECTED: u32 = 1 << 1;
/// The size of `struct inet_diag_sockid`: ports, addresses, interface and cookie.
const ID: usize = 48;
/// Where the ID begins in `struct inet_diag_msg`, after family, state and timers.
const ID_AT: usize = 4;
/// The size of one read in bytes. The kernel fills at most 32 KiB.
const RECEIVE: usize = 64 << 10;

/// Ends the sockets in the namespace of this thread. Returns how many.
fn end_here(cookies: &BTreeSet<u64>) -> io::Result<usize> {
    let socket = netlink::connect(NETLINK_SOCK_DIAG)?;
    let mut ended = 0;
    for family in Family::BOTH {
        let mut found = Vec::new();
        let all = [0; ID];
        exchange(&socket, LIST, netlink::REQUEST | netlink::DUMP, family, &all, |message| {
            found.extend(id(message.payload).filter(|id| cookies.contains(&cookie(id))));
        })?;
        for id in found {
            match exchange(&socket, DESTROY, netlink::REQUEST | netlink::ACK, family, &id, |_| {}) {
                Ok(()) => ended += 1,
                // The process has closed the socket.
                Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(ended)
}

/// Sends `struct inet_diag_req_v2`, and calls `each` for every socket in the answer.
fn exchange(
    socket: &Socket,
    kind: u16,
    flags: u16,
    family: Family,
    id: &[u8; ID],
    mut each: impl FnMut(&Message<'_>),
) -> io::Result<()> {
    let mut writer = Writer::default();
    let command = Command { kind, flags, sequence: 1, command: netlink::family_number(family), version: UDP };
    writer.command(command, |writer| {
        writer.bytes.extend_from_slice(&CONNECTED.to_ne_bytes());
        writer.bytes.extend_from_slice(id);
    });
    netlink::send(socket, &writer.bytes)?;
    let mut buffer = vec![0; RECEIVE];
    while let Some(length) = netlink::next_part(socket, &mut buffer)? {
        for message in messages(&buffer[..length]) {
            if matches!(message.kind, netlink::DONE | netlink::ERROR) {
                return message.error().map_or(Ok(()), |errno| Err(errno.into()));
            }
            each(&message);
        }
    }
    Err(io::Error::other("the kernel's answer was lost"))
}

fn id(payload: &[u8]) -> Option<[u8; ID]> {
    array(payload.get(ID_AT..)?)
}

fn cookie(id: &[u8; ID]) -> u64 {
    array(&id[ID - 8..]).map_or(0, u64::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use std::{io::ErrorKind, net::UdpSocket};

    use rustix::net::sockopt::socket_cookie;

    use super::*;

    #[test]
    fn only_the_sockets_with_the_cookies_end() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let client = |bind: &str| {
            let socket = UdpSocket::bind(bind).unwrap();
            socket.connect(server.local_addr().unwrap()).unwrap();
            socket
        };
        let (ends, stays, mapped) = (client("127.0.0.1:0"), client("127.0.0.1:0"), client("[::]:0"));
        let cookies = [&ends, &mapped].map(|socket| socket_cookie(socket).unwrap());
        assert_eq!(end_here(&cookies.into()).unwrap(), 2);
        for socket in [&ends, &mapped] {
            assert_eq!(socket.recv(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionAborted);
        }
        stays.send(b"?").unwrap();
        assert_eq!(end_here(&cookies.into()).unwrap(), 0, "these sockets are no longer connected");
    }

    #[test]
    fn cut_off_messages_have_no_id() {
        assert_eq!(id(&[0; ID_AT + ID - 1]), None);
        assert_eq!(id(&[]), None);
        let mut message = [0; ID_AT + ID];
        message[ID_AT + ID - 8..].copy_from_slice(&7_u64.to_ne_bytes());
        assert_eq!(id(&message).map(|id| cookie(&id)), Some(7));
    }
}
