//! Flows that stay open: one connection (TCP), one pair of ports (UDP) or one association (SCTP), asked again and again.
//!
//! A flow that is not open, as nobody has answered yet or its connection has ended, is opened by the next question, from the same
//! port. Connection tracking knows it as one flow, whatever it was translated to.

use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::bail;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendFlags, SocketType, ipproto, recv, send};

use crate::namespace::Namespace;
use crate::probe::{Outcome, Probe, Protocol, own_tag, received, said, sent, verdict};
use crate::sctp::Chunk;

/// A flow from one port of a namespace to one address and port.
#[derive(Debug)]
pub struct OpenFlow {
    probe: Probe,
    port: u16,
    /// The connection (TCP), or the socket that keeps the port (UDP).
    socket: Option<OwnedFd>,
    /// The tag of the server's side of the association (SCTP).
    association: Option<u32>,
}

impl OpenFlow {
    /// A flow that nobody has used yet.
    pub fn new(namespace: &Namespace, probe: Probe) -> Self {
        Self { probe, port: namespace.next_kept_port(), socket: None, association: None }
    }

    /// Its source port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Sends something and waits so long for the answer; opens the flow if need be.
    ///
    /// SCTP only: see [`Namespace::probe`] about rejects.
    ///
    /// # Errors
    /// Nothing could be sent, or what came is no answer of the lab.
    pub fn ask(&mut self, namespace: &Namespace, timeout: Duration) -> anyhow::Result<Outcome> {
        self.probe.timeout = timeout;
        if let Some(socket) = &self.socket {
            set_socket_timeout(socket, Timeout::Recv, Some(timeout))?;
        }
        namespace.run(|| match self.probe.protocol {
            Protocol::Tcp => self.ask_tcp(),
            Protocol::Udp => self.ask_udp(),
            Protocol::Sctp => self.ask_sctp(),
        })
    }

    fn ask_tcp(&mut self) -> anyhow::Result<Outcome> {
        let socket = match self.socket.take() {
            Some(socket) => match send(&socket, b"?", SendFlags::NOSIGNAL) {
                Ok(_) => socket,
                Err(error) => return ended(error),
            },
            None => match self.probe.connected(SocketType::STREAM, ipproto::TCP, self.port)? {
                Ok(socket) => socket,
                Err(outcome) => return Ok(outcome),
            },
        };
        let mut line = Vec::new();
        while !line.ends_with(b"\n") {
            let mut buffer = [0; 1024];
            match received(&socket, &mut buffer) {
                Ok(0) => return Ok(Outcome::Rejected),
                Ok(length) => line.extend(&buffer[..length]),
                Err(error) => return ended(error),
            }
        }
        self.socket = Some(socket);
        said(&line)
    }

    fn ask_udp(&mut self) -> anyhow::Result<Outcome> {
        let socket = match self.socket.take() {
            Some(socket) => socket,
            None => match self.probe.connected(SocketType::DGRAM, ipproto::UDP, self.port)? {
                Ok(socket) => socket,
                Err(outcome) => return Ok(outcome),
            },
        };
        let socket = self.socket.insert(socket);
        // What an earlier question has brought too late.
        let mut buffer = [0; 1024];
        while retry_on_intr(|| recv(&*socket, &mut buffer, RecvFlags::DONTWAIT)).err() != Some(Errno::AGAIN) {}
        if let Some(outcome) = sent(&*socket, b"?")? {
            return Ok(outcome);
        }
        match received(socket, &mut buffer) {
            Ok(length) => said(&buffer[..length]),
            Err(error) => verdict(&error.into()),
        }
    }

    fn ask_sctp(&mut self) -> anyhow::Result<Outcome> {
        let (probe, port, own) = (self.probe, self.port, own_tag(self.port));
        if let Some(tag) = self.association {
            return Ok(match probe.exchange(port, own, tag, Chunk::Heartbeat)? {
                Ok(Chunk::HeartbeatAck { info }) => said(&info)?,
                Ok(other) => bail!("{other:?} is no answer to HEARTBEAT"),
                Err(outcome) => outcome,
            });
        }
        let (tag, cookie) = match probe.exchange(port, own, 0, Chunk::Init { tag: own })? {
            Ok(Chunk::InitAck { tag, cookie }) => (tag, cookie),
            Ok(other) => bail!("{other:?} is no answer to INIT"),
            Err(outcome) => return Ok(outcome),
        };
        let answer = said(&cookie)?;
        match probe.exchange(port, own, tag, Chunk::CookieEcho { cookie })? {
            Ok(Chunk::CookieAck) => self.association = Some(tag),
            Ok(other) => bail!("{other:?} is no answer to COOKIE ECHO"),
            Err(outcome) => return Ok(outcome),
        }
        Ok(answer)
    }
}

/// What has become of a connection that was open.
fn ended(error: Errno) -> anyhow::Result<Outcome> {
    match error {
        Errno::CONNRESET | Errno::PIPE => Ok(Outcome::Rejected),
        _ => verdict(&error.into()),
    }
}
