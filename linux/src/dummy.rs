//! A dummy interface for the virtual addresses of IPVS: the kernel delivers packets to its addresses locally, where IPVS sees
//! them.
//!
//! The interface stays down and without ARP, as the kernel creates it. Nevertheless, its addresses are local. The
//! interface sends nothing, and the kernel adds no routes for it. The module manages only single addresses (/32 and
//! /128).

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use futures::stream::{self, StreamExt, TryStreamExt};
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use rtnetlink::packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage};
use rtnetlink::{AddressMessageBuilder, LinkDummy};
use rustix::io::Errno;

use crate::{
    addresses,
    connection::{Connection, errno, link},
    shortage::is_shortage,
};

/// How many requests are in flight at a time. Their answers fit into a receive buffer of the default size.
const WINDOW: usize = 64;

/// Why the interface or its addresses could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The process lacks `CAP_NET_ADMIN`.
    #[error("not permitted to {action}: CAP_NET_ADMIN is needed; run as root or grant the capability")]
    NotPermitted {
        /// The request that the kernel denied, in a form that follows "not permitted to".
        action: String,
    },
    /// The kernel has no dummy interfaces.
    #[error("this kernel cannot create the dummy interface {name}: load the module dummy (modprobe dummy)")]
    Unsupported {
        /// The name of the requested interface.
        name: String,
    },
    /// An interface of another kind has the name.
    #[error("the interface {name} is not a dummy interface ({kind}): delete or rename it (ip link delete {name})")]
    NotDummy {
        /// The name of the interface.
        name: String,
        /// The kind of that interface, such as `bridge`.
        kind: String,
    },
    /// The interface was deleted.
    #[error("another program deleted the interface {name}")]
    Deleted {
        /// The name of the interface.
        name: String,
    },
    /// The kernel refused a request for another reason.
    #[error("failed to {action}: {error}")]
    Refused {
        /// The request, in a form that follows "failed to".
        action: String,
        /// The kernel's error.
        error: rtnetlink::Error,
    },
    /// The netlink socket failed.
    #[error("the rtnetlink socket failed: {0}")]
    Io(#[from] io::Error),
}

/// A dummy interface in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Dummy {
    name: String,
    index: u32,
    connection: Connection,
}

/// An address that the kernel refused to add or remove.
#[derive(Debug, thiserror::Error)]
#[error("failed to {}: {reason}", describe(*adding, address, name))]
pub struct Refused {
    /// The refused address.
    pub address: IpAddr,
    /// Whether the address was to be added; otherwise it was to be removed.
    pub adding: bool,
    /// Whether the kernel was short of a resource, so that a retry can succeed.
    pub is_shortage: bool,
    name: String,
    reason: String,
}

impl Refused {
    /// A refusal for an address of the interface `name`. `errno` is the kernel's error number.
    pub fn new(address: IpAddr, adding: bool, name: &str, errno: Option<i32>, reason: String) -> Self {
        Self { address, adding, is_shortage: errno.is_some_and(is_shortage), name: name.to_owned(), reason }
    }
}

/// The outcome of [`Dummy::change`].
#[derive(Debug, Default)]
#[must_use = "the kernel may have refused some of the changes"]
pub struct Changed {
    /// How many addresses were added. Addresses that existed already do not count.
    pub added: usize,
    /// How many addresses were removed. Addresses that were missing already do not count.
    pub removed: usize,
    /// The addresses that the kernel refused.
    pub refused: Vec<Refused>,
}

impl Dummy {
    /// Opens the dummy interface with that name, and creates it if there is none. The kernel loads the `dummy` module if it can.
    /// Must be called within a tokio runtime.
    ///
    /// # Errors
    /// Returns an error if an interface of another kind has the name, or if the kernel has no dummy interfaces or denies the
    /// request.
    pub async fn ensure(name: &str) -> Result<Self, Error> {
        if let Some(existing) = Self::find(name).await? {
            return Ok(existing);
        }
        let connection = Connection::open()?;
        match connection.handle.link().add(LinkDummy::new(name).build()).execute().await {
            Ok(()) => {}
            // Another process has created the interface since the search.
            Err(error) if errno(&error) == Some(Errno::EXIST) => {}
            Err(error) => return Err(creation_failed(name, error)),
        }
        Self::find(name).await?.ok_or_else(|| Error::Deleted { name: name.to_owned() })
    }

    /// Opens the dummy interface with that name; `None` if there is none. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// Returns an error if an interface of another kind has the name, or if the kernel denies the request.
    pub async fn find(name: &str) -> Result<Option<Self>, Error> {
        let connection = Connection::open()?;
        let link = link(&connection.handle, name).await;
        let link = link.map_err(|error| failed(format!("find the interface {name}"), error))?;
        let Some(link) = link else { return Ok(None) };
        match kind(&link) {
            Some(InfoKind::Dummy) => Ok(Some(Self { name: name.to_owned(), index: link.header.index, connection })),
            other => {
                let kind = other.map_or_else(|| "a device".to_owned(), ToString::to_string);
                Err(Error::NotDummy { name: name.to_owned(), kind })
            }
        }
    }

    /// The index of the interface.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// The interface's single addresses (/32 and /128). Empty if the interface was deleted.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses or fails the request.
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

    /// Removes and adds addresses. It is not an error if an address exists already, or is missing already. Refused addresses are
    /// listed in the result and do not stop the others.
    ///
    /// # Errors
    /// Returns an error if the interface was deleted, or if the process lacks `CAP_NET_ADMIN`.
    pub async fn change(
        &self,
        add: impl IntoIterator<Item = IpAddr>,
        remove: impl IntoIterator<Item = IpAddr>,
    ) -> Result<Changed, Error> {
        let remove = remove.into_iter().map(|address| (address, false));
        let add = add.into_iter().map(|address| (address, true));
        // Removals first, so that they make room for the additions.
        let requests = remove.chain(add).map(|(address, adding)| async move {
            let result = if adding { self.add(address).await } else { self.remove(address).await };
            (address, adding, result)
        });
        let mut changed = Changed::default();
        let mut answers = stream::iter(requests).buffered(WINDOW);
        while let Some((address, adding, result)) = answers.next().await {
            let redundant = if adding { Errno::EXIST } else { Errno::ADDRNOTAVAIL };
            match result {
                Ok(()) => *if adding { &mut changed.added } else { &mut changed.removed } += 1,
                Err(error) => match errno(&error) {
                    Some(errno) if errno == redundant => {}
                    Some(Errno::NODEV) => return Err(Error::Deleted { name: self.name.clone() }),
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

    /// Deletes the interface with its addresses. A missing interface is not an error.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses or fails the request.
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
            // No neighbour can own the address, so duplicate address detection would only delay its use.
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
                "IPv6 is disabled on it: enable it (sysctl -w net/ipv6/conf/{0}/disable_ipv6=0), or start the kernel without \
                 ipv6.disable=1",
                self.name
            ),
            Some(Errno::INVAL | Errno::ADDRNOTAVAIL) => "an interface cannot have such an address".to_owned(),
            _ => error.to_string(),
        }
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

/// The error for a failed creation. The kernel answers `EOPNOTSUPP` for a kind of interface that it does not know.
fn creation_failed(name: &str, error: rtnetlink::Error) -> Error {
    match errno(&error) {
        Some(Errno::OPNOTSUPP) => Error::Unsupported { name: name.to_owned() },
        _ => failed(format!("create the interface {name}"), error),
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
    fn errors_of_creating_an_interface_name_the_remedy() {
        for (errno, expected) in [
            (
                Errno::OPNOTSUPP,
                "this kernel cannot create the dummy interface kube-ipvs0: load the module dummy (modprobe dummy)",
            ),
            (
                Errno::PERM,
                "not permitted to create the interface kube-ipvs0: CAP_NET_ADMIN is needed; run as root or grant the capability",
            ),
            (
                Errno::NOMEM,
                "failed to create the interface kube-ipvs0: Received a netlink error message Cannot allocate memory (os error 12)",
            ),
        ] {
            let mut message = ErrorMessage::default();
            message.code = NonZeroI32::new(-errno.raw_os_error());
            let error = creation_failed("kube-ipvs0", rtnetlink::Error::NetlinkError(message));
            assert_eq!(error.to_string(), expected);
        }
    }
}
