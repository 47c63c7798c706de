//! The SCTP packets (RFC 9260) for probes and associations: INIT, COOKIE ECHO, HEARTBEAT and their answers. Pure.
//!
//! Kernels without SCTP sockets still translate and track SCTP. So a raw socket on each side suffices to find out which server
//! answers. A server sends its answer in the cookie, the place for its state.

const HEADER: usize = 12;
const CHUNK_HEADER: usize = 4;
const INIT_FIXED: usize = 16;
const INIT: u8 = 1;
const INIT_ACK: u8 = 2;
const HEARTBEAT: u8 = 4;
const HEARTBEAT_ACK: u8 = 5;
const COOKIE_ECHO: u8 = 10;
const COOKIE_ACK: u8 = 11;
/// The parameter of HEARTBEAT and HEARTBEAT ACK.
const HEARTBEAT_INFO: u16 = 1;
const STATE_COOKIE: u16 = 7;

/// A packet with one chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The source port.
    pub source_port: u16,
    /// The destination port.
    pub destination_port: u16,
    /// The tag that the receiver chose; 0 in an INIT.
    pub verification_tag: u32,
    /// The chunk.
    pub chunk: Chunk,
}

/// The chunks of the handshake and of the heartbeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chunk {
    /// Requests an association.
    Init {
        /// The verification tag for packets to the client.
        tag: u32,
    },
    /// Accepts the association.
    InitAck {
        /// The verification tag for packets to the server.
        tag: u32,
        /// The server's state, which the client returns.
        cookie: Vec<u8>,
    },
    /// Completes the handshake.
    CookieEcho {
        /// The server's state from INIT ACK.
        cookie: Vec<u8>,
    },
    /// Confirms the association.
    CookieAck,
    /// Checks that the association is alive.
    Heartbeat,
    /// Confirms that the association is alive.
    HeartbeatAck {
        /// The answer of the server.
        info: Vec<u8>,
    },
}

impl Chunk {
    fn kind(&self) -> u8 {
        match self {
            Self::Init { .. } => INIT,
            Self::InitAck { .. } => INIT_ACK,
            Self::CookieEcho { .. } => COOKIE_ECHO,
            Self::CookieAck => COOKIE_ACK,
            Self::Heartbeat => HEARTBEAT,
            Self::HeartbeatAck { .. } => HEARTBEAT_ACK,
        }
    }

    fn body(&self) -> Vec<u8> {
        match self {
            Self::Init { tag } => initial(*tag),
            Self::InitAck { tag, cookie } => [initial(*tag), parameter(STATE_COOKIE, cookie)].concat(),
            Self::CookieEcho { cookie } => cookie.clone(),
            Self::CookieAck => Vec::new(),
            Self::Heartbeat => parameter(HEARTBEAT_INFO, b"?"),
            Self::HeartbeatAck { info } => parameter(HEARTBEAT_INFO, info),
        }
    }

    fn parse(kind: u8, body: &[u8]) -> Option<Self> {
        Some(match kind {
            INIT => Self::Init { tag: u32_at(body, 0)? },
            INIT_ACK => {
                let cookie = find_parameter(STATE_COOKIE, body.get(INIT_FIXED..)?)?;
                Self::InitAck { tag: u32_at(body, 0)?, cookie }
            }
            COOKIE_ECHO => Self::CookieEcho { cookie: body.to_vec() },
            COOKIE_ACK => Self::CookieAck,
            HEARTBEAT => Self::Heartbeat,
            HEARTBEAT_ACK => Self::HeartbeatAck { info: find_parameter(HEARTBEAT_INFO, body)? },
            _ => return None,
        })
    }
}

/// The fixed part of INIT and INIT ACK.
fn initial(tag: u32) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend(tag.to_be_bytes());
    body.extend(65_536u32.to_be_bytes()); // receiver window
    body.extend(1u16.to_be_bytes()); // streams out
    body.extend(1u16.to_be_bytes()); // streams in
    body.extend(1u32.to_be_bytes()); // first transmission number
    body
}

fn parameter(kind: u16, value: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes()[..], &length(CHUNK_HEADER + value.len()), value].concat()
}

impl Packet {
    /// Encodes the packet without the IP header, checksum included.
    pub fn encode(&self) -> Vec<u8> {
        let body = self.chunk.body();
        let mut packet = Vec::with_capacity(HEADER + CHUNK_HEADER + body.len() + 3);
        packet.extend(self.source_port.to_be_bytes());
        packet.extend(self.destination_port.to_be_bytes());
        packet.extend(self.verification_tag.to_be_bytes());
        packet.extend([0; 4]);
        packet.extend([self.chunk.kind(), 0]);
        packet.extend(length(CHUNK_HEADER + body.len()));
        packet.extend(body);
        packet.resize(packet.len().next_multiple_of(4), 0);
        let checksum = crc32c(&packet);
        packet[8..HEADER].copy_from_slice(&checksum.to_le_bytes());
        packet
    }

    /// Decodes a packet; `None` unless its first chunk is a [`Chunk`] and its checksum is right.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let header = bytes.get(..HEADER)?;
        let mut unsigned = bytes.to_vec();
        unsigned[8..HEADER].fill(0);
        if crc32c(&unsigned).to_le_bytes() != header[8..HEADER] {
            return None;
        }
        let chunk = bytes.get(HEADER..)?;
        let kind = *chunk.first()?;
        let body = chunk.get(CHUNK_HEADER..u16_at(chunk, 2)?.into())?;
        let chunk = Chunk::parse(kind, body)?;
        Some(Self {
            source_port: u16_at(header, 0)?,
            destination_port: u16_at(header, 2)?,
            verification_tag: u32_at(header, 4)?,
            chunk,
        })
    }
}

/// The value of the first parameter of that kind.
fn find_parameter(searched: u16, mut parameters: &[u8]) -> Option<Vec<u8>> {
    loop {
        let kind = u16_at(parameters, 0)?;
        let length = usize::from(u16_at(parameters, 2)?);
        let value = parameters.get(CHUNK_HEADER..length)?;
        if kind == searched {
            return Some(value.to_vec());
        }
        parameters = parameters.get(length.next_multiple_of(4)..)?;
    }
}

fn length(bytes: usize) -> [u8; 2] {
    u16::try_from(bytes).expect("a cookie is one short line").to_be_bytes()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// CRC32c as SCTP uses it (RFC 9260 appendix A): reflected, polynomial 0x1EDC6F41.
pub fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| if crc & 1 == 1 { (crc >> 1) ^ 0x82F6_3B78 } else { crc >> 1 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc32c_gives_the_check_value_of_its_definition() {
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8A91_36AA);
    }

    #[test]
    fn packets_survive_the_wire() {
        for chunk in [
            Chunk::Init { tag: 7 },
            Chunk::InitAck { tag: 9, cookie: b"10.180.0.1:80 203.0.113.2".to_vec() },
            Chunk::InitAck { tag: 9, cookie: b"even".to_vec() },
            Chunk::CookieEcho { cookie: b"odd".to_vec() },
            Chunk::CookieAck,
            Chunk::Heartbeat,
            Chunk::HeartbeatAck { info: b"10.180.0.1:80 203.0.113.2".to_vec() },
        ] {
            let packet = Packet { source_port: 40_000, destination_port: 80, verification_tag: 5, chunk };
            let bytes = packet.encode();
            assert_eq!(bytes.len() % 4, 0);
            assert_eq!(Packet::decode(&bytes), Some(packet));
        }
    }

    #[test]
    fn damaged_packets_are_refused() {
        let chunk = Chunk::InitAck { tag: 9, cookie: b"who".to_vec() };
        let bytes = Packet { source_port: 1, destination_port: 2, verification_tag: 3, chunk }.encode();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert_eq!(Packet::decode(&damaged), None, "byte {at}");
            assert_eq!(Packet::decode(&bytes[..at]), None, "cut at {at}");
        }
    }
}
