//! `--dry-run`: prints the plan. It does not access the kernel.

use localnet_client::{Diagnostic, program::Planner};
use localnet_proto::{Changes, Snapshot};

use crate::desired::Desired;

impl Desired {
    /// Plans `state` and returns the elements of the maps. Comments list what is skipped.
    pub fn text(&mut self, state: &Snapshot, changes: &Changes) -> String {
        self.update(state, changes);
        let skipped = self.vips.skipped();
        skipped.iter().map(|skipped| format!("# {skipped}\n")).chain([self.content().text()]).collect()
    }
}

impl Planner for Desired {
    fn plan(&mut self, state: &Snapshot, changes: &Changes) -> anyhow::Result<(String, Vec<Diagnostic>)> {
        Ok((self.text(state, changes), self.vips.skipped()))
    }
}
