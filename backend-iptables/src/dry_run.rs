//! `--dry-run`: prints the plan. It does not access the kernel.

use std::net::IpAddr;

use localnet_client::{Diagnostic, program::Planner, vips::Config};
use localnet_proto::{Changes, Family, Snapshot};

use crate::desired::Desired;

/// Plans states.
#[derive(Debug)]
pub struct DryRun {
    desired: Desired,
}

impl DryRun {
    /// A dry run with this configuration.
    pub fn new(config: Config) -> Self {
        Self { desired: Desired::new(config) }
    }

    /// Sets the addresses of the node's interfaces.
    pub fn with_addresses(mut self, addresses: Vec<IpAddr>) -> Self {
        self.desired.set_local_addresses(addresses);
        self
    }

    /// Forwards packets that connection tracking calls invalid.
    pub fn forwarding_invalid(mut self) -> Self {
        self.desired.forward_invalid();
        self
    }

    /// Answers NodePorts on 127.0.0.1, too.
    pub fn with_localhost_node_ports(mut self) -> Self {
        self.desired.answer_on_localhost();
        self
    }

    /// The tables of both families, as `iptables-restore --noflush` and `ip6tables-restore --noflush` read them. Comments name
    /// what is skipped.
    pub fn text(&mut self, state: &Snapshot, changes: &Changes) -> String {
        self.desired.update(state, changes);
        let skipped = self.desired.skipped();
        let comments = skipped.iter().map(|skipped| format!("# {skipped}\n"));
        let listings = Family::BOTH.into_iter().map(|family| format!("# {family}\n{}", self.desired.listing(family)));
        comments.chain(listings).collect()
    }
}

impl Planner for DryRun {
    fn plan(&mut self, state: &Snapshot, changes: &Changes) -> anyhow::Result<(String, Vec<Diagnostic>)> {
        Ok((self.text(state, changes), self.desired.skipped()))
    }
}
