//! The identifiers of objects, and how ours are chosen.
//!
//! HNS lets the caller choose the identifier of a new object. Ours begin with `6c6f6361-6c6e-` ("localn" in ASCII), followed by
//! the kind of object and its purpose. Therefore an identifier still shows the owner after a restart, and a second attempt to
//! create an object fails instead of creating a duplicate. Our identifiers are UUIDs of version 8 (RFC 9562, for private
//! schemes).

use std::{fmt, net::IpAddr, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha2::{Digest as _, Sha256};

/// An identifier. It is written in lower case with hyphens and without braces.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Guid(u128);

/// The first 48 bits of our identifiers.
const OURS: u128 = 0x6c6f_6361_6c6e;
/// The next 16 bits: version 8 and the kind of object.
const REMOTE_ENDPOINT: u128 = 0x8001;
const LOAD_BALANCER: u128 = 0x8002;
const SOURCE_VIP: u128 = 0x8003;
/// The variant of RFC 9562, in the upper two of the last 64 bits.
const VARIANT: u128 = 0x8000_0000_0000_0000;

impl Guid {
    /// The identifier with this number. It is written with the number's hexadecimal digits, in the same order.
    pub const fn new(number: u128) -> Self {
        Self(number)
    }

    /// The number of the identifier.
    pub const fn number(self) -> u128 {
        self.0
    }

    /// The identifier of our remote endpoint for an address. If it is an IPv4 address, the last eight digits are
    /// this address in hexadecimal.
    pub fn of_remote_endpoint(address: IpAddr) -> Self {
        Self::ours(REMOTE_ENDPOINT, Self::of_address(address))
    }

    /// The identifier of our endpoint for the source VIP.
    pub fn of_source_vip(address: IpAddr) -> Self {
        Self::ours(SOURCE_VIP, Self::of_address(address))
    }

    /// The identifier of our load balancer for a frontend, which is given as text.
    pub fn of_load_balancer(frontend: &str) -> Self {
        Self::ours(LOAD_BALANCER, digest(frontend))
    }

    fn of_address(address: IpAddr) -> u128 {
        match address {
            IpAddr::V4(address) => 0x0004_0000_0000_0000 | u128::from(u32::from(address)),
            // This bit separates IPv6 from IPv4.
            IpAddr::V6(_) => 0x2000_0000_0000_0000 | (digest(&address.to_string()) & 0x1fff_ffff_ffff_ffff),
        }
    }

    fn ours(kind: u128, rest: u128) -> Self {
        Self((OURS << 80) | (kind << 64) | VARIANT | (rest & ((VARIANT >> 1) - 1)))
    }

    /// Whether this backend has chosen the identifier.
    pub fn is_ours(self) -> bool {
        self.0 >> 80 == OURS
    }
}

/// Returns the first 64 bits of the hash of a string.
fn digest(text: &str) -> u128 {
    let bytes = Sha256::digest(text.as_bytes());
    bytes.iter().take(8).fold(0, |number, byte| number << 8 | u128::from(*byte))
}

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |shift: u32, digits: u32| (self.0 >> shift) & ((1 << (4 * digits)) - 1);
        write!(
            f,
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            part(96, 8),
            part(80, 4),
            part(64, 4),
            part(48, 4),
            part(0, 12)
        )
    }
}

impl fmt::Debug for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The error for a string that is not an identifier.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an identifier: use 32 hexadecimal digits with hyphens")]
pub struct NotAGuid(String);

impl FromStr for Guid {
    type Err = NotAGuid;

    /// Parses upper and lower case, with or without braces, as HNS and its tools write identifiers.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || NotAGuid(text.to_owned());
        let inner = text.strip_prefix('{').map_or(Some(text), |rest| rest.strip_suffix('}')).ok_or_else(bad)?;
        let parts: Vec<&str> = inner.split('-').collect();
        let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
        let hexadecimal = parts.iter().all(|part| part.bytes().all(|byte| byte.is_ascii_hexdigit()));
        if lengths != [8, 4, 4, 4, 12] || !hexadecimal {
            return Err(bad());
        }
        u128::from_str_radix(&parts.concat(), 16).map(Self).map_err(|_| bad())
    }
}

impl Serialize for Guid {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Guid {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_parsed_in_all_notations() {
        let guid = Guid::new(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);
        assert_eq!(guid.to_string(), "01234567-89ab-cdef-0123-456789abcdef");
        for text in [
            "01234567-89ab-cdef-0123-456789abcdef",
            "01234567-89AB-CDEF-0123-456789ABCDEF",
            "{01234567-89AB-cdef-0123-456789abcdef}",
        ] {
            assert_eq!(text.parse(), Ok(guid), "{text}");
        }
        for text in [
            "",
            "{}",
            "0123456789abcdef0123456789abcdef",
            "01234567-89ab-cdef-0123-456789abcdeg",
            "{01234567-89ab-cdef-0123-456789abcdef",
            "+1234567-89ab-cdef-0123-456789abcdef",
            "01234567-89ab-cdef-0123-456789abcde\u{e9}",
        ] {
            assert_eq!(text.parse::<Guid>(), Err(NotAGuid(text.to_owned())));
        }
    }

    #[test]
    fn our_identifiers_encode_their_purpose() {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let remote = Guid::of_remote_endpoint(address("10.180.1.2"));
        assert_eq!(remote.to_string(), "6c6f6361-6c6e-8001-8004-00000ab40102");
        assert_eq!(Guid::of_source_vip(address("10.180.0.9")).to_string(), "6c6f6361-6c6e-8003-8004-00000ab40009");
        let all = [
            remote,
            Guid::of_remote_endpoint(address("fd00::1")),
            Guid::of_remote_endpoint(address("fd00::2")),
            Guid::of_load_balancer("172.30.0.1:80/tcp"),
            Guid::of_load_balancer("172.30.0.1:80/udp"),
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(one.is_ours());
            assert!(all[at + 1..].iter().all(|other| other != one), "{one}");
            let text = one.to_string();
            assert_eq!((&text[14..15], "89ab".contains(&text[19..20])), ("8", true), "version and variant of {text}");
        }
        assert!(!Guid::new(0).is_ours());
    }
}
