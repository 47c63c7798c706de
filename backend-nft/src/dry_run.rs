//! `--dry-run`: prints the plan as text, without access to the kernel.

use std::net::IpAddr;

use localnet_client::{Diagnostic, program::Planner, vips::Config};
use localnet_linux::nft;
use localnet_proto::{Changes, Snapshot};

use crate::desired::Desired;

/// Plans states.
#[derive(Debug)]
pub struct DryRun {
    desired: Desired,
}

impl DryRun {
    /// Prints the plans of this configuration.
    pub fn new(config: Config) -> Self {
        Self { desired: Desired::new(config) }
    }

    /// Sets the addresses of the node's interfaces.
    pub fn with_addresses(mut self, addresses: Vec<IpAddr>) -> Self {
        self.desired.set_local_addresses(addresses);
        self
    }

    /// The tables as text for `nft -f`. Comments in it describe what is skipped.
    pub fn text(&mut self, state: &Snapshot, changes: &Changes) -> String {
        let notices = self.desired.update(state, changes);
        let comments: String = notices.iter().map(|notice| format!("# {notice}\n")).collect();
        let tables: Vec<String> = self.desired.content().iter().map(nft::listing).collect();
        comments + &tables.join("\n")
    }
}

impl Planner for DryRun {
    fn plan(&mut self, state: &Snapshot, changes: &Changes) -> anyhow::Result<(String, Vec<Diagnostic>)> {
        Ok((self.text(state, changes), self.desired.skipped()))
    }
}
