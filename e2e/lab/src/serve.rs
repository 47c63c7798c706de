//! Servers at endpoints. Each answers a request with one line: its own name and the source address that it saw. It then closes a
//! TCP connection, or keeps it open and answers every further request, if started so.
//!
//! Sockets are opened inside of the namespace that has the address. One thread serves all of them, so that many endpoints are
//! cheap. SCTP uses one raw socket per address, which answers INIT. The socket ignores ports without a server,
//! because several [`Servers`] may share an address.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::Context;
use localnet_core::Protocol;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, bind, ipproto, recvfrom, sendto, shutdown,
};

use crate::network::Network;
use crate::probe::transport_part;
use crate::sctp::{Chunk, Packet};

/// The endpoint of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// The transport protocol.
    pub protocol: Protocol,
    /// The address and port, which are also the name in its answers.
    pub address: SocketAddr,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.protocol.as_lowercase(), self.address)
    }
}

/// Servers, which run until this value is dropped.
#[derive(Debug)]
pub struct Servers {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Servers {
    /// Starts servers, each in the namespace of its address ([`Network::namespace_of`]). All of them answer when this returns.
    /// Duplicates are ignored.
    ///
    /// # Errors
    /// Returns an error if an address belongs to a pod that the network does not have, or an address and port are in use.
    pub fn start(network: &Network, endpoints: impl IntoIterator<Item = Endpoint>) -> anyhow::Result<Self> {
        Self::begin(network, endpoints, false)
    }

    /// As [`Servers::start`], but TCP connections stay open until their client closes them.
    ///
    /// # Errors
    /// Returns the errors of [`Servers::start`].
    pub fn start_with_open_connections(
        network: &Network,
        endpoints: impl IntoIterator<Item = Endpoint>,
    ) -> anyhow::Result<Self> {
        Self::begin(network, endpoints, true)
    }

    fn begin(
        network: &Network,
        endpoints: impl IntoIterator<Item = Endpoint>,
        keep_open: bool,
    ) -> anyhow::Result<Self> {
        let endpoints: BTreeSet<_> = endpoints.into_iter().collect();
        let mut by_namespace: BTreeMap<&str, (_, Vec<Endpoint>)> = BTreeMap::new();
        for endpoint in endpoints {
            let namespace =
                network.namespace_of(endpoint.address.ip()).with_context(|| format!("serving {endpoint}"))?;
            by_namespace.entry(namespace.name()).or_insert_with(|| (namespace, Vec::new())).1.push(endpoint);
        }
        let mut sockets = Vec::new();
        for (namespace, endpoints) in by_namespace.values() {
            sockets.extend(namespace.run(|| open(endpoints))?);
        }
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).context("creating an eventfd")?);
        let waiting = epoll::create(epoll::CreateFlags::CLOEXEC).context("creating an epoll instance")?;
        let watch = |fd: BorrowedFd<'_>, number: usize| {
            epoll::add(&waiting, fd, epoll::EventData::new_u64(number as u64), epoll::EventFlags::IN)
                .context("adding a socket to epoll")
        };
        for (number, socket) in sockets.iter().enumerate() {
            watch(socket.as_fd(), number)?;
        }
        watch(stop.as_fd(), sockets.len())?;
        let thread = std::thread::Builder::new()
            .name("lab-servers".to_owned())
            .spawn(move || {
                serve(&waiting, &sockets, keep_open);
                sockets.iter().for_each(Socket::stop);
            })
            .context("starting the servers' thread")?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        // A write of an eight-byte number to an eventfd fails only if the counter overflows.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener, SocketAddr),
    Udp(UdpSocket, SocketAddr),
    Sctp(OwnedFd, IpAddr, BTreeSet<u16>),
}

impl Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener, _) => listener.as_fd(),
            Self::Udp(socket, _) => socket.as_fd(),
            Self::Sctp(socket, ..) => socket.as_fd(),
        }
    }

    /// Stops listening at once. Closing may not suffice, because a program that another test is starting inherits all descriptors
    /// for a moment.
    fn stop(&self) {
        if let Self::Tcp(listener, _) = self {
            // This cannot fail, because the socket listens.
            let _ = shutdown(listener, Shutdown::Both);
        }
    }

    /// Answers a request, and returns its connection if it has one. The caller may ignore errors: the client notices them.
    fn answer(&self) -> io::Result<Option<Connection>> {
        match self {
            Self::Tcp(listener, name) => {
                let (mut stream, peer) = listener.accept()?;
                let line = line(*name, peer.ip());
                stream.write_all(line.as_bytes())?;
                Ok(Some(Connection { stream, line }))
            }
            Self::Udp(socket, name) => {
                let (_, peer) = socket.recv_from(&mut [0; 1024])?;
                socket.send_to(line(*name, peer.ip()).as_bytes(), peer).map(|_| None)
            }
            Self::Sctp(socket, address, ports) => answer_sctp(socket, *address, ports).map(|()| None),
        }
    }
}

/// A connection that stays open.
#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    line: String,
}

impl Connection {
    /// Answers a further request.
    ///
    /// # Errors
    /// Returns an error if the connection has ended.
    fn answer(&mut self) -> io::Result<()> {
        match self.stream.read(&mut [0; 1024])? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => self.stream.write_all(self.line.as_bytes()),
        }
    }
}

fn open(endpoints: &[Endpoint]) -> anyhow::Result<Vec<Socket>> {
    let mut sockets = Vec::new();
    let mut sctp: BTreeMap<IpAddr, BTreeSet<u16>> = BTreeMap::new();
    for endpoint in endpoints {
        let address = endpoint.address;
        let listening = || format!("listening at {endpoint}");
        match endpoint.protocol {
            Protocol::Tcp => {
                let listener = TcpListener::bind(address).with_context(listening)?;
                listener.set_nonblocking(true)?;
                sockets.push(Socket::Tcp(listener, address));
            }
            Protocol::Udp => {
                let socket = UdpSocket::bind(address).with_context(listening)?;
                socket.set_nonblocking(true)?;
                sockets.push(Socket::Udp(socket, address));
            }
            Protocol::Sctp => {
                sctp.entry(address.ip()).or_default().insert(address.port());
            }
        }
    }
    for (address, ports) in sctp {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(family, SocketType::RAW, flags, Some(ipproto::SCTP))
            .and_then(|socket| bind(&socket, &SocketAddr::new(address, 0)).map(|()| socket))
            .with_context(|| format!("listening at sctp {address}"))?;
        sockets.push(Socket::Sctp(socket, address, ports));
    }
    Ok(sockets)
}

/// Serves until the stop event, whose number follows those of the sockets. Connections have higher numbers.
fn serve(waiting: &OwnedFd, sockets: &[Socket], keep_open: bool) {
    let stop = sockets.len() as u64;
    let mut last = stop;
    let mut connections = BTreeMap::new();
    let mut events = Vec::with_capacity(64);
    loop {
        events.clear();
        match epoll::wait(waiting, rustix::buffer::spare_capacity(&mut events), None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
        for event in &events {
            let number = event.data.u64();
            if number == stop {
                return;
            }
            if let Some(connection) = connections.get_mut(&number) {
                if Connection::answer(connection).is_err() {
                    connections.remove(&number);
                }
                continue;
            }
            let socket = usize::try_from(number).ok().and_then(|number| sockets.get(number));
            let Some(Ok(Some(connection))) = socket.map(Socket::answer).filter(|_| keep_open) else { continue };
            last += 1;
            let data = epoll::EventData::new_u64(last);
            if epoll::add(waiting, &connection.stream, data, epoll::EventFlags::IN).is_ok() {
                connections.insert(last, connection);
            }
        }
    }
}

fn answer_sctp(socket: &OwnedFd, address: IpAddr, ports: &BTreeSet<u16>) -> io::Result<()> {
    let mut buffer = [0; 2048];
    let (length, _, peer) = recvfrom(socket, &mut buffer, RecvFlags::empty())?;
    let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
    let packet = Packet::decode(transport_part(&buffer[..length], address.is_ipv4()));
    let (Some(peer), Some(packet)) = (peer, packet) else { return Ok(()) };
    let name = SocketAddr::new(address, packet.destination_port);
    let line = || line(name, peer.ip()).into_bytes();
    // The server's tag is the inverted tag of the client, so that the server needs no state.
    let (verification_tag, chunk) = match packet.chunk {
        Chunk::Init { tag } => (tag, Chunk::InitAck { tag: !tag, cookie: line() }),
        Chunk::CookieEcho { .. } => (!packet.verification_tag, Chunk::CookieAck),
        Chunk::Heartbeat => (!packet.verification_tag, Chunk::HeartbeatAck { info: line() }),
        Chunk::InitAck { .. } | Chunk::CookieAck | Chunk::HeartbeatAck { .. } => return Ok(()),
    };
    if !ports.contains(&packet.destination_port) {
        return Ok(());
    }
    let answer =
        Packet { source_port: packet.destination_port, destination_port: packet.source_port, verification_tag, chunk };
    sendto(socket, &answer.encode(), SendFlags::empty(), &SocketAddr::new(peer.ip(), 0))?;
    Ok(())
}

fn line(name: SocketAddr, source: IpAddr) -> String {
    format!("{name} {source}\n")
}
