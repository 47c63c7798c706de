//! What is looked at between syncs, as IPVS tells nobody what changes in it: whether others have changed anything, and which
//! destinations that drain have no connections any more.
//!
//! Between two questions a new state may come, which breaks this off: no change waits for it.

use std::time::Duration;

use localnet_linux::nft::Family;
use tokio::task::yield_now;
use tracing::info;

use super::IpvsBackend;
use crate::kernel::Kernel;

/// So many virtual servers have their destinations looked at in one go: each is a question of its own.
const AT_ONCE: usize = 1_000;

impl<K: Kernel> IpvsBackend<K> {
    /// Whether virtual servers and addresses are still there as they were left, and the destinations of up to a thousand virtual
    /// servers: the next ones each time, so that all have their turn. Much cheaper than reading all of it.
    ///
    /// # Errors
    /// They cannot be read.
    pub async fn is_undisturbed(&mut self) -> anyhow::Result<bool> {
        if !self.desired.servers().is_known() || !self.desired.servers().are(&self.kernel.heads()?) {
            return Ok(false);
        }
        for frontend in self.desired.servers().after(self.looked_at, AT_ONCE) {
            let found = self.kernel.destinations(&frontend)?;
            if !self.desired.servers().has(&frontend, &found) {
                return Ok(false);
            }
            self.looked_at = Some(frontend);
            yield_now().await;
        }
        let addresses = self.kernel.addresses().await?.unwrap_or_default();
        let has_v6 = self.kernel.has_family(Family::V6);
        let mut wanted = self.desired.wanted_addresses().filter(|ip| has_v6 || ip.is_ipv4());
        Ok(wanted.all(|ip| addresses.contains(&ip)))
    }

    /// Whether connections of endpoints that are gone are waited for.
    pub fn is_draining(&self) -> bool {
        !self.desired.servers().draining().is_empty()
    }

    /// Deletes destinations whose last connection has ended, or that had time enough. `now`: since any one moment.
    ///
    /// # Errors
    /// IPVS cannot be reached.
    pub async fn drain(&mut self, now: Duration) -> anyhow::Result<()> {
        let limit = self.desired.options().drain_limit;
        // The next one each time, if this is broken off.
        let mut draining: Vec<_> = self.desired.servers().draining().into_iter().collect();
        let next = self.drained.map_or(0, |last| draining.partition_point(|frontend| *frontend <= last));
        draining.rotate_left(next);
        for frontend in draining {
            let found = self.kernel.destinations(&frontend)?;
            let found: Vec<_> = found.iter().map(|state| (state.destination.address, state.connections)).collect();
            let changes = self.desired.servers_mut().drained(&frontend, now, limit, &found);
            if !changes.is_empty() {
                info!(%frontend, destinations = changes.len(), "endpoints that are gone have no more connections");
                self.change(&changes)?;
            }
            self.drained = Some(frontend);
            yield_now().await;
        }
        Ok(())
    }
}
