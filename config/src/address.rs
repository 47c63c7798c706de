//! Parses addresses as kube-proxy does: the numbers of an IPv4 address may have leading zeros.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use ipnet::IpNet;

/// Parses an address into its canonical form: `010.0.0.1` and `::ffff:10.0.0.1` both become 10.0.0.1.
pub(crate) fn ip(text: &str) -> Option<IpAddr> {
    if let Some(v4) = v4(text) {
        return Some(v4.into());
    }
    text.parse::<IpAddr>().ok().map(|ip| ip.to_canonical())
}

/// Parses four decimal numbers. Each has one to three digits, and any number of leading zeros before them.
fn v4(text: &str) -> Option<Ipv4Addr> {
    let mut octets = [0; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let part = parts.next().filter(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))?;
        let digits = part.trim_start_matches('0');
        *octet = if digits.is_empty() { 0 } else { digits.parse().ok()? };
    }
    parts.next().is_none().then(|| octets.into())
}

/// Parses a CIDR. Bits after the prefix may be set and are cleared.
pub(crate) fn cidr(text: &str) -> Option<IpNet> {
    let (address, prefix) = text.split_once('/')?;
    let plain = !prefix.is_empty() && prefix.bytes().all(|byte| byte.is_ascii_digit());
    let prefix = prefix.parse().ok().filter(|_| plain)?;
    // An IPv4-mapped IPv6 address stays an IPv6 address, because the prefix counts the bits of the IPv6 address.
    let address = v4(address).map(IpAddr::from).or_else(|| address.parse().ok())?;
    IpNet::new(address, prefix).ok().map(|net| net.trunc())
}

/// The invalid part of an `IP:port`, and the reason.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BadSocket<'a> {
    pub(crate) value: &'a str,
    pub(crate) why: &'static str,
}

/// The reason why a port is invalid: it is 0, too large or not a number.
pub(crate) const NO_PORT: &str = "must be a valid port";

/// Parses `IP:port`, with IPv6 addresses in brackets and a port of at least 1.
pub(crate) fn socket(text: &str) -> Result<SocketAddr, BadSocket<'_>> {
    let (host, port) = split_host_port(text).ok_or(BadSocket { value: text, why: "must be IP:port" })?;
    let ip = ip(host).ok_or(BadSocket { value: host, why: "must be a valid IP" })?;
    let number = port.parse().ok().filter(|number| *number > 0);
    Ok(SocketAddr::new(ip, number.ok_or(BadSocket { value: port, why: NO_PORT })?))
}

fn split_host_port(text: &str) -> Option<(&str, &str)> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => rest.split_once("]:")?,
        None => text.split_once(':')?,
    };
    let odd = |part: &str| part.contains(['[', ']']);
    // An address with colons but without brackets has no port.
    let colons = port.contains(':') || (host.contains(':') && !text.starts_with('['));
    (!colons && !odd(host) && !odd(port)).then_some((host, port))
}

/// Appends the port to an address that has none. A string that is not an address stays unchanged, and validation reports
/// it later.
pub(crate) fn with_port(text: &str, port: u16) -> String {
    if split_host_port(text).is_some() {
        return text.to_owned();
    }
    match ip(text) {
        Some(ip) => SocketAddr::new(ip, port).to_string(),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn addresses_are_read_sloppily() {
        for (text, expected) in [
            ("10.0.0.1", Some("10.0.0.1")),
            ("010.00.000.0001", Some("10.0.0.1")),
            ("::ffff:10.0.0.1", Some("10.0.0.1")),
            ("fd00::1", Some("fd00::1")),
            ("::", Some("::")),
            ("256.0.0.1", None),
            ("1.2.3", None),
            ("1.2.3.4.5", None),
            ("1.2.3.", None),
            ("1.2.3.x", None),
            ("+1.2.3.4", None),
            ("fe80::1%eth0", None),
            ("[::1]", None),
            ("", None),
        ] {
            assert_eq!(ip(text), expected.map(|text| text.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn cidrs_are_read_sloppily() {
        for (text, expected) in [
            ("10.0.0.0/8", Some("10.0.0.0/8")),
            ("10.1.2.3/8", Some("10.0.0.0/8")),
            ("203.0.113.000/025", Some("203.0.113.0/25")),
            ("fd00::1/48", Some("fd00::/48")),
            ("0.0.0.0/0", Some("0.0.0.0/0")),
            ("::ffff:10.0.0.0/104", Some("::ffff:10.0.0.0/104")),
            ("10.0.0.0/33", None),
            ("10.0.0.0/", None),
            ("10.0.0.0/+8", None),
            (" 10.0.0.0/8", None),
            ("10.0.0.0", None),
            ("primary", None),
            ("", None),
        ] {
            assert_eq!(cidr(text), expected.map(|text| text.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn sockets_have_an_address_and_a_port() {
        let bad = |value: &'static str, why| Err(BadSocket { value, why });
        for (text, expected) in [
            ("0.0.0.0:10256", Ok("0.0.0.0:10256")),
            ("[::]:10256", Ok("[::]:10256")),
            ("[::1]:1", Ok("[::1]:1")),
            ("010.0.0.1:65535", Ok("10.0.0.1:65535")),
            ("", bad("", "must be IP:port")),
            ("10.0.0.1", bad("10.0.0.1", "must be IP:port")),
            ("::1", bad("::1", "must be IP:port")),
            ("::1:10256", bad("::1:10256", "must be IP:port")),
            ("[::1]", bad("[::1]", "must be IP:port")),
            ("[[::1]]:80", bad("[[::1]]:80", "must be IP:port")),
            (":10256", bad("", "must be a valid IP")),
            ("localhost:10256", bad("localhost", "must be a valid IP")),
            ("10.0.0.1:0", bad("0", "must be a valid port")),
            ("10.0.0.1:65536", bad("65536", "must be a valid port")),
            ("10.0.0.1:http", bad("http", "must be a valid port")),
        ] {
            assert_eq!(socket(text), expected.map(|text| text.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn a_missing_port_is_added() {
        for (text, expected) in [
            ("10.0.0.1", "10.0.0.1:10256"),
            ("::1", "[::1]:10256"),
            ("10.0.0.1:80", "10.0.0.1:80"),
            ("[::1]:80", "[::1]:80"),
            ("nonsense", "nonsense"),
            ("", ""),
        ] {
            assert_eq!(with_port(text, 10256), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_parses(text in "[0-9a-f.:/\\[\\]%]{0,40}|.*") {
            let _ = (ip(&text), cidr(&text), socket(&text), with_port(&text, 1));
        }
    }
}
