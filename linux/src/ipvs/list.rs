//! Lists virtual servers and destinations: at the start, to adopt what is there, to notice what others changed, and to
//! see whether a destination is drained.
//!
//! The kernel hands a long list out in parts, by position, and does not say when something came or went in between, so that an entry
//! may be left out or told twice. Virtual servers of *other* namespaces count in these positions, so this happens without anybody
//! at work in ours. So virtual servers that came in parts are read until a reading finds none that is new, and those that
//! the last reading did not find are asked for by name; destinations, which have positions of their own, until two readings agree.

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
const ATTEMPTS: usize = 10;

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
        let mut found: BTreeMap<Frontend, VirtualServer> = BTreeMap::new();
        for _ in 0..ATTEMPTS {
            let read = self.read("list virtual servers", encode::servers_request, parse::server)?;
            if read.interrupted {
                continue;
            }
            let now: BTreeMap<_, _> = read.entries.into_iter().map(|server| (server.frontend, server)).collect();
            if read.parts <= 1 {
                return Ok(now.into_values().collect());
            }
            let complete = now.keys().all(|frontend| found.contains_key(frontend));
            let doubtful: Vec<_> = found.keys().filter(|frontend| !now.contains_key(frontend)).copied().collect();
            found.extend(now);
            if complete {
                for frontend in doubtful {
                    match self.server(&frontend)? {
                        Some(server) => found.insert(frontend, server),
                        None => found.remove(&frontend),
                    };
                }
                return Ok(found.into_values().collect());
            }
        }
        Err(Error::Changing)
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
        let read = |socket: &mut Self| {
            let request =
                |writer: &mut Writer, id, sequence| encode::destinations_request(writer, id, sequence, frontend);
            socket.read("list destinations", request, |attributes| parse::destination(attributes, family))
        };
        let mut former: Option<Vec<DestinationState>> = None;
        for _ in 0..ATTEMPTS {
            let Read { entries, parts, interrupted } = read(self)?;
            if interrupted {
                continue;
            }
            // Connections come and go all the time.
            let agrees = |former: Vec<DestinationState>| {
                let destination = |state: &DestinationState| state.destination;
                former.iter().map(destination).eq(entries.iter().map(destination))
            };
            if parts <= 1 || former.is_some_and(agrees) {
                return Ok(entries);
            }
            former = Some(entries);
        }
        Err(Error::Changing)
    }

    fn read<T>(
        &mut self,
        action: &'static str,
        request: impl FnOnce(&mut Writer, u16, u32),
        parse: impl Fn(Attributes<'_>) -> Option<T>,
    ) -> Result<Read<T>, Error> {
        let mut read = Read { entries: Vec::new(), parts: 0, interrupted: false };
        let errno = self.ask(request, |part, message| {
            read.interrupted |= message.flags & netlink::DUMP_INTERRUPTED != 0;
            read.entries.extend(parse(message.attributes()));
            read.parts = part + 1;
        })?;
        match errno {
            None => Ok(read),
            Some(errno) => Err(refused(action, errno)),
        }
    }
}

/// What was read, and in how many parts.
struct Read<T> {
    entries: Vec<T>,
    parts: usize,
    interrupted: bool,
}
