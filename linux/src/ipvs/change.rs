//! Changes to virtual servers and destinations, and the kernel's refusals.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use rustix::io::Errno;

use super::{Destination, Frontend, VirtualServer};
use crate::shortage::is_shortage;

/// A change of a virtual server or of a destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Adds a virtual server without destinations.
    AddServer(VirtualServer),
    /// Changes the scheduler, flags or persistence of a virtual server; connections stay.
    UpdateServer(VirtualServer),
    /// Deletes a virtual server with its destinations.
    DeleteServer(Frontend),
    /// Adds a destination to a virtual server.
    AddDestination(Frontend, Destination),
    /// Changes the weight, forwarding or thresholds of a destination; connections stay.
    UpdateDestination(Frontend, Destination),
    /// Deletes a destination.
    DeleteDestination(Frontend, SocketAddr),
}

impl Change {
    /// The frontend of the virtual server.
    pub fn frontend(&self) -> &Frontend {
        match self {
            Self::AddServer(server) | Self::UpdateServer(server) => &server.frontend,
            Self::DeleteServer(frontend)
            | Self::AddDestination(frontend, _)
            | Self::UpdateDestination(frontend, _)
            | Self::DeleteDestination(frontend, _) => frontend,
        }
    }
}

impl fmt::Display for Change {
    /// A description that follows `failed to`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let frontend = self.frontend();
        match self {
            Self::AddServer(_) => write!(f, "add virtual server {frontend}"),
            Self::UpdateServer(_) => write!(f, "change virtual server {frontend}"),
            Self::DeleteServer(_) => write!(f, "delete virtual server {frontend}"),
            Self::AddDestination(_, destination) => {
                write!(f, "add destination {} to virtual server {frontend}", destination.address)
            }
            Self::UpdateDestination(_, destination) => {
                write!(f, "change destination {} of virtual server {frontend}", destination.address)
            }
            Self::DeleteDestination(_, address) => {
                write!(f, "delete destination {address} of virtual server {frontend}")
            }
        }
    }
}

/// A change that the kernel refused. The changes before and after it are not affected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to {what}: {reason}")]
pub struct Refused {
    /// The index of the refused change in the list of changes.
    pub change: usize,
    /// The kernel's error number.
    pub errno: i32,
    what: String,
    reason: String,
}

impl Refused {
    /// The refusal of the change with that index, with the kernel's error number.
    pub fn new(index: usize, change: &Change, errno: i32) -> Self {
        let errno = Errno::from_raw_os_error(errno);
        Self { change: index, errno: errno.raw_os_error(), what: change.to_string(), reason: reason(change, errno) }
    }

    /// Whether the kernel was short of a resource, so that a retry can succeed.
    pub fn is_shortage(&self) -> bool {
        is_shortage(self.errno)
    }
}

/// The cause and the remedy. The kernel has few error numbers, and their meaning depends on the change.
fn reason(change: &Change, errno: Errno) -> String {
    let text = match (change, errno) {
        (Change::AddServer(server) | Change::UpdateServer(server), Errno::NOENT) => {
            return format!(
                "this kernel has no IPVS scheduler {}: load its module with modprobe {}, or choose another scheduler",
                server.scheduler,
                server.scheduler.module()
            );
        }
        (_, Errno::AFNOSUPPORT) => {
            "this kernel's IPVS does not support IPv6: use a kernel that was built with CONFIG_IP_VS_IPV6"
        }
        (Change::AddServer(_), Errno::EXIST) => "it exists already",
        (Change::UpdateServer(_) | Change::DeleteServer(_), Errno::SRCH) => "it does not exist",
        (_, Errno::SRCH) => "the virtual server does not exist",
        (Change::AddDestination(..), Errno::EXIST) => "it exists already",
        (Change::UpdateDestination(..) | Change::DeleteDestination(..), Errno::NOENT) => "it does not exist",
        (Change::AddDestination(..) | Change::UpdateDestination(..), Errno::INVAL) => {
            "its address must have the family of the virtual server, and must not be a broadcast, multicast or link-local address"
        }
        (Change::AddDestination(..) | Change::UpdateDestination(..), Errno::RANGE) => {
            "its weight is above 2147483647, or its lower threshold is above its upper threshold"
        }
        (Change::AddServer(_) | Change::UpdateServer(_), Errno::INVAL) => {
            "the prefix length, the port or the scheduler's flags are out of range"
        }
        (_, errno) => return io::Error::from(errno).to_string(),
    };
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use localnet_core::Protocol;

    use super::*;

    #[test]
    fn refusals_name_the_virtual_server_and_the_remedy() {
        let frontend = Frontend::new(Protocol::Tcp, "10.96.0.1:80".parse().unwrap());
        let server = VirtualServer::new(frontend, "mh".parse().unwrap());
        let endpoint: SocketAddr = "10.244.0.255:8080".parse().unwrap();
        let destination = Destination::masqueraded(endpoint, 1);
        for (change, errno, expected) in [
            (
                Change::AddServer(server.clone()),
                Errno::NOENT,
                "failed to add virtual server tcp 10.96.0.1:80: this kernel has no IPVS scheduler mh: load its module with modprobe \
                 ip_vs_mh, or choose another scheduler",
            ),
            (
                Change::UpdateServer(server.clone()),
                Errno::SRCH,
                "failed to change virtual server tcp 10.96.0.1:80: it does not exist",
            ),
            (
                Change::AddServer(server),
                Errno::EXIST,
                "failed to add virtual server tcp 10.96.0.1:80: it exists already",
            ),
            (
                Change::AddDestination(frontend, destination),
                Errno::INVAL,
                "failed to add destination 10.244.0.255:8080 to virtual server tcp 10.96.0.1:80: its address must have the \
                 family of the virtual server, and must not be a broadcast, multicast or link-local address",
            ),
            (
                Change::UpdateDestination(frontend, destination),
                Errno::SRCH,
                "failed to change destination 10.244.0.255:8080 of virtual server tcp 10.96.0.1:80: the virtual server does \
                 not exist",
            ),
            (
                Change::DeleteDestination(frontend, endpoint),
                Errno::NOENT,
                "failed to delete destination 10.244.0.255:8080 of virtual server tcp 10.96.0.1:80: it does not exist",
            ),
            (
                Change::DeleteServer(frontend),
                Errno::NOMEM,
                "failed to delete virtual server tcp 10.96.0.1:80: Cannot allocate memory (os error 12)",
            ),
        ] {
            assert_eq!(Refused::new(0, &change, errno.raw_os_error()).to_string(), expected);
        }
    }
}
