//! Sends a single request to an address and reports the outcome.
//!
//! A probe is a new connection (TCP), a datagram (UDP) or an INIT (SCTP, over a raw socket), from a port that no earlier probe
//! of the namespace used. The servers of [`crate::serve`] answer with their own name and the source address they saw.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufRead as _, BufReader, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use localnet_core::Protocol;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionbio, retry_on_intr};
use rustix::net::sockopt::{Timeout, set_socket_reuseaddr, set_socket_timeout, socket_error};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, connect, connect_unspec, ipproto, recv, send,
};

use crate::namespace::Namespace;
use crate::sctp::{Chunk, Packet};

/// The default timeout of a probe. Answers take milliseconds; the rest is a margin, so that a delay on a loaded machine does not
/// count as a drop.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// The timeout if no answer is expected.
pub const SILENCE_TIMEOUT: Duration = Duration::from_millis(300);

/// A request to an address and port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The transport protocol.
    pub protocol: Protocol,
    /// The source address; `None` lets the kernel choose.
    pub from: Option<IpAddr>,
    /// The destination.
    pub to: SocketAddr,
    /// How long to wait for an outcome.
    pub timeout: Duration,
}

impl Probe {
    /// A probe from the address that the kernel chooses, with [`ANSWER_TIMEOUT`].
    pub fn new(protocol: Protocol, to: SocketAddr) -> Self {
        Self { protocol, from: None, to, timeout: ANSWER_TIMEOUT }
    }

    /// The same probe from this address of the namespace.
    pub fn from(self, address: IpAddr) -> Self {
        Self { from: Some(address), ..self }
    }

    /// The same probe with another timeout.
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }
}

/// The outcome of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// An endpoint answered.
    Answer {
        /// The endpoint's own name, whatever the destination was.
        by: SocketAddr,
        /// The source address that the endpoint saw.
        seen_source: IpAddr,
    },
    /// Rejected: a TCP reset, or an ICMP error for an unreachable port or an administrative prohibition.
    Rejected,
    /// No answer before the timeout.
    Dropped,
    /// There is no route to the address, on this node or on a later hop.
    NoRoute,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Answer { by, seen_source } => write!(f, "an answer by {by}, which saw {seen_source}"),
            Self::Rejected => f.write_str("a reject"),
            Self::Dropped => f.write_str("silence"),
            Self::NoRoute => f.write_str("no route"),
        }
    }
}

/// The number of probes without a pause between them. If a virtual server uses its endpoints in turn, two senders in lockstep would
/// each always get the same endpoint. So random pauses precede the later probes.
const IN_A_ROW: usize = 20;
const LONGEST_PAUSE_MS: u64 = 25;

/// The maximum length of an answer in bytes.
const LONGEST_LINE: u64 = 1024;

impl Namespace {
    /// Sends one probe.
    ///
    /// SCTP only: two simultaneous probes from one namespace to the same address can mistake each other's reject for their own,
    /// because raw sockets have no ports.
    ///
    /// # Errors
    /// Returns an error if the probe cannot be sent, or its outcome is none of [`Outcome`].
    pub fn probe(&self, probe: Probe) -> anyhow::Result<Outcome> {
        self.run(|| Ok(self.probe_from_inside(&probe)?.1))
    }

    /// Repeats a probe up to `limit` times, until `enough` returns `true` for an outcome.
    ///
    /// # Errors
    /// Returns the errors of [`Self::probe`].
    pub fn probe_until(
        &self,
        probe: Probe,
        limit: usize,
        mut enough: impl FnMut(Outcome) -> bool + Send,
    ) -> anyhow::Result<()> {
        self.probe_ports_until(probe, limit, |_, outcome| enough(outcome))
    }

    /// As [`Self::probe_until`]. `enough` also gets the source port of each probe.
    ///
    /// # Errors
    /// Returns the errors of [`Self::probe`].
    pub fn probe_ports_until(
        &self,
        probe: Probe,
        limit: usize,
        mut enough: impl FnMut(u16, Outcome) -> bool + Send,
    ) -> anyhow::Result<()> {
        self.run(|| {
            for number in 0..limit {
                if number >= IN_A_ROW {
                    let pause = RandomState::new().hash_one(number) % LONGEST_PAUSE_MS;
                    std::thread::park_timeout(Duration::from_millis(pause));
                }
                let (port, outcome) = self.probe_from_inside(&probe)?;
                if enough(port, outcome) {
                    break;
                }
            }
            Ok(())
        })
    }

    /// Returns the source port, and the outcome.
    fn probe_from_inside(&self, probe: &Probe) -> anyhow::Result<(u16, Outcome)> {
        let port = self.next_source_port();
        let outcome = match probe.protocol {
            Protocol::Tcp => probe.tcp(port),
            Protocol::Udp => probe.udp(port),
            Protocol::Sctp => probe.sctp(port),
        };
        let doing = || format!("probing {} {} from {}", probe.protocol.as_lowercase(), probe.to, self.name());
        Ok((port, outcome.with_context(doing)?))
    }
}

impl Probe {
    fn tcp(&self, port: u16) -> anyhow::Result<Outcome> {
        let socket = match self.connected(SocketType::STREAM, ipproto::TCP, port)? {
            Ok(socket) => socket,
            Err(outcome) => return Ok(outcome),
        };
        let mut line = String::new();
        match BufReader::new(TcpStream::from(socket).take(LONGEST_LINE)).read_line(&mut line) {
            Ok(_) => answer(&line),
            Err(error) => outcome_of(&error),
        }
    }

    fn udp(&self, port: u16) -> anyhow::Result<Outcome> {
        let socket = match self.connected(SocketType::DGRAM, ipproto::UDP, port)? {
            Ok(socket) => socket,
            Err(outcome) => return Ok(outcome),
        };
        if let Some(outcome) = send_packet(&socket, b"?")? {
            return Ok(outcome);
        }
        let mut buffer = [0; 1024];
        match receive(&socket, &mut buffer) {
            Ok(length) => parse_answer(&buffer[..length]),
            Err(error) => outcome_of(&error.into()),
        }
    }

    fn sctp(&self, port: u16) -> anyhow::Result<Outcome> {
        let tag = own_tag(port);
        Ok(match self.exchange(port, tag, 0, Chunk::Init { tag })? {
            Ok(Chunk::InitAck { cookie, .. }) => parse_answer(&cookie)?,
            Ok(other) => bail!("{other:?} is not an answer to INIT"),
            Err(outcome) => outcome,
        })
    }

    /// Sends a chunk with a verification tag. Returns the chunk that comes back with the tag `own`, or the outcome.
    pub(crate) fn exchange(
        &self,
        port: u16,
        own: u32,
        verification_tag: u32,
        chunk: Chunk,
    ) -> anyhow::Result<Result<Chunk, Outcome>> {
        let socket = match self.connected(SocketType::RAW, ipproto::SCTP, 0)? {
            Ok(socket) => socket,
            Err(outcome) => return Ok(Err(outcome)),
        };
        let destination_port = self.to.port();
        let packet = Packet { source_port: port, destination_port, verification_tag, chunk };
        if let Some(outcome) = send_packet(&socket, &packet.encode())? {
            return Ok(Err(outcome));
        }
        let started = Instant::now();
        let mut buffer = [0; 2048];
        loop {
            let left = self.timeout.saturating_sub(started.elapsed());
            if left.is_zero() {
                return Ok(Err(Outcome::Dropped));
            }
            set_socket_timeout(&socket, Timeout::Recv, Some(left.max(Duration::from_micros(1))))?;
            let length = match receive(&socket, &mut buffer) {
                Ok(length) => length,
                Err(error) => return outcome_of(&error.into()).map(Err),
            };
            let Some(packet) = Packet::decode(transport_part(&buffer[..length], self.to.is_ipv4())) else { continue };
            let ours = packet.source_port == destination_port
                && packet.destination_port == port
                && packet.verification_tag == own;
            if ours {
                return Ok(Ok(packet.chunk));
            }
        }
    }

    /// A connected socket with that source port, or the outcome of the attempt.
    pub(crate) fn connected(
        &self,
        kind: SocketType,
        protocol: rustix::net::Protocol,
        port: u16,
    ) -> anyhow::Result<Result<OwnedFd, Outcome>> {
        let family = if self.to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, Some(protocol))
            .context("opening a socket (raw ones need root)")?;
        set_socket_reuseaddr(&socket, true)?;
        set_socket_timeout(&socket, Timeout::Send, Some(self.timeout))?;
        set_socket_timeout(&socket, Timeout::Recv, Some(self.timeout))?;
        let any = if self.to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let from = SocketAddr::new(self.from.unwrap_or(any), port);
        bind(&socket, &from).with_context(|| format!("binding a socket to {from}"))?;
        // A raw socket has no port; with IPv6 a port would count as the protocol's number.
        let to = if kind == SocketType::RAW { SocketAddr::new(self.to.ip(), 0) } else { self.to };
        ioctl_fionbio(&socket, true)?;
        let connected = match connect(&socket, &to) {
            Err(Errno::INPROGRESS) => self.wait_until_connected(&socket)?,
            connected => connected,
        };
        ioctl_fionbio(&socket, false)?;
        match connected {
            Ok(()) => Ok(Ok(socket)),
            Err(error) => {
                // A connection that is established just after the timeout must not keep its port.
                disconnect(&socket);
                outcome_of(&error.into()).map(Err)
            }
        }
    }

    /// Waits until a non-blocking `connect` completes. Between namespaces of one machine an ICMP error may arrive before `connect`
    /// returns. The kernel then stores it as a soft error, which wakes no waiter until the SYN is repeated a second later, but can be
    /// queried.
    fn wait_until_connected(&self, socket: &OwnedFd) -> anyhow::Result<Result<(), Errno>> {
        let soft = socket_error(socket)?;
        if soft.is_err() {
            return Ok(soft);
        }
        let timeout = Timespec::try_from(self.timeout).context("reading the timeout")?;
        if retry_on_intr(|| poll(&mut [PollFd::new(socket, PollFlags::OUT)], Some(&timeout)))? == 0 {
            return Ok(Err(Errno::TIMEDOUT));
        }
        Ok(socket_error(socket)?)
    }
}

/// Ends a connection (TCP: with RST) and frees its pair of addresses at once. Closing the socket would do so only when no other
/// process holds it; a process that another thread has just started holds all sockets until it runs its program.
pub(crate) fn disconnect(socket: &OwnedFd) {
    // This fails for a socket without a connection, which holds no pair of addresses.
    let _ = connect_unspec(socket);
}

/// The verification tag of an association from that source port.
pub(crate) fn own_tag(port: u16) -> u32 {
    u32::from(port) << 16 | u32::from(port)
}

/// Parses the answer of a server.
pub(crate) fn parse_answer(line: &[u8]) -> anyhow::Result<Outcome> {
    answer(std::str::from_utf8(line).context("reading the answer")?)
}

/// Receives a message. When a stopped process continues, its system calls with a timeout fail with EINTR, so they are repeated.
pub(crate) fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> Result<usize, Errno> {
    retry_on_intr(|| recv(socket, &mut *buffer, RecvFlags::empty())).map(|(length, _)| length)
}

/// The received packet without the IP header, which raw IPv4 sockets deliver and raw IPv6 sockets do not.
pub(crate) fn transport_part(received: &[u8], ipv4: bool) -> &[u8] {
    let header = match received.first() {
        Some(first) if ipv4 => usize::from(first & 0xf) * 4,
        _ => 0,
    };
    received.get(header..).unwrap_or_default()
}

/// Sends a packet, and returns the outcome if that is already known. If the node's output rules stop a packet, `send` returns
/// EPERM for both a reject and a drop; only a later `recv` distinguishes them.
pub(crate) fn send_packet(socket: impl AsFd, packet: &[u8]) -> anyhow::Result<Option<Outcome>> {
    match send(socket, packet, SendFlags::empty()) {
        Ok(_) | Err(Errno::PERM) => Ok(None),
        Err(error) => outcome_of(&error.into()).map(Some),
    }
}

pub(crate) fn outcome_of(error: &io::Error) -> anyhow::Result<Outcome> {
    match Errno::from_io_error(error) {
        // The last two mean "protocol unreachable", in ICMP and in ICMPv6.
        Some(Errno::CONNREFUSED | Errno::ACCESS | Errno::NOPROTOOPT | Errno::PROTO) => Ok(Outcome::Rejected),
        // The last one is the error for a packet that a firewall of the sender drops, and for a socket that an eBPF program stops.
        Some(Errno::INPROGRESS | Errno::AGAIN | Errno::TIMEDOUT | Errno::PERM) => Ok(Outcome::Dropped),
        Some(Errno::NETUNREACH | Errno::HOSTUNREACH) => Ok(Outcome::NoRoute),
        _ => bail!("an error that is neither an answer, a reject nor silence: {error}"),
    }
}

fn answer(line: &str) -> anyhow::Result<Outcome> {
    let parsed = line.trim_end().split_once(' ').and_then(|(by, seen)| Some((by.parse().ok()?, seen.parse().ok()?)));
    match parsed {
        Some((by, seen_source)) => Ok(Outcome::Answer { by, seen_source }),
        None => bail!("an answer that is not from a server of the lab: {line:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_of_the_kernel_maps_to_an_outcome() {
        for (errno, outcome) in [
            (Errno::CONNREFUSED, Outcome::Rejected),
            (Errno::ACCESS, Outcome::Rejected),
            (Errno::NOPROTOOPT, Outcome::Rejected),
            (Errno::PROTO, Outcome::Rejected),
            (Errno::INPROGRESS, Outcome::Dropped),
            (Errno::AGAIN, Outcome::Dropped),
            (Errno::PERM, Outcome::Dropped),
            (Errno::NETUNREACH, Outcome::NoRoute),
            (Errno::HOSTUNREACH, Outcome::NoRoute),
        ] {
            assert_eq!(outcome_of(&errno.into()).unwrap(), outcome, "{errno}");
        }
        assert!(outcome_of(&Errno::CONNRESET.into()).is_err());
    }

    #[test]
    fn an_answer_names_the_server_and_the_source() {
        let by = "[fd00:10:180::1]:80".parse().unwrap();
        let seen_source = "2001:db8:2::2".parse().unwrap();
        assert_eq!(answer("[fd00:10:180::1]:80 2001:db8:2::2\n").unwrap(), Outcome::Answer { by, seen_source });
        assert!(answer("SSH-2.0-OpenSSH").is_err());
        assert!(answer("").is_err());
    }
}
