//! The desired state of the kernel, updated as Services change.
//!
//! ```text
//!  Snapshot, Changes ──► client::vips (one owner for each VIP) ──► ports ──► plan::port ──► Ruleset ×2
//! ```
//!
//! No I/O. The cost of an update depends on the changes: only ports with a changed VIP are planned again.

mod tables;

use std::collections::BTreeMap;

use localnet_client::{
    Diagnostic,
    vips::{Config, Vips},
};
use localnet_linux_backend::moved::Moved;
use localnet_proto::{Changes, Family, ServiceKey, Snapshot};

use tables::Tables;

use crate::{
    plan::ChainId,
    ruleset::{Input, Ruleset, Subject, Visit},
    save::Found,
};

/// The desired state of the kernel.
#[derive(Debug)]
pub struct Desired {
    /// The VIPs of the node. [`Self::update`] and [`Self::refuse`] plan their rules.
    pub vips: Vips,
    tables: Tables,
    /// See [`Self::limit_sections`].
    section_lines: usize,
}

impl Desired {
    /// An empty desired state.
    pub fn new(config: Config) -> Self {
        let vips = Vips::new(config).choosing_at_random("iptables chooses endpoints at random");
        Self { vips, tables: Tables::new(), section_lines: usize::MAX }
    }

    /// Groups the VIPs of a family by network if the family has more than `vips` VIPs. The default is 1000. Call this before
    /// anything else.
    pub fn set_many_vips(&mut self, vips: usize) {
        self.tables.many_vips = vips;
    }

    /// Splits an input whose chains have more lines than this into several sections. By default, all chains of a table are in one
    /// section, so they change at once.
    pub fn limit_sections(&mut self, lines: usize) {
        self.section_lines = lines;
    }

    /// Forwards packets that connection tracking calls invalid. By default they are dropped, as in kube-proxy. Call this before
    /// anything else.
    pub fn forward_invalid(&mut self) {
        self.tables.drop_invalid = false;
    }

    /// Lets rules count packets. By default, they count none. Call this before anything else, and only if the kernel has the
    /// counters (`Kernel::ensure_counters`).
    pub fn count_packets(&mut self) {
        self.tables.counts_packets = true;
    }

    /// Whether rules count packets.
    pub fn counts_packets(&self) -> bool {
        self.tables.counts_packets
    }

    /// Plans `state`. `changes` contains everything that differs from the previous state. Returns the new diagnostics of what
    /// is not programmed.
    pub fn update(&mut self, state: &Snapshot, changes: &Changes) -> Vec<Diagnostic> {
        self.tables.update_health_checks(state, changes);
        let settled = self.vips.update(state, changes, &mut self.tables);
        if let Some(facts) = self.vips.facts() {
            self.tables.update(facts);
        }
        settled.notices
    }

    /// Skips a Service that the kernel refuses. The Service has no VIPs until it changes or is retried. Returns whether this
    /// refusal is new.
    pub fn refuse(&mut self, key: &ServiceKey, why: String) -> bool {
        let is_news = self.vips.refuse(key, why, &mut self.tables);
        if let Some(facts) = self.vips.facts() {
            self.tables.update(facts);
        }
        is_news
    }

    /// The tables of a family.
    pub fn ruleset(&self, family: Family) -> &Ruleset {
        &self.tables.rulesets[family]
    }

    /// The input that makes a family's tables hold the desired state. If `wanted` is set, it selects which chains and lines of
    /// Services the input contains.
    pub fn input<'a>(&'a self, family: Family, wanted: Option<&'a dyn Fn(&Subject) -> bool>) -> Input<'a> {
        let chains = move |each: &mut Visit<'_>| self.tables.chains(family, false, each);
        Input { ruleset: self.ruleset(family), chains: Box::new(chains), wanted, section_lines: self.section_lines }
    }

    /// The whole desired state of a family, as `iptables-restore` reads it.
    pub fn listing(&self, family: Family) -> String {
        self.ruleset(family).listing(&|each| self.tables.chains(family, true, each))
    }

    /// Sets the applied state to what was read from the kernel.
    pub fn adopt(&mut self, family: Family, found: Found) {
        self.tables.rulesets[family].adopt(found);
    }

    /// Forgets the applied state.
    pub fn forget(&mut self, family: Family) {
        self.tables.forget(family);
    }

    /// Records that the kernel holds the desired state.
    pub fn commit(&mut self, family: Family) {
        self.tables.commit(family);
    }

    /// Empties a chain that is to be removed, but keeps it, because a rule of another program refers to it.
    pub fn keep(&mut self, family: Family, chain: ChainId) {
        self.tables.rulesets[family].keep(chain);
    }

    /// The VIPs that changed since the last commit.
    pub fn moved(&mut self) -> &mut Moved {
        &mut self.tables.moved
    }

    /// The Services that the chains and lines of a family belong to. This function plans all Services of the family again, so
    /// call it rarely.
    pub fn owners(&self, family: Family) -> BTreeMap<Subject, ServiceKey> {
        let Some(facts) = &self.tables.facts else { return BTreeMap::new() };
        let mut owners = BTreeMap::new();
        for (key, port) in &self.tables.ports[family] {
            let rules = self.tables.plan(key, port, facts, family);
            let chains = rules.chains.into_iter().map(|(id, _)| Subject::Chain(id));
            let all = chains.chain(rules.lines.into_iter().map(Subject::Line));
            owners.extend(all.map(|subject| (subject, key.service.clone())));
        }
        owners
    }
}
