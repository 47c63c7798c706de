//! Flows that stay open for several requests: a connection (TCP), a pair of ports (UDP) or an association (SCTP).
//!
//! If a flow is not open, because nothing has answered yet or its connection ended, the next request opens it from the same
//! port. So connection tracking keeps it as one flow, whatever endpoint it was translated to.

use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::bail;
use localnet_core::Protocol;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendFlags, SocketType, ipproto, recv, send};

use crate::namespace::Namespace;
use crate::probe::{Outcome, Probe, disconnect, outcome_of, own_tag, parse_answer, receive, send_packet};
use crate::sctp::Chunk;

/// A flow from one port of a namespace to one address and port.
#[derive(Debug)]
pub struct OpenFlow {
    probe: Probe,
    port: u16,
    /// The connection (TCP), or the socket that keeps the port (UDP).
    socket: Option<Socket>,
    /// The verification tag of the server's side of the association (SCTP).
    association: Option<u32>,
}

/// The socket of a flow. Dropping it ends the connection with RST, which frees the port at once. After FIN, the kernel would keep
/// the connection until its data is acknowledged, and the next connection from this port would fail (EADDRNOTAVAIL).
#[derive(Debug)]
struct Socket(OwnedFd);

impl Drop for Socket {
    fn drop(&mut self) {
        disconnect(&self.0);
    }
}

impl OpenFlow {
    /// A flow that has not sent anything yet.
    pub fn new(namespace: &Namespace, probe: Probe) -> Self {
        Self { probe, port: namespace.next_kept_port(), socket: None, association: None }
    }

    /// The source port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Sends a request, after opening the flow if necessary, and waits for the answer up to `timeout`.
    ///
    /// For rejects of SCTP, see [`Namespace::probe`].
    ///
    /// # Errors
    /// Returns an error if the request cannot be sent, or the answer is not from a server of the lab.
    pub fn exchange(&mut self, namespace: &Namespace, timeout: Duration) -> anyhow::Result<Outcome> {
        self.probe.timeout = timeout;
        if let Some(Socket(socket)) = &self.socket {
            set_socket_timeout(socket, Timeout::Recv, Some(timeout))?;
        }
        namespace.run(|| match self.probe.protocol {
            Protocol::Tcp => self.exchange_tcp(),
            Protocol::Udp => self.exchange_udp(),
            Protocol::Sctp => self.exchange_sctp(),
        })
    }

    fn exchange_tcp(&mut self) -> anyhow::Result<Outcome> {
        let socket = match self.socket.take() {
            Some(socket) => match send(&socket.0, b"?", SendFlags::NOSIGNAL) {
                Ok(_) => socket,
                Err(error) => return ended(error),
            },
            None => match self.probe.connected(SocketType::STREAM, ipproto::TCP, self.port)? {
                Ok(socket) => Socket(socket),
                Err(outcome) => return Ok(outcome),
            },
        };
        let mut line = Vec::new();
        while !line.ends_with(b"\n") {
            let mut buffer = [0; 1024];
            match receive(&socket.0, &mut buffer) {
                Ok(0) => return Ok(Outcome::Rejected),
                Ok(length) => line.extend(&buffer[..length]),
                Err(error) => return ended(error),
            }
        }
        self.socket = Some(socket);
        parse_answer(&line)
    }

    fn exchange_udp(&mut self) -> anyhow::Result<Outcome> {
        let socket = match self.socket.take() {
            Some(socket) => socket,
            None => match self.probe.connected(SocketType::DGRAM, ipproto::UDP, self.port)? {
                Ok(socket) => Socket(socket),
                Err(outcome) => return Ok(outcome),
            },
        };
        let socket = &self.socket.insert(socket).0;
        // Discard late answers to earlier requests.
        let mut buffer = [0; 1024];
        while retry_on_intr(|| recv(socket, &mut buffer, RecvFlags::DONTWAIT)).err() != Some(Errno::AGAIN) {}
        if let Some(outcome) = send_packet(socket, b"?")? {
            return Ok(outcome);
        }
        match receive(socket, &mut buffer) {
            Ok(length) => parse_answer(&buffer[..length]),
            Err(error) => outcome_of(&error.into()),
        }
    }

    fn exchange_sctp(&mut self) -> anyhow::Result<Outcome> {
        let (probe, port, own) = (self.probe, self.port, own_tag(self.port));
        if let Some(tag) = self.association {
            return Ok(match probe.exchange(port, own, tag, Chunk::Heartbeat)? {
                Ok(Chunk::HeartbeatAck { info }) => parse_answer(&info)?,
                Ok(other) => bail!("{other:?} is not an answer to HEARTBEAT"),
                Err(outcome) => outcome,
            });
        }
        let (tag, cookie) = match probe.exchange(port, own, 0, Chunk::Init { tag: own })? {
            Ok(Chunk::InitAck { tag, cookie }) => (tag, cookie),
            Ok(other) => bail!("{other:?} is not an answer to INIT"),
            Err(outcome) => return Ok(outcome),
        };
        let answer = parse_answer(&cookie)?;
        match probe.exchange(port, own, tag, Chunk::CookieEcho { cookie })? {
            Ok(Chunk::CookieAck) => self.association = Some(tag),
            Ok(other) => bail!("{other:?} is not an answer to COOKIE ECHO"),
            Err(outcome) => return Ok(outcome),
        }
        Ok(answer)
    }
}

/// The outcome of a request on a connection that has ended.
fn ended(error: Errno) -> anyhow::Result<Outcome> {
    match error {
        Errno::CONNRESET | Errno::PIPE => Ok(Outcome::Rejected),
        _ => outcome_of(&error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// A process that another thread starts holds every socket until it runs its program. The next connection of the flow then
    /// failed with EADDRNOTAVAIL.
    #[test]
    fn a_dropped_socket_frees_its_port_even_if_another_process_still_holds_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let probe = Probe::new(Protocol::Tcp, listener.local_addr().unwrap());
        let connect = |port| probe.connected(SocketType::STREAM, ipproto::TCP, port).unwrap().unwrap();
        let first = Socket(connect(0));
        let port = rustix::net::getsockname(&first.0).unwrap();
        let port = std::net::SocketAddr::try_from(port).unwrap().port();
        let held_elsewhere = first.0.try_clone().unwrap();
        drop(first);
        drop(Socket(connect(port)));
        drop(held_elsewhere);
    }
}
