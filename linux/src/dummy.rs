//! A dummy interface that carries addresses: packets to them are delivered on this node, and so reach IPVS.
//!
//! The interface stays as the kernel makes it, down and without ARP: its addresses are local all the same, nothing is ever sent
//! through it, and no route to it appears. Only addresses that stand alone (/32 and /128) are its business.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use futures::stream::{self, StreamExt, TryStreamExt};
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use rtnetlink::packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage};
use rtnetlink::{AddressMessageBuilder, Handle, LinkDummy, new_connection};
use rustix::io::Errno;
use tokio::task::JoinHandle;

use crate::{addresses, shortage::is_shortage};

/// Questions under way at a time: as many as have room for their answers in a receive buffer of the default size.
const WINDOW: usize = 64;

/// Why the interface is not there, or its addresses are not known.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The process may not.
    #[error("not permitted to {action}: CAP_NET_ADMIN is needed; run as root or grant the capability")]
    NotPermitted {
        /// What was asked for.
        action: String,
    },
    /// The kernel has none.
    #[error("this kernel has no dummy interfaces, for {name}: load the module dummy (modprobe dummy)")]
    Unsupported {
        /// The interface that was asked for.
        name: String,
    },
    /// An interface of another kind has the name.
    #[error("the interface {name} is no dummy interface ({kind}): delete or rename it (ip link delete {name})")]
    NotDummy {
        /// Its name.
        name: String,
        /// What it is.
        kind: String,
    },
    /// Somebody deleted it.
    #[error("the interface {name} is gone: make it again")]
    Gone {
        /// Its name.
        name: String,
    },
    /// The kernel refused.
    #[error("failed to {action}: {error}")]
    Refused {
        /// What was asked for.
        action: String,
        /// Its answer.
        error: rtnetlink::Error,
    },
    /// The socket failed.
    #[error("rtnetlink socket: {0}")]
    Io(#[from] io::Error),
}

/// A dummy interface in the network namespace of the thread that asked for it.
#[derive(Debug)]
pub struct Dummy {
    name: String,
    index: u32,
    connection: Connection,
}

/// An address that could not be added or removed.
#[derive(Debug, thiserror::Error)]
#[error("failed to {}: {reason}", describe(*adding, address, name))]
pub struct Refused {
    /// The address.
    pub address: IpAddr,
    /// Whether it was to be added; removed otherwise.
    pub adding: bool,
    /// The kernel is short of something: the address is not to blame.
    pub is_shortage: bool,
    name: String,
    reason: String,
}

impl Refused {
    /// The refusal of an address of the interface of that name.
    pub fn new(address: IpAddr, adding: bool, name: &str, errno: Option<i32>, reason: String) -> Self {
        Self { address, adding, is_shortage: errno.is_some_and(is_shortage), name: name.to_owned(), reason }
    }
}

/// What became of changes.
#[derive(Debug, Default)]
#[must_use = "the kernel may have refused some of the changes"]
pub struct Changed {
    /// Addresses that were not there before.
    pub added: usize,
    /// Addresses that were there before.
    pub removed: usize,
    /// Those that the kernel refused.
    pub refused: Vec<Refused>,
}

impl Dummy {
    /// The interface of that name, made if there is none. The kernel loads its module for this if it may. Must be called
    /// within a tokio runtime.
    pub async fn ensure(name: &str) -> Result<Self, Error> {
        if let Some(found) = Self::find(name).await? {
            return Ok(found);
        }
        let connection = Connection::open()?;
        match connection.handle.link().add(LinkDummy::new(name).build()).execute().await {
            Ok(()) => {}
            // Somebody else was as quick.
            Err(error) if errno(&error) == Some(Errno::EXIST) => {}
            Err(error) => return Err(not_made(name, error)),
        }
        Self::find(name).await?.ok_or_else(|| Error::Gone { name: name.to_owned() })
    }

    /// The interface of that name, if there is one. Must be called within a tokio runtime.
    pub async fn find(name: &str) -> Result<Option<Self>, Error> {
        let connection = Connection::open()?;
        let links = connection.handle.link().get().match_name(name).execute();
        let link = match links.try_collect::<Vec<LinkMessage>>().await {
            Ok(links) => links.into_iter().next(),
            Err(error) if errno(&error) == Some(Errno::NODEV) => None,
            Err(error) => return Err(failed(format!("look for the interface {name}"), error)),
        };
        let Some(link) = link else { return Ok(None) };
        match kind(&link) {
            Some(InfoKind::Dummy) => Ok(Some(Self { name: name.to_owned(), index: link.header.index, connection })),
            other => {
                let kind = other.map_or_else(|| "a device".to_owned(), ToString::to_string);
                Err(Error::NotDummy { name: name.to_owned(), kind })
            }
        }
    }

    /// The kernel's number of the interface.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Its addresses, as far as they stand alone. Empty too if it is gone.
    pub async fn addresses(&self) -> Result<BTreeSet<IpAddr>, Error> {
        let listing = self.connection.handle.address().get().set_link_index_filter(self.index).execute();
        let messages: Vec<AddressMessage> = listing
            .try_collect()
            .await
            .map_err(|error| failed(format!("list the addresses of the interface {}", self.name), error))?;
        let addresses = messages.iter().filter_map(addresses::address);
        let ours = addresses
            .filter(|address| address.interface == self.index && address.prefix_len == full_prefix(address.ip));
        Ok(ours.map(|address| address.ip).collect())
    }

    /// Removes and adds addresses, many at a time. One that is there already, or gone already, is as it should be.
    pub async fn change(
        &self,
        add: impl IntoIterator<Item = IpAddr>,
        remove: impl IntoIterator<Item = IpAddr>,
    ) -> Result<Changed, Error> {
        let remove = remove.into_iter().map(|address| (address, false));
        let add = add.into_iter().map(|address| (address, true));
        // In this order, so that there is room for the new ones.
        let requests = remove.chain(add).map(|(address, adding)| async move {
            let result = if adding { self.add(address).await } else { self.remove(address).await };
            (address, adding, result)
        });
        let mut changed = Changed::default();
        let mut answers = stream::iter(requests).buffered(WINDOW);
        while let Some((address, adding, result)) = answers.next().await {
            let there = if adding { Errno::EXIST } else { Errno::ADDRNOTAVAIL };
            match result {
                Ok(()) => *if adding { &mut changed.added } else { &mut changed.removed } += 1,
                Err(error) => match errno(&error) {
                    Some(errno) if errno == there => {}
                    Some(Errno::NODEV) => return Err(Error::Gone { name: self.name.clone() }),
                    Some(Errno::PERM) => {
                        return Err(failed(describe(adding, &address, &self.name), error));
                    }
                    errno => {
                        let reason = self.reason(address, errno, &error);
                        let number = errno.map(Errno::raw_os_error);
                        changed.refused.push(Refused::new(address, adding, &self.name, number, reason));
                    }
                },
            }
        }
        Ok(changed)
    }

    /// Deletes the interface with its addresses. One that is gone already is as it should be.
    pub async fn delete(self) -> Result<(), Error> {
        match self.connection.handle.link().del(self.index).execute().await {
            Err(error) if errno(&error) != Some(Errno::NODEV) => {
                Err(failed(format!("delete the interface {}", self.name), error))
            }
            _ => Ok(()),
        }
    }

    async fn add(&self, address: IpAddr) -> Result<(), rtnetlink::Error> {
        let mut request = self.connection.handle.address().add(self.index, address, full_prefix(address));
        if address.is_ipv6() {
            // Nobody else can be asked whether he has it: it is to be used at once.
            request.message_mut().attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
        }
        request.execute().await
    }

    async fn remove(&self, address: IpAddr) -> Result<(), rtnetlink::Error> {
        let prefix_len = full_prefix(address);
        let message = match address {
            IpAddr::V4(v4) => {
                AddressMessageBuilder::<std::net::Ipv4Addr>::new().index(self.index).address(v4, prefix_len).build()
            }
            IpAddr::V6(v6) => {
                AddressMessageBuilder::<std::net::Ipv6Addr>::new().index(self.index).address(v6, prefix_len).build()
            }
        };
        self.connection.handle.address().del(message).execute().await
    }

    fn reason(&self, address: IpAddr, errno: Option<Errno>, error: &rtnetlink::Error) -> String {
        match errno {
            Some(Errno::ACCESS | Errno::OPNOTSUPP) if address.is_ipv6() => format!(
                "IPv6 is off there: switch it on (sysctl -w net/ipv6/conf/{0}/disable_ipv6=0), or start the kernel without \
                 ipv6.disable=1",
                self.name
            ),
            Some(Errno::INVAL | Errno::ADDRNOTAVAIL) => "it is no address that an interface can have".to_owned(),
            _ => error.to_string(),
        }
    }
}

/// A connection that ends when dropped.
#[derive(Debug)]
struct Connection {
    handle: Handle,
    task: JoinHandle<()>,
}

impl Connection {
    fn open() -> Result<Self, Error> {
        let (connection, handle, _) = new_connection()?;
        Ok(Self { handle, task: tokio::spawn(connection) })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn kind(link: &LinkMessage) -> Option<&InfoKind> {
    let infos = link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::LinkInfo(infos) => Some(infos),
        _ => None,
    })?;
    infos.iter().find_map(|info| match info {
        LinkInfo::Kind(kind) => Some(kind),
        _ => None,
    })
}

fn full_prefix(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn describe(adding: bool, address: &IpAddr, name: &str) -> String {
    if adding {
        format!("add the address {address} to the interface {name}")
    } else {
        format!("remove the address {address} from the interface {name}")
    }
}

/// The kernel's answer, if it is one.
fn errno(error: &rtnetlink::Error) -> Option<Errno> {
    match error {
        rtnetlink::Error::NetlinkError(message) => Errno::from_io_error(&message.to_io()),
        _ => None,
    }
}

/// Of a kind of interface that it does not know the kernel says that it does not support the operation.
fn not_made(name: &str, error: rtnetlink::Error) -> Error {
    match errno(&error) {
        Some(Errno::OPNOTSUPP) => Error::Unsupported { name: name.to_owned() },
        _ => failed(format!("make the interface {name}"), error),
    }
}

fn failed(action: String, error: rtnetlink::Error) -> Error {
    match errno(&error) {
        Some(Errno::PERM) => Error::NotPermitted { action },
        _ => Error::Refused { action, error },
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroI32;

    use rtnetlink::packet_core::ErrorMessage;

    use super::*;

    #[test]
    fn an_interface_that_cannot_be_made_says_what_helps() {
        for (errno, expected) in [
            (
                Errno::OPNOTSUPP,
                "this kernel has no dummy interfaces, for kube-ipvs0: load the module dummy (modprobe dummy)",
            ),
            (
                Errno::PERM,
                "not permitted to make the interface kube-ipvs0: CAP_NET_ADMIN is needed; run as root or grant the capability",
            ),
            (
                Errno::NOMEM,
                "failed to make the interface kube-ipvs0: Received a netlink error message Cannot allocate memory (os error 12)",
            ),
        ] {
            let mut message = ErrorMessage::default();
            message.code = NonZeroI32::new(-errno.raw_os_error());
            let error = not_made("kube-ipvs0", rtnetlink::Error::NetlinkError(message));
            assert_eq!(error.to_string(), expected);
        }
    }
}
