//! Opens sockets inside of a network namespace, for a process that stays outside.
//!
//! A socket belongs to the namespace of the thread that opened it. So a short-lived thread enters the namespace, opens the socket and
//! returns it. The caller's threads never change their namespace.

use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use nix::sched::{CloneFlags, setns};

/// Ports below the kernel's ephemeral range, and below the source ports of the lab's probes. So no connection takes a server's port
/// while the server restarts, and no probe finds its port in use.
const PORTS: std::ops::Range<u16> = 11_000..14_000;

/// The timeout for a connection to our own listener. If the interface is down, the kernel drops packets silently.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// Connects to `address` from inside of the namespace.
pub(crate) fn connect(netns: Option<&Path>, address: SocketAddr) -> io::Result<TcpStream> {
    inside(netns, || TcpStream::connect(address))
}

/// A free port at `ip` in the namespace.
///
/// # Errors
/// Returns an error if the namespace does not have the address, the interface is down, or no port is free.
pub(crate) fn free_port(netns: Option<&Path>, ip: IpAddr) -> anyhow::Result<u16> {
    let place = || netns.map_or_else(String::new, |netns| format!(" in namespace {}", netns.display()));
    for _ in 0..100 {
        let address = SocketAddr::new(ip, rand::random_range(PORTS));
        let bound = inside(netns, || {
            let Ok(listener) = TcpListener::bind(address) else { return Ok(None) };
            TcpStream::connect_timeout(&listener.local_addr()?, ANSWER_WITHIN).map(|_| Some(address.port()))
        });
        match bound {
            Ok(Some(port)) => return Ok(port),
            Ok(None) => {}
            Err(error) => {
                return Err(anyhow!(error))
                    .with_context(|| format!("connecting to {ip}{}: is the interface up?", place()));
            }
        }
    }
    bail!("found no free port at {ip}{}: does the address exist there?", place())
}

/// Runs `make` in a thread that has entered the namespace.
fn inside<T: Send>(netns: Option<&Path>, make: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    let Some(netns) = netns else { return make() };
    let entered = thread::scope(|scope| {
        let enter = || {
            setns(File::open(netns)?, CloneFlags::CLONE_NEWNET)?;
            make()
        };
        scope.spawn(enter).join()
    });
    entered.unwrap_or_else(|_panic| Err(io::Error::other("the thread inside the network namespace panicked")))
}
