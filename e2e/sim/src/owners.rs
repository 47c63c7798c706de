//! [`Owners`]: the Service of each VIP. VIPs of one Service may share endpoints in the kernel.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use localnet_client::vips::VipKey;
use localnet_proto::{Family, ServiceKey, Snapshot};

/// The Service of each VIP that any state had. That of a NodePort has the unspecified address.
#[derive(Debug, Default)]
pub struct Owners(HashMap<VipKey, ServiceKey>);

impl Owners {
    /// Adds the VIPs of a state.
    pub fn add(&mut self, state: &Snapshot) {
        for (key, service) in &state.services {
            for port in &service.ports {
                let addresses = [&service.cluster_ips, &service.external_ips, &service.load_balancer_ips];
                let addresses = addresses.into_iter().flatten().map(|address| (*address, port.port));
                let node_ports = port.node_port.into_iter();
                let node_ports = node_ports.flat_map(|number| Family::BOTH.map(|family| (anywhere(family), number)));
                let vips = addresses.chain(node_ports);
                let vip = |(address, port_number)| VipKey { address, protocol: port.protocol, port: port_number };
                self.0.extend(vips.map(|one| (vip(one), key.clone())));
            }
        }
    }

    /// The Service of a VIP.
    pub fn of(&self, vip: &VipKey) -> Option<&ServiceKey> {
        self.0.get(vip).or_else(|| self.0.get(&VipKey { address: anywhere(vip.family()), ..*vip }))
    }
}

fn anywhere(family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
        Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
    }
}
