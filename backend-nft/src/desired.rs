//! The desired state of the kernel, kept up to date as Services change: the node's VIPs, and the tables that follow
//! from them.
//!
//! ```text
//!  Snapshot, Changes ──► client::vips (one owner for each VIP) ──► elements, chains ──► table::TableState ×2
//! ```
//!
//! No I/O. The cost is O(changes).

use std::net::IpAddr;

use localnet_client::{
    Diagnostic,
    vips::{Config, Facts, Hairpin, Program, Vip, VipKey, Vips},
};
use localnet_linux::nft::{Element, TableContent};
use localnet_linux_backend::{moved::Moved, table::TableState};
use localnet_proto::{ByFamily, Changes, Family, Service, ServiceKey, Snapshot};

use crate::{
    affinity::{Affinity, Chore, Place},
    kernel::LiveTable,
    plan::{
        ChainNames, Choice,
        affinity::Shape,
        chains, elements,
        sets::{Pool, SetId},
    },
};

/// The desired state of the kernel.
#[derive(Debug)]
pub struct Desired {
    /// The VIPs of the node. [`Self::update`] and [`Self::refuse`] plan their elements.
    pub vips: Vips,
    tables: Tables,
}

/// The tables that the VIPs are planned into.
#[derive(Debug)]
struct Tables {
    names: ChainNames,
    tables: ByFamily<TableState<SetId>>,
    moved: Moved,
    /// The choices that VIPs no longer make. A packet that has read the old number needs its chain, so both stay until the kernel has the
    /// new numbers.
    released: Vec<(Family, Pool, Choice)>,
    affinity: Affinity,
    /// The pools, sizes and timeouts that session affinity uses.
    shapes: ByFamily<Shape>,
    /// Whether rules count refused packets.
    counts: bool,
}

impl Desired {
    /// An empty desired state. It has no fixed chains yet, because these need the node's facts.
    pub fn new(config: Config) -> Self {
        let tables = Tables {
            names: ChainNames::default(),
            tables: ByFamily::from_fn(TableState::new),
            moved: Moved::default(),
            released: Vec::new(),
            affinity: Affinity::default(),
            shapes: ByFamily::default(),
            counts: false,
        };
        Self { vips: Vips::new(config), tables }
    }

    /// Removes the choices that no VIP makes any more. Call this after the kernel has the new numbers. Returns whether
    /// anything has changed.
    pub fn release(&mut self) -> bool {
        let Tables { names, tables, released, .. } = &mut self.tables;
        let mut changed = false;
        for (family, pool, choice) in std::mem::take(released) {
            let (table, chain) = (&mut tables[family], || chains::lb(names, pool, choice));
            if table.count_picking(pool.endpoints(), choice, &names.chain(pool, choice), chain, false) {
                table.change(pool.sizes(), elements::of_size(pool, choice, names), false);
                changed = true;
            }
        }
        changed
    }

    /// Lets rules count refused packets.
    pub fn count_refused(&mut self) {
        if self.tables.counts {
            return;
        }
        let vips: Vec<_> = self.vips.programmed().map(|(_, key, vip)| (key, vip)).collect();
        vips.iter().for_each(|(key, vip)| self.tables.change(key, vip, false));
        self.tables.counts = true;
        self.tables.names = ChainNames::counting();
        vips.iter().for_each(|(key, vip)| self.tables.change(key, vip, true));
        self.release();
        Family::BOTH.into_iter().for_each(|family| self.tables.tables[family].count(true));
        self.update_chains(true);
    }

    /// Chooses endpoints at random, even if a Service requests hashing. Call this before the first update.
    pub fn choose_at_random(&mut self, why: &str) {
        let vips = std::mem::take(&mut self.vips);
        self.vips = vips.choosing_at_random(why);
    }

    /// The VIPs that changed since the last commit.
    pub fn moved(&mut self) -> &mut Moved {
        &mut self.tables.moved
    }

    /// The table of each family.
    pub fn tables(&mut self) -> &mut ByFamily<TableState<SetId>> {
        &mut self.tables.tables
    }

    /// The desired content of both tables.
    pub fn content(&self) -> Vec<TableContent> {
        self.tables.tables.values().iter().map(TableState::content).collect()
    }

    /// The pools, sizes and timeouts that session affinity uses in a family.
    pub fn affinity(&self, family: Family) -> &Shape {
        &self.tables.shapes[family]
    }

    /// Records that the changes of a table were applied.
    pub fn commit(&mut self, family: Family) {
        self.tables.tables[family].commit();
        self.tables.affinity.commit(family);
    }

    /// Sets the applied state of a table, as read from the kernel; `None` if there is no table.
    pub fn adopt(&mut self, family: Family, found: Option<LiveTable>) {
        let Tables { affinity, .. } = &self.tables;
        let keys = affinity.programmed(family);
        let sticky: Vec<_> = keys.filter_map(|key| Some((*key, self.vips.vip(key)?))).collect();
        sticky.iter().for_each(|(key, vip)| self.tables.remove(key, vip));
        let sets = found.iter().flat_map(|found| &found.sets).flatten();
        self.tables.affinity.adopt(family, sets.map(|(set, elements)| (&**set, elements.as_slice())));
        sticky.iter().for_each(|(key, vip)| self.tables.add(key, vip));
        self.update_chains(false);
        self.tables.tables[family].adopt(found);
    }

    /// The pending changes to the remembered clients of session affinity.
    pub fn chores(&self) -> Vec<(Place, Chore)> {
        self.tables.affinity.chores()
    }

    /// Records that the chore at `place` is done.
    pub fn done(&mut self, place: &Place) {
        self.tables.affinity.done(place);
    }

    /// Marks the applied state of a table as unknown.
    pub fn forget(&mut self, family: Family) {
        self.tables.tables[family].forget();
    }

    /// Plans `state`, which differs from the previous state only in `changes`. Returns what is newly skipped.
    pub fn update(&mut self, state: &Snapshot, changes: &Changes) -> Vec<Diagnostic> {
        let settled = self.vips.update(state, changes, &mut self.tables);
        self.update_chains(settled.facts_changed);
        settled.notices
    }

    /// Skips a Service that the kernel refuses. The Service has no VIPs until it changes or is retried. Returns whether
    /// this refusal is new.
    pub fn refuse(&mut self, key: &ServiceKey, why: String) -> bool {
        let is_news = self.vips.refuse(key, why, &mut self.tables);
        self.update_chains(false);
        is_news
    }

    /// The Service that an element belongs to, if it belongs to exactly one.
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

    /// Updates the chains, which depend on the facts and on the pools in use.
    fn update_chains(&mut self, fixed_change: bool) {
        if let Some(facts) = self.vips.facts() {
            self.tables.update_chains(facts, fixed_change);
        }
    }
}

impl Tables {
    fn update_chains(&mut self, facts: &Facts, fixed_change: bool) {
        for family in Family::BOTH {
            let shape = self.affinity.shape(family);
            let table = &mut self.tables[family];
            let had_affinity = self.shapes[family].slots() > 0;
            let has_affinity = shape.slots() > 0;
            if shape != self.shapes[family] {
                table.set_numbered(shape.slots(), shape.chains());
                self.shapes[family] = shape;
            }
            if fixed_change || had_affinity != has_affinity {
                table.set_fixed_chains(chains::fixed(facts, family, has_affinity, self.counts));
            }
        }
    }
}

impl Program for Tables {
    fn program(&mut self, key: &VipKey, vip: &Vip, _: &Service) {
        self.add(key, vip);
    }

    fn unprogram(&mut self, key: &VipKey, vip: &Vip) {
        self.remove(key, vip);
    }

    fn cluster_ip(&mut self, address: IpAddr, present: bool) {
        self.tables[Family::of(address)].change(SetId::ClusterIps, elements::of_address(address), present);
    }

    fn hairpin(&mut self, hairpin: &Hairpin, present: bool) {
        let family = Family::of(hairpin.endpoint.ip());
        self.tables[family].change(SetId::Hairpin, elements::of_hairpin(hairpin), present);
    }
}

impl Tables {
    fn add(&mut self, key: &VipKey, vip: &Vip) {
        self.moved.add(key, vip);
        self.affinity.program(key, vip);
        self.change(key, vip, true);
    }

    fn remove(&mut self, key: &VipKey, vip: &Vip) {
        self.moved.remove(key);
        self.change(key, vip, false);
        self.affinity.unprogram(key, vip);
    }

    fn change(&mut self, key: &VipKey, vip: &Vip, present: bool) {
        let Self { names, tables, affinity, released, .. } = self;
        let table = &mut tables[key.family()];
        let slots = affinity.slots(key, vip);
        elements::of_vip(key, vip, slots, names, |set, element| table.change(set, element, present));
        for (pool, choice) in elements::pools_of(vip) {
            let chain = || chains::lb(names, pool, choice);
            if !present {
                released.push((key.family(), pool, choice));
            } else if table.count_picking(pool.endpoints(), choice, &names.chain(pool, choice), chain, true) {
                table.change(pool.sizes(), elements::of_size(pool, choice, names), true);
            }
        }
    }
}
