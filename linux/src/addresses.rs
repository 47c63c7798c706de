//! The node's own addresses: which there are, and when that changes.
//!
//! Facts of the kernel, without judgement: loopback and link-local addresses are told like all others.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use futures::stream::{Stream, StreamExt, TryStreamExt};
use rtnetlink::packet_route::address::{AddressAttribute, AddressMessage};
use rtnetlink::packet_route::link::LinkMessage;
use rtnetlink::{Handle, MulticastGroup, new_multicast_connection};
use rustix::io::Errno;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tracing::{debug, warn};

/// Why the addresses are not known.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The subscription ended: what changed since is not known. Watch again.
    #[error("rtnetlink subscription ended: watch the addresses again")]
    Ended,
    /// The kernel refused to list them.
    #[error("failed to list the node's addresses: {0}")]
    List(#[from] rtnetlink::Error),
    /// The socket failed.
    #[error("rtnetlink socket: {0}")]
    Io(#[from] io::Error),
}

/// One address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// The address itself.
    pub ip: IpAddr,
    /// The length of its network's prefix.
    pub prefix_len: u8,
    /// The number of the interface.
    pub interface: u32,
}

/// A subscription to the addresses of the network namespace in which it was made.
#[derive(Debug)]
pub struct Addresses {
    handle: Handle,
    /// There was a change: one word, however many there were while nobody listened.
    changed: mpsc::Receiver<()>,
    /// Ends when this is dropped.
    _work: JoinSet<()>,
}

impl Addresses {
    /// Subscribes; must be called within a tokio runtime.
    pub fn watch() -> Result<Self, Error> {
        let groups = [MulticastGroup::Ipv4Ifaddr, MulticastGroup::Ipv6Ifaddr];
        let (connection, handle, changes) = new_multicast_connection(&groups)?;
        let mut work = JoinSet::new();
        work.spawn(connection);
        let (tell, changed) = mpsc::channel(1);
        work.spawn(notice(changes, tell));
        Ok(Self { handle, changed, _work: work })
    }

    /// All addresses of all interfaces.
    pub async fn list(&self) -> Result<BTreeSet<Address>, Error> {
        let messages: Vec<AddressMessage> = self.handle.address().get().execute().try_collect().await?;
        Ok(messages.iter().filter_map(address).collect())
    }

    /// The number of the interface of that name, if there is one.
    async fn index(&self, name: &str) -> Result<Option<u32>, Error> {
        let links = self.handle.link().get().match_name(name).execute();
        match links.try_collect::<Vec<LinkMessage>>().await {
            Ok(links) => Ok(links.first().map(|link| link.header.index)),
            Err(rtnetlink::Error::NetlinkError(message))
                if Errno::from_io_error(&message.to_io()) == Some(Errno::NODEV) =>
            {
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until an address came or went since the subscription, or since this returned last; then list them.
    pub async fn changed(&mut self) -> Result<(), Error> {
        self.changed.recv().await.ok_or(Error::Ended)
    }
}

/// Tells that something came, and keeps nothing of it: nobody may listen for long.
async fn notice<T>(changes: impl Stream<Item = T> + Unpin, tell: mpsc::Sender<()>) {
    let mut changes = changes;
    while changes.next().await.is_some() {
        // If there is no room it is told already.
        if let Err(mpsc::error::TrySendError::Closed(())) = tell.try_send(()) {
            return;
        }
    }
}

/// After this what could not be listed is listed again.
const AGAIN: Duration = Duration::from_secs(1);

/// Follows the addresses of the interfaces of the network namespace in which it is first used; subscribes again when that
/// breaks. Needs a tokio runtime.
#[derive(Debug, Default)]
pub struct NodeAddresses {
    watch: Option<Addresses>,
    /// They differ from what was listed last.
    changed: bool,
    /// They could not be listed: when to list them again.
    again: Option<Instant>,
    /// That they could not be listed is in the log.
    said: bool,
    /// The interface whose addresses do not count.
    except: Option<String>,
}

impl NodeAddresses {
    /// Those of all interfaces but the one of that name, which may be absent.
    pub fn except(interface: &str) -> Self {
        Self { except: Some(interface.to_owned()), ..Self::default() }
    }

    /// The addresses now. After an error [`Self::next`] lists them again.
    ///
    /// # Errors
    /// They cannot be listed.
    pub async fn list(&mut self) -> Result<Vec<IpAddr>, Error> {
        let listed = self.try_list().await;
        self.changed = listed.is_err();
        self.again = listed.is_err().then(|| Instant::now() + AGAIN);
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
            Some(name) => watch.index(name).await?,
            None => None,
        };
        let listed = watch.list().await?.into_iter().filter(|address| Some(address.interface) != except);
        Ok(listed.map(|address| address.ip).collect())
    }

    /// The addresses now; none if they cannot be listed, which is said in the log.
    pub async fn known(&mut self) -> Option<Vec<IpAddr>> {
        let listed = self.list().await;
        match &listed {
            Ok(_) => self.said = false,
            Err(error) if std::mem::replace(&mut self.said, true) => {
                debug!(%error, "the node's addresses are still not known");
            }
            Err(error) => warn!(%error, "the node's addresses are not known; will be asked for again"),
        }
        listed.ok()
    }

    /// The addresses, after they changed; while they cannot be listed, which is said in the log, they are listed again each
    /// second. Cancel-safe.
    pub async fn next(&mut self) -> Vec<IpAddr> {
        loop {
            self.change().await;
            if let Some(listed) = self.known().await {
                return listed;
            }
        }
    }

    /// Waits until there is a reason to list them.
    async fn change(&mut self) {
        if let Some(again) = self.again {
            tokio::time::sleep_until(again.into()).await;
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

/// On a point-to-point link the own address is the local one, and the other is the peer's.
pub(crate) fn address(message: &AddressMessage) -> Option<Address> {
    let find = |wanted: fn(&AddressAttribute) -> Option<IpAddr>| message.attributes.iter().find_map(wanted);
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
    async fn however_many_changes_come_while_nobody_listens_one_word_is_kept() {
        let (tell, mut told) = mpsc::channel(1);
        notice(futures::stream::iter(0..100_000), tell).await;
        assert_eq!((told.recv().await, told.recv().await), (Some(()), None), "and the end is told");
    }
}
