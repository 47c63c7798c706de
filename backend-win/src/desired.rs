//! The frontends of the node, kept up to date as Services change. No I/O. An update takes time in proportion to the changes.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use localnet_client::{
    Diagnostic,
    vips::{Config, Effective, Hairpin, Program, Vip, VipKey, Vips},
};
use localnet_proto::{Changes, Family, Node, Service, Snapshot};

use crate::plan::{Frontend, Want};

/// The desired frontends.
#[derive(Debug)]
pub struct Desired {
    vips: Vips,
    parts: Parts,
}

#[derive(Debug, Default)]
struct Parts {
    wants: BTreeMap<Frontend, Want>,
    /// The VIPs of each frontend: a NodePort has one VIP for each address of the node.
    vips: BTreeMap<Frontend, BTreeSet<VipKey>>,
    /// The addresses of local endpoints, each with the number of Service ports that have an endpoint at this address.
    local: BTreeMap<IpAddr, usize>,
}

impl Desired {
    /// Creates an empty set of frontends.
    pub fn new(config: Config) -> Self {
        let vips = Vips::new(config).leaving_connections().spreading_evenly();
        let vips = vips.choosing_at_random("HNS chooses endpoints without a consistent hash");
        Self { vips, parts: Parts::default() }
    }

    /// The configuration that plans use; `None` before the first state.
    pub fn configuration(&self) -> Option<Effective> {
        self.vips.effective()
    }

    /// The purpose of each frontend.
    pub fn wants(&self) -> &BTreeMap<Frontend, Want> {
        &self.parts.wants
    }

    /// The addresses of local endpoints, each with the number of Service ports that have an endpoint at this address.
    pub fn local(&self) -> &BTreeMap<IpAddr, usize> {
        &self.parts.local
    }

    /// Replaces the previous state with `state`. `changes` lists everything that differs between the two. Returns the new
    /// diagnostics of what is not programmed.
    pub fn update(&mut self, state: &Snapshot, changes: &Changes) -> Vec<Diagnostic> {
        self.vips.set_local_addresses(addresses(&state.node));
        self.vips.update(state, changes, &mut self.parts).notices
    }

    /// Returns the diagnostics that do not depend on HNS.
    pub fn skipped(&self) -> Vec<Diagnostic> {
        self.vips.skipped()
    }
}

/// Returns the node's addresses for NodePorts. HNS always serves NodePorts on all addresses of the node, so the exact
/// addresses do not matter: for a family without an address in the Node object, the result contains the unspecified address.
fn addresses(node: &Node) -> Vec<IpAddr> {
    let named = node.addresses.iter().copied();
    let unnamed = Family::BOTH.into_iter().filter(|family| node.primary_address(*family).is_none());
    named.chain(unnamed.map(unspecified)).collect()
}

fn unspecified(family: Family) -> IpAddr {
    match family {
        Family::V4 => IpAddr::from([0; 4]),
        Family::V6 => IpAddr::from([0; 16]),
    }
}

/// Whether the configuration restricts NodePorts to some of the node's addresses, which HNS does not support.
pub fn narrows_node_ports(config: &Config) -> bool {
    config.node_port_addresses.cidrs.iter().any(|cidr| cidr.prefix_len() > 0)
}

impl Program for Parts {
    fn program(&mut self, key: &VipKey, vip: &Vip, service: &Service) {
        let frontend = Frontend::of(key, vip);
        self.wants.insert(frontend, Want::of(key, vip, service));
        self.vips.entry(frontend).or_default().insert(*key);
    }

    fn unprogram(&mut self, key: &VipKey, vip: &Vip) {
        let frontend = Frontend::of(key, vip);
        let Some(vips) = self.vips.get_mut(&frontend) else { return };
        vips.remove(key);
        if vips.is_empty() {
            self.vips.remove(&frontend);
            self.wants.remove(&frontend);
        }
    }

    fn cluster_ip(&mut self, _address: IpAddr, _present: bool) {
        // HNS has no object for an address without a port.
    }

    fn hairpin(&mut self, hairpin: &Hairpin, present: bool) {
        let address = hairpin.endpoint.ip();
        let count = self.local.entry(address).or_default();
        *count = if present { *count + 1 } else { count.saturating_sub(1) };
        if *count == 0 {
            self.local.remove(&address);
        }
    }
}

#[cfg(test)]
mod tests {
    use localnet_client::vips::NodePortAddresses;
    use localnet_proto::ServiceKey;

    use super::*;

    const STATE: &str = "{node: {name: n, addresses: [192.168.0.2, 192.168.0.3]}, services: [
        {service: ns/a, type: LoadBalancer, clusterIPs: [172.30.0.1, \"fd00:30::1\"], externalIPs: [1.1.1.1], loadBalancerIPs: [1.1.1.1, 5.5.5.5],
         ports: [{name: http, protocol: TCP, port: 80, nodePort: 30080}], endpoints: [
         {address: 10.0.0.1, local: true, ports: [{name: http, port: 8080}], scopes: {internal: true}}]}]}";

    fn update(node_port_addresses: NodePortAddresses, state: &Snapshot) -> Desired {
        let mut desired = Desired::new(Config { node_port_addresses, ..Config::default() });
        assert_eq!(desired.update(state, &Changes::everything()), []);
        desired
    }

    fn frontends(desired: &Desired) -> Vec<String> {
        desired.wants().iter().map(|(frontend, want)| format!("{frontend} {:?}", want.r#use)).collect()
    }

    #[test]
    fn the_nodes_addresses_have_one_frontend_for_each_family() {
        let mut state: Snapshot = serde_saphyr::from_str(STATE).unwrap();
        let vips = [
            "1.1.1.1:80/tcp LoadBalancerIp",
            "5.5.5.5:80/tcp LoadBalancerIp",
            "172.30.0.1:80/tcp ClusterIp",
            "[fd00:30::1]:80/tcp ClusterIp",
        ];
        let node = ["NodePort 30080/tcp of IPv4 NodePort", "NodePort 30080/tcp of IPv6 NodePort"];
        let cidrs = |text: &str| {
            NodePortAddresses::in_cidrs(text.split_whitespace().map(|cidr| cidr.parse().unwrap()).collect())
        };
        for (addresses, expected) in [
            (NodePortAddresses::PRIMARY, &node[..]),
            (cidrs(""), &node),
            (cidrs("192.168.0.3/32 fd00::/8"), &node[..1]),
            (cidrs("10.0.0.0/8 fd00::/8"), &[]),
        ] {
            let desired = update(addresses.clone(), &state);
            assert_eq!(frontends(&desired), [&vips[..], expected].concat(), "{addresses:?}");
        }
        assert_eq!(
            update(cidrs(""), &state).local().keys().collect::<Vec<_>>(),
            ["10.0.0.1".parse::<IpAddr>().unwrap()].iter().collect::<Vec<_>>()
        );
        // Removing the Services removes everything.
        let mut desired = update(cidrs(""), &state);
        state.services.clear();
        desired.update(&state, &Changes { services: [ServiceKey::new("ns", "a")].into(), ..Changes::default() });
        assert_eq!((frontends(&desired).len(), desired.local().len(), desired.parts.vips.len()), (0, 0, 0));
        assert!(narrows_node_ports(&Config { node_port_addresses: cidrs("10.0.0.0/8"), ..Config::default() }));
        assert!(!narrows_node_ports(&Config { node_port_addresses: cidrs("0.0.0.0/0"), ..Config::default() }));
    }
}
