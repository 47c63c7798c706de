//! Lists virtual servers and destinations: at the start, to adopt what is there, to notice what others changed, and to
//! see whether a destination is drained.
//!
//! The kernel hands a long list out in parts, by position, and does not say when something came or went in between, so that an entry
//! may be left out or told twice. Virtual servers of *other* namespaces count in these positions, so this happens without anybody
//! at work in ours. A list that came in parts is therefore read until two readings in a row agree. (Changes that keep step with
//! both readings could still hide an entry: who adds one that is missing may learn that it exists already.)

use std::collections::BTreeMap;

use rustix::io::Errno;

use super::encode;
use super::parse;
use super::socket::{Error, Socket, refused};
use super::{Connections, Destination, Family, Frontend, VirtualServer};
use crate::netlink::{self, Attributes, Writer};

/// A virtual server as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerState {
    /// The virtual server itself.
    pub server: VirtualServer,
    /// Its destinations, in the kernel's order.
    pub destinations: Vec<DestinationState>,
}

/// A destination as the kernel has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DestinationState {
    /// The destination itself.
    pub destination: Destination,
    /// What it has to do.
    pub connections: Connections,
}

/// How often a list that changed meanwhile is read.
const ATTEMPTS: usize = 20;

impl Socket {
    /// All virtual servers with their destinations, sorted; without those that go by marks of packets. What this costs
    /// grows with their number.
    pub fn list(&mut self) -> Result<Vec<ServerState>, Error> {
        let mut servers = self.servers()?;
        for _ in 0..ATTEMPTS {
            let mut states = Vec::with_capacity(servers.len());
            for server in &servers {
                let destinations = self.destinations(&server.frontend)?;
                states.push(ServerState { server: server.clone(), destinations });
            }
            // A virtual server that is gone has no destinations: so those that there were must still be there.
            let after = self.servers()?;
            if after == servers {
                return Ok(states);
            }
            servers = after;
        }
        Err(Error::Changing)
    }

    /// All virtual servers, sorted; without those that go by marks of packets.
    pub fn servers(&mut self) -> Result<Vec<VirtualServer>, Error> {
        let read = || {
            let Reading { entries, parts, mut interrupted } =
                self.read("list virtual servers", encode::servers_request, parse::server)?;
            let told = entries.len();
            let servers: BTreeMap<_, _> = entries.into_iter().map(|server| (server.frontend, server)).collect();
            // One was told twice.
            interrupted |= servers.len() != told;
            Ok(Reading { entries: servers, parts, interrupted })
        };
        Ok(agreed(read, BTreeMap::eq)?.into_values().collect())
    }

    /// One virtual server, if it exists.
    pub fn server(&mut self, frontend: &Frontend) -> Result<Option<VirtualServer>, Error> {
        let mut found = None;
        let request =
            |writer: &mut Writer, family, sequence| encode::server_request(writer, family, sequence, frontend);
        match self.ask(request, |_, message| found = parse::server(message.attributes()))? {
            None => Ok(found),
            Some(Errno::SRCH) => Ok(None),
            Some(errno) => Err(refused("look for a virtual server", errno)),
        }
    }

    /// The destinations of a virtual server, in the kernel's order; none if there is no such virtual server.
    pub fn destinations(&mut self, frontend: &Frontend) -> Result<Vec<DestinationState>, Error> {
        let family = Family::of(&frontend.address.ip());
        let read = || {
            let request =
                |writer: &mut Writer, id, sequence| encode::destinations_request(writer, id, sequence, frontend);
            self.read("list destinations", request, |attributes| parse::destination(attributes, family))
        };
        agreed(read, |one, other| {
            // Connections come and go all the time.
            let destination = |state: &DestinationState| state.destination;
            one.iter().map(destination).eq(other.iter().map(destination))
        })
    }

    fn read<T>(
        &mut self,
        action: &'static str,
        request: impl FnOnce(&mut Writer, u16, u32),
        parse: impl Fn(Attributes<'_>) -> Option<T>,
    ) -> Result<Reading<Vec<T>>, Error> {
        let mut reading = Reading { entries: Vec::new(), parts: 0, interrupted: false };
        let errno = self.ask(request, |part, message| {
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

/// What was read, and in how many parts.
#[derive(Clone, Debug)]
struct Reading<T> {
    entries: T,
    parts: usize,
    /// Something changed meanwhile for certain.
    interrupted: bool,
}

/// Reads until what came is of one moment: a single part, or twice the same.
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

    /// Readings as words, in one part or in several; `!` marks one that was interrupted. Returns what was agreed on, and after
    /// how many.
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
    fn a_list_is_one_part_or_read_twice_the_same() {
        assert_eq!(check(&[("", 0)]), ("", 1));
        assert_eq!(check(&[("ab", 1)]), ("ab", 1));
        assert_eq!(check(&[("ab", 2), ("ab", 2)]), ("ab", 2));
        assert_eq!(check(&[("ab", 2), ("abc", 2), ("ab", 2), ("ab", 2)]), ("ab", 4));
        assert_eq!(check(&[("ab", 2), ("a", 1)]), ("a", 2));
        assert_eq!(check(&[("ab!", 1), ("ab", 2), ("ab!", 2), ("ab", 2), ("ab", 2)]), ("ab", 5));
    }

    #[test]
    fn a_list_that_never_agrees_is_given_up() {
        let mut count = 0;
        let read = || {
            count += 1;
            Ok(Reading { entries: count, parts: 2, interrupted: false })
        };
        assert!(matches!(agreed(read, |one, other| one == other), Err(Error::Changing)));
        assert_eq!(count, ATTEMPTS);
    }
}
