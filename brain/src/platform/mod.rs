//! What differs between Linux and Windows. Each system has a file with the same items.
//!
//! Three modules also differ: the sockets within a machine (`serve`), the CPU profiles (`status`), and the metrics of the
//! process (`exposition`).

use std::{io, net::IpAddr};

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
pub use unix::*;
#[cfg(windows)]
pub use windows::*;

/// The addresses of the node's interfaces on which a server can listen. Link-local addresses are omitted, because they
/// cannot be bound without a scope.
pub(crate) fn node_addresses() -> io::Result<Vec<IpAddr>> {
    let mut addresses = interface_addresses()?;
    addresses.retain(|address| !matches!(address, IpAddr::V6(ip) if ip.is_unicast_link_local()));
    Ok(addresses)
}
