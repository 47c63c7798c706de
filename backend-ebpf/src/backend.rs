//! [`EbpfBackend`]: applies the diff of each state to the maps. If the applied content is unknown, it first reads the maps.

use std::net::IpAddr;

use anyhow::Context as _;
use localnet_client::{
    Backend, Synced,
    vips::{Config, Effective},
};
use localnet_linux::conntrack::Commit;
use localnet_linux_backend::live::LinuxBackend;
use localnet_proto::{Changes, Family, Snapshot};
use tracing::{debug, warn};

use crate::{
    desired::Desired,
    kernel::{Full, Kernel},
};

/// Programs the maps through a `Kernel`.
#[derive(Debug)]
pub struct EbpfBackend<K> {
    kernel: K,
    desired: Desired,
    /// Whether UDP sockets may have endpoints that no longer exist.
    may_be_stale: bool,
    /// Whether the log already has a warning that they cannot be ended.
    warned: bool,
}

impl<K: Kernel> EbpfBackend<K> {
    /// A backend that has neither read nor written anything yet.
    pub fn new(config: Config, kernel: K) -> Self {
        Self { kernel, desired: Desired::new(config), may_be_stale: false, warned: false }
    }

    /// The kernel that the backend programs.
    pub fn kernel_mut(&mut self) -> &mut K {
        &mut self.kernel
    }

    /// Applies `state`. `changes` contains everything that differs from the previous state.
    ///
    /// # Errors
    /// Returns an error if the programs cannot be attached, or if the maps cannot be read or changed.
    pub fn apply(&mut self, state: &Snapshot, changes: &Changes) -> anyhow::Result<Synced> {
        for notice in self.desired.update(state, changes) {
            warn!("{notice}");
        }
        let was_known = self.desired.is_known();
        // Endpoints may have disappeared while no backend was running.
        self.may_be_stale |= self.desired.take_moved() || !was_known;
        if let Err(error) = self.write() {
            // The kernel has applied an unknown part of the changes.
            self.desired.forget();
            return Err(error.context(format!("cannot program the eBPF maps with revision {}", state.revision)));
        }
        self.end_sockets();
        let full = if was_known { Vec::new() } else { Family::BOTH.to_vec() };
        Ok(Synced { skipped: self.desired.vips.skipped(), full, ..Synced::default() })
    }

    /// Ends the stale UDP sockets, if there may be any. After a failure, the next call tries again. After a sync that has failed, the
    /// maps may still lead to endpoints that are gone, so sockets stay until a sync succeeds.
    pub fn end_sockets(&mut self) {
        if !self.may_be_stale || !self.desired.is_known() {
            return;
        }
        let ended = self.kernel.end_sockets(&|vip, endpoint| self.desired.is_stale(vip, endpoint));
        self.may_be_stale = ended.is_err();
        let warned = std::mem::replace(&mut self.warned, ended.is_err());
        match ended {
            Ok(()) => {}
            Err(error) if warned => debug!("some UDP sockets still keep endpoints that no longer exist: {error:#}"),
            Err(error) => warn!("some UDP sockets keep endpoints that no longer exist: {error:#}"),
        }
    }

    fn write(&mut self) -> anyhow::Result<()> {
        if !self.desired.is_known() {
            self.kernel.attach()?;
            self.desired.adopt(self.kernel.read().context("cannot read the maps")?);
        }
        let changes = self.desired.changes();
        let mut applied = self.kernel.apply(&changes);
        if applied.as_ref().is_err_and(anyhow::Error::is::<Full>) {
            // What is no longer desired takes room. Usually it is deleted last, so it would stay as long as the map is full.
            self.kernel.apply(&self.desired.deletions())?;
            applied = self.kernel.apply(&changes);
        }
        applied?;
        debug!(changes = changes.len(), "maps changed");
        self.desired.commit();
        Ok(())
    }
}

impl<K: Kernel> LinuxBackend for EbpfBackend<K> {
    fn set_local_addresses(&mut self, addresses: Vec<IpAddr>) -> bool {
        self.desired.vips.set_local_addresses(addresses)
    }

    fn forget(&mut self) {
        self.desired.forget();
    }

    /// Empty, because connections that the programs translate have no entries in connection tracking that could be stale.
    fn take_commit(&mut self, _: &[Family]) -> Commit {
        Commit::default()
    }
}

impl<K: Kernel> Backend for EbpfBackend<K> {
    fn name(&self) -> &'static str {
        "ebpf"
    }

    fn configuration(&self) -> Option<Effective> {
        self.desired.vips.effective()
    }

    async fn sync(&mut self, state: &Snapshot, changes: &Changes) -> anyhow::Result<Synced> {
        self.apply(state, changes)
    }

    async fn cleanup(&mut self) -> anyhow::Result<()> {
        self.kernel.remove()
    }
}

#[cfg(test)]
mod tests;
