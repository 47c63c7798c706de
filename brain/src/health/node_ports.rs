//! Decides which health check ports are open: one for each Service, family and address.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
    time::Duration,
};

use ipnet::IpNet;
use localnet_config::NodePortAddresses;
use localnet_proto::{Family, ServiceKey};
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{MissedTickBehavior, interval},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    Inputs,
    port::{self, Port, Retry, Status},
};
use crate::{feed::HealthFacts, platform};

/// If `nodePortAddresses` selects only some of the node's addresses, the node's addresses are read at this interval.
const POLL_INTERVAL: Duration = Duration::from_secs(30);

/// The CIDRs that select the node's addresses on which the health check ports of Services are open. If a family has no
/// CIDR, the ports are open on all addresses of that family.
struct Cidrs(Vec<IpNet>);

impl Cidrs {
    /// The CIDRs of `nodePortAddresses`. `primary` stands for the node's primary address of each family.
    fn new(addresses: &NodePortAddresses, facts: &HealthFacts) -> Self {
        let addresses_of_node = facts.node.iter().flat_map(|node| &node.addresses);
        let first = |family| addresses_of_node.clone().copied().find(|address| Family::of(*address) == family);
        let primary = Family::BOTH.into_iter().filter(|_| addresses.primary()).filter_map(first).map(IpNet::from);
        Self(primary.chain(addresses.cidrs()).collect())
    }

    fn of(&self, family: Family) -> impl Iterator<Item = &IpNet> {
        self.0.iter().filter(move |cidr| Family::of(cidr.addr()) == family)
    }

    /// Whether the ports are open on all addresses of a family.
    fn is_all(&self, family: Family) -> bool {
        self.of(family).next().is_none() || self.of(family).any(|cidr| cidr.prefix_len() == 0)
    }

    /// The addresses to listen on. `node` are the addresses of the node.
    fn addresses(&self, family: Family, node: &[IpAddr]) -> Vec<IpAddr> {
        if self.is_all(family) {
            return match family {
                Family::V4 => vec![Ipv4Addr::UNSPECIFIED.into()],
                Family::V6 => vec![Ipv6Addr::UNSPECIFIED.into()],
            };
        }
        node.iter().copied().filter(|address| self.of(family).any(|cidr| cidr.contains(address))).collect()
    }

    /// The ports that should be open.
    fn ports(&self, facts: &HealthFacts, node: &[IpAddr]) -> BTreeMap<Port, (ServiceKey, Family)> {
        let addresses = Family::BOTH.map(|family| (family, self.addresses(family, node)));
        let mut ports = BTreeMap::new();
        for (key, check) in &facts.checks {
            for (family, addresses) in addresses.iter().filter(|(family, _)| check.ready[*family].is_some()) {
                for address in addresses {
                    let port = Port { service: Some(key.clone()), address: (*address, check.port).into() };
                    ports.insert(port, (key.clone(), *family));
                }
            }
        }
        ports
    }
}

/// An open port. Dropping it closes the port.
struct Open {
    stop: DropGuard,
    task: JoinHandle<()>,
}

/// Keeps exactly the required ports open, until this future is dropped or the feed ends.
pub(super) async fn run(addresses: NodePortAddresses, inputs: Arc<Inputs>, status: watch::Sender<Status>) {
    let mut facts = inputs.facts.clone();
    let mut ticks = interval(POLL_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut node = Vec::new();
    let mut open: BTreeMap<Port, Open> = BTreeMap::new();
    loop {
        let cidrs = Cidrs::new(&addresses, &facts.borrow_and_update());
        let restricted = !Family::BOTH.iter().all(|family| cidrs.is_all(*family));
        if restricted {
            node = platform::node_addresses().unwrap_or_else(|error| {
                tracing::warn!(%error, "failed to read the addresses of this node; using the previous ones");
                node
            });
        }
        let ports = cidrs.ports(&facts.borrow(), &node);
        close(&mut open, &ports).await;
        for (port, (key, family)) in ports {
            let (inputs, status) = (Arc::clone(&inputs), status.clone());
            open.entry(port).or_insert_with_key(|port| {
                let answers = Arc::new(move |_: &http::Uri| port::at_once(inputs.service(&key, family)));
                let keep = port::keep(port.clone(), answers, Retry::BackOff, status, super::CHECKS);
                let stop = CancellationToken::new();
                let kept = stop.clone().run_until_cancelled_owned(keep);
                let task = tokio::spawn(async { kept.await.unwrap_or_default() });
                Open { stop: stop.drop_guard(), task }
            });
        }
        let ended = tokio::select! {
            changed = facts.changed() => changed.is_err(),
            _ = ticks.tick(), if restricted => false,
        };
        if ended {
            return;
        }
    }
}

/// Closes the ports that should no longer be open, so that other programs can use their numbers.
async fn close(open: &mut BTreeMap<Port, Open>, ports: &BTreeMap<Port, (ServiceKey, Family)>) {
    let closing: Vec<Port> = open.keys().filter(|port| !ports.contains_key(port)).cloned().collect();
    for Open { stop, task } in closing.iter().filter_map(|port| open.remove(port)) {
        drop(stop);
        // The port is closed even if the task has panicked.
        let _ = task.await;
    }
}

#[cfg(test)]
mod tests {
    use imbl::OrdMap;

    use super::*;
    use localnet_cluster::localize::HealthCheck;
    use localnet_proto::ByFamily;

    fn ips(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[track_caller]
    fn check(cidrs: &[&str], v4: &[&str], v6: &[&str]) {
        let addresses = Cidrs(cidrs.iter().map(|cidr| cidr.parse().unwrap()).collect());
        let node = ips(&["127.0.0.1", "192.168.0.1", "192.168.1.1", "::1", "fd00::1"]);
        assert_eq!(addresses.addresses(Family::V4, &node), ips(v4));
        assert_eq!(addresses.addresses(Family::V6, &node), ips(v6));
    }

    #[test]
    fn cidrs_select_addresses_in_each_family() {
        check(&[], &["0.0.0.0"], &["::"]);
        check(&["0.0.0.0/0", "::/0"], &["0.0.0.0"], &["::"]);
        check(&["127.0.0.0/8"], &["127.0.0.1"], &["::"]);
        check(&["192.168.0.0/16"], &["192.168.0.1", "192.168.1.1"], &["::"]);
        check(&["192.168.1.0/24", "0.0.0.0/0"], &["0.0.0.0"], &["::"]);
        check(&["10.0.0.0/8", "fd00::/64"], &[], &["fd00::1"]);
    }

    #[test]
    fn a_service_has_a_port_in_each_of_its_families() {
        let services = [("a", Some(0), None), ("b", Some(1), Some(1)), ("c", None, Some(0))];
        let checks: OrdMap<_, _> = services
            .into_iter()
            .zip(30000..)
            .map(|((name, v4, v6), port)| {
                (ServiceKey::new("default", name), HealthCheck { port, ready: ByFamily::new(v4, v6) })
            })
            .collect();
        let facts = HealthFacts { checks, ..HealthFacts::default() };
        let ports = Cidrs(vec![]).ports(&facts, &[]);
        let addresses: Vec<_> = ports.keys().map(|port| port.address.to_string()).collect();
        assert_eq!(addresses, ["0.0.0.0:30000", "0.0.0.0:30001", "[::]:30001", "[::]:30002"]);
    }

    #[test]
    fn the_addresses_of_this_machine_include_loopback() {
        assert!(platform::node_addresses().unwrap().contains(&Ipv4Addr::LOCALHOST.into()));
    }
}
