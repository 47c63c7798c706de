//! [`Monitor`]: notices when other processes change nf_tables.
//!
//! For each commit, the kernel sends one notification for each change, and one for the new generation of the ruleset. The
//! notification of the generation identifies the process. The monitor skips the commits of this process. If notifications come
//! faster than they are read, the kernel drops some; the monitor then reports [`Event::Lost`], and the caller has to read
//! everything back.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::future::poll_fn;
use std::io;

use netlink_sys::{AsyncSocket, SocketAddr, TokioSocket, protocols::NETLINK_NETFILTER};
use rustix::io::Errno;
use rustix::net::sockopt;

use super::Table;
use super::answer::Error;
use super::uapi::{self, generation, msg, table};
use super::wire::{Message, family_of_number, messages};

/// Room for the notifications of a commit of about 10,000 elements.
const RECEIVE_BUFFER: usize = 8 << 20;

/// A change of the ruleset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Another process committed a transaction.
    Committed(Commit),
    /// Notifications were lost, so anything may have changed.
    Lost,
}

/// A commit of another process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Commit {
    /// The ID of the generation that the commit created.
    pub generation: u32,
    /// The ID of the process, if the kernel sent it.
    pub process_id: Option<u32>,
    /// The name of the process, if the kernel sent it.
    pub process_name: Option<String>,
    /// The changed tables of the families `ip` and `ip6`. Tables of other families are left out.
    pub tables: BTreeSet<Table>,
}

/// A subscription to the nf_tables changes of a network namespace.
pub struct Monitor {
    netlink: TokioSocket,
    buffer: Vec<u8>,
    own: Vec<u32>,
    commits: Commits,
    pending: VecDeque<Event>,
}

impl fmt::Debug for Monitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Monitor").field("own", &self.own).field("pending", &self.pending).finish_non_exhaustive()
    }
}

impl Monitor {
    /// Subscribes to the changes in the calling thread's network namespace. `own` are netlink ports ([`super::Socket::port`])
    /// whose commits are skipped. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// Returns an error if the process lacks `CAP_NET_ADMIN`, or if the socket fails.
    pub fn subscribe(own: Vec<u32>) -> Result<Self, Error> {
        let mut netlink = TokioSocket::new(NETLINK_NETFILTER)?;
        netlink.socket_mut().bind(&SocketAddr::new(0, 0))?;
        let socket = netlink.socket_ref();
        if sockopt::set_socket_recv_buffer_size_force(socket, RECEIVE_BUFFER).is_err() {
            sockopt::set_socket_recv_buffer_size(socket, RECEIVE_BUFFER).map_err(io::Error::from)?;
        }
        socket.add_membership(uapi::MULTICAST_GROUP).map_err(|error| match errno(&error) {
            Some(Errno::PERM) => Error::NotPermitted,
            _ => Error::Io(error),
        })?;
        Ok(Self {
            netlink,
            buffer: Vec::with_capacity(256 << 10),
            own,
            commits: Commits::default(),
            pending: VecDeque::new(),
        })
    }

    /// Stops the notifications. The kernel then builds none for the commits of this process, which makes a commit of many
    /// elements about twice as fast. Until [`Self::resume`], commits of other processes also go unnoticed.
    ///
    /// # Errors
    /// Returns an error if the socket fails. Subscribe again after an error.
    pub fn pause(&mut self) -> Result<(), Error> {
        Ok(self.netlink.socket_ref().drop_membership(uapi::MULTICAST_GROUP)?)
    }

    /// Subscribes again after [`Self::pause`].
    ///
    /// # Errors
    /// Returns an error if the socket fails. Subscribe again after an error.
    pub fn resume(&mut self) -> Result<(), Error> {
        Ok(self.netlink.socket_ref().add_membership(uapi::MULTICAST_GROUP)?)
    }

    /// Waits for the next event. Cancel-safe.
    ///
    /// # Errors
    /// Returns an error if the socket fails. Subscribe again after an error.
    pub async fn next(&mut self) -> Result<Event, Error> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Ok(event);
            }
            self.buffer.clear();
            match poll_fn(|context| self.netlink.poll_recv(context, &mut self.buffer)).await {
                Ok(()) => {
                    for message in messages(&self.buffer) {
                        self.pending.extend(self.commits.message(&message, &self.own).map(Event::Committed));
                    }
                }
                Err(error) => match errno(&error) {
                    Some(Errno::NOBUFS) => {
                        self.discard();
                        self.pending.push_back(Event::Lost);
                    }
                    Some(Errno::INTR) => {}
                    _ => return Err(Error::Io(error)),
                },
            }
        }
    }

    /// Empties the socket. Once the kernel has dropped a notification, it drops all others without another error until the socket
    /// is empty (`netlink_overrun`). So [`Event::Lost`] follows only when the socket is empty.
    fn discard(&mut self) {
        self.commits = Commits::default();
        loop {
            self.buffer.clear();
            match self.netlink.socket_ref().recv(&mut self.buffer, 0) {
                Ok(_) => {}
                Err(error) if matches!(errno(&error), Some(Errno::NOBUFS | Errno::INTR)) => {}
                // The socket is empty. If it failed, the next read returns the error.
                Err(_) => return,
            }
        }
    }
}

fn errno(error: &io::Error) -> Option<Errno> {
    error.raw_os_error().map(Errno::from_raw_os_error)
}

/// Collects the notifications of a commit.
#[derive(Debug, Default)]
struct Commits {
    tables: BTreeSet<Table>,
}

impl Commits {
    /// Processes a notification. Returns the commit that it completes, unless it is our own.
    fn message(&mut self, message: &Message<'_>, own: &[u32]) -> Option<Commit> {
        let attributes = message.attributes();
        if message.kind != uapi::SUBSYSTEM << 8 | msg::NEW_GENERATION {
            let family = message.family().and_then(family_of_number)?;
            // The table's name has the same attribute number in every kind of message.
            if let Some(name) = attributes.string(table::NAME)
                && !own.contains(&message.port)
                && !self.tables.iter().any(|table| table.family == family && &*table.name == name)
            {
                self.tables.insert(Table::new(family, name));
            }
            return None;
        }
        let tables = std::mem::take(&mut self.tables);
        (!own.contains(&message.port)).then(|| Commit {
            generation: attributes.u32(generation::ID).unwrap_or_default(),
            process_id: attributes.u32(generation::PROCESS_ID),
            process_name: attributes.string(generation::PROCESS_NAME).map(str::to_owned),
            tables,
        })
    }
}
