//! Which way the kernel would send a packet. One question at a time, for people who ask; the routing table itself is not read.

use std::io;
use std::net::IpAddr;

use futures::stream::{StreamExt, TryStreamExt};
use rtnetlink::packet_route::link::{LinkAttribute, LinkMessage};
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};
use rtnetlink::{Handle, RouteMessageBuilder, new_connection};
use rustix::io::Errno;
use tokio::task::JoinHandle;

/// Why the kernel was not asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel gave no answer that can be read.
    #[error("failed to ask for a route: {0}")]
    Ask(#[from] rtnetlink::Error),
    /// The socket failed.
    #[error("rtnetlink socket: {0}")]
    Io(#[from] io::Error),
}

/// The way of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// To the node itself.
    Local,
    /// Through an interface.
    Out {
        /// Its name.
        interface: String,
        /// The next machine, if the destination is not on the link itself.
        gateway: Option<IpAddr>,
    },
    /// Nowhere, and why: `Network is unreachable`, `blackhole`.
    None(String),
}

/// Asks the kernel of the network namespace in which it was opened. Needs a tokio runtime.
#[derive(Debug)]
pub struct Routes {
    handle: Handle,
    connection: JoinHandle<()>,
}

impl Routes {
    /// Connects; must be called within a tokio runtime.
    ///
    /// # Errors
    /// There is no such socket.
    pub fn open() -> Result<Self, Error> {
        let (connection, handle, _) = new_connection()?;
        Ok(Self { handle, connection: tokio::spawn(connection) })
    }

    /// The way that a packet of the node itself would take.
    ///
    /// # Errors
    /// The kernel gives no answer that can be read. That there is no way is none.
    pub async fn to(&self, address: IpAddr) -> Result<Route, Error> {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let question = RouteMessageBuilder::<IpAddr>::new().destination_prefix(address, bits);
        let Ok(question) = question else { return Ok(Route::None("no route".to_owned())) };
        let mut question = question.build();
        // Only the address is asked for.
        question.header.table = 0;
        let mut answers = Box::pin(self.handle.route().get(question).execute());
        match answers.next().await {
            Some(Ok(route)) => self.read(&route).await,
            Some(Err(rtnetlink::Error::NetlinkError(message))) => Ok(Route::None(no_route(&message.to_io()))),
            Some(Err(error)) => Err(error.into()),
            None => Ok(Route::None("no route".to_owned())),
        }
    }

    async fn read(&self, route: &RouteMessage) -> Result<Route, Error> {
        match route.header.kind {
            RouteType::Local | RouteType::Broadcast | RouteType::Anycast => return Ok(Route::Local),
            RouteType::BlackHole => return Ok(Route::None("blackhole".to_owned())),
            RouteType::Unreachable => return Ok(Route::None("unreachable".to_owned())),
            RouteType::Prohibit => return Ok(Route::None("prohibited".to_owned())),
            _ => {}
        }
        let mut way = (None, None);
        for attribute in &route.attributes {
            match attribute {
                RouteAttribute::Oif(index) => way.0 = Some(*index),
                RouteAttribute::Gateway(RouteAddress::Inet(ip)) => way.1 = Some(IpAddr::V4(*ip)),
                RouteAttribute::Gateway(RouteAddress::Inet6(ip)) => way.1 = Some(IpAddr::V6(*ip)),
                _ => {}
            }
        }
        let (Some(index), gateway) = way else { return Ok(Route::None("no interface".to_owned())) };
        Ok(Route::Out { interface: self.name(index).await?, gateway })
    }

    async fn name(&self, index: u32) -> Result<String, Error> {
        let links: Vec<LinkMessage> = self.handle.link().get().match_index(index).execute().try_collect().await?;
        let name = links.iter().flat_map(|link| &link.attributes).find_map(|attribute| match attribute {
            LinkAttribute::IfName(name) => Some(name.clone()),
            _ => None,
        });
        Ok(name.unwrap_or_else(|| index.to_string()))
    }
}

impl Drop for Routes {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

/// A black hole answers as if the question made no sense.
fn no_route(error: &io::Error) -> String {
    match Errno::from_io_error(error) {
        Some(Errno::INVAL) => "blackhole".to_owned(),
        Some(Errno::ACCESS) => "prohibited".to_owned(),
        Some(Errno::NETUNREACH) => "network is unreachable".to_owned(),
        Some(Errno::HOSTUNREACH) => "host is unreachable".to_owned(),
        _ => error.to_string(),
    }
}
