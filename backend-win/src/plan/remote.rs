//! Plans remote endpoints. A load balancer can refer to an address on another node only if HNS has a remote endpoint for this
//! address.

use std::net::IpAddr;

use crate::hcn::{
    Guid,
    schema::{Endpoint, NetworkType, RemoteSubnet},
};

/// The node's address and interface, for an overlay network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// The node's address.
    pub address: IpAddr,
    /// The hardware address of its interface, such as `00-15-5d-00-00-01`.
    pub mac: String,
}

/// The location of a remote endpoint in an overlay network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On a subnet of the node with this address.
    Subnet(IpAddr),
    /// On another node itself: the endpoint's address is the address of that node.
    Node,
    /// On no known subnet: reached through this node.
    Elsewhere,
}

/// Returns the location of an address.
pub fn place(address: IpAddr, subnets: &[RemoteSubnet]) -> Place {
    if let Some(subnet) = subnets.iter().find(|subnet| subnet.prefix.contains(&address)) {
        return Place::Subnet(subnet.provider);
    }
    if subnets.iter().any(|subnet| subnet.provider == address) { Place::Node } else { Place::Elsewhere }
}

/// Returns the document of the remote endpoint for an address.
pub fn document(
    network: Guid,
    kind: NetworkType,
    subnets: &[RemoteSubnet],
    host: Option<&Host>,
    address: IpAddr,
) -> Endpoint {
    let provider = match kind {
        NetworkType::Flat => None,
        NetworkType::Overlay => match place(address, subnets) {
            Place::Subnet(provider) => Some(provider),
            Place::Node => Some(address),
            Place::Elsewhere => host.map(|host| host.address),
        },
    };
    Endpoint::remote(network, address, mac(address), provider)
}

/// Returns a hardware address for an address on another node, as in kube-proxy. HNS requires one but does not use it.
pub fn mac(address: IpAddr) -> String {
    let [a, b, c, d] = match address {
        IpAddr::V4(address) => address.octets(),
        IpAddr::V6(address) => {
            let octets = address.octets();
            [octets[15], octets[14], octets[13], octets[12]]
        }
    };
    format!("02-11-{a:02x}-{b:02x}-{c:02x}-{d:02x}")
}

/// The name that HNS gives to an endpoint without one.
const UNNAMED: &str = "Ethernet";

/// Whether kube-proxy has created the endpoint. kube-proxy's endpoints are remote, and kube-proxy gives them no name. An endpoint
/// for the address of a Service has the hardware address of this node's interface; all others have the one that [`mac`] returns.
/// `host` is this node, if known.
pub fn is_kube_proxys(endpoint: &Endpoint, host: Option<&Host>) -> bool {
    // kube-proxy writes the hardware addresses of interfaces with colons.
    let given = endpoint.mac();
    let conjured = endpoint.addresses().any(|address| mac(address) == given);
    let of_service =
        host.is_some_and(|host| host.mac.eq_ignore_ascii_case(&given) && endpoint.provider() == Some(host.address));
    let unnamed = endpoint.name.is_empty() || endpoint.name == UNNAMED;
    endpoint.is_remote() && unnamed && (conjured || of_service)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_remote_endpoint_follows_the_networks_remote_subnets() {
        let subnets = [("192.168.2.0/24", "10.0.0.3"), ("192.168.3.0/24", "10.0.0.4")]
            .map(|(prefix, provider)| RemoteSubnet { prefix: prefix.parse().unwrap(), provider: ip(provider) });
        let host = Host { address: ip("10.0.0.2"), mac: "00-15-5d-00-00-02".to_owned() };
        let provider =
            |kind, address: &str| document(Guid::new(1), kind, &subnets, Some(&host), ip(address)).provider();
        for (address, expected) in [("192.168.2.3", "10.0.0.3"), ("10.0.0.4", "10.0.0.4"), ("11.0.0.1", "10.0.0.2")] {
            assert_eq!(provider(NetworkType::Overlay, address), Some(ip(expected)), "{address}");
            assert_eq!(provider(NetworkType::Flat, address), None, "{address}");
        }
    }

    #[test]
    fn hardware_addresses_equal_those_of_kube_proxy() {
        for (address, expected) in [("192.168.2.3", "02-11-c0-a8-02-03"), ("fd00::102:304", "02-11-04-03-02-01")] {
            assert_eq!(mac(ip(address)), expected);
        }
    }

    #[test]
    fn kube_proxys_endpoints_are_recognized() {
        let host = Host { address: ip("10.0.0.2"), mac: "00-15-5d-00-00-02".to_owned() };
        let made = document(Guid::new(1), NetworkType::Flat, &[], None, ip("192.168.2.3"));
        let of_service =
            Endpoint::remote(Guid::new(1), ip("10.96.0.1"), "00-15-5D-00-00-02".to_owned(), Some(host.address));
        for (endpoint, expected) in [
            (made.clone(), true),
            (Endpoint { mac_address: "02-11-C0-A8-02-03".to_owned(), ..made.clone() }, true),
            (Endpoint { name: "calico".to_owned(), ..made.clone() }, false),
            // HNS names an endpoint without a name (microsoft/Windows-Containers#631).
            (Endpoint { name: "Ethernet".to_owned(), ..made.clone() }, true),
            (Endpoint { name: "Ethernet".to_owned(), flags: 0, ..made.clone() }, false),
            (Endpoint { mac_address: "00-15-5d-00-00-07".to_owned(), ..made.clone() }, false),
            (Endpoint { flags: 0, ..made }, false),
            (Endpoint { mac_address: "00:15:5d:00:00:02".to_owned(), ..of_service.clone() }, true),
            (of_service, true),
        ] {
            assert_eq!(is_kube_proxys(&endpoint, Some(&host)), expected, "{endpoint:?}");
        }
    }
}
