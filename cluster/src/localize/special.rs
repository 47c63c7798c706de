//! Addresses that neither a Service nor an endpoint may have, because they are local to each machine. If endpoints could have
//! such an address, everyone who may create EndpointSlices could reach programs on the node (CVE-2021-25737).

use std::net::{IpAddr, Ipv4Addr};

/// The kind of reserved address, such as "a loopback address". `None` if the address is not reserved.
pub(super) fn reserved_for(address: IpAddr) -> Option<&'static str> {
    let link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    match address {
        _ if address.is_unspecified() => Some("the unspecified address"),
        _ if address.is_loopback() => Some("a loopback address"),
        _ if link_local => Some("a link-local address"),
        _ if address.is_multicast() => Some("a multicast address"),
        // kube-proxy accepts this address. A packet to it reaches every host on the link.
        _ if address == Ipv4Addr::BROADCAST => Some("the broadcast address"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_addresses_are_refused() {
        let reserved = |text: &str| reserved_for(text.parse().unwrap());
        for text in ["127.0.0.1", "127.1.2.3", "::1"] {
            assert_eq!(reserved(text), Some("a loopback address"), "{text}");
        }
        for text in ["169.254.169.254", "fe80::1", "febf::1"] {
            assert_eq!(reserved(text), Some("a link-local address"), "{text}");
        }
        for text in ["224.0.0.1", "239.1.1.1", "ff02::1"] {
            assert_eq!(reserved(text), Some("a multicast address"), "{text}");
        }
        for text in ["0.0.0.0", "::"] {
            assert_eq!(reserved(text), Some("the unspecified address"), "{text}");
        }
        assert_eq!(reserved("255.255.255.255"), Some("the broadcast address"));
        for text in
            ["255.255.255.254", "10.0.0.1", "192.168.0.1", "fd00::1", "2001:db8::1", "169.253.0.1", "223.255.255.255"]
        {
            assert_eq!(reserved(text), None, "{text}");
        }
    }
}
