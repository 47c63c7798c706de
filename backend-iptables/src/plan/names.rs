//! The names of chains. They are kube-proxy's names, including the hashes, because operators and tools know these names.

use std::net::SocketAddr;

use data_encoding::BASE32;
use ipnet::IpNet;
use localnet_proto::Protocol;
use sha2::{Digest as _, Sha256};

/// The chain of VIPs in table nat, and of ClusterIPs without eligible endpoints in table filter.
pub const SERVICES: &str = "KUBE-SERVICES";
/// The chain of external addresses and NodePorts without eligible endpoints, in table filter.
pub const EXTERNAL_SERVICES: &str = "KUBE-EXTERNAL-SERVICES";
/// The chain of NodePorts in table nat, and of health check node ports in table filter.
pub const NODE_PORTS: &str = "KUBE-NODEPORTS";
/// The chain that masquerades marked packets, in table nat.
pub const POSTROUTING: &str = "KUBE-POSTROUTING";
/// The chain that marks packets for masquerading, in table nat.
pub const MARK_MASQ: &str = "KUBE-MARK-MASQ";
/// The chain that accepts translated packets, in table filter.
pub const FORWARD: &str = "KUBE-FORWARD";
/// The chain that drops packets from addresses outside of the source ranges, in table filter.
pub const PROXY_FIREWALL: &str = "KUBE-PROXY-FIREWALL";
/// The chain that rejects packets to unused ports of ClusterIPs, in table filter. kube-proxy's iptables mode has no such chain.
pub const CLUSTER_IPS: &str = "KUBE-CLUSTER-IPS";
/// The chain by which kube-proxy notices that its chains were deleted. This backend never creates it, but a cleanup removes it.
pub const CANARY: &str = "KUBE-PROXY-CANARY";

/// The counter of packets that are dropped because connection tracking calls them invalid. kube-proxy has the same counters.
pub const INVALID_DROPPED: &str = "ct_state_invalid_dropped_pkts";
/// The counter of connections to NodePorts on loopback addresses.
pub const LOCALHOST_ACCEPTED: &str = "localhost_nps_accepted_pkts";

/// The prefix of chains that pick one of all endpoints.
pub const CLUSTER: &str = "KUBE-SVC-";
/// The prefix of chains that pick one of the local endpoints.
pub const LOCAL: &str = "KUBE-SVL-";
/// The prefix of chains for packets to an external address.
pub const EXTERNAL: &str = "KUBE-EXT-";
/// The prefix of chains that check source ranges.
pub const FIREWALL: &str = "KUBE-FW-";
/// The prefix of chains with the VIPs of one network. These chains exist only if there are many VIPs.
pub const GROUP: &str = "KUBE-VIPS-";
/// The prefix of chains that translate to one endpoint.
pub const ENDPOINT: &str = "KUBE-SEP-";

/// The name of a chain of a port. `prefix` is [`CLUSTER`], [`LOCAL`], [`EXTERNAL`] or [`FIREWALL`]; `name` is `namespace/name`
/// or `namespace/name:port`. `distinct` is empty, except for chains that kube-proxy has no name for.
pub fn of_port(prefix: &str, name: &str, protocol: Protocol, distinct: &str) -> String {
    hashed(prefix, &[name, protocol.as_lowercase(), distinct])
}

/// The name of the chain of one endpoint of a port.
pub fn of_endpoint(name: &str, protocol: Protocol, endpoint: SocketAddr) -> String {
    hashed(ENDPOINT, &[name, protocol.as_lowercase(), &endpoint.to_string()])
}

/// The name of the chain with the VIPs of a network.
pub fn of_group(network: &IpNet) -> String {
    hashed(GROUP, &[&network.to_string()])
}

/// Whether a chain of the table `nat` belongs to a Service. If no plan contains such a chain, the chain is stale.
pub fn is_of_service(name: &str) -> bool {
    [CLUSTER, LOCAL, EXTERNAL, FIREWALL, ENDPOINT].iter().any(|prefix| name.starts_with(prefix))
}

fn hashed(prefix: &str, parts: &[&str]) -> String {
    let hash = parts.iter().fold(Sha256::new(), Sha256::chain_update).finalize();
    let mut name = BASE32.encode(&hash);
    // The kernel allows 28 bytes; the longest prefix has 10.
    name.truncate(16);
    format!("{prefix}{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_equal_those_of_kube_proxy() {
        for (name, expected) in [("ns1/svc1:p80", "XPGD46QRK7WJZT7O"), ("ns1/svc1", "AQI2S6QIMU7PVVRP")] {
            assert_eq!(of_port(CLUSTER, name, Protocol::Tcp, ""), format!("KUBE-SVC-{expected}"));
        }
        let endpoint = "10.180.0.1:80".parse().unwrap();
        assert_eq!(of_endpoint("ns1/svc1:p80", Protocol::Tcp, endpoint), "KUBE-SEP-SXIVWICOYRO3J4NJ");
    }
}
