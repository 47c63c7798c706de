//! Names of chains: those that operators and tools know from kube-proxy, hashes included.

use std::net::SocketAddr;

use data_encoding::BASE32;
use ipnet::IpNet;
use localnet_proto::Protocol;
use sha2::{Digest as _, Sha256};

/// nat: VIPs. filter: ClusterIPs that nothing serves.
pub const SERVICES: &str = "KUBE-SERVICES";
/// filter: external addresses and NodePorts that nothing serves.
pub const EXTERNAL_SERVICES: &str = "KUBE-EXTERNAL-SERVICES";
/// nat: NodePorts. filter: ports of health checks.
pub const NODE_PORTS: &str = "KUBE-NODEPORTS";
/// nat: masquerades what is marked.
pub const POSTROUTING: &str = "KUBE-POSTROUTING";
/// nat: marks what is to be masqueraded.
pub const MARK_MASQ: &str = "KUBE-MARK-MASQ";
/// filter: lets pass what was translated.
pub const FORWARD: &str = "KUBE-FORWARD";
/// filter: drops what source ranges did not allow.
pub const PROXY_FIREWALL: &str = "KUBE-PROXY-FIREWALL";
/// filter: refuses unused ports of ClusterIPs. kube-proxy's iptables mode has nothing like it.
pub const CLUSTER_IPS: &str = "KUBE-CLUSTER-IPS";
/// kube-proxy sees by it that its chains are gone. Never made here, but removed by a cleanup.
pub const CANARY: &str = "KUBE-PROXY-CANARY";

/// Picks one of the endpoints of the cluster.
pub const CLUSTER: &str = "KUBE-SVC-";
/// Picks one of the local endpoints.
pub const LOCAL: &str = "KUBE-SVL-";
/// What came in by an external address.
pub const EXTERNAL: &str = "KUBE-EXT-";
/// Lets source ranges pass.
pub const FIREWALL: &str = "KUBE-FW-";
/// VIPs of one network; where there are few VIPs there is none.
pub const GROUP: &str = "KUBE-VIPS-";
/// Translates to one endpoint.
pub const ENDPOINT: &str = "KUBE-SEP-";

/// The chain of a port of a service, from [`CLUSTER`], [`LOCAL`], [`EXTERNAL`] or [`FIREWALL`]. `name` is
/// `namespace/name` or `namespace/name:port`; `distinct` is empty but for chains that kube-proxy has no name for.
pub fn of_port(prefix: &str, name: &str, protocol: Protocol, distinct: &str) -> String {
    hashed(prefix, &[name, &protocol_name(protocol), distinct])
}

/// The chain of one endpoint of that port.
pub fn of_endpoint(name: &str, protocol: Protocol, endpoint: SocketAddr) -> String {
    hashed(ENDPOINT, &[name, &protocol_name(protocol), &endpoint.to_string()])
}

/// The chain of the VIPs of a network.
pub fn of_group(network: &IpNet) -> String {
    hashed(GROUP, &[&network.to_string()])
}

/// Whether a chain of the table nat is one of a service. Those that no service has any more are stale.
pub fn is_of_service(name: &str) -> bool {
    [CLUSTER, LOCAL, EXTERNAL, FIREWALL, ENDPOINT].iter().any(|prefix| name.starts_with(prefix))
}

/// As in rules: lower case.
pub fn protocol_name(protocol: Protocol) -> String {
    protocol.as_str().to_ascii_lowercase()
}

fn hashed(prefix: &str, parts: &[&str]) -> String {
    let hash = parts.iter().fold(Sha256::new(), Sha256::chain_update).finalize();
    let mut name = BASE32.encode(&hash);
    // The kernel allows 28 characters.
    name.truncate(16);
    format!("{prefix}{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_kube_proxy() {
        for (name, expected) in [("ns1/svc1:p80", "XPGD46QRK7WJZT7O"), ("ns1/svc1", "AQI2S6QIMU7PVVRP")] {
            assert_eq!(of_port(CLUSTER, name, Protocol::Tcp, ""), format!("KUBE-SVC-{expected}"));
        }
        let endpoint = "10.180.0.1:80".parse().unwrap();
        assert_eq!(of_endpoint("ns1/svc1:p80", Protocol::Tcp, endpoint), "KUBE-SEP-SXIVWICOYRO3J4NJ");
    }
}
