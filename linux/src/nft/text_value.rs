//! Values in nft's syntax: addresses, ports, marks and durations.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use localnet_core::Protocol;

use super::{FieldType, Tuple};
use crate::netlink::{array, string};

/// Renders each field as a range from `start` to `end`, or as a value if both are equal.
pub(super) fn tuple_text(fields: &[FieldType], start: &Tuple, end: &Tuple) -> String {
    let mut text = String::new();
    let mut at = 0;
    for field in fields {
        let bytes = |tuple: &Tuple| {
            let mut value = [0; 16];
            let from = tuple.as_bytes().get(at..).unwrap_or_default();
            let len = from.len().min(field.byte_len());
            value[..len].copy_from_slice(&from[..len]);
            value
        };
        if at > 0 {
            text.push_str(" . ");
        }
        write_range(&mut text, *field, &bytes(start), &bytes(end));
        at += field.padded_len();
    }
    text
}

fn write_range(out: &mut String, field: FieldType, start: &[u8; 16], end: &[u8; 16]) {
    let first = value_text(field, start);
    let done = if start == end {
        write!(out, "{first}")
    } else if let Some(len) = prefix_len(field, start, end) {
        write!(out, "{first}/{len}")
    } else {
        write!(out, "{first}-{}", value_text(field, end))
    };
    done.expect("a string can always be written to");
}

/// The length of the prefix that covers exactly this range of addresses; `None` if there is none.
fn prefix_len(field: FieldType, start: &[u8; 16], end: &[u8; 16]) -> Option<u8> {
    let bits = match field {
        FieldType::Ipv4Addr => 32,
        FieldType::Ipv6Addr => 128,
        _ => return None,
    };
    let (first, last) = (u128::from_be_bytes(*start) >> (128 - bits), u128::from_be_bytes(*end) >> (128 - bits));
    let differing = first ^ last;
    let host = 128 - differing.leading_zeros();
    let contiguous = differing.count_ones() == host && first & differing == 0;
    contiguous.then(|| (bits - host) as u8)
}

fn value_text(field: FieldType, bytes: &[u8; 16]) -> String {
    let first = |n: usize| &bytes[..n];
    let machine = || array(first(4)).map(u32::from_ne_bytes).unwrap_or_default();
    match field {
        FieldType::Ipv4Addr => IpAddr::V4(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3])).to_string(),
        FieldType::Ipv6Addr => IpAddr::V6(Ipv6Addr::from(*bytes)).to_string(),
        FieldType::InetProto => match Protocol::from_number(bytes[0]) {
            Some(protocol) => protocol.as_lowercase().to_owned(),
            None => bytes[0].to_string(),
        },
        FieldType::InetService => u16::from_be_bytes([bytes[0], bytes[1]]).to_string(),
        FieldType::Index => machine().to_string(),
        FieldType::Mark => mark_text(machine()),
        FieldType::Priority => priority_text(machine()),
        FieldType::Ifname => format!("\"{}\"", string(bytes).unwrap_or_default()),
    }
}

pub(super) fn mark_text(mark: u32) -> String {
    format!("{mark:#010x}")
}

/// `1h2s3ms`
pub(super) fn millis_text(millis: u64) -> String {
    let seconds = u32::try_from(millis / 1000).unwrap_or(u32::MAX);
    match (seconds, millis % 1000) {
        (_, 0) => duration(seconds),
        (0, rest) => format!("{rest}ms"),
        (_, rest) => format!("{}{rest}ms", duration(seconds)),
    }
}

/// Renders a priority as traffic control names its classes: two 16-bit numbers, such as `0:2a`. Two values have names
/// instead.
fn priority_text(priority: u32) -> String {
    match priority {
        0 => "none".to_owned(),
        u32::MAX => "root".to_owned(),
        _ => format!("{:x}:{:x}", priority >> 16, priority & 0xffff),
    }
}

/// `1d2h3m4s`
pub(super) fn duration(seconds: u32) -> String {
    let parts = [(seconds / 86_400, "d"), (seconds / 3600 % 24, "h"), (seconds / 60 % 60, "m"), (seconds % 60, "s")];
    let text: String =
        parts.iter().filter(|(value, _)| *value > 0).map(|(value, unit)| format!("{value}{unit}")).collect();
    if text.is_empty() { "0s".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_omit_zero_units() {
        let texts = [0, 1, 59, 60, 90, 3600, 10_800, 90_061].map(duration);
        assert_eq!(texts, ["0s", "1s", "59s", "1m", "1m30s", "1h", "3h", "1d1h1m1s"]);
    }

    #[test]
    fn ranges_that_match_a_prefix_are_printed_as_one() {
        #[track_caller]
        fn check(start: &str, end: &str, expected: &str) {
            let field = if start.contains(':') { FieldType::Ipv6Addr } else { FieldType::Ipv4Addr };
            let [start, end] = [start, end].map(|address| Tuple::new().address(address.parse().unwrap()));
            assert_eq!(tuple_text(&[field], &start, &end), expected);
        }
        check("10.0.0.0", "10.255.255.255", "10.0.0.0/8");
        check("0.0.0.0", "255.255.255.255", "0.0.0.0/0");
        check("10.0.0.1", "10.0.0.1", "10.0.0.1");
        check("10.0.0.1", "10.0.0.2", "10.0.0.1-10.0.0.2");
        check("10.0.0.2", "10.0.0.3", "10.0.0.2/31");
        check("10.0.0.2", "10.0.0.5", "10.0.0.2-10.0.0.5");
        check("::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "::/0");
        check("fd00::", "fd00::ffff", "fd00::/112");
    }
}
