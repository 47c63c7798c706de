//! `--dry-run`: prints the plan as text, without access to the kernel.

use std::{
    io::{self, Write as _},
    net::IpAddr,
};

use localnet_client::{Backend, Mode, Synced, vips::Config};
use localnet_linux::nft;
use localnet_proto::{Changes, Snapshot};

use crate::desired::Desired;

/// Prints the tables for each state.
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

impl Backend for DryRun {
    fn name(&self) -> &'static str {
        "nft"
    }

    fn mode(&self) -> Option<Mode> {
        Some(Mode::Nftables)
    }

    async fn sync(&mut self, state: &Snapshot, changes: &Changes) -> anyhow::Result<Synced> {
        let text = self.text(state, changes);
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()?;
        Ok(Synced::default())
    }

    async fn cleanup(&mut self) -> anyhow::Result<()> {
        Ok(())
    }
}
