//! Hand-made TCP segments over IPv4. No socket sends these segments, which are outside of their connection's window.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::OwnedFd;

use anyhow::{Context, bail};
use rustix::io::retry_on_intr;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, ipproto, recvfrom, sendto};

use crate::namespace::Namespace;
use crate::network::Network;
use crate::probe::{ANSWER_TIMEOUT, transport_part};

const SYN: u8 = 1 << 1;
const ACK: u8 = 1 << 4;
const HEADER: usize = 20;

/// A TCP segment without data: a SYN, or an ACK.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The source.
    pub from: SocketAddrV4,
    /// The destination.
    pub to: SocketAddrV4,
    /// Whether the segment is a SYN. Otherwise, it is an ACK.
    pub syn: bool,
    /// The sequence number.
    pub sequence: u32,
}

impl Segment {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER);
        bytes.extend(self.from.port().to_be_bytes());
        bytes.extend(self.to.port().to_be_bytes());
        bytes.extend(self.sequence.to_be_bytes());
        bytes.extend(self.sequence.to_be_bytes());
        bytes.extend([(HEADER as u8 / 4) << 4, if self.syn { SYN } else { ACK }]);
        // Window, checksum, urgent pointer.
        bytes.extend([0xff, 0xff, 0, 0, 0, 0]);
        let mut sum = u32::from(ipproto::TCP.as_raw().get() as u16) + HEADER as u32;
        let addresses = [self.from.ip().octets(), self.to.ip().octets()].concat();
        for pair in addresses.chunks(2).chain(bytes.chunks(2)) {
            sum += u32::from(u16::from_be_bytes([pair[0], pair[1]]));
        }
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        bytes[16..18].copy_from_slice(&(!(sum as u16)).to_be_bytes());
        bytes
    }

    fn decode(from: Ipv4Addr, to: Ipv4Addr, bytes: &[u8]) -> Option<Self> {
        let port = |at: usize| Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
        Some(Self {
            from: SocketAddrV4::new(from, port(0)?),
            to: SocketAddrV4::new(to, port(2)?),
            syn: bytes.get(13)? & SYN != 0,
            sequence: u32::from_be_bytes(bytes.get(4..8)?.try_into().ok()?),
        })
    }
}

/// A raw socket that sends and receives segments at one address of a namespace, beside the kernel's own TCP.
#[derive(Debug)]
pub struct Segments {
    socket: OwnedFd,
    address: Ipv4Addr,
}

impl Namespace {
    /// Opens a raw socket at `address`, which the namespace must have.
    ///
    /// # Errors
    /// Returns an error if the process is not root, or the namespace does not have the address.
    pub fn segments(&self, address: Ipv4Addr) -> anyhow::Result<Segments> {
        self.run(|| {
            let flags = SocketFlags::CLOEXEC;
            let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::RAW, flags, Some(ipproto::TCP))
                .context("opening a raw socket (needs root)")?;
            set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_TIMEOUT))?;
            bind(&socket, &SocketAddrV4::new(address, 0)).with_context(|| format!("binding to {address}"))?;
            Ok(Segments { socket, address })
        })
    }
}

impl Segments {
    /// Sends a segment from the socket's address.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses the segment.
    pub fn send(&self, segment: &Segment) -> anyhow::Result<()> {
        let to = SocketAddrV4::new(*segment.to.ip(), 0);
        sendto(&self.socket, &segment.encode(), SendFlags::empty(), &to).context("sending a segment")?;
        Ok(())
    }

    /// Receives segments up to the first for which `is_last` returns `true`, and returns all of them.
    ///
    /// # Errors
    /// Returns an error if that segment does not arrive before the timeout.
    pub fn receive_until(&self, is_last: impl Fn(&Segment) -> bool) -> anyhow::Result<Vec<Segment>> {
        let mut heard = Vec::new();
        let mut buffer = [0; 2048];
        loop {
            let received = retry_on_intr(|| recvfrom(&self.socket, &mut buffer[..], RecvFlags::empty()));
            let (length, _, from) = received
                .map_err(io::Error::from)
                .with_context(|| format!("the last segment did not come within {ANSWER_TIMEOUT:?}; heard {heard:?}"))?;
            let Some(Ok(SocketAddr::V4(from))) = from.map(SocketAddr::try_from) else {
                bail!("a segment from nowhere")
            };
            let part = transport_part(&buffer[..length], true);
            let Some(segment) = Segment::decode(*from.ip(), self.address, part) else { continue };
            let last = is_last(&segment);
            heard.push(segment);
            if last {
                return Ok(heard);
            }
        }
    }
}

/// Whether a segment outside of its connection's window is forwarded to the client.
///
/// Connects a pod of the node (`client`) to `vip`, which must lead to `endpoint` on another pod of the node, and lets that pod
/// send the segment. Connection tracking marks it invalid and does not restore the VIP, so the client would receive it from an
/// address that it never contacted.
///
/// # Errors
/// Returns an error if the connection fails or is masqueraded, or the segment after the invalid ones does not arrive.
pub fn invalid_is_forwarded(
    network: &Network,
    client: Ipv4Addr,
    vip: SocketAddrV4,
    endpoint: SocketAddrV4,
) -> anyhow::Result<bool> {
    let (from, to) = (network.pod(IpAddr::V4(*endpoint.ip()))?, network.pod(IpAddr::V4(client))?);
    let listener = from.run(|| TcpListener::bind(endpoint).context("listening"))?;
    let connection = to.run(|| TcpStream::connect_timeout(&vip.into(), ANSWER_TIMEOUT).context("connecting"))?;
    let (_accepted, peer) = listener.accept().context("accepting")?;
    if peer != connection.local_addr()? {
        bail!("{vip} was masqueraded: {endpoint} saw {peer}");
    }
    let SocketAddr::V4(peer) = peer else { bail!("{peer} is not of IPv4") };
    let (sends, hears) = (from.segments(*endpoint.ip())?, to.segments(client)?);
    // Two sequence numbers half of the number space apart: at least one of them is outside of the window.
    let invalid = [0, 1 << 31].map(|sequence| Segment { from: endpoint, to: peer, syn: false, sequence });
    // A SYN from the endpoint itself, which follows the invalid segments on the same path and concerns no Service.
    let last = Segment { from: endpoint, to: SocketAddrV4::new(client, 9), syn: true, sequence: 1 };
    invalid.iter().chain([&last]).try_for_each(|segment| sends.send(segment))?;
    let heard = hears.receive_until(|segment| *segment == last)?;
    Ok(heard.iter().any(|segment| invalid.contains(segment)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_round_trips_and_its_checksum_is_right() {
        let at = |text: &str| text.parse::<SocketAddrV4>().unwrap();
        for syn in [true, false] {
            let segment = Segment { from: at("10.0.0.1:80"), to: at("10.0.0.2:40000"), syn, sequence: 0xdead_beef };
            let bytes = segment.encode();
            assert_eq!(Segment::decode(*segment.from.ip(), *segment.to.ip(), &bytes), Some(segment.clone()));
            let addresses = [segment.from.ip().octets(), segment.to.ip().octets()].concat();
            let words = addresses.chunks(2).chain(bytes.chunks(2));
            let sum: u32 = words.map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
            let sum = sum + 6 + bytes.len() as u32;
            assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
        }
        assert_eq!(Segment::decode(Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST, &[0; 13]), None);
    }
}
