//! What the kernel should hold, kept up to date as services change: who has which VIP, and what follows for each table.
//!
//! ```text
//!  Snapshot, Changes ──► plan::service ──► claims (one winner for each VIP) ──► elements, chains ──► table::TableState ×2
//! ```
//!
//! No I/O. Costs what changed: a service that did not change is neither planned nor looked at.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fmt,
    net::IpAddr,
    ops::Bound,
    sync::Arc,
};

use localnet_linux::{
    conntrack::{Endpoints, Frontend},
    nft::{Element, Family, TableContent},
};
use localnet_proto::{Changes, Node, Service, ServiceKey, Snapshot};

use crate::{
    affinity::{Affinity, Departed},
    config::Config,
    kernel::Found,
    plan::{
        ChainNames, Facts, chains, elements, node_ports,
        service::{self, Hairpin, ServicePlan, Vip, VipKey},
        sets::{Pool, SetId},
    },
    table::TableState,
};

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

/// Who asks for a VIP; the least one has it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Claimant {
    /// By its NodePort rather than by its own address and port: as in kube-proxy addresses come first.
    by_node_port: bool,
    service: ServiceKey,
}

/// What the kernel should hold.
#[derive(Debug)]
pub struct Desired {
    config: Config,
    names: ChainNames,
    /// The addresses of the node's interfaces, as far as they were told.
    local_addresses: Vec<IpAddr>,
    /// The node as of the facts.
    node: Node,
    /// What the present plans were made from; none before the first state.
    facts: Option<Facts>,
    services: BTreeMap<ServiceKey, Arc<Service>>,
    /// Services that the kernel refuses, until they change.
    refused: BTreeSet<ServiceKey>,
    /// Who asks for a VIP. The first one has it.
    claims: BTreeMap<(VipKey, Claimant), Vip>,
    /// Claims that another service's claim outranks.
    outranked: BTreeSet<(VipKey, Claimant)>,
    /// What was left out of plans.
    skipped: BTreeMap<ServiceKey, Vec<String>>,
    /// How many services ask for a ClusterIP.
    cluster_ips: BTreeMap<IpAddr, usize>,
    /// How many services ask for a hairpin.
    hairpins: BTreeMap<Hairpin, usize>,
    /// How many VIPs use a chain that picks.
    pools: [BTreeMap<(Pool, u32), usize>; 2],
    tables: [TableState; 2],
    /// VIPs whose programming differs from what [`Self::take_moved`] told last.
    moved: HashSet<VipKey>,
    affinity: Affinity,
    /// Sorts before everyone.
    least: Claimant,
}

impl Desired {
    /// Nothing yet: not even the fixed chains, which need the node's facts.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            names: ChainNames::default(),
            local_addresses: Vec::new(),
            node: Node::default(),
            facts: None,
            services: BTreeMap::new(),
            refused: BTreeSet::new(),
            claims: BTreeMap::new(),
            outranked: BTreeSet::new(),
            skipped: BTreeMap::new(),
            cluster_ips: BTreeMap::new(),
            hairpins: BTreeMap::new(),
            pools: [BTreeMap::new(), BTreeMap::new()],
            tables: Family::ALL.map(TableState::new),
            moved: HashSet::new(),
            affinity: Affinity::default(),
            least: Claimant { by_node_port: false, service: ServiceKey::new("", "") },
        }
    }

    /// Whose endpoints may differ since this was called last, and who they are now; none if it is no VIP any more.
    pub fn take_moved(&mut self) -> Vec<(Frontend, Option<Endpoints>)> {
        let moved = std::mem::take(&mut self.moved);
        let now = |vip: &VipKey| self.winner(vip).map(|(_, held)| held.serving.clone());
        moved.iter().map(|vip| (vip.frontend(), now(vip))).collect()
    }

    /// Tells the addresses of the node's interfaces; says whether the next update moves NodePorts for it.
    pub fn set_local_addresses(&mut self, addresses: Vec<IpAddr>) -> bool {
        self.local_addresses = addresses;
        self.node_ports_move()
    }

    fn node_ports_move(&self) -> bool {
        let wanted = || node_ports::addresses(&self.config.node_port_addresses, &self.node, &self.local_addresses);
        self.facts.as_ref().is_some_and(|facts| facts.node_port_addresses != wanted())
    }

    /// The tables, IPv4 first.
    pub fn tables(&mut self) -> &mut [TableState; 2] {
        &mut self.tables
    }

    /// Both tables as they should be.
    pub fn content(&self) -> Vec<TableContent> {
        self.tables.iter().map(TableState::content).collect()
    }

    /// What the tables' changes said was applied.
    pub fn commit(&mut self) {
        self.tables.iter_mut().for_each(TableState::commit);
        self.affinity.commit();
    }

    /// This was found in the kernel's table, or that there is none.
    pub fn adopt(&mut self, family: Family, found: Option<Found>) {
        let keys = self.affinity.programmed(family);
        let sticky: Vec<_> = keys.filter_map(|key| Some((*key, self.winner(key)?.1.clone()))).collect();
        sticky.iter().for_each(|(key, vip)| self.unprogram(key, vip));
        self.affinity.adopt(family, found.as_ref());
        sticky.iter().for_each(|(key, vip)| self.program(key, vip));
        self.update_chains(false);
        if let Some(found) = found {
            self.table(family).adopt(found);
        }
    }

    /// Slots of session affinity whose clients are to be forgotten.
    pub fn departed(&self) -> Vec<(Departed, BTreeSet<VipKey>)> {
        self.affinity.departed()
    }

    /// The clients of that slot were forgotten.
    pub fn purged(&mut self, departed: &Departed) {
        self.affinity.purged(departed);
    }

    /// It is no longer known what the kernel holds.
    pub fn forget(&mut self) {
        self.tables.iter_mut().for_each(TableState::forget);
    }

    /// Goes to `state`, of which only `changes` differs from the state before. Says what is not programmed, once.
    pub fn update(&mut self, state: &Snapshot, changes: &Changes) -> Vec<Notice> {
        let outranked_before = self.outranked.clone();
        let mut notices = Vec::new();

        let replaced = self.replaced_facts(state, changes);
        let node_ports_move = match (&self.facts, &replaced) {
            (Some(before), Some(after)) => before.node_port_addresses != after.node_port_addresses,
            _ => false,
        };
        let keys = self.differing(state, changes, node_ports_move);
        if let Some(before) = self.facts.take() {
            for key in &keys {
                self.retract(key, &before);
            }
            self.facts = Some(before);
        }
        let fixed_change = match replaced {
            Some(facts) if self.facts.as_ref() != Some(&facts) => {
                self.facts = Some(facts);
                true
            }
            _ => false,
        };
        if let Some(facts) = self.facts.take() {
            for key in &keys {
                self.refused.remove(key);
                let skipped_before = self.skipped.remove(key).unwrap_or_default();
                if let Some(service) = state.services.get(key) {
                    let plan = service::plan(service, &facts);
                    let new = plan.skipped.iter().filter(|text| !skipped_before.contains(text));
                    notices.extend(new.map(|text| Notice { service: key.clone(), text: text.clone() }));
                    if !plan.skipped.is_empty() {
                        self.skipped.insert(key.clone(), plan.skipped.clone());
                    }
                    self.services.insert(key.clone(), service.clone());
                    self.claim(key, plan);
                }
            }
            self.facts = Some(facts);
        }
        self.update_chains(fixed_change);

        for (vip, loser) in self.outranked.difference(&outranked_before) {
            if let Some(((_, winner), _)) = self.winner(vip) {
                let why = match (winner.by_node_port, loser.by_node_port) {
                    (false, true) => "as its own address, which comes before NodePorts",
                    _ => "which comes first by name",
                };
                let text = format!("{vip} belongs to service {}, {why}", winner.service);
                notices.push(Notice { service: loser.service.clone(), text });
            }
        }
        notices
    }

    /// What plans are to be made from, if that may have changed.
    fn replaced_facts(&mut self, state: &Snapshot, changes: &Changes) -> Option<Facts> {
        if self.facts.is_none() || changes.everything || changes.node {
            self.node = state.node.clone();
        } else if !self.node_ports_move() {
            return None;
        }
        Some(Facts::new(&self.config, &self.node, &self.local_addresses))
    }

    /// The services to plan again.
    fn differing(&self, state: &Snapshot, changes: &Changes, all_with_node_ports: bool) -> BTreeSet<ServiceKey> {
        let mut keys = changes.services.clone();
        if changes.everything || self.facts.is_none() {
            let gone = self.services.keys().filter(|key| !state.services.contains_key(*key));
            let new = state.services.iter().filter(|(key, service)| self.services.get(*key) != Some(*service));
            // Collected rather than added one by one: that is linear for keys in order.
            keys.append(&mut gone.chain(new.map(|(key, _)| key)).cloned().collect());
        }
        if all_with_node_ports {
            let moved =
                state.services.values().filter(|service| service.ports.iter().any(|port| port.node_port.is_some()));
            keys.extend(moved.map(|service| service.key.clone()));
        }
        keys
    }

    /// Takes a service out that the kernel refuses; the others are programmed without it until it changes.
    pub fn refuse(&mut self, key: &ServiceKey) {
        if let Some(facts) = self.facts.take() {
            let service = self.services.get(key).cloned();
            self.retract(key, &facts);
            if let Some(service) = service {
                // Kept, so that the next change of it retracts nothing that is not there, but finds it differing.
                self.services.insert(key.clone(), service);
                self.refused.insert(key.clone());
            }
            self.facts = Some(facts);
        }
        self.update_chains(false);
    }

    /// The service whose element this is, if it is of one only.
    pub fn owner(&self, set: SetId, element: &Element) -> Option<ServiceKey> {
        let comment = element.comment.as_deref();
        let owns = |(vip, key): &(VipKey, Claimant), held: &Vip| {
            if comment.is_some_and(|comment| *comment != *held.comment) || self.outranked.contains(&(*vip, key.clone()))
            {
                return false;
            }
            let mut found = false;
            let slots = self.affinity.slots(vip);
            elements::of_vip(vip, held, slots, &self.names, |id, one| found |= id == set && one.key == element.key);
            found
        };
        self.claims.iter().find(|(claim, vip)| owns(claim, vip)).map(|((_, key), _)| key.service.clone())
    }

    fn retract(&mut self, key: &ServiceKey, facts: &Facts) {
        let Some(service) = self.services.remove(key) else { return };
        if self.refused.remove(key) {
            return;
        }
        let plan = service::plan(&service, facts);
        for (vip, held) in &plan.vips {
            self.retract_vip(vip, &Claimant { by_node_port: held.by_node_port, service: key.clone() });
        }
        for address in plan.cluster_ips {
            if release(&mut self.cluster_ips, &address) {
                let element = elements::of_cluster_ip(address);
                self.table(Family::of(&address)).remove(SetId::ClusterIps, &element.key);
            }
        }
        for hairpin in plan.hairpins {
            if release(&mut self.hairpins, &hairpin) {
                let element = elements::of_hairpin(&hairpin);
                self.table(Family::of(&hairpin.endpoint.ip())).remove(SetId::Hairpin, &element.key);
            }
        }
    }

    fn retract_vip(&mut self, vip: &VipKey, key: &Claimant) {
        self.outranked.remove(&(*vip, key.clone()));
        let had_it = self.winner(vip).is_some_and(|((_, winner), _)| winner == key);
        let Some(held) = self.claims.remove(&(*vip, key.clone())) else { return };
        if !had_it {
            return;
        }
        self.unprogram(vip, &held);
        if let Some(((_, next), held)) = self.winner(vip).map(|(claim, held)| (claim.clone(), held.clone())) {
            self.outranked.remove(&(*vip, next));
            self.program(vip, &held);
        }
    }

    fn claim(&mut self, key: &ServiceKey, plan: ServicePlan) {
        for (vip, held) in plan.vips {
            self.claim_vip(vip, Claimant { by_node_port: held.by_node_port, service: key.clone() }, held);
        }
        for address in plan.cluster_ips {
            *self.cluster_ips.entry(address).or_default() += 1;
            self.table(Family::of(&address)).set(SetId::ClusterIps, elements::of_cluster_ip(address));
        }
        for hairpin in plan.hairpins {
            *self.hairpins.entry(hairpin).or_default() += 1;
            let family = Family::of(&hairpin.endpoint.ip());
            self.table(family).set(SetId::Hairpin, elements::of_hairpin(&hairpin));
        }
    }

    fn claim_vip(&mut self, vip: VipKey, key: Claimant, held: Vip) {
        match self.winner(&vip).map(|(claim, held)| (claim.1.clone(), held.clone())) {
            Some((winner, _)) if winner < key => {
                self.outranked.insert((vip, key.clone()));
            }
            before => {
                if let Some((loser, held)) = before {
                    self.unprogram(&vip, &held);
                    self.outranked.insert((vip, loser));
                }
                self.program(&vip, &held);
            }
        }
        self.claims.insert((vip, key), held);
    }

    /// The claim of the service that has a VIP.
    fn winner(&self, vip: &VipKey) -> Option<(&(VipKey, Claimant), &Vip)> {
        let from = Bound::Included((*vip, self.least.clone()));
        self.claims.range((from, Bound::Unbounded)).next().filter(|((found, _), _)| found == vip)
    }

    fn program(&mut self, key: &VipKey, vip: &Vip) {
        self.moved.insert(*key);
        self.affinity.program(key, vip);
        let table = &mut self.tables[key.family() as usize];
        let slots = self.affinity.slots(key);
        elements::of_vip(key, vip, slots, &self.names, |set, element| table.set(set, element));
        for pool in elements::pools_of(vip) {
            *self.pools[key.family() as usize].entry(pool).or_default() += 1;
        }
    }

    fn unprogram(&mut self, key: &VipKey, vip: &Vip) {
        self.moved.insert(*key);
        let table = &mut self.tables[key.family() as usize];
        let slots = self.affinity.slots(key);
        elements::of_vip(key, vip, slots, &self.names, |set, element| table.remove(set, &element.key));
        self.affinity.unprogram(key, vip);
        for pool in elements::pools_of(vip) {
            release(&mut self.pools[key.family() as usize], &pool);
        }
    }

    fn table(&mut self, family: Family) -> &mut TableState {
        &mut self.tables[family as usize]
    }

    /// Chains depend on the facts and on which pools are in use.
    fn update_chains(&mut self, fixed_change: bool) {
        self.affinity.settle();
        let Some(facts) = &self.facts else { return };
        for family in Family::ALL {
            let table = &mut self.tables[family as usize];
            let affinity_change = table.set_affinity(self.affinity.shape(family));
            if fixed_change || affinity_change {
                table.set_fixed_chains(chains::fixed(facts, family, table.has_affinity()));
            }
            let names = &self.names;
            table.set_pools(&self.pools[family as usize], |pool, slots| chains::lb(names, pool, slots));
        }
    }
}

/// Counts one user less; says whether that was the last.
fn release<K: Ord>(counts: &mut BTreeMap<K, usize>, key: &K) -> bool {
    match counts.get_mut(key) {
        Some(count) if *count > 1 => {
            *count -= 1;
            false
        }
        Some(_) => {
            counts.remove(key);
            true
        }
        None => false,
    }
}
