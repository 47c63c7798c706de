//! The node's own addresses, and notifications when they change. The module reports all addresses, including loopback and
//! link-local ones. The caller selects the addresses that it needs.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use futures::stream::{Stream, StreamExt, TryStreamExt};
use rtnetlink::packet_route::address::{AddressAttribute, AddressMessage};
use rtnetlink::{Handle, MulticastGroup, new_multicast_connection};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tracing::{debug, warn};

use crate::connection::link;

/// Why the node's addresses could not be listed or watched.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The subscription ended, so changes since then are unknown. Call [`Addresses::watch`] again.
    #[error("the subscription to rtnetlink ended")]
    Ended,
    /// The kernel refused to list the addresses.
    #[error("failed to list the node's addresses: {0}")]
    List(#[from] rtnetlink::Error),
    /// The netlink socket failed.
    #[error("the rtnetlink socket failed: {0}")]
    Io(#[from] io::Error),
}

/// One address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// The IP address.
    pub ip: IpAddr,
    /// The length of the network's prefix, in bits.
    pub prefix_len: u8,
    /// The index of the interface.
    pub interface: u32,
}

/// A subscription to address changes in the network namespace where it was opened.
#[derive(Debug)]
pub struct Addresses {
    handle: Handle,
    /// Receives one message for any number of changes since the last read.
    changed: mpsc::Receiver<()>,
    /// The tasks behind the subscription. Dropping this set ends them.
    _work: JoinSet<()>,
}

impl Addresses {
    /// Subscribes to address changes. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// Returns [`Error::Io`] if the netlink socket cannot be opened or bound.
    pub fn watch() -> Result<Self, Error> {
        let groups = [MulticastGroup::Ipv4Ifaddr, MulticastGroup::Ipv6Ifaddr];
        let (connection, handle, changes) = new_multicast_connection(&groups)?;
        let mut work = JoinSet::new();
        work.spawn(connection);
        let (notify, changed) = mpsc::channel(1);
        work.spawn(forward_changes(changes, notify));
        Ok(Self { handle, changed, _work: work })
    }

    /// Lists the addresses of all interfaces.
    ///
    /// # Errors
    /// Returns [`Error::List`] if the kernel refuses the request.
    pub async fn list(&self) -> Result<BTreeSet<Address>, Error> {
        let messages: Vec<AddressMessage> = self.handle.address().get().execute().try_collect().await?;
        Ok(messages.iter().filter_map(address).collect())
    }

    /// Waits until an address is added or removed. Also returns for a change that happened since the subscription
    /// began, or since this method last returned.
    ///
    /// # Errors
    /// Returns [`Error::Ended`] if the subscription ended.
    pub async fn changed(&mut self) -> Result<(), Error> {
        self.changed.recv().await.ok_or(Error::Ended)
    }
}

/// Turns each change into a notification without content. Unread changes merge into one, so a slow reader
/// costs no memory.
async fn forward_changes<T>(changes: impl Stream<Item = T> + Unpin, notify: mpsc::Sender<()>) {
    let mut changes = changes;
    while changes.next().await.is_some() {
        // A full channel already holds a notification.
        if let Err(mpsc::error::TrySendError::Closed(())) = notify.try_send(()) {
            return;
        }
    }
}

/// How long to wait before listing the addresses again after a failure.
const RETRY: Duration = Duration::from_secs(1);

/// Lists and follows the addresses of the node's interfaces, in the network namespace in which it is first used. Needs a
/// tokio runtime. If a subscription breaks, subscribes again.
#[derive(Debug, Default)]
pub struct NodeAddresses {
    watch: Option<Addresses>,
    /// Whether the addresses changed since they were last listed.
    changed: bool,
    /// When to list the addresses again after a failure.
    retry_at: Option<Instant>,
    /// Whether the log already has a warning about the current failure.
    warned: bool,
    /// The name of an interface whose addresses are not listed.
    except: Option<String>,
}

impl NodeAddresses {
    /// The addresses of all interfaces except the interface with that name. That interface need not exist.
    pub fn except(interface: &str) -> Self {
        Self { except: Some(interface.to_owned()), ..Self::default() }
    }

    /// Lists the addresses. After an error, [`Self::next`] lists them again.
    ///
    /// # Errors
    /// Returns an error if the subscription cannot be opened, or if the kernel refuses to list the addresses or to look
    /// up the excepted interface.
    pub async fn list(&mut self) -> Result<Vec<IpAddr>, Error> {
        let listed = self.try_list().await;
        self.changed = listed.is_err();
        self.retry_at = listed.is_err().then(|| Instant::now() + RETRY);
        if listed.is_err() {
            self.watch = None;
        }
        listed
    }

    async fn try_list(&mut self) -> Result<Vec<IpAddr>, Error> {
        let watch = match &mut self.watch {
            Some(watch) => watch,
            None => self.watch.insert(Addresses::watch()?),
        };
        let except = match &self.except {
            Some(name) => link(&watch.handle, name).await?.map(|link| link.header.index),
            None => None,
        };
        let listed = watch.list().await?.into_iter().filter(|address| Some(address.interface) != except);
        Ok(listed.map(|address| address.ip).collect())
    }

    /// Lists the addresses. On failure it returns `None` and logs a warning, once per series of failures.
    pub async fn list_or_warn(&mut self) -> Option<Vec<IpAddr>> {
        let listed = self.list().await;
        match &listed {
            Ok(_) => self.warned = false,
            Err(error) if std::mem::replace(&mut self.warned, true) => {
                debug!(%error, "still failing to list the node's addresses");
            }
            Err(error) => warn!(%error, "failed to list the node's addresses; retrying every second"),
        }
        listed.ok()
    }

    /// Waits for a change and returns the addresses after it. While they cannot be listed, it logs a warning and retries every
    /// second. Cancel-safe.
    pub async fn next(&mut self) -> Vec<IpAddr> {
        loop {
            self.change().await;
            if let Some(listed) = self.list_or_warn().await {
                return listed;
            }
        }
    }

    /// Waits until the addresses have to be listed.
    async fn change(&mut self) {
        if let Some(retry_at) = self.retry_at {
            tokio::time::sleep_until(retry_at.into()).await;
        }
        if !self.changed
            && let Some(watch) = &mut self.watch
        {
            if watch.changed().await.is_err() {
                self.watch = None;
            }
            self.changed = true;
        }
    }
}

/// The address that a netlink message describes. On a point-to-point link, `IFA_LOCAL` is the node's own address and
/// `IFA_ADDRESS` is the peer's. `IFA_LOCAL` is therefore preferred.
pub(crate) fn address(message: &AddressMessage) -> Option<Address> {
    let find = |select: fn(&AddressAttribute) -> Option<IpAddr>| message.attributes.iter().find_map(select);
    let local = find(|attribute| match attribute {
        AddressAttribute::Local(ip) => Some(*ip),
        _ => None,
    });
    let ip = local.or_else(|| {
        find(|attribute| match attribute {
            AddressAttribute::Address(ip) => Some(*ip),
            _ => None,
        })
    })?;
    Some(Address { ip, prefix_len: message.header.prefix_len, interface: message.header.index })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn unread_changes_merge_into_one_notification() {
        let (notify, mut notified) = mpsc::channel(1);
        forward_changes(futures::stream::iter(0..100_000), notify).await;
        assert_eq!((notified.recv().await, notified.recv().await), (Some(()), None), "then the channel closes");
    }
}
