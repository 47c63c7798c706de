//! `--dry-run`: prints the plan. It does not access the kernel.

use localnet_client::{Diagnostic, program::Planner};
use localnet_proto::{Changes, Family, Snapshot};

use crate::desired::Desired;

impl Desired {
    /// Plans `state` and returns the tables of both families, as `iptables-restore --noflush` and
    /// `ip6tables-restore --noflush` read them. Comments in the text describe what is skipped.
    pub fn text(&mut self, state: &Snapshot, changes: &Changes) -> String {
        self.update(state, changes);
        let skipped = self.vips.skipped();
        let comments = skipped.iter().map(|skipped| format!("# {skipped}\n"));
        let listings = Family::BOTH.into_iter().map(|family| format!("# {family}\n{}", self.listing(family)));
        comments.chain(listings).collect()
    }
}

impl Planner for Desired {
    fn plan(&mut self, state: &Snapshot, changes: &Changes) -> anyhow::Result<(String, Vec<Diagnostic>)> {
        Ok((self.text(state, changes), self.vips.skipped()))
    }
}
