//! Elements of sets and maps, kept small because there are tens of thousands.
//!
//! Keys and values are the bytes that the kernel holds in its registers. So encoding copies them, and comparing them with a
//! dump needs no conversion.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;

use ipnet::IpNet;
use localnet_core::Protocol;

use super::comment::printable_name;
use super::{Name, Verdict};

/// A concatenation of values in the kernel's register layout. Each field is padded with zeros to a multiple of four
/// bytes. An index, mark or priority is in the machine's byte order; all other fields are in network byte order.
#[derive(Clone)]
pub struct Tuple(Bytes);

/// IPv4 keys fit inline. The longer IPv6 keys need one allocation of exactly their size. Both kinds take 24 bytes.
#[derive(Clone)]
enum Bytes {
    Inline { len: u8, bytes: [u8; INLINE] },
    Heap(Box<[u8]>),
}

const INLINE: usize = 22;

impl Tuple {
    /// A tuple without fields.
    pub const fn new() -> Self {
        Tuple(Bytes::Inline { len: 0, bytes: [0; INLINE] })
    }

    /// Copies bytes that are already in register layout.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut inline = [0; INLINE];
        match inline.get_mut(..bytes.len()) {
            Some(room) => {
                room.copy_from_slice(bytes);
                Tuple(Bytes::Inline { len: bytes.len() as u8, bytes: inline })
            }
            None => Tuple(Bytes::Heap(bytes.into())),
        }
    }

    /// The bytes in register layout.
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Bytes::Inline { len, bytes } => &bytes[..usize::from(*len)],
            Bytes::Heap(bytes) => bytes,
        }
    }

    /// Appends an address.
    pub fn address(self, address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => self.append(&address.octets()),
            IpAddr::V6(address) => self.append(&address.octets()),
        }
    }

    /// Appends a transport protocol.
    pub fn protocol(self, protocol: Protocol) -> Self {
        self.append(&[protocol.number()])
    }

    /// Appends a port.
    pub fn port(self, port: u16) -> Self {
        self.append(&port.to_be_bytes())
    }

    /// Appends an index, as a number generator yields it.
    pub fn index(self, index: u32) -> Self {
        self.append(&index.to_ne_bytes())
    }

    /// Appends a packet mark.
    pub fn mark(self, mark: u32) -> Self {
        self.append(&mark.to_ne_bytes())
    }

    /// Appends a packet's priority.
    pub fn priority(self, priority: u32) -> Self {
        self.append(&priority.to_ne_bytes())
    }

    /// Appends the name of an interface. Bytes beyond the kernel's limit of 15 are cut off.
    pub fn interface(self, name: &str) -> Self {
        let mut bytes = [0; 16];
        let len = name.len().min(15);
        bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
        self.append(&bytes)
    }

    /// Appends a field and its padding. Allocates memory only if the tuple no longer fits inline.
    fn append(mut self, field: &[u8]) -> Self {
        let padded = field.len().next_multiple_of(4);
        if let Bytes::Inline { len, bytes } = &mut self.0 {
            let start = usize::from(*len);
            if let Some(room) = bytes.get_mut(start..start + padded) {
                room[..field.len()].copy_from_slice(field);
                *len += padded as u8;
                return self;
            }
        }
        let mut grown = Vec::with_capacity(self.as_bytes().len() + padded);
        grown.extend_from_slice(self.as_bytes());
        grown.extend_from_slice(field);
        grown.resize(self.as_bytes().len() + padded, 0);
        Tuple(Bytes::Heap(grown.into_boxed_slice()))
    }
}

impl Default for Tuple {
    fn default() -> Self {
        Tuple::new()
    }
}

impl fmt::Debug for Tuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.as_bytes().iter().enumerate() {
            let gap = if at > 0 && at % 4 == 0 { " " } else { "" };
            write!(f, "{gap}{byte:02x}")?;
        }
        Ok(())
    }
}

impl PartialEq for Tuple {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Tuple {}

impl PartialOrd for Tuple {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Tuple {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl Hash for Tuple {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

/// The key of an element: one tuple, or, in an interval set, all tuples from a first to a last one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ElementKey {
    start: Tuple,
    /// Boxed because few elements are ranges.
    end: Option<Box<Tuple>>,
}

impl ElementKey {
    /// All keys from `start` to `end`, both included. In a concatenation each field is a range of its own.
    pub fn range(start: Tuple, end: Tuple) -> Self {
        if start == end { start.into() } else { Self { start, end: Some(Box::new(end)) } }
    }

    /// All addresses of a prefix.
    pub fn prefix(prefix: IpNet) -> Self {
        Self::range(Tuple::new().address(prefix.network()), Tuple::new().address(prefix.broadcast()))
    }

    /// The key, or the first key of the range.
    pub fn start(&self) -> &Tuple {
        &self.start
    }

    /// The last key of a range, included.
    pub fn end(&self) -> Option<&Tuple> {
        self.end.as_deref()
    }
}

impl From<Tuple> for ElementKey {
    fn from(start: Tuple) -> Self {
        Self { start, end: None }
    }
}

/// The data of an element.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ElementData {
    /// None: an element of a plain set.
    None,
    /// The verdict of an element in a verdict map.
    Verdict(Verdict),
    /// The value of an element in a map.
    Value(Tuple),
    /// The expiry of an element in a plain set with timeouts. Packets add such elements.
    Expires(Expiry),
}

/// When an element expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Expiry {
    /// The timeout that the element was added with, in milliseconds. Kernels before 6.12 keep this timeout even when a packet
    /// refreshes the element with a different timeout.
    pub timeout: u64,
    /// The remaining time, in milliseconds.
    pub left: u64,
}

/// One element of a set or map.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Element {
    /// Unique within the set.
    pub key: ElementKey,
    /// The data.
    pub data: ElementData,
    /// The comment, which `nft list` shows.
    pub comment: Option<Name>,
}

impl Element {
    /// An element of a plain set.
    pub fn new(key: impl Into<ElementKey>) -> Self {
        Self { key: key.into(), data: ElementData::None, comment: None }
    }

    /// An element of a verdict map.
    pub fn verdict(key: impl Into<ElementKey>, verdict: Verdict) -> Self {
        Self { key: key.into(), data: ElementData::Verdict(verdict), comment: None }
    }

    /// An element of a map to values.
    pub fn value(key: impl Into<ElementKey>, value: Tuple) -> Self {
        Self { key: key.into(), data: ElementData::Value(value), comment: None }
    }

    /// An element of a plain set that expires.
    pub fn expiring(key: impl Into<ElementKey>, expiry: Expiry) -> Self {
        Self { key: key.into(), data: ElementData::Expires(expiry), comment: None }
    }

    /// The same element with a comment.
    pub fn comment(mut self, comment: impl Into<Name>) -> Self {
        self.comment = Some(printable_name(comment.into()));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tuples_have_register_layout() {
        let v4 = Tuple::new().address("10.0.0.1".parse().unwrap()).protocol(Protocol::Tcp).port(80).index(3);
        let mut expected = vec![10, 0, 0, 1, 6, 0, 0, 0, 0, 80, 0, 0];
        expected.extend(3u32.to_ne_bytes());
        assert_eq!(v4.as_bytes(), expected);

        let v6 = Tuple::new().address("fd00::1".parse().unwrap()).protocol(Protocol::Udp).port(53).index(1);
        assert_eq!(v6.as_bytes().len(), 28);
        assert_eq!(v6.as_bytes()[16..24], [17, 0, 0, 0, 0, 53, 0, 0]);
    }

    #[test]
    fn inline_and_heap_tuples_compare_alike() {
        let long = Tuple::new().address("fd00::1".parse().unwrap()).protocol(Protocol::Udp).port(53);
        assert_eq!(long, Tuple::from_bytes(long.as_bytes()));
        let short = Tuple::new().port(53).interface("eth0");
        assert_eq!(short, Tuple::from_bytes(short.as_bytes()));
        assert!(Tuple::new().address("9.0.0.0".parse().unwrap()) < long);
    }

    #[test]
    fn an_element_is_small() {
        assert_eq!(size_of::<Tuple>(), 24);
        assert!(size_of::<Element>() <= 80, "{}", size_of::<Element>());
    }
}
