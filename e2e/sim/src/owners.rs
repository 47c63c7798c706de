//! [`Owners`]: the Service of each VIP. VIPs of one Service may share endpoints in the kernel.

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use localnet_client::vips::VipKey;
use localnet_proto::{Family, Service, ServiceKey, Snapshot};

/// The Service of each VIP that any state had. That of a NodePort has the unspecified address.
#[derive(Debug, Default)]
pub struct Owners(HashMap<VipKey, ServiceKey>);

impl Owners {
    /// Adds the VIPs of a state.
    pub fn add(&mut self, state: &Snapshot) {
        for (key, service) in &state.services {
            self.0.extend(vips(service).map(|vip| (vip, key.clone())));
        }
    }

    /// The Service of a VIP.
    pub fn of(&self, vip: &VipKey) -> Option<&ServiceKey> {
        self.0.get(vip).or_else(|| self.0.get(&VipKey { address: anywhere(vip.family()), ..*vip }))
    }
}

/// Whether Services of a state have a VIP in common.
pub fn share_vips(state: &Snapshot) -> bool {
    let mut owners = BTreeMap::new();
    let mut all = state.services.iter().flat_map(|(key, service)| vips(service).map(move |vip| (vip, key)));
    all.any(|(vip, key)| owners.insert(vip, key).is_some_and(|before| before != key))
}

/// The VIPs of a Service. That of a NodePort has the unspecified address.
fn vips(service: &Service) -> impl Iterator<Item = VipKey> + '_ {
    service.ports.iter().flat_map(|port| {
        let addresses = [&service.cluster_ips, &service.external_ips, &service.load_balancer_ips];
        let addresses = addresses.into_iter().flatten().map(|address| (*address, port.port));
        let node_ports = port.node_port.into_iter();
        let node_ports = node_ports.flat_map(|number| Family::BOTH.map(|family| (anywhere(family), number)));
        let vip = move |(address, port_number)| VipKey { address, protocol: port.protocol, port: port_number };
        addresses.chain(node_ports).map(vip)
    })
}

fn anywhere(family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
        Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
    }
}
