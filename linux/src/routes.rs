//! The kernel's route for a single address, for diagnosis. The routing table itself is never read.

use std::io;
use std::net::IpAddr;

use futures::stream::{StreamExt, TryStreamExt};
use rtnetlink::RouteMessageBuilder;
use rtnetlink::packet_route::link::{LinkAttribute, LinkMessage};
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};
use rustix::io::Errno;

use crate::connection::Connection;

/// Why the kernel's route is unknown.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel's answer is an error other than "no route", or cannot be parsed.
    #[error("failed to look up a route: {0}")]
    Ask(#[from] rtnetlink::Error),
    /// The netlink socket failed.
    #[error("the rtnetlink socket failed: {0}")]
    Io(#[from] io::Error),
}

/// Where the kernel sends a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// To the node itself.
    Local,
    /// Out of the node.
    Out {
        /// The name of the interface.
        interface: String,
        /// The next hop, or `None` if the destination is on the link.
        gateway: Option<IpAddr>,
    },
    /// Nowhere. Contains the reason, such as `network is unreachable` or `blackhole`.
    None(String),
}

/// Route lookups in the network namespace where it was opened.
#[derive(Debug)]
pub struct Routes {
    connection: Connection,
}

impl Routes {
    /// Opens a netlink socket. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// Returns [`Error::Io`] if the socket cannot be opened.
    pub fn open() -> Result<Self, Error> {
        Ok(Self { connection: Connection::open()? })
    }

    /// Looks up the route of a packet that the node itself sends to `address`.
    ///
    /// # Errors
    /// Returns [`Error::Ask`] if the answer cannot be parsed, and [`Error::Io`] if the socket fails. If there is no
    /// route, the result is [`Route::None`], not an error.
    pub async fn to(&self, address: IpAddr) -> Result<Route, Error> {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let request = RouteMessageBuilder::<IpAddr>::new().destination_prefix(address, bits);
        let Ok(request) = request else { return Ok(Route::None("no route".to_owned())) };
        let mut request = request.build();
        // The builder sets the main table; 0 lets the policy rules choose.
        request.header.table = 0;
        let mut answers = Box::pin(self.connection.handle.route().get(request).execute());
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
        let mut out = (None, None);
        for attribute in &route.attributes {
            match attribute {
                RouteAttribute::Oif(index) => out.0 = Some(*index),
                RouteAttribute::Gateway(RouteAddress::Inet(ip)) => out.1 = Some(IpAddr::V4(*ip)),
                RouteAttribute::Gateway(RouteAddress::Inet6(ip)) => out.1 = Some(IpAddr::V6(*ip)),
                _ => {}
            }
        }
        let (Some(index), gateway) = out else { return Ok(Route::None("no interface".to_owned())) };
        Ok(Route::Out { interface: self.name(index).await?, gateway })
    }

    async fn name(&self, index: u32) -> Result<String, Error> {
        let links: Vec<LinkMessage> =
            self.connection.handle.link().get().match_index(index).execute().try_collect().await?;
        let name = links.iter().flat_map(|link| &link.attributes).find_map(|attribute| match attribute {
            LinkAttribute::IfName(name) => Some(name.clone()),
            _ => None,
        });
        Ok(name.unwrap_or_else(|| index.to_string()))
    }
}

/// The reason for an error. For a blackhole route the kernel answers `EINVAL`.
fn no_route(error: &io::Error) -> String {
    match Errno::from_io_error(error) {
        Some(Errno::INVAL) => "blackhole".to_owned(),
        Some(Errno::ACCESS) => "prohibited".to_owned(),
        Some(Errno::NETUNREACH) => "network is unreachable".to_owned(),
        Some(Errno::HOSTUNREACH) => "host is unreachable".to_owned(),
        _ => error.to_string(),
    }
}
