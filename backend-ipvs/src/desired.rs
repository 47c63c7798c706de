//! The desired state of the kernel, updated as Services change: the VIPs of the node, and the IPVS servers, interface addresses
//! and tables that follow from them.
//!
//! ```text
//!  Snapshot, Changes ──► client::vips (one owner for each VIP) ─┬─► Servers
//!                                                               ├─► addresses
//!                                                               └─► elements, chains ──► TableState ×2
//! ```
//!
//! No I/O. The cost of an update depends on the changes.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use localnet_client::{
    Code, Diagnostic, DiffStore, Subject,
    vips::{self, Config, Effective, Facts, Hairpin, Program, Vip, VipKey, Vips},
};
use localnet_linux::{
    dummy,
    ipvs::{Frontend, Scheduler},
    nft::TableContent,
};
use localnet_linux_backend::{moved::Moved, rules, table::TableState};
use localnet_proto::{ByFamily, Changes, Family, Service, ServiceKey, Snapshot};

use crate::{
    Options, options,
    plan::{self, chains, elements, frontend, server, sets::SetId},
    servers::Servers,
};

/// The desired state of the kernel.
#[derive(Debug)]
pub struct Desired {
    vips: Vips,
    parts: Parts,
}

/// The desired virtual servers, addresses and tables of all VIPs.
#[derive(Debug)]
struct Parts {
    options: Options,
    /// The addresses in the Node object.
    node: Vec<IpAddr>,
    /// The addresses of all interfaces except ours.
    local: BTreeSet<IpAddr>,
    /// All programmed VIPs.
    programmed: BTreeMap<VipKey, Vip>,
    /// How many VIPs and ClusterIPs use each address.
    users: BTreeMap<IpAddr, usize>,
    servers: Servers,
    addresses: DiffStore<IpAddr, ()>,
    /// The addresses that the kernel refuses to add or remove.
    refused_addresses: BTreeMap<IpAddr, Refusal>,
    /// The refused addresses that are being retried.
    retried_addresses: BTreeMap<IpAddr, Refusal>,
    tables: ByFamily<TableState<SetId>>,
    /// The schedulers that the kernel lacks.
    missing: BTreeSet<Scheduler>,
    /// The VIPs that changed since the last commit.
    moved: Moved,
}

/// An address that the kernel refuses to add or remove.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Refusal {
    adding: bool,
    why: String,
}

impl Desired {
    /// An empty desired state. It has no fixed chains yet, because they depend on the facts of the node.
    pub fn new(config: Config, options: Options) -> Self {
        let parts = Parts {
            options,
            node: Vec::new(),
            local: BTreeSet::new(),
            programmed: BTreeMap::new(),
            users: BTreeMap::new(),
            servers: Servers::default(),
            addresses: DiffStore::new(),
            refused_addresses: BTreeMap::new(),
            retried_addresses: BTreeMap::new(),
            tables: ByFamily::from_fn(TableState::new),
            missing: BTreeSet::new(),
            moved: Moved::default(),
        };
        Self { vips: Vips::new(config).leaving_connections(), parts }
    }

    /// The configuration that the plans use; `None` before the first state.
    pub fn configuration(&self) -> Option<Effective> {
        self.vips.effective()
    }

    /// The options that the operator chose.
    pub fn options(&self) -> &Options {
        &self.parts.options
    }

    /// The VIPs that changed since the last commit.
    pub fn moved(&mut self) -> &mut Moved {
        &mut self.parts.moved
    }

    /// Sets the addresses of all the node's interfaces except ours. Returns whether this causes changes in the next update.
    pub fn set_local_addresses(&mut self, addresses: Vec<IpAddr>) -> bool {
        let bound = self.parts.bind(addresses.iter().copied().collect());
        self.vips.set_local_addresses(addresses) || bound
    }

    /// The virtual servers.
    pub fn servers(&self) -> &Servers {
        &self.parts.servers
    }

    /// The virtual servers.
    pub fn servers_mut(&mut self) -> &mut Servers {
        &mut self.parts.servers
    }

    /// The desired and applied addresses of our interface.
    pub fn addresses(&mut self) -> &mut DiffStore<IpAddr, ()> {
        &mut self.parts.addresses
    }

    /// The table of a family.
    pub fn table(&mut self, family: Family) -> &mut TableState<SetId> {
        &mut self.parts.tables[family]
    }

    /// The addresses that the interface should have, without those that the kernel refuses.
    pub fn wanted_addresses(&self) -> impl Iterator<Item = IpAddr> {
        let all = self.parts.addresses.iter_desired().map(|(address, ())| *address);
        all.filter(|address| !self.parts.refused_addresses.contains_key(address))
    }

    /// The addresses to add and those to remove, without changes that the kernel refuses.
    pub fn address_changes(&mut self) -> [Vec<IpAddr>; 2] {
        let Parts { addresses, refused_addresses, retried_addresses, .. } = &mut self.parts;
        let diff = addresses.diff();
        let set: BTreeSet<&IpAddr> = diff.set.iter().map(|set| set.key).collect();
        let removed: BTreeSet<&IpAddr> = diff.removed.iter().map(|(address, ())| *address).collect();
        for refused in [&mut *refused_addresses, retried_addresses] {
            refused.retain(|address, refusal| if refusal.adding { &set } else { &removed }.contains(address));
        }
        let due = |address: &IpAddr| (!refused_addresses.contains_key(address)).then_some(*address);
        let add = diff.set.iter().filter_map(|set| due(set.key)).collect();
        let remove = diff.removed.iter().filter_map(|(address, ())| due(address)).collect();
        [add, remove]
    }

    /// The addresses to add whose addition the kernel refused before, and which the next sync adds.
    pub fn retried_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.parts.retried_addresses.iter().filter(|(_, refusal)| refusal.adding).map(|(address, _)| *address)
    }

    /// Records that the kernel made all address changes except `refused`. From now on, the addresses in `refused` count as
    /// refused, unless the cause was a shortage. Returns the text of each new refusal.
    pub fn addresses_changed(&mut self, refused: Vec<dummy::Refused>) -> Vec<String> {
        let Parts { addresses, refused_addresses, retried_addresses, .. } = &mut self.parts;
        addresses.commit();
        let mut news = Vec::new();
        for one in refused.into_iter().filter(|one| !one.is_shortage) {
            let refusal = Refusal { adding: one.adding, why: one.to_string() };
            if retried_addresses.get(&one.address) != Some(&refusal) {
                news.push(refusal.why.clone());
            }
            refused_addresses.insert(one.address, refusal);
        }
        retried_addresses.clear();
        // A refused change stays in the diff.
        for (address, refusal) in refused_addresses {
            addresses.found(*address, (!refusal.adding).then_some(()));
        }
        news
    }

    /// The desired content of both tables.
    pub fn content(&self) -> Vec<TableContent> {
        self.parts.tables.values().iter().map(TableState::content).collect()
    }

    /// Forgets the applied state.
    pub fn forget(&mut self) {
        self.parts.servers.forget();
        self.parts.addresses.forget();
        self.parts.tables.values_mut().iter_mut().for_each(TableState::forget);
    }

    /// Lets the next sync retry the changes that the kernel refused, and the schedulers that it lacked.
    pub fn retry_refused(&mut self) {
        let missing = std::mem::take(&mut self.parts.missing);
        missing.iter().for_each(|scheduler| self.parts.plan_again(scheduler));
        self.parts.servers.retry_refused();
        self.parts.retried_addresses = std::mem::take(&mut self.parts.refused_addresses);
    }

    /// The Services that are not programmed completely, because the kernel refuses an object or lacks the scheduler.
    pub fn refused(&self) -> BTreeSet<ServiceKey> {
        let servers = self.parts.servers.refused().filter_map(|(of, _)| self.service(of).cloned());
        let schedulers = self.parts.programmed.values().filter(|vip| self.parts.is_missing(vip));
        let addresses = self.parts.without_address().filter_map(|skipped| skipped.subject.service_key());
        servers.chain(schedulers.map(|vip| vip.service.clone())).chain(addresses).collect()
    }

    /// Plans `state`. `changes` lists everything that differs from the previous state. Returns the new diagnostics of what
    /// is not programmed.
    pub fn update(&mut self, state: &Snapshot, changes: &Changes) -> Vec<Diagnostic> {
        if self.parts.node != state.node.addresses {
            self.parts.set_node_addresses(&state.node.addresses);
        }
        let settled = self.vips.update(state, changes, &mut self.parts);
        if settled.facts_changed
            && let Some(facts) = self.vips.facts()
        {
            self.parts.set_chains(facts);
        }
        settled.notices
    }

    /// Records that the kernel lacks a scheduler. Virtual servers with this scheduler then get the default one. Returns whether
    /// this changes anything.
    pub fn lacks(&mut self, scheduler: &Scheduler) -> bool {
        let news = *scheduler != self.parts.options.scheduler && self.parts.missing.insert(scheduler.clone());
        if news {
            self.parts.plan_again(scheduler);
        }
        news
    }

    /// Diagnostics of everything that is not programmed.
    pub fn skipped(&self) -> Vec<Diagnostic> {
        let mut skipped = self.vips.skipped();
        let service = |of: &Frontend| self.service(of).cloned();
        let refused = self.parts.servers.refused();
        skipped.extend(refused.filter_map(|(of, why)| Some(vips::refused(&service(of)?, why.clone()))));
        skipped.extend(self.parts.without_address());
        skipped.extend(self.parts.excluded());
        skipped.extend(self.parts.without_scheduler());
        skipped.extend(self.parts.without_weights());
        skipped.extend(self.parts.without_hash());
        skipped.sort_unstable();
        skipped.dedup();
        skipped
    }

    /// The Service that owns a virtual server.
    pub fn service(&self, of: &Frontend) -> Option<&ServiceKey> {
        self.parts.programmed.get(&plan::vip(of)).map(|vip| &vip.service)
    }
}

impl Parts {
    fn set_chains(&mut self, facts: &Facts) {
        for family in Family::BOTH {
            self.tables[family].set_fixed_chains(chains::fixed(facts, family));
        }
    }

    /// Sets the node's addresses, on which the allowed sources of VIPs depend.
    fn set_node_addresses(&mut self, addresses: &[IpAddr]) {
        let filtered = self.programmed.iter().filter(|(_, vip)| vip.sources.is_some());
        let filtered: Vec<_> = filtered.map(|(key, vip)| (*key, vip.clone())).collect();
        filtered.iter().for_each(|(key, vip)| self.set_elements(key, vip, false));
        self.node = addresses.to_vec();
        filtered.iter().for_each(|(key, vip)| self.set_elements(key, vip, true));
    }

    /// Records the addresses of the other interfaces. Our interface does not get these addresses, because they are local already.
    /// Returns whether the addresses of our interface change.
    fn bind(&mut self, local: BTreeSet<IpAddr>) -> bool {
        let differing: Vec<IpAddr> = local
            .symmetric_difference(&self.local)
            .filter(|address| self.users.contains_key(*address))
            .copied()
            .collect();
        self.local = local;
        differing.iter().for_each(|address| self.update_address(*address));
        !differing.is_empty()
    }

    fn count_address(&mut self, address: IpAddr, more: bool) {
        let users = self.users.entry(address).or_default();
        *users = if more { *users + 1 } else { users.saturating_sub(1) };
        if *users == 0 {
            self.users.remove(&address);
        }
        self.update_address(address);
    }

    fn update_address(&mut self, address: IpAddr) {
        let wanted = self.users.contains_key(&address)
            && !self.local.contains(&address)
            && !address.is_loopback()
            && !self.options.excludes(address);
        if wanted {
            self.addresses.set(address, ());
        } else {
            self.addresses.remove(&address);
        }
        self.tables[Family::of(address)].change(SetId::Addresses, elements::of_address(address), wanted);
    }

    fn set_elements(&mut self, key: &VipKey, vip: &Vip, present: bool) {
        let table = &mut self.tables[key.family()];
        elements::of_vip(key, vip, &self.node, |set, element| table.change(set, element, present));
        if let Some((choice, chain)) = elements::picking_of(vip) {
            let picking = || rules::picking(&chain, SetId::Endpoints, choice);
            table.count_picking(SetId::Endpoints, choice, &chain, picking, present);
        }
    }

    fn change(&mut self, key: &VipKey, vip: &Vip, present: bool) {
        if self.options.excludes(key.address) {
            return;
        }
        if present {
            self.servers.set(server::of_vip(key, vip, &self.scheduler(vip).0));
        } else {
            self.servers.remove(&frontend(key));
        }
        self.set_elements(key, vip, present);
        if !vip.by_node_port {
            self.count_address(key.address, present);
        }
    }

    /// The scheduler of a VIP. If this is not the scheduler that the Service requests, the second value is the reason.
    fn scheduler(&self, vip: &Vip) -> (Scheduler, Option<String>) {
        let default = &self.options.scheduler;
        let Some(name) = options::requested(vip) else { return (default.clone(), None) };
        let why = match options::scheduler(name) {
            Ok(scheduler) if self.missing.contains(&scheduler) => {
                format!(
                    "this kernel has no IPVS scheduler {scheduler}: load its module with modprobe {}",
                    scheduler.module()
                )
            }
            Ok(scheduler) => return (scheduler, None),
            Err(error) => error.to_string(),
        };
        let annotation = if vip.ipvs_scheduler.is_some() { "ipvs-scheduler" } else { "hash" };
        (default.clone(), Some(format!("annotation localnet.dev/{annotation}: {why}; using {default} instead")))
    }

    /// Plans again the virtual servers of all Services that request this scheduler.
    fn plan_again(&mut self, scheduler: &Scheduler) {
        let names =
            |vip: &Vip| options::requested(vip).is_some_and(|name| options::scheduler(name).as_ref() == Ok(scheduler));
        let concerned = self.programmed.iter().filter(|(key, vip)| names(vip) && !self.options.excludes(key.address));
        let plans: Vec<_> = concerned.map(|(key, vip)| server::of_vip(key, vip, &self.scheduler(vip).0)).collect();
        plans.into_iter().for_each(|plan| self.servers.set(plan));
    }

    /// Diagnostics of Services that do not get the scheduler that they request. There is one per Service, not per VIP.
    fn without_scheduler(&self) -> BTreeSet<Diagnostic> {
        let named = self.programmed.values().filter(|vip| options::requested(vip).is_some());
        let skipped = named.filter_map(|vip| {
            let reason = self.scheduler(vip).1?;
            Some(Diagnostic::new(Code::SchedulerUnknown, Subject::service(&vip.service), reason))
        });
        skipped.collect()
    }

    /// Diagnostics of Services whose endpoints have weights that their scheduler ignores. There is one per Service, not per VIP.
    fn without_weights(&self) -> BTreeSet<Diagnostic> {
        let weighed = self.programmed.values().filter(|vip| vip.weights.differ(&vip.endpoints));
        let skipped = weighed.filter_map(|vip| {
            let (scheduler, _) = self.scheduler(vip);
            let ignores = options::WITHOUT_WEIGHTS.contains(&scheduler.as_str());
            ignores.then(|| vips::unweighed(&vip.service, format!("the IPVS scheduler {scheduler} ignores weights")))
        });
        skipped.collect()
    }

    /// Diagnostics of Services that request hashing, but have a scheduler that does not hash consistently.
    fn without_hash(&self) -> BTreeSet<Diagnostic> {
        let hashed = self.programmed.values().filter(|vip| vip.hash.is_some());
        let skipped = hashed.filter_map(|vip| {
            let (scheduler, _) = self.scheduler(vip);
            let ignores = scheduler.as_str() != options::HASHING;
            ignores
                .then(|| vips::unhashed(&vip.service, format!("the IPVS scheduler {scheduler} has no consistent hash")))
        });
        skipped.collect()
    }

    /// Whether the kernel lacks the scheduler that the Service requests.
    fn is_missing(&self, vip: &Vip) -> bool {
        let named = options::requested(vip).and_then(|name| options::scheduler(name).ok());
        named.is_some_and(|scheduler| self.missing.contains(&scheduler))
    }

    /// Diagnostics of Services with an address that the kernel refuses to add to the interface. Packets to that address do not
    /// reach the Service.
    fn without_address(&self) -> impl Iterator<Item = Diagnostic> {
        let refused = self.refused_addresses.iter().filter(|(_, refusal)| refusal.adding);
        refused.flat_map(|(address, refusal)| {
            let vips = self.programmed.iter().filter(move |(key, vip)| key.address == *address && !vip.by_node_port);
            vips.map(move |(_, vip)| vips::refused(&vip.service, refusal.why.clone()))
        })
    }

    /// Diagnostics of VIPs in excluded CIDRs.
    fn excluded(&self) -> impl Iterator<Item = Diagnostic> {
        let all = self.programmed.iter().filter(|(key, _)| self.options.excludes(key.address));
        all.map(|(key, vip)| {
            let problem = format!(
                "{key} is in an excluded CIDR (--exclude-cidrs), whose virtual servers belong to other programs"
            );
            Diagnostic::new(Code::AddressExcluded, Subject::service(&vip.service), problem)
        })
    }
}

impl Program for Parts {
    fn program(&mut self, key: &VipKey, vip: &Vip, _: &Service) {
        self.moved.add(key, vip);
        self.programmed.insert(*key, vip.clone());
        self.change(key, vip, true);
    }

    fn unprogram(&mut self, key: &VipKey, vip: &Vip) {
        self.moved.remove(key);
        self.change(key, vip, false);
        self.programmed.remove(key);
    }

    fn cluster_ip(&mut self, address: IpAddr, present: bool) {
        self.tables[Family::of(address)].change(SetId::ClusterIps, elements::of_address(address), present);
        if !self.options.excludes(address) {
            self.count_address(address, present);
        }
    }

    fn hairpin(&mut self, hairpin: &Hairpin, present: bool) {
        let family = Family::of(hairpin.endpoint.ip());
        self.tables[family].change(SetId::Hairpin, elements::of_hairpin(hairpin), present);
    }
}
