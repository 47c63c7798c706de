//! Lists virtual servers and destinations: at the start to adopt them, later to find changes by other programs, and to check
//! whether a destination is drained.
//!
//! The kernel sends a long list in parts. Each part begins at a position in the list, and the kernel does not report changes
//! between the parts. So an entry may be missing or appear twice. Virtual servers of *other* namespaces count in these positions,
//! so this also happens while nothing changes in our namespace. A list that came in parts is therefore read until two readings in
//! a row agree. If changes disturb both readings in the same way, an entry can still be missing. A program that then adds this
//! entry learns from the kernel that it exists.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use localnet_core::Family;
use rustix::io::Errno;

use super::encode;
use super::parse;
use super::socket::{Error, Socket, refused};
use super::{DestinationState, Frontend, ServerState, VirtualServer};
use crate::netlink::{self, Attributes, Writer};
use crate::traffic::Total;

/// How many times to read a list that changes while it is read.
const ATTEMPTS: usize = 20;

impl Socket {
    /// Lists all virtual servers with their destinations, sorted. Virtual servers of firewall marks are left out. The cost is
    /// proportional to the number of virtual servers.
    ///
    /// # Errors
    /// Returns an error if the process lacks `CAP_NET_ADMIN`, the kernel refuses a request, or the virtual servers
    /// changed during every attempt.
    pub fn list(&mut self) -> Result<Vec<ServerState>, Error> {
        let mut servers = self.servers()?;
        for _ in 0..ATTEMPTS {
            let mut states = Vec::with_capacity(servers.len());
            for server in &servers {
                let destinations = self.destinations(&server.frontend)?;
                states.push(ServerState { server: server.clone(), destinations });
            }
            // Compare again: if a virtual server was deleted between the two reads, its list of destinations is empty.
            let after = self.servers()?;
            if after == servers {
                return Ok(states);
            }
            servers = after;
        }
        Err(Error::Changing)
    }

    /// Lists all virtual servers, sorted. Virtual servers of firewall marks are left out.
    ///
    /// # Errors
    /// Returns the errors of [`Self::list`].
    pub fn servers(&mut self) -> Result<Vec<VirtualServer>, Error> {
        let read = || {
            let Reading { entries, parts, mut interrupted } =
                self.read("list virtual servers", encode::servers_request, parse::server)?;
            let count = entries.len();
            let servers: BTreeMap<_, _> = entries.into_iter().map(|server| (server.frontend, server)).collect();
            // An entry that appears twice means that the list changed.
            interrupted |= servers.len() != count;
            Ok(Reading { entries: servers, parts, interrupted })
        };
        Ok(agreed(read, BTreeMap::eq)?.into_values().collect())
    }

    /// Reads one virtual server; `None` if it does not exist.
    ///
    /// # Errors
    /// Returns an error if the process lacks `CAP_NET_ADMIN`, or if the kernel refuses the request.
    pub fn server(&mut self, frontend: &Frontend) -> Result<Option<VirtualServer>, Error> {
        let mut server = None;
        let request =
            |writer: &mut Writer, family, sequence| encode::server_request(writer, family, sequence, frontend);
        match self.query(request, |_, message| server = parse::server(message.attributes()))? {
            None => Ok(server),
            Some(Errno::SRCH) => Ok(None),
            Some(errno) => Err(refused("read a virtual server", errno)),
        }
    }

    /// Lists the destinations of a virtual server, in the kernel's order; empty if there is no such virtual server.
    ///
    /// # Errors
    /// Returns the errors of [`Self::list`].
    pub fn destinations(&mut self, frontend: &Frontend) -> Result<Vec<DestinationState>, Error> {
        let family = Family::of(frontend.address.ip());
        let read = || {
            let request =
                |writer: &mut Writer, id, sequence| encode::destinations_request(writer, id, sequence, frontend);
            self.read("list destinations", request, |attributes| parse::destination(attributes, family))
        };
        agreed(read, |one, other| {
            // Only the destinations have to agree, because the number of connections changes all the time.
            let destination = |state: &DestinationState| state.destination;
            one.iter().map(destination).eq(other.iter().map(destination))
        })
    }

    /// Reads the traffic of each destination of a virtual server since the kernel has it. While the list changes, a destination may be
    /// missing or occur twice.
    ///
    /// # Errors
    /// Returns an error if the process lacks `CAP_NET_ADMIN`, or if the kernel refuses the request.
    pub fn traffic(&mut self, frontend: &Frontend) -> Result<Vec<(SocketAddr, Total)>, Error> {
        let family = Family::of(frontend.address.ip());
        let request = |writer: &mut Writer, id, sequence| encode::destinations_request(writer, id, sequence, frontend);
        let reading = self.read("list destinations", request, |attributes| parse::traffic(attributes, family))?;
        Ok(reading.entries)
    }

    fn read<T>(
        &mut self,
        action: &'static str,
        request: impl FnOnce(&mut Writer, u16, u32),
        parse: impl Fn(Attributes<'_>) -> Option<T>,
    ) -> Result<Reading<Vec<T>>, Error> {
        let mut reading = Reading { entries: Vec::new(), parts: 0, interrupted: false };
        let errno = self.query(request, |part, message| {
            reading.interrupted |= message.flags & netlink::DUMP_INTERRUPTED != 0;
            reading.entries.extend(parse(message.attributes()));
            reading.parts = part + 1;
        })?;
        match errno {
            None => Ok(reading),
            Some(errno) => Err(refused(action, errno)),
        }
    }
}

/// One reading of a list.
#[derive(Clone, Debug)]
struct Reading<T> {
    entries: T,
    parts: usize,
    /// Whether the list certainly changed during the reading.
    interrupted: bool,
}

/// Reads until the result is consistent: either the answer had only one part, or two readings in a row were equal.
fn agreed<T>(mut read: impl FnMut() -> Result<Reading<T>, Error>, same: impl Fn(&T, &T) -> bool) -> Result<T, Error> {
    let mut former: Option<T> = None;
    for _ in 0..ATTEMPTS {
        let Reading { entries, parts, interrupted } = read()?;
        if interrupted {
            former = None;
        } else if parts <= 1 || former.is_some_and(|former| same(&former, &entries)) {
            return Ok(entries);
        } else {
            former = Some(entries);
        }
    }
    Err(Error::Changing)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates readings: their text and the number of their parts; `!` marks one that was interrupted. Returns the result and
    /// the number of readings.
    #[track_caller]
    fn check(readings: &[(&'static str, usize)]) -> (&'static str, usize) {
        let mut count = 0;
        let read = || {
            let (entries, parts) = readings[count];
            count += 1;
            Ok(Reading { entries, parts, interrupted: entries.ends_with('!') })
        };
        (agreed(read, |one, other| one == other).unwrap(), count)
    }

    #[test]
    fn a_list_needs_one_part_or_two_equal_readings() {
        assert_eq!(check(&[("", 0)]), ("", 1));
        assert_eq!(check(&[("ab", 1)]), ("ab", 1));
        assert_eq!(check(&[("ab", 2), ("ab", 2)]), ("ab", 2));
        assert_eq!(check(&[("ab", 2), ("abc", 2), ("ab", 2), ("ab", 2)]), ("ab", 4));
        assert_eq!(check(&[("ab", 2), ("a", 1)]), ("a", 2));
        assert_eq!(check(&[("ab!", 1), ("ab", 2), ("ab!", 2), ("ab", 2), ("ab", 2)]), ("ab", 5));
    }

    #[test]
    fn a_list_that_keeps_changing_is_an_error() {
        let mut count = 0;
        let read = || {
            count += 1;
            Ok(Reading { entries: count, parts: 2, interrupted: false })
        };
        assert!(matches!(agreed(read, |one, other| one == other), Err(Error::Changing)));
        assert_eq!(count, ATTEMPTS);
    }
}
