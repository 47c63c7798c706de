//! What the kernel should hold, kept up to date as services change: the node's VIPs, and what follows for IPVS, for the addresses
//! of the interface and for each table.
//!
//! ```text
//!  Snapshot, Changes ──► client::vips (one owner for each VIP) ─┬─► Servers
//!                                                               ├─► addresses
//!                                                               └─► elements, chains ──► TableState ×2
//! ```
//!
//! No I/O. Costs what changed.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
};

use localnet_client::{
    DiffStore, Skipped,
    vips::{Config, Effective, Facts, Hairpin, Notice, Program, Vip, VipKey, Vips},
};
use localnet_linux::{
    conntrack::Endpoints,
    dummy,
    ipvs::{Frontend, Scheduler},
    nft::{Element, Family, TableContent},
};
use localnet_proto::{Changes, ServiceKey, Snapshot};

use crate::{
    Options, options,
    plan::{self, chains, elements, family_of, frontend, server, sets::SetId},
    servers::Servers,
    table::TableState,
};

/// What the kernel should hold.
#[derive(Debug)]
pub struct Desired {
    vips: Vips,
    parts: Parts,
}

/// The VIPs as parts of the kernel.
#[derive(Debug)]
struct Parts {
    options: Options,
    /// The addresses that the Node object has.
    node: Vec<IpAddr>,
    /// The addresses of all interfaces but ours.
    local: BTreeSet<IpAddr>,
    /// All that is programmed.
    programmed: BTreeMap<VipKey, Vip>,
    /// How many ask for an address: VIPs, and ClusterIPs.
    users: BTreeMap<IpAddr, usize>,
    servers: Servers,
    addresses: DiffStore<IpAddr, ()>,
    /// Addresses that the kernel refuses to add, or to remove, and why.
    refused_addresses: BTreeMap<IpAddr, Refusal>,
    /// Those that are tried again.
    retried_addresses: BTreeMap<IpAddr, Refusal>,
    tables: [TableState; 2],
    /// Schedulers that the kernel does not have.
    missing: BTreeSet<Scheduler>,
    /// VIPs whose programming differs from what was told last, and who may answer now.
    moved: HashMap<VipKey, Option<Endpoints>>,
}

/// An address that the kernel refuses to add, or to remove.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Refusal {
    adding: bool,
    why: String,
}

impl Desired {
    /// Nothing yet: not even the fixed chains, which need the node's facts.
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
            tables: Family::ALL.map(TableState::new),
            missing: BTreeSet::new(),
            moved: HashMap::new(),
        };
        Self { vips: Vips::new(config), parts }
    }

    /// The configuration that plans are made with; none before the first state.
    pub fn configuration(&self) -> Option<Effective> {
        self.vips.effective()
    }

    /// What the operator chose.
    pub fn options(&self) -> &Options {
        &self.parts.options
    }

    /// Whose endpoints may differ since this was called last, and who they are now; none if it is no VIP any more.
    pub fn take_moved(&mut self) -> Vec<(Frontend, Option<Endpoints>)> {
        std::mem::take(&mut self.parts.moved).into_iter().map(|(vip, now)| (frontend(&vip), now)).collect()
    }

    /// Tells the addresses of the node's interfaces, without ours; says whether the next update moves anything for it.
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

    /// The addresses of the interface.
    pub fn addresses(&mut self) -> &mut DiffStore<IpAddr, ()> {
        &mut self.parts.addresses
    }

    /// The table of a family.
    pub fn table(&mut self, family: Family) -> &mut TableState {
        &mut self.parts.tables[family as usize]
    }

    /// The addresses that the interface should have, but for those that the kernel refuses.
    pub fn wanted_addresses(&self) -> impl Iterator<Item = IpAddr> {
        let all = self.parts.addresses.iter_desired().map(|(address, ())| *address);
        all.filter(|address| !self.parts.refused_addresses.contains_key(address))
    }

    /// The addresses to add and those to remove, but for those of which the kernel has refused just that.
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

    /// All changes of addresses were made but these, of which those that are no shortage count as refused. Says what is news.
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
        // What is refused is as due as before.
        for (address, refusal) in refused_addresses {
            addresses.found(*address, (!refusal.adding).then_some(()));
        }
        news
    }

    /// Both tables as they should be.
    pub fn content(&self) -> Vec<TableContent> {
        self.parts.tables.iter().map(TableState::content).collect()
    }

    /// It is no longer known what the kernel holds.
    pub fn forget(&mut self) {
        self.parts.servers.forget();
        self.parts.addresses.forget();
        self.parts.tables.iter_mut().for_each(TableState::forget);
    }

    /// What the kernel refused, and the schedulers that it did not have, are tried again.
    pub fn retry_refused(&mut self) {
        let missing = std::mem::take(&mut self.parts.missing);
        missing.iter().for_each(|scheduler| self.parts.plan_again(scheduler));
        self.parts.servers.retry_refused();
        self.parts.retried_addresses = std::mem::take(&mut self.parts.refused_addresses);
    }

    /// The services of which the kernel refuses something.
    pub fn refused(&self) -> BTreeSet<ServiceKey> {
        let servers = self.parts.servers.refused().filter_map(|(of, _)| self.service(of).cloned());
        let schedulers = self.parts.programmed.values().filter(|vip| self.parts.is_missing(vip));
        let addresses = self.parts.without_address().map(|skipped| skipped.service);
        servers.chain(schedulers.map(|vip| vip.service.clone())).chain(addresses).collect()
    }

    /// Goes to `state`, of which only `changes` differs from the state before. Says what is not programmed, once.
    pub fn update(&mut self, state: &Snapshot, changes: &Changes) -> Vec<Notice> {
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

    /// The kernel has no such scheduler: virtual servers get the one that goes without saying. Says whether that is another one.
    pub fn lacks(&mut self, scheduler: &Scheduler) -> bool {
        let news = *scheduler != self.parts.options.scheduler && self.parts.missing.insert(scheduler.clone());
        if news {
            self.parts.plan_again(scheduler);
        }
        news
    }

    /// What of the services is not programmed, and why.
    pub fn skipped(&self) -> Vec<Skipped> {
        let mut skipped = self.vips.skipped();
        let service = |of: &Frontend| self.service(of).cloned();
        let refused = self.parts.servers.refused();
        skipped.extend(refused.filter_map(|(of, why)| Some(Skipped { service: service(of)?, reason: why.clone() })));
        skipped.extend(self.parts.without_address());
        skipped.extend(self.parts.excluded());
        skipped.extend(self.parts.without_scheduler());
        skipped.sort_unstable();
        skipped.dedup();
        skipped
    }

    /// Whose virtual server it is.
    pub fn service(&self, of: &Frontend) -> Option<&ServiceKey> {
        self.parts.programmed.get(&plan::vip(of)).map(|vip| &vip.service)
    }
}

impl Parts {
    fn table(&mut self, family: Family) -> &mut TableState {
        &mut self.tables[family as usize]
    }

    fn set_chains(&mut self, facts: &Facts) {
        for family in Family::ALL {
            self.table(family).set_fixed_chains(chains::fixed(facts, family));
        }
    }

    /// Which sources may reach a VIP depends on them.
    fn set_node_addresses(&mut self, addresses: &[IpAddr]) {
        let filtered = self.programmed.iter().filter(|(_, vip)| vip.sources.is_some());
        let filtered: Vec<_> = filtered.map(|(key, vip)| (*key, vip.clone())).collect();
        filtered.iter().for_each(|(key, vip)| self.set_elements(key, vip, false));
        self.node = addresses.to_vec();
        filtered.iter().for_each(|(key, vip)| self.set_elements(key, vip, true));
    }

    /// An address that another interface has is the node's already, and stays there.
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
        self.member(SetId::Addresses, elements::of_address(address), Family::of(&address), wanted);
    }

    fn member(&mut self, set: SetId, element: Element, family: Family, present: bool) {
        let table = self.table(family);
        if present { table.set(set, element) } else { table.remove(set, &element.key) }
    }

    fn set_elements(&mut self, key: &VipKey, vip: &Vip, present: bool) {
        let table = &mut self.tables[family_of(key.family()) as usize];
        elements::of_vip(key, vip, &self.node, |set, element| {
            if present { table.set(set, element) } else { table.remove(set, &element.key) }
        });
        if let Some(slots) = elements::slots_of(vip) {
            table.count_picking(slots, present);
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

    /// Who chooses the endpoints of a VIP, and why it is not who the service names.
    fn scheduler(&self, vip: &Vip) -> (Scheduler, Option<String>) {
        let default = &self.options.scheduler;
        let Some(name) = vip.ipvs_scheduler.as_deref() else { return (default.clone(), None) };
        let why = match options::scheduler(name) {
            Ok(scheduler) if self.missing.contains(&scheduler) => {
                format!("this kernel has no scheduler {scheduler}: load its module (modprobe {})", scheduler.module())
            }
            Ok(scheduler) => return (scheduler, None),
            Err(error) => error.to_string(),
        };
        (default.clone(), Some(format!("annotation localnet.dev/ipvs-scheduler: {why}; {default} is used instead")))
    }

    /// Virtual servers of services that name this scheduler.
    fn plan_again(&mut self, scheduler: &Scheduler) {
        let names = |vip: &Vip| {
            vip.ipvs_scheduler.as_deref().is_some_and(|name| options::scheduler(name).as_ref() == Ok(scheduler))
        };
        let concerned = self.programmed.iter().filter(|(key, vip)| names(vip) && !self.options.excludes(key.address));
        let plans: Vec<_> = concerned.map(|(key, vip)| server::of_vip(key, vip, &self.scheduler(vip).0)).collect();
        plans.into_iter().for_each(|plan| self.servers.set(plan));
    }

    /// Services that do not get the scheduler that they name; said once for each, not for each of its VIPs.
    fn without_scheduler(&self) -> BTreeSet<Skipped> {
        let named = self.programmed.values().filter(|vip| vip.ipvs_scheduler.is_some());
        let skipped = named.filter_map(|vip| {
            let reason = self.scheduler(vip).1?;
            Some(Skipped { service: vip.service.clone(), reason })
        });
        skipped.collect()
    }

    /// The scheduler that the service names is one that the kernel does not have.
    fn is_missing(&self, vip: &Vip) -> bool {
        let named = vip.ipvs_scheduler.as_deref().and_then(|name| options::scheduler(name).ok());
        named.is_some_and(|scheduler| self.missing.contains(&scheduler))
    }

    /// Services whose address the kernel does not give to the interface: nobody on this node, and nobody whose packets are
    /// addressed to it, gets to their virtual servers.
    fn without_address(&self) -> impl Iterator<Item = Skipped> {
        let refused = self.refused_addresses.iter().filter(|(_, refusal)| refusal.adding);
        refused.flat_map(|(address, refusal)| {
            let vips = self.programmed.iter().filter(move |(key, vip)| key.address == *address && !vip.by_node_port);
            vips.map(move |(_, vip)| Skipped { service: vip.service.clone(), reason: refusal.why.clone() })
        })
    }

    /// VIPs that are somebody else's.
    fn excluded(&self) -> impl Iterator<Item = Skipped> {
        let all = self.programmed.iter().filter(|(key, _)| self.options.excludes(key.address));
        all.map(|(key, vip)| Skipped {
            service: vip.service.clone(),
            reason: format!("{key} is in an excluded CIDR (--exclude-cidrs): its virtual server is somebody else's"),
        })
    }
}

impl Program for Parts {
    fn program(&mut self, key: &VipKey, vip: &Vip) {
        self.moved.insert(*key, Some(vip.serving.clone().into()));
        self.programmed.insert(*key, vip.clone());
        self.change(key, vip, true);
    }

    fn unprogram(&mut self, key: &VipKey, vip: &Vip) {
        self.moved.insert(*key, None);
        self.change(key, vip, false);
        self.programmed.remove(key);
    }

    fn cluster_ip(&mut self, address: IpAddr, present: bool) {
        self.member(SetId::ClusterIps, elements::of_address(address), Family::of(&address), present);
        if !self.options.excludes(address) {
            self.count_address(address, present);
        }
    }

    fn hairpin(&mut self, hairpin: &Hairpin, present: bool) {
        let family = Family::of(&hairpin.endpoint.ip());
        self.member(SetId::Hairpin, elements::of_hairpin(hairpin), family, present);
    }
}
