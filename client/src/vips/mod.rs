//! [`Vips`]: the VIPs of the node, which is the part of every plan that does not depend on a kernel subsystem.
//!
//! A backend that proxies packets needs to know the endpoints of each VIP and how to treat the VIP's packets. From the
//! state and the operator's configuration, this module decides which addresses answer NodePorts and how pods are
//! recognized, so that all backends make the same decisions. A backend implements [`Program`] to turn a VIP into kernel
//! objects.
//!
//! ```text
//!  Snapshot, Changes ──► update ──► settle ──► service::plan ──► one owner for each VIP ──► Program
//! ```
//!
//! The brain assigns each NodePort, and each address and port, to one Service. Only the backend knows which addresses
//! answer NodePorts. A NodePort and a port of another Service's own address may therefore be the same VIP; this module
//! chooses the owner.
//!
//! No I/O. The cost is O(changes): an unchanged Service is not processed at all.

mod config;
mod effective;
mod facts;
#[cfg(feature = "program")]
pub mod flags;
pub mod hashing;
pub mod service;
mod weights;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
};

use localnet_core::{Code, Diagnostic, Subject};
use localnet_proto::{Changes, Node, Service, ServiceKey, Snapshot};

pub use config::{Config, Detector, NodePortAddresses};
pub use effective::{Effective, Unreadable};
pub use facts::{Facts, PodSource};
pub use hashing::Hashing;
use localnet_proto::node_ports;
pub use service::{Exposure, Hairpin, Vip, VipKey};
pub use weights::Weights;

use service::ServicePlan;

/// Receives the changes to the VIPs of the node. A changed VIP is removed and then added. If the added value equals the
/// removed value, a [`crate::DiffStore`] finds no difference.
pub trait Program {
    /// Adds a VIP of a Service.
    fn program(&mut self, key: &VipKey, vip: &Vip, service: &Service);
    /// Removes a VIP that was added with this value.
    fn unprogram(&mut self, key: &VipKey, vip: &Vip);
    /// Adds or removes a ClusterIP.
    fn cluster_ip(&mut self, address: IpAddr, present: bool);
    /// Adds or removes an endpoint that may reach itself through a Service.
    fn hairpin(&mut self, hairpin: &Hairpin, present: bool);
}

/// The result of [`Vips::settle`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// Whether the [`Facts`] changed, so that the rules that depend on them are outdated.
    pub facts_changed: bool,
    /// The diagnostics of what is now skipped, except for those that were reported before.
    pub notices: Vec<Diagnostic>,
}

/// The owner of a VIP.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Owner {
    /// Whether the VIP is a NodePort of the Service.
    by_node_port: bool,
    service: ServiceKey,
}

/// The VIPs of the node, kept up to date.
#[derive(Debug, Default)]
pub struct Vips {
    config: Config,
    /// Whether the backend cannot close connections.
    leaves_connections: bool,
    /// Whether the backend cannot weigh endpoints.
    spreads_evenly: bool,
    /// Why the backend cannot choose endpoints by hashing.
    hashes_not: Option<Arc<str>>,
    /// The addresses of the node's interfaces, if the backend has set them.
    local_addresses: Vec<IpAddr>,
    /// The facts about the node; `None` before the first state.
    node: Option<Node>,
    /// The facts from which the current plans were made.
    facts: Option<Facts>,
    /// The Services that changed since they were planned; `None` for a deleted Service.
    staged: BTreeMap<ServiceKey, Option<Arc<Service>>>,
    services: BTreeMap<ServiceKey, Arc<Service>>,
    /// The Services that the kernel refused, and why.
    refused: BTreeMap<ServiceKey, String>,
    /// The refused Services that the next `settle` retries, and why they were refused.
    retried: BTreeMap<ServiceKey, String>,
    /// The owner of each VIP.
    owners: HashMap<VipKey, Owner>,
    outranked: Outranked,
    /// The skipped parts of plans.
    skipped: BTreeMap<ServiceKey, Vec<Diagnostic>>,
    /// How many Services have each ClusterIP.
    cluster_ips: BTreeMap<IpAddr, usize>,
    /// How many Services have each hairpin.
    hairpins: BTreeMap<Hairpin, usize>,
}

impl Vips {
    /// Returns a set without VIPs.
    pub fn new(config: Config) -> Self {
        Self { config, ..Self::default() }
    }

    /// Reports Services that request to close connections, for a backend that cannot do so.
    pub fn leaving_connections(self) -> Self {
        Self { leaves_connections: true, ..self }
    }

    /// Reports Services whose endpoints have different weights, for a backend that ignores them.
    pub fn spreading_evenly(self) -> Self {
        Self { spreads_evenly: true, ..self }
    }

    /// Reports Services that request to choose endpoints by hashing, for a backend that cannot do so, and plans them without. `why`:
    /// what the backend does instead.
    pub fn choosing_at_random(self, why: impl Into<Arc<str>>) -> Self {
        Self { hashes_not: Some(why.into()), ..self }
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

    /// Records the addresses of the node's interfaces. Returns whether the next `settle` changes the addresses that answer
    /// NodePorts.
    pub fn set_local_addresses(&mut self, addresses: Vec<IpAddr>) -> bool {
        self.local_addresses = addresses;
        let present = self.facts.as_ref().map(|facts| &facts.node_port_addresses);
        let now = |node| node_ports::addresses(&self.config.node_port_addresses, node, &self.local_addresses);
        present.zip(self.node.as_ref()).is_some_and(|(present, node)| *present != now(node))
    }

    /// Moves to `state`, which differs from the previous state only in `changes`.
    pub fn update(&mut self, state: &Snapshot, changes: &Changes, program: &mut impl Program) -> Settled {
        let everything = changes.everything || self.node.is_none();
        if everything || changes.node {
            self.node = Some(state.node.clone());
        }
        if everything {
            let gone = self.services.keys().filter(|key| !state.services.contains_key(*key));
            let gone = gone.map(|key| (key.clone(), None));
            let differs = |(key, service): &(&ServiceKey, &Arc<Service>)| self.services.get(*key) != Some(*service);
            let new = state.services.iter().filter(differs).map(|(key, service)| (key.clone(), Some(service.clone())));
            // Collect the keys first: appending sorted keys takes linear time.
            self.staged.append(&mut gone.chain(new).collect());
        }
        for key in &changes.services {
            self.staged.insert(key.clone(), state.services.get(key).cloned());
        }
        self.settle(program)
    }

    /// Applies everything that was set before. Does nothing until the node is known.
    pub fn settle(&mut self, program: &mut impl Program) -> Settled {
        let Some(node) = &self.node else { return Settled::default() };
        let mut facts = Facts::new(&self.config, node, &self.local_addresses);
        facts.hashes = self.hashes_not.is_none();
        let before = self.facts.take();
        if before.as_ref().is_some_and(|before| before.node_port_addresses != facts.node_port_addresses) {
            let has_node_ports = |service: &Service| service.ports.iter().any(|port| port.node_port.is_some());
            for (key, service) in self.services.iter().filter(|(_, service)| has_node_ports(service)) {
                self.staged.entry(key.clone()).or_insert_with(|| Some(service.clone()));
            }
        }
        let staged = std::mem::take(&mut self.staged);
        self.retried.retain(|key, _| {
            let now = staged.get(key).map(Option::as_ref);
            now.is_some_and(|now| now.is_some() && now == self.services.get(key))
        });
        self.outranked.take_news();
        if let Some(before) = &before {
            staged.keys().for_each(|key| _ = self.retract(key, before, program));
        }
        let mut notices = Vec::new();
        for (key, service) in staged {
            self.refused.remove(&key);
            let skipped_before = self.skipped.remove(&key).unwrap_or_default();
            let Some(service) = service else { continue };
            let skipped = self.claim(&service, &facts, program);
            notices.extend(skipped.iter().filter(|one| !skipped_before.contains(one)).cloned());
            if !skipped.is_empty() {
                self.skipped.insert(key.clone(), skipped);
            }
            self.services.insert(key, service);
        }
        let outranked = self.outranked.take_news();
        notices.extend(outranked.iter().map(|(vip, loser)| self.rank(vip, loser)));
        let facts_changed = before.as_ref() != Some(&facts);
        self.facts = Some(facts);
        Settled { facts_changed, notices }
    }

    /// Removes the VIPs of a Service that the kernel refuses. The Service has no VIPs until it changes or is retried.
    /// Returns whether to report the refusal. This is false if a retry failed for the same reason as before.
    pub fn refuse(&mut self, key: &ServiceKey, why: String, program: &mut impl Program) -> bool {
        let Some(facts) = self.facts.take() else { return false };
        let is_news = self.retried.get(key) != Some(&why);
        if let Some(service) = self.retract(key, &facts, program) {
            // The Service is kept, so that its next version can be compared with it. Its entry in `refused` stops
            // `retract` from removing its VIPs again.
            self.services.insert(key.clone(), service);
            self.refused.insert(key.clone(), why);
        }
        self.facts = Some(facts);
        is_news
    }

    /// The Services that the kernel refuses.
    pub fn refused(&self) -> BTreeSet<ServiceKey> {
        self.refused.keys().cloned().collect()
    }

    /// Retries the refused Services at the next `settle`, although they have not changed.
    pub fn retry_refused(&mut self) {
        self.retried.clone_from(&self.refused);
        for key in self.refused.keys() {
            self.staged.entry(key.clone()).or_insert_with(|| self.services.get(key).cloned());
        }
    }

    /// The diagnostics for everything that is skipped at present, sorted by Service.
    pub fn skipped(&self) -> Vec<Diagnostic> {
        let refused = self.refused.iter().map(|(service, why)| refused(service, why.clone()));
        let outranked = self.outranked.losers.iter().map(|(vip, loser)| self.rank(vip, loser));
        let mut all: Vec<_> = refused.chain(outranked).chain(self.skipped.values().flatten().cloned()).collect();
        all.sort_unstable();
        all
    }

    /// All programmed VIPs, each with its key and the Service that owns it. Plans all Services again, so call it rarely.
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

    /// The VIP with this key; `None` if it is not programmed.
    pub fn vip(&self, key: &VipKey) -> Option<Vip> {
        self.held(key, self.owners.get(key)?, self.facts.as_ref()?)
    }

    fn held(&self, key: &VipKey, owner: &Owner, facts: &Facts) -> Option<Vip> {
        let plan = service::plan(self.services.get(&owner.service)?, facts);
        let held = plan.vips.into_iter().find(|(vip, held)| vip == key && held.by_node_port == owner.by_node_port);
        held.map(|(_, held)| held)
    }

    /// The diagnostic for a NodePort with the same address and port as another Service's own VIP.
    fn rank(&self, vip: &VipKey, loser: &ServiceKey) -> Diagnostic {
        taken(vip, loser, self.owners.get(vip), ", whose own address has precedence over NodePorts")
    }

    /// Removes the VIPs of a Service. Returns the Service if there was one.
    fn retract(&mut self, key: &ServiceKey, facts: &Facts, program: &mut impl Program) -> Option<Arc<Service>> {
        let service = self.services.remove(key)?;
        if self.refused.remove(key).is_some() {
            return Some(service);
        }
        let plan = service::plan(&service, facts);
        for (vip, held) in &plan.vips {
            self.retract_vip(vip, held, facts, program);
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

    fn retract_vip(&mut self, vip: &VipKey, held: &Vip, facts: &Facts, program: &mut impl Program) {
        let is_owner = |owner: &Owner| owner.service == held.service && owner.by_node_port == held.by_node_port;
        if !self.owners.get(vip).is_some_and(is_owner) {
            self.outranked.remove(vip, Some(&held.service));
            return;
        }
        program.unprogram(vip, held);
        self.owners.remove(vip);
        let Some(service) = self.outranked.remove(vip, None) else { return };
        let next = Owner { by_node_port: true, service };
        if let Some(held) = self.held(vip, &next, facts)
            && let Some(service) = self.services.get(&next.service)
        {
            program.program(vip, &held, service);
        }
        self.owners.insert(*vip, next);
    }

    /// Adds the VIPs of a Service. Returns what is skipped.
    fn claim(&mut self, service: &Service, facts: &Facts, program: &mut impl Program) -> Vec<Diagnostic> {
        let ServicePlan { vips, cluster_ips, hairpins, mut skipped } = service::plan(service, facts);
        if self.leaves_connections && service.close_after.is_some() {
            let problem = "this backend leaves established connections to removed endpoints alone";
            skipped.push(Diagnostic::new(Code::CloseUnsupported, Subject::service(&service.key), problem));
        }
        if self.spreads_evenly && vips.iter().any(|(_, vip)| vip.weights.differ(&vip.endpoints)) {
            skipped.push(unweighed(&service.key, "this backend spreads connections evenly, and ignores weights"));
        }
        if let Some(why) = self.hashes_not.as_deref().filter(|_| service.hash.is_some()) {
            skipped.push(unhashed(&service.key, why));
        }
        for (vip, held) in vips {
            skipped.extend(self.claim_vip(vip, &held, service, facts, program).err());
        }
        for address in cluster_ips {
            *self.cluster_ips.entry(address).or_default() += 1;
            program.cluster_ip(address, true);
        }
        for hairpin in hairpins {
            program.hairpin(&hairpin, true);
            *self.hairpins.entry(hairpin).or_default() += 1;
        }
        skipped
    }

    /// Adds a VIP. If the state assigns the VIP to two Services, the second one gets a diagnostic.
    fn claim_vip(
        &mut self,
        vip: VipKey,
        held: &Vip,
        service: &Service,
        facts: &Facts,
        program: &mut impl Program,
    ) -> Result<(), Diagnostic> {
        let by = Owner { by_node_port: held.by_node_port, service: held.service.clone() };
        match self.owners.get(&vip) {
            None => {}
            Some(owner) if owner.by_node_port == by.by_node_port => {
                return Err(taken(&vip, &by.service, Some(owner), ""));
            }
            Some(owner) if owner.by_node_port => {
                let loser = owner.service.clone();
                if let Some(held) = self.held(&vip, owner, facts) {
                    program.unprogram(&vip, &held);
                }
                self.outranked.insert(vip, loser);
            }
            Some(_) => {
                self.outranked.insert(vip, by.service);
                return Ok(());
            }
        }
        program.program(&vip, held, service);
        self.owners.insert(vip, by);
        Ok(())
    }
}

/// The Services that do not get a VIP for their NodePort, because another Service's own VIP has the same address and
/// port. kube-proxy follows the same rule.
#[derive(Debug, Default)]
struct Outranked {
    losers: BTreeMap<VipKey, ServiceKey>,
    /// The losers that were added since the last call of `take_news`.
    new: BTreeSet<(VipKey, ServiceKey)>,
    gone: BTreeSet<(VipKey, ServiceKey)>,
}

impl Outranked {
    fn insert(&mut self, vip: VipKey, loser: ServiceKey) {
        let entry = (vip, loser.clone());
        if !self.gone.remove(&entry) {
            self.new.insert(entry);
        }
        self.losers.insert(vip, loser);
    }

    /// Removes the loser of a VIP. If `only` is set, a loser other than `only` is not removed.
    fn remove(&mut self, vip: &VipKey, only: Option<&ServiceKey>) -> Option<ServiceKey> {
        if only.is_some_and(|only| self.losers.get(vip) != Some(only)) {
            return None;
        }
        let entry = (*vip, self.losers.remove(vip)?);
        if !self.new.remove(&entry) {
            self.gone.insert(entry.clone());
        }
        Some(entry.1)
    }

    /// The losers that were added since the last call.
    fn take_news(&mut self) -> BTreeSet<(VipKey, ServiceKey)> {
        self.gone.clear();
        std::mem::take(&mut self.new)
    }
}

/// The diagnostic for a VIP that belongs to another Service.
fn taken(vip: &VipKey, loser: &ServiceKey, owner: Option<&Owner>, why: &str) -> Diagnostic {
    let owner = owner.map(|owner| format!("{vip} belongs to Service {}{why}", owner.service));
    let problem = owner.unwrap_or_else(|| format!("{vip} is not programmed"));
    Diagnostic::new(Code::AddressTaken, Subject::service(loser), problem)
}

/// The diagnostic for a Service whose weights a backend ignores.
pub fn unweighed(service: &ServiceKey, why: impl Into<String>) -> Diagnostic {
    Diagnostic::new(Code::WeightsUnsupported, Subject::service(service), why)
}

/// The diagnostic for a Service whose endpoints a backend does not choose by hashing.
pub fn unhashed(service: &ServiceKey, why: impl Into<String>) -> Diagnostic {
    Diagnostic::new(Code::HashUnsupported, Subject::service(service), why)
}

/// The diagnostic for a Service of which the kernel refuses a part.
pub fn refused(service: &ServiceKey, why: String) -> Diagnostic {
    Diagnostic::new(Code::KernelRefused, Subject::service(service), why)
}

/// Decrements a count. Returns whether it has reached zero.
fn release<K: Ord>(counts: &mut BTreeMap<K, usize>, key: &K) -> bool {
    let Some(count) = counts.get_mut(key) else { return false };
    *count -= 1;
    *count == 0 && counts.remove(key).is_some()
}

#[cfg(test)]
mod tests;
