//! [`Vips`]: what the node answers, the neutral half of every plan.
//!
//! A backend that proxies packets needs to know, for each address, protocol and port, which endpoints serve it and how. Which
//! Service has a VIP that several claim, on which addresses NodePorts are, how pods are recognised: all backends must say the
//! same, so it is said here, from the wire's conclusions and the operator's configuration. What a VIP is in a kernel is the
//! backend's affair: it implements [`Program`].
//!
//! ```text
//!  Snapshot, Changes ──► update ─┐
//!  Listener's calls ──► stage ───┴► settle ──► service::plan ──► claims: one owner for each VIP ──► Program
//! ```
//!
//! No I/O. Costs what changed: a Service that did not change is neither planned nor looked at.

mod config;
mod effective;
mod facts;
pub mod flags;
pub mod node_ports;
pub mod service;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, btree_map},
    fmt,
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
};

use localnet_proto::{Changes, Node, Service, ServiceKey, Snapshot};

pub use config::{Config, Detector, NodePortAddresses};
pub use effective::{Effective, Unreadable};
pub use facts::{Facts, PodSource};
pub use service::{Exposure, Hairpin, Vip, VipKey};

use crate::backend::Skipped;
use service::ServicePlan;

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Takes what the node is to answer, piece by piece. What changes is taken out and put in again, and may be put in as it was:
/// a [`crate::DiffStore`] makes nothing of that.
pub trait Program {
    /// The VIP is to be answered so.
    fn program(&mut self, key: &VipKey, vip: &Vip);
    /// The VIP, which was programmed so, is to be answered no more.
    fn unprogram(&mut self, key: &VipKey, vip: &Vip);
    /// The address is a ClusterIP, or no longer.
    fn cluster_ip(&mut self, address: IpAddr, present: bool);
    /// The endpoint may reach itself through a Service, or no longer.
    fn hairpin(&mut self, hairpin: &Hairpin, present: bool);
}

/// Something of a service that is not programmed, and why.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Notice {
    /// Whose.
    pub service: ServiceKey,
    /// What and why.
    pub text: String,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "service {}: {}", self.service, self.text)
    }
}

/// What came of a change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// The [`Facts`] are others than before.
    pub facts_changed: bool,
    /// What is not programmed and was not said before.
    pub notices: Vec<Notice>,
}

/// Who asks for a VIP; the least one has it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Claimant {
    /// By its NodePort rather than by its own address and port: as in kube-proxy addresses come first.
    by_node_port: bool,
    service: ServiceKey,
}

/// What the node answers, kept up to date.
#[derive(Debug)]
pub struct Vips {
    config: Config,
    /// The addresses of the node's interfaces, as far as they were told.
    local_addresses: Vec<IpAddr>,
    /// NodePorts are answered on 127.0.0.1, too.
    localhost: bool,
    /// The node; none before the first state.
    node: Option<Node>,
    /// What the present plans were made from.
    facts: Option<Facts>,
    /// Services that differ from those planned; none for one that is gone.
    staged: BTreeMap<ServiceKey, Option<Arc<Service>>>,
    services: BTreeMap<ServiceKey, Arc<Service>>,
    /// Services that the kernel refuses, and why.
    refused: BTreeMap<ServiceKey, String>,
    /// Those that this settles anew, and why they were refused before.
    retried: BTreeMap<ServiceKey, String>,
    /// Who has which VIP.
    owners: HashMap<VipKey, Claimant>,
    /// Claims that another service's claim outranks.
    outranked: BTreeSet<(VipKey, Claimant)>,
    /// What was left out of plans.
    skipped: BTreeMap<ServiceKey, Vec<String>>,
    /// How many services ask for a ClusterIP.
    cluster_ips: BTreeMap<IpAddr, usize>,
    /// How many services ask for a hairpin.
    hairpins: BTreeMap<Hairpin, usize>,
}

impl Vips {
    /// None yet.
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

    /// What plans are made from; none before the first state.
    pub fn facts(&self) -> Option<&Facts> {
        self.facts.as_ref()
    }

    /// The configuration and what it means on this node; none before the first state.
    pub fn effective(&self) -> Option<Effective> {
        let node_port_addresses = self.facts.as_ref()?.node_port_addresses.clone();
        Some(Effective { config: self.config.clone(), node_port_addresses })
    }

    /// Another configuration, from the next time on that this settles.
    pub fn set_config(&mut self, config: Config) {
        self.config = config;
    }

    /// NodePorts are answered on 127.0.0.1, too, whatever the configuration says: for a backend that can do so. To be told before
    /// anything else.
    pub fn answer_on_localhost(&mut self) {
        self.localhost = true;
    }

    /// On which addresses NodePorts are answered, sorted within each family.
    fn node_port_addresses(&self, node: &Node) -> Vec<IpAddr> {
        let mut addresses = node_ports::addresses(&self.config.node_port_addresses, node, &self.local_addresses);
        if self.localhost {
            let place = addresses.partition_point(|address| *address < LOCALHOST);
            addresses.insert(place, LOCALHOST);
        }
        addresses
    }

    /// Tells the addresses of the node's interfaces; says whether NodePorts move for it the next time this settles.
    pub fn set_local_addresses(&mut self, addresses: Vec<IpAddr>) -> bool {
        self.local_addresses = addresses;
        let present = self.facts.as_ref().map(|facts| &facts.node_port_addresses);
        present.zip(self.node.as_ref()).is_some_and(|(present, node)| *present != self.node_port_addresses(node))
    }

    /// The node's facts are now these.
    pub fn set_node(&mut self, node: &Node) {
        self.node = Some(node.clone());
    }

    /// The service is now this one, or gone. In force when this settles.
    pub fn stage(&mut self, key: ServiceKey, service: Option<Arc<Service>>) {
        self.staged.insert(key, service);
    }

    /// Goes to `state`, of which only `changes` differs from the state before.
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
            // Collected rather than added one by one: that is linear for keys in order.
            self.staged.append(&mut gone.chain(new).collect());
        }
        for key in &changes.services {
            self.stage(key.clone(), state.services.get(key).cloned());
        }
        self.settle(program)
    }

    /// Makes all that was told hold. Before the node is known nothing does.
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
            let new = plan.skipped.iter().filter(|text| !skipped_before.contains(text));
            notices.extend(new.map(|text| Notice { service: key.clone(), text: text.clone() }));
            if !plan.skipped.is_empty() {
                self.skipped.insert(key.clone(), plan.skipped.clone());
            }
            self.claim(&key, plan, &facts, program);
            self.services.insert(key, service);
        }
        let lost = self.outranked.difference(&outranked_before);
        notices.extend(lost.map(|(vip, loser)| Notice { service: loser.service.clone(), text: self.rank(vip, loser) }));
        let facts_changed = before.as_ref() != Some(&facts);
        self.facts = Some(facts);
        Settled { facts_changed, notices }
    }

    /// Takes a service out that the kernel refuses; the others are programmed without it until it changes or is tried again. Says
    /// whether that is news: it was not tried again, and refused for the same reason as before.
    pub fn refuse(&mut self, key: &ServiceKey, why: String, program: &mut impl Program) -> bool {
        let Some(facts) = self.facts.take() else { return false };
        let is_news = self.retried.get(key) != Some(&why);
        if let Some(service) = self.retract(key, &facts, program) {
            // Kept, so that the next change of it retracts nothing that is not there, but finds it differing.
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

    /// They are tried again when this settles next, though they have not changed.
    pub fn retry_refused(&mut self) {
        self.retried.clone_from(&self.refused);
        for key in self.refused.keys() {
            self.staged.entry(key.clone()).or_insert_with(|| self.services.get(key).cloned());
        }
    }

    /// What of the services is not programmed, and why: as of now, by service.
    pub fn skipped(&self) -> Vec<Skipped> {
        let refused = self.refused.iter().map(|(service, why)| (service, why.clone()));
        let outranked = self.outranked.iter().map(|(vip, loser)| (&loser.service, self.rank(vip, loser)));
        let odd =
            self.skipped.iter().flat_map(|(service, texts)| texts.iter().map(move |text| (service, text.clone())));
        let all = refused.chain(outranked).chain(odd);
        let mut all: Vec<_> = all.map(|(service, reason)| Skipped { service: service.clone(), reason }).collect();
        all.sort_unstable();
        all
    }

    /// The services that have VIPs, with these; each VIP is with the one that has it. For the rare: it plans them again.
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

    /// Why a claim is of no use.
    fn rank(&self, vip: &VipKey, loser: &Claimant) -> String {
        let Some(owner) = self.owners.get(vip) else { return format!("{vip} is not programmed") };
        let why = match (owner.by_node_port, loser.by_node_port) {
            (false, true) => "as its own address, which comes before NodePorts",
            _ => "which comes first by name",
        };
        format!("{vip} belongs to service {}, {why}", owner.service)
    }

    /// Takes out what a service asks for; gives the service if there was one.
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

/// Counts one user less; says whether that was the last.
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
