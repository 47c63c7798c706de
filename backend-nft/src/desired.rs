//! What the kernel should hold, kept up to date as services change: the node's VIPs, and what follows for each table.
//!
//! ```text
//!  Snapshot, Changes ──► client::vips (one owner for each VIP) ──► elements, chains ──► table::TableState ×2
//! ```
//!
//! No I/O. Costs what changed.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
};

use localnet_client::{
    Skipped,
    vips::{Config, Effective, Facts, Hairpin, Notice, Program, Vip, VipKey, Vips},
};
use localnet_linux::{
    conntrack::{Endpoints, Frontend},
    nft::{Element, Family, TableContent},
};
use localnet_proto::{Changes, ServiceKey, Snapshot};

use crate::{
    affinity::{Affinity, Chore, Place},
    kernel::Found,
    plan::{
        ChainNames, chains, elements, family_of, protocol_of,
        sets::{Pool, SetId},
    },
    table::TableState,
};

/// What the kernel should hold.
#[derive(Debug)]
pub struct Desired {
    vips: Vips,
    tables: Tables,
}

/// The VIPs as tables.
#[derive(Debug)]
struct Tables {
    names: ChainNames,
    pools: [Pools; 2],
    tables: [TableState; 2],
    /// VIPs whose programming differs from what was told last, and who may answer now.
    moved: HashMap<VipKey, Option<Endpoints>>,
    affinity: Affinity,
}

impl Desired {
    /// Nothing yet: not even the fixed chains, which need the node's facts.
    pub fn new(config: Config) -> Self {
        let tables = Tables {
            names: ChainNames::default(),
            pools: Family::ALL.map(|_| Pools::default()),
            tables: Family::ALL.map(TableState::new),
            moved: HashMap::new(),
            affinity: Affinity::default(),
        };
        Self { vips: Vips::new(config), tables }
    }

    /// The configuration that plans are made with; none before the first state.
    pub fn configuration(&self) -> Option<Effective> {
        self.vips.effective()
    }

    /// Whose endpoints may differ since this was called last, and who they are now; none if it is no VIP any more.
    pub fn take_moved(&mut self) -> Vec<(Frontend, Option<Endpoints>)> {
        std::mem::take(&mut self.tables.moved).into_iter().map(|(vip, now)| (frontend(&vip), now)).collect()
    }

    /// Tells the addresses of the node's interfaces; says whether the next update moves NodePorts for it.
    pub fn set_local_addresses(&mut self, addresses: Vec<IpAddr>) -> bool {
        self.vips.set_local_addresses(addresses)
    }

    /// The tables, IPv4 first.
    pub fn tables(&mut self) -> &mut [TableState; 2] {
        &mut self.tables.tables
    }

    /// Both tables as they should be.
    pub fn content(&self) -> Vec<TableContent> {
        self.tables.tables.iter().map(TableState::content).collect()
    }

    /// What that table's changes said was applied.
    pub fn commit(&mut self, family: Family) {
        self.tables.table(family).commit();
        self.tables.affinity.commit(family);
    }

    /// This was found in the kernel's table, or that there is none.
    pub fn adopt(&mut self, family: Family, found: Option<Found>) {
        let Tables { affinity, .. } = &self.tables;
        let keys = affinity.programmed(family);
        let sticky: Vec<_> = keys.filter_map(|key| Some((*key, self.vips.vip(key)?))).collect();
        sticky.iter().for_each(|(key, vip)| self.tables.unprogram(key, vip));
        let sets = found.iter().flat_map(|found| &found.sets).flatten();
        self.tables.affinity.adopt(family, sets.map(|(set, elements)| (&**set, elements.as_slice())));
        sticky.iter().for_each(|(key, vip)| self.tables.program(key, vip));
        self.update_chains(false);
        self.tables.table(family).adopt(found);
    }

    /// What is to be done with the clients of session affinity that the kernel remembers.
    pub fn chores(&self) -> Vec<(Place, Chore)> {
        self.tables.affinity.chores()
    }

    /// The chore there is done.
    pub fn done(&mut self, place: &Place) {
        self.tables.affinity.done(place);
    }

    /// It is no longer known what the kernel holds in that table.
    pub fn forget(&mut self, family: Family) {
        self.tables.table(family).forget();
    }

    /// Goes to `state`, of which only `changes` differs from the state before. Says what is not programmed, once.
    pub fn update(&mut self, state: &Snapshot, changes: &Changes) -> Vec<Notice> {
        let settled = self.vips.update(state, changes, &mut self.tables);
        self.update_chains(settled.facts_changed);
        settled.notices
    }

    /// Takes a service out that the kernel refuses; the others are programmed without it until it changes or is tried again. Says
    /// whether that is news.
    pub fn refuse(&mut self, key: &ServiceKey, why: String) -> bool {
        let is_news = self.vips.refuse(key, why, &mut self.tables);
        self.update_chains(false);
        is_news
    }

    /// The services that the kernel refuses.
    pub fn refused(&self) -> BTreeSet<ServiceKey> {
        self.vips.refused()
    }

    /// The next update tries them again, though they have not changed.
    pub fn retry_refused(&mut self) {
        self.vips.retry_refused();
    }

    /// What of the services is not programmed, and why.
    pub fn skipped(&self) -> Vec<Skipped> {
        self.vips.skipped()
    }

    /// The service whose element this is, if it is of one only.
    pub fn owner(&self, set: SetId, element: &Element) -> Option<ServiceKey> {
        let comment = element.comment.as_deref();
        let owns = |vip: &VipKey, held: &Vip| {
            if comment.is_some_and(|comment| *comment != *held.comment) {
                return false;
            }
            let mut found = false;
            let slots = self.tables.affinity.slots(vip, held);
            let names = &self.tables.names;
            elements::of_vip(vip, held, slots, names, |id, one| found |= id == set && one.key == element.key);
            found
        };
        self.vips.programmed().find(|(_, vip, held)| owns(vip, held)).map(|(service, ..)| service.clone())
    }

    /// Chains depend on the facts and on which pools are in use.
    fn update_chains(&mut self, fixed_change: bool) {
        if let Some(facts) = self.vips.facts() {
            self.tables.update_chains(facts, fixed_change);
        }
    }
}

impl Tables {
    fn table(&mut self, family: Family) -> &mut TableState {
        &mut self.tables[family as usize]
    }

    fn update_chains(&mut self, facts: &Facts, fixed_change: bool) {
        for family in Family::ALL {
            let table = &mut self.tables[family as usize];
            let affinity_change = table.set_affinity(self.affinity.shape(family));
            if fixed_change || affinity_change {
                table.set_fixed_chains(chains::fixed(facts, family, table.has_affinity()));
            }
            let names = &self.names;
            table.set_pools(self.pools[family as usize].used(), |pool, slots| chains::lb(names, pool, slots));
        }
    }
}

impl Program for Tables {
    fn program(&mut self, key: &VipKey, vip: &Vip) {
        self.moved.insert(*key, Some(vip.serving.clone().into()));
        self.affinity.program(key, vip);
        let family = family_of(key.family());
        let table = &mut self.tables[family as usize];
        let slots = self.affinity.slots(key, vip);
        elements::of_vip(key, vip, slots, &self.names, |set, element| table.set(set, element));
        self.pools[family as usize].add(vip);
    }

    fn unprogram(&mut self, key: &VipKey, vip: &Vip) {
        self.moved.insert(*key, None);
        let family = family_of(key.family());
        let table = &mut self.tables[family as usize];
        let slots = self.affinity.slots(key, vip);
        elements::of_vip(key, vip, slots, &self.names, |set, element| table.remove(set, &element.key));
        self.affinity.unprogram(key, vip);
        self.pools[family as usize].remove(vip);
    }

    fn cluster_ip(&mut self, address: IpAddr, present: bool) {
        self.member(SetId::ClusterIps, Family::of(&address), elements::of_cluster_ip(address), present);
    }

    fn hairpin(&mut self, hairpin: &Hairpin, present: bool) {
        self.member(SetId::Hairpin, Family::of(&hairpin.endpoint.ip()), elements::of_hairpin(hairpin), present);
    }
}

impl Tables {
    fn member(&mut self, set: SetId, family: Family, element: Element, present: bool) {
        let table = self.table(family);
        if present { table.set(set, element) } else { table.remove(set, &element.key) }
    }
}

/// How many VIPs of a family use each chain that picks.
#[derive(Debug, Default)]
pub(crate) struct Pools(BTreeMap<(Pool, u32), usize>);

impl Pools {
    pub(crate) fn add(&mut self, vip: &Vip) {
        for pool in elements::pools_of(vip) {
            *self.0.entry(pool).or_default() += 1;
        }
    }

    pub(crate) fn remove(&mut self, vip: &Vip) {
        for pool in elements::pools_of(vip) {
            match self.0.get_mut(&pool) {
                Some(users) if *users > 1 => *users -= 1,
                _ => _ = self.0.remove(&pool),
            }
        }
    }

    /// Those that any uses.
    pub(crate) fn used(&self) -> &BTreeMap<(Pool, u32), usize> {
        &self.0
    }
}

/// What flows to a VIP are known by.
pub(crate) fn frontend(vip: &VipKey) -> Frontend {
    Frontend::new(protocol_of(vip.protocol), vip.socket())
}
