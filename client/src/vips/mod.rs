//! [`Vips`]: the VIPs of the node, which is the part of every plan that does not depend on a kernel subsystem.
//!
//! A backend that proxies packets needs the endpoints of each VIP, and how to treat its packets. This module decides
//! which Service owns a VIP that several claim, which addresses answer NodePorts, and how pods are recognized. It
//! decides this from the state and the operator's configuration, so that all backends agree. A backend implements
//! [`Program`] to turn a VIP into kernel objects.
//!
//! ```text
//!  Snapshot, Changes ──► update ─┐
//!  Listener's calls ──► stage ───┴► settle ──► service::plan ──► claims: one owner for each VIP ──► Program
//! ```
//!
//! No I/O. The cost is O(changes): an unchanged Service is not processed at all.

mod config;
mod effective;
mod facts;
pub mod flags;
pub mod node_ports;
pub mod service;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, btree_map},
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
};

use localnet_core::{Code, Diagnostic, Subject};
use localnet_proto::{Changes, Node, Service, ServiceKey, Snapshot};

pub use config::{Config, Detector, NodePortAddresses};
pub use effective::{Effective, Unreadable};
pub use facts::{Facts, PodSource};
pub use service::{Exposure, Hairpin, Vip, VipKey};

use service::ServicePlan;

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Receives the changes to the VIPs of the node. A change is a removal and an addition. The added value may equal the
/// removed one; a [`crate::DiffStore`] then finds no difference.
pub trait Program {
    /// Adds a VIP.
    fn program(&mut self, key: &VipKey, vip: &Vip);
    /// Removes a VIP that was added with this value.
    fn unprogram(&mut self, key: &VipKey, vip: &Vip);
    /// Adds or removes a ClusterIP.
    fn cluster_ip(&mut self, address: IpAddr, present: bool);
    /// Adds or removes an endpoint that may reach itself through a Service.
    fn hairpin(&mut self, hairpin: &Hairpin, present: bool);
}

/// The result of a change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// Whether the [`Facts`] changed.
    pub facts_changed: bool,
    /// What is skipped now and was not reported before.
    pub notices: Vec<Diagnostic>,
}

/// A claim to a VIP. The least claim in this order owns it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Claimant {
    /// Whether the claim is for a NodePort. As in kube-proxy, a service's own address and port come first.
    by_node_port: bool,
    service: ServiceKey,
}

/// The VIPs of the node, kept up to date.
#[derive(Debug)]
pub struct Vips {
    config: Config,
    /// The addresses of the node's interfaces, as far as the backend has set them.
    local_addresses: Vec<IpAddr>,
    /// Whether 127.0.0.1 answers NodePorts, too.
    localhost: bool,
    /// The node; none before the first state.
    node: Option<Node>,
    /// The facts that the present plans were made from.
    facts: Option<Facts>,
    /// Services that differ from the planned ones; `None` for a deleted service.
    staged: BTreeMap<ServiceKey, Option<Arc<Service>>>,
    services: BTreeMap<ServiceKey, Arc<Service>>,
    /// The services that the kernel refused, and why.
    refused: BTreeMap<ServiceKey, String>,
    /// The refused services that the next `settle` retries, and why they were refused.
    retried: BTreeMap<ServiceKey, String>,
    /// The owner of each VIP.
    owners: HashMap<VipKey, Claimant>,
    /// Claims to VIPs that another claim owns.
    outranked: BTreeSet<(VipKey, Claimant)>,
    /// The skipped parts of plans.
    skipped: BTreeMap<ServiceKey, Vec<Diagnostic>>,
    /// How many services have each ClusterIP.
    cluster_ips: BTreeMap<IpAddr, usize>,
    /// How many services have each hairpin.
    hairpins: BTreeMap<Hairpin, usize>,
}

impl Vips {
    /// Returns a set without VIPs.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            local_addresses: Vec::new(),
            localhost: false,
            node: None,
            facts: None,
            staged: BTreeMap::new(),
            services: BTreeMap::new(),
            refused: BTreeMap::new(),
            retried: BTreeMap::new(),
            owners: HashMap::new(),
            outranked: BTreeSet::new(),
            skipped: BTreeMap::new(),
            cluster_ips: BTreeMap::new(),
            hairpins: BTreeMap::new(),
        }
    }

    /// The facts that plans are made from; none before the first state.
    pub fn facts(&self) -> Option<&Facts> {
        self.facts.as_ref()
    }

    /// The configuration and its effect on this node; none before the first state.
    pub fn effective(&self) -> Option<Effective> {
        let node_port_addresses = self.facts.as_ref()?.node_port_addresses.clone();
        Some(Effective { config: self.config.clone(), node_port_addresses })
    }

    /// Changes the configuration. The next `settle` applies it.
    pub fn set_config(&mut self, config: Config) {
        self.config = config;
    }

    /// Lets 127.0.0.1 answer NodePorts, too, whatever the configuration says, for a backend that can do so. Must be
    /// called before everything else.
    pub fn answer_on_localhost(&mut self) {
        self.localhost = true;
    }

    /// The addresses that answer NodePorts, sorted within each family.
    fn node_port_addresses(&self, node: &Node) -> Vec<IpAddr> {
        let mut addresses = node_ports::addresses(&self.config.node_port_addresses, node, &self.local_addresses);
        if self.localhost {
            let place = addresses.partition_point(|address| *address < LOCALHOST);
            addresses.insert(place, LOCALHOST);
        }
        addresses
    }

    /// Sets the addresses of the node's interfaces. Returns whether this changes the addresses of NodePorts at the next
    /// `settle`.
    pub fn set_local_addresses(&mut self, addresses: Vec<IpAddr>) -> bool {
        self.local_addresses = addresses;
        let present = self.facts.as_ref().map(|facts| &facts.node_port_addresses);
        present.zip(self.node.as_ref()).is_some_and(|(present, node)| *present != self.node_port_addresses(node))
    }

    /// Sets the node's facts.
    pub fn set_node(&mut self, node: &Node) {
        self.node = Some(node.clone());
    }

    /// Sets a service, or deletes it with `None`. The next `settle` applies it.
    pub fn stage(&mut self, key: ServiceKey, service: Option<Arc<Service>>) {
        self.staged.insert(key, service);
    }

    /// Moves to `state`, which differs from the previous state only in `changes`.
    pub fn update(&mut self, state: &Snapshot, changes: &Changes, program: &mut impl Program) -> Settled {
        let everything = changes.everything || self.node.is_none();
        if everything || changes.node {
            self.set_node(&state.node);
        }
        if everything {
            let gone = self.services.keys().filter(|key| !state.services.contains_key(*key));
            let gone = gone.map(|key| (key.clone(), None));
            let differs = |(key, service): &(&ServiceKey, &Arc<Service>)| self.services.get(*key) != Some(*service);
            let new = state.services.iter().filter(differs).map(|(key, service)| (key.clone(), Some(service.clone())));
            // Collected first, because appending sorted keys takes linear time.
            self.staged.append(&mut gone.chain(new).collect());
        }
        for key in &changes.services {
            self.stage(key.clone(), state.services.get(key).cloned());
        }
        self.settle(program)
    }

    /// Applies everything that was set before. Does nothing until the node is known.
    pub fn settle(&mut self, program: &mut impl Program) -> Settled {
        let Some(node) = &self.node else { return Settled::default() };
        let mut facts = Facts::new(&self.config, node, &self.local_addresses);
        facts.node_port_addresses = self.node_port_addresses(node);
        let before = self.facts.take();
        if before.as_ref().is_some_and(|before| before.node_port_addresses != facts.node_port_addresses) {
            let has_node_ports = |service: &Service| service.ports.iter().any(|port| port.node_port.is_some());
            for (key, service) in self.services.iter().filter(|(_, service)| has_node_ports(service)) {
                self.staged.entry(key.clone()).or_insert_with(|| Some(service.clone()));
            }
        }
        let outranked_before = self.outranked.clone();
        let staged = std::mem::take(&mut self.staged);
        self.retried.retain(|key, _| {
            let now = staged.get(key).map(Option::as_ref);
            now.is_some_and(|now| now.is_some() && now == self.services.get(key))
        });
        if let Some(before) = &before {
            staged.keys().for_each(|key| _ = self.retract(key, before, program));
        }
        let mut notices = Vec::new();
        for (key, service) in staged {
            self.refused.remove(&key);
            let skipped_before = self.skipped.remove(&key).unwrap_or_default();
            let Some(service) = service else { continue };
            let plan = service::plan(&service, &facts);
            notices.extend(plan.skipped.iter().filter(|one| !skipped_before.contains(one)).cloned());
            if !plan.skipped.is_empty() {
                self.skipped.insert(key.clone(), plan.skipped.clone());
            }
            self.claim(&key, plan, &facts, program);
            self.services.insert(key, service);
        }
        let lost = self.outranked.difference(&outranked_before);
        notices.extend(lost.map(|(vip, loser)| self.rank(vip, loser)));
        let facts_changed = before.as_ref() != Some(&facts);
        self.facts = Some(facts);
        Settled { facts_changed, notices }
    }

    /// Removes a service that the kernel refuses. The other services are programmed without it until it changes or is
    /// retried. Returns whether this should be reported: not if a retry failed for the same reason as before.
    pub fn refuse(&mut self, key: &ServiceKey, why: String, program: &mut impl Program) -> bool {
        let Some(facts) = self.facts.take() else { return false };
        let is_news = self.retried.get(key) != Some(&why);
        if let Some(service) = self.retract(key, &facts, program) {
            // Kept, so that its next change is recognized as a change and retracts nothing twice.
            self.services.insert(key.clone(), service);
            self.refused.insert(key.clone(), why);
        }
        self.facts = Some(facts);
        is_news
    }

    /// The services that the kernel refuses.
    pub fn refused(&self) -> BTreeSet<ServiceKey> {
        self.refused.keys().cloned().collect()
    }

    /// Retries the refused services at the next `settle`, although they have not changed.
    pub fn retry_refused(&mut self) {
        self.retried.clone_from(&self.refused);
        for key in self.refused.keys() {
            self.staged.entry(key.clone()).or_insert_with(|| self.services.get(key).cloned());
        }
    }

    /// The diagnostics for everything that is skipped at present, sorted by service.
    pub fn skipped(&self) -> Vec<Diagnostic> {
        let refused = self.refused.iter().map(|(service, why)| refused(service, why.clone()));
        let outranked = self.outranked.iter().map(|(vip, loser)| self.rank(vip, loser));
        let mut all: Vec<_> = refused.chain(outranked).chain(self.skipped.values().flatten().cloned()).collect();
        all.sort_unstable();
        all
    }

    /// The services that own VIPs, with these VIPs. Plans all services again, so call it rarely.
    pub fn programmed(&self) -> impl Iterator<Item = (&ServiceKey, VipKey, Vip)> {
        let services = self.services.iter().filter(|(key, _)| !self.refused.contains_key(*key));
        services.flat_map(|(key, service)| {
            let plan = self.facts.as_ref().map(|facts| service::plan(service, facts)).unwrap_or_default();
            let owned = |(vip, held): &(VipKey, Vip)| {
                let owner = self.owners.get(vip);
                owner.is_some_and(|owner| owner.service == *key && owner.by_node_port == held.by_node_port)
            };
            plan.vips.into_iter().filter(owned).map(move |(vip, held)| (key, vip, held))
        })
    }

    /// A VIP that is programmed.
    pub fn vip(&self, key: &VipKey) -> Option<Vip> {
        self.held(key, self.owners.get(key)?, self.facts.as_ref()?)
    }

    fn held(&self, key: &VipKey, claimant: &Claimant, facts: &Facts) -> Option<Vip> {
        let plan = service::plan(self.services.get(&claimant.service)?, facts);
        let held = plan.vips.into_iter().find(|(vip, held)| vip == key && held.by_node_port == claimant.by_node_port);
        held.map(|(_, held)| held)
    }

    /// The diagnostic for a claim that another one outranks.
    fn rank(&self, vip: &VipKey, loser: &Claimant) -> Diagnostic {
        let why = match self.owners.get(vip) {
            None => format!("{vip} is not programmed"),
            Some(owner) => {
                let rank = match (owner.by_node_port, loser.by_node_port) {
                    (false, true) => "as its own address, which has precedence over NodePorts",
                    _ => "whose name sorts first",
                };
                format!("{vip} belongs to service {}, {rank}", owner.service)
            }
        };
        Diagnostic::new(Code::AddressTaken, Subject::service(&loser.service), why)
    }

    /// Removes the claims of a service. Returns the service if there was one.
    fn retract(&mut self, key: &ServiceKey, facts: &Facts, program: &mut impl Program) -> Option<Arc<Service>> {
        let service = self.services.remove(key)?;
        if self.refused.remove(key).is_some() {
            return Some(service);
        }
        let plan = service::plan(&service, facts);
        for (vip, held) in &plan.vips {
            let claimant = Claimant { by_node_port: held.by_node_port, service: key.clone() };
            self.retract_vip(vip, held, claimant, facts, program);
        }
        for address in plan.cluster_ips {
            if release(&mut self.cluster_ips, &address) {
                program.cluster_ip(address, false);
            }
        }
        for hairpin in plan.hairpins {
            if release(&mut self.hairpins, &hairpin) {
                program.hairpin(&hairpin, false);
            }
        }
        Some(service)
    }

    fn retract_vip(&mut self, vip: &VipKey, held: &Vip, by: Claimant, facts: &Facts, program: &mut impl Program) {
        if self.owners.get(vip) != Some(&by) {
            self.outranked.remove(&(*vip, by));
            return;
        }
        program.unprogram(vip, held);
        let next = self.outranked.range((*vip, by)..).next().filter(|(next, _)| next == vip).cloned();
        let Some(next) = next else {
            self.owners.remove(vip);
            return;
        };
        self.outranked.remove(&next);
        if let Some(held) = self.held(vip, &next.1, facts) {
            program.program(vip, &held);
        }
        self.owners.insert(*vip, next.1);
    }

    fn claim(&mut self, key: &ServiceKey, plan: ServicePlan, facts: &Facts, program: &mut impl Program) {
        for (vip, held) in plan.vips {
            let claimant = Claimant { by_node_port: held.by_node_port, service: key.clone() };
            self.claim_vip(vip, &held, claimant, facts, program);
        }
        for address in plan.cluster_ips {
            *self.cluster_ips.entry(address).or_default() += 1;
            program.cluster_ip(address, true);
        }
        for hairpin in plan.hairpins {
            program.hairpin(&hairpin, true);
            *self.hairpins.entry(hairpin).or_default() += 1;
        }
    }

    fn claim_vip(&mut self, vip: VipKey, held: &Vip, by: Claimant, facts: &Facts, program: &mut impl Program) {
        if let Some(owner) = self.owners.get(&vip) {
            if *owner < by {
                self.outranked.insert((vip, by));
                return;
            }
            if let Some(loser) = self.held(&vip, owner, facts) {
                program.unprogram(&vip, &loser);
            }
            self.outranked.insert((vip, owner.clone()));
        }
        program.program(&vip, held);
        self.owners.insert(vip, by);
    }
}

/// The diagnostic for a service of which the kernel refuses a part.
pub fn refused(service: &ServiceKey, why: String) -> Diagnostic {
    Diagnostic::new(Code::KernelRefused, Subject::service(service), why)
}

/// Decrements a count. Returns whether it has reached zero.
fn release<K: Ord + Clone>(counts: &mut BTreeMap<K, usize>, key: &K) -> bool {
    match counts.entry(key.clone()) {
        btree_map::Entry::Occupied(mut count) if *count.get() > 1 => {
            *count.get_mut() -= 1;
            false
        }
        btree_map::Entry::Occupied(count) => {
            count.remove();
            true
        }
        btree_map::Entry::Vacant(_) => false,
    }
}

#[cfg(test)]
mod tests;
