//! Parses addresses as Kubernetes does: leading zeros are decimal (`ParseIPSloppy`), and an IPv4-mapped IPv6 address
//! (`::ffff:10.0.0.1`) is an IPv4 address. The result is canonical.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

/// Parses an address.
pub(super) fn address(text: &str) -> Option<IpAddr> {
    if !text.contains(':') {
        return sloppy_v4(text).map(IpAddr::V4);
    }
    // Go accepts leading zeros in the IPv4 tail of an IPv6 address, too.
    let canonical = match text.rsplit_once(':') {
        Some((head, tail)) if tail.contains('.') => format!("{head}:{}", sloppy_v4(tail)?),
        _ => text.to_owned(),
    };
    Some(canonical.parse::<std::net::Ipv6Addr>().ok()?.to_canonical())
}

/// Parses a CIDR, and clears its host bits.
pub(super) fn cidr(text: &str) -> Option<IpNet> {
    let (ip, length) = text.split_once('/')?;
    // Rust accepts `+8`; Go accepts `008`.
    if !length.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let (mapped, length) = (ip.contains(':'), length.parse::<u8>().ok()?);
    let ip = address(ip)?;
    // `::ffff:10.0.0.0/104` is 10.0.0.0/8.
    let length = if mapped && ip.is_ipv4() { length.checked_sub(96)? } else { length };
    Some(IpNet::new(ip, length).ok()?.trunc())
}

fn sloppy_v4(text: &str) -> Option<Ipv4Addr> {
    let mut octets = [0; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let part = parts.next()?;
        if !part.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        *octet = part.parse().ok()?;
    }
    parts.next().is_none().then(|| Ipv4Addr::from(octets))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<&str>) {
        assert_eq!(address(text).map(|ip| ip.to_string()).as_deref(), expected, "{text}");
    }

    #[test]
    fn addresses_are_parsed_like_in_kubernetes() {
        check("10.0.0.1", Some("10.0.0.1"));
        check("172.30.0.041", Some("172.30.0.41"));
        check("010.000.0.0001", Some("10.0.0.1"));
        check("::ffff:10.0.0.1", Some("10.0.0.1"));
        check("::ffff:10.0.0.01", Some("10.0.0.1"));
        check("::ffff:a00:1", Some("10.0.0.1"));
        check("fd00:0:0::0001", Some("fd00::1"));
        check("FD00::A", Some("fd00::a"));
        for none in [
            "",
            "10.0.0",
            "10..0.1",
            "10.0.0.256",
            "10.0.0.1.",
            "10.0.0.-1",
            "10.0.0.+1",
            "a",
            "::g",
            "fe80::1%eth0",
            " 10.0.0.1",
        ] {
            check(none, None);
        }
    }

    #[test]
    fn cidrs_lose_their_host_bits() {
        let read = |text| cidr(text).map(|net| net.to_string());
        assert_eq!(read("10.1.2.3/8").as_deref(), Some("10.0.0.0/8"));
        assert_eq!(read("010.1.2.3/08").as_deref(), Some("10.0.0.0/8"));
        assert_eq!(read("10.1.2.3/0000032").as_deref(), Some("10.1.2.3/32"));
        assert_eq!(read("fd00::1/64").as_deref(), Some("fd00::/64"));
        assert_eq!(read("::ffff:10.0.0.0/104").as_deref(), Some("10.0.0.0/8"));
        assert_eq!(read("::/0").as_deref(), Some("::/0"));
        for none in [
            "10.0.0.0",
            "10.0.0.0/33",
            "10.0.0.0/",
            "10.0.0.0/256",
            "10.0.0.0/x",
            "10.0.0.0/+8",
            "::/129",
            "::ffff:10.0.0.0/95",
            "x/8",
        ] {
            assert_eq!(read(none), None, "{none}");
        }
    }

    mod any_text {
        use proptest::prelude::*;

        proptest! {
            #[test]
            fn parsed_cidrs_are_canonical(text in "[0-9a-f:./]{0,24}") {
                if let Some(ip) = super::address(&text) {
                    prop_assert_eq!(super::address(&ip.to_string()), Some(ip));
                }
                if let Some(net) = super::cidr(&text) {
                    prop_assert_eq!(super::cidr(&net.to_string()), Some(net));
                    prop_assert_eq!(net.trunc(), net);
                }
            }
        }
    }
}
