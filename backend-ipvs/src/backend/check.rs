//! The checks between syncs: whether other programs changed anything, and which draining destinations have no connections left.
//! The backend has to check, because IPVS sends no notifications.
//!
//! Each check yields after every virtual server, so that a new state can cancel the check and does not have to wait for it.

use std::time::Duration;

use localnet_linux::nft::Kernel as _;
use localnet_proto::Family;
use tokio::task::yield_now;
use tracing::info;

use super::IpvsBackend;
use crate::kernel::Kernel;

/// The number of virtual servers whose destinations one check reads. Each virtual server needs a request of its own.
const AT_ONCE: usize = 1_000;

impl<K: Kernel> IpvsBackend<K> {
    /// Whether all virtual servers, all addresses, and the destinations of up to 1,000 virtual servers are unchanged. Each call
    /// continues after the virtual server that the previous call checked last. This is much cheaper than reading all destinations
    /// in each call.
    ///
    /// # Errors
    /// Returns an error if IPVS or the addresses cannot be read.
    pub async fn is_undisturbed(&mut self) -> anyhow::Result<bool> {
        if !self.desired.servers().is_known() || !self.desired.servers().are(&self.kernel.heads()?) {
            return Ok(false);
        }
        for frontend in self.desired.servers().after(self.checked, AT_ONCE) {
            let found = self.kernel.destinations(&frontend)?;
            if !self.desired.servers().has(&frontend, &found) {
                return Ok(false);
            }
            self.checked = Some(frontend);
            yield_now().await;
        }
        let addresses = self.kernel.addresses().await?.unwrap_or_default();
        let has_v6 = self.kernel.nft().has_family(Family::V6);
        let mut wanted = self.desired.wanted_addresses().filter(|ip| has_v6 || ip.is_ipv4());
        Ok(wanted.all(|ip| addresses.contains(&ip)))
    }

    /// Whether there are draining destinations.
    pub fn is_draining(&self) -> bool {
        !self.desired.servers().draining().is_empty()
    }

    /// Deletes draining destinations whose last connection ended, or whose time limit has passed. `now` is the time since a fixed
    /// moment, which is the same for all calls.
    ///
    /// # Errors
    /// Returns an error if the kernel's IPVS does not answer.
    pub async fn drain(&mut self, now: Duration) -> anyhow::Result<()> {
        let limit = self.desired.options().drain_limit;
        // Continue after the virtual server where the last call was cancelled.
        let mut draining: Vec<_> = self.desired.servers().draining().into_iter().collect();
        let next = self.drained.map_or(0, |last| draining.partition_point(|frontend| *frontend <= last));
        draining.rotate_left(next);
        for frontend in draining {
            let found = self.kernel.destinations(&frontend)?;
            let found: Vec<_> = found.iter().map(|state| (state.destination.address, state.connections)).collect();
            let changes = self.desired.servers_mut().drained(&frontend, now, limit, &found);
            if !changes.is_empty() {
                info!(%frontend, destinations = changes.len(), "draining endpoints have no connections left");
                self.change(&changes)?;
            }
            self.drained = Some(frontend);
            yield_now().await;
        }
        Ok(())
    }
}
