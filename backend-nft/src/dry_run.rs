//! `--dry-run`: prints the plan as text, without access to the kernel.

use localnet_client::{Diagnostic, program::Planner};
use localnet_linux::nft;
use localnet_proto::{Changes, Snapshot};

use crate::desired::Desired;

impl Desired {
    /// Plans `state` and returns the tables as text for `nft -f`. Comments in the text describe what is skipped.
    pub fn text(&mut self, state: &Snapshot, changes: &Changes) -> String {
        let notices = self.update(state, changes);
        self.release();
        let comments: String = notices.iter().map(|notice| format!("# {notice}\n")).collect();
        let tables: Vec<String> = self.content().iter().map(nft::listing).collect();
        comments + &tables.join("\n")
    }
}

impl Planner for Desired {
    fn plan(&mut self, state: &Snapshot, changes: &Changes) -> anyhow::Result<(String, Vec<Diagnostic>)> {
        Ok((self.text(state, changes), self.vips.skipped()))
    }
}
