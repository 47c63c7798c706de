//! [`Moved`]: the VIPs that changed since the last commit, as connection tracking and the counter of traffic need them. Pure.

use std::{collections::HashMap, time::Duration};

use localnet_client::vips::{Vip, VipKey};
use localnet_linux::{
    conntrack::{Commit, Endpoints},
    traffic::{PortName, Served},
};
use localnet_proto::Family;

use crate::{
    elements::frontend,
    traffic::{self, TrafficCounter},
};

/// The VIPs that changed since the last commit.
#[derive(Debug, Default)]
pub struct Moved {
    /// The endpoints of each VIP; `None` if the VIP was removed.
    vips: HashMap<VipKey, Option<Endpoints>>,
    /// The VIPs whose connections are closed.
    closing: HashMap<VipKey, Duration>,
    /// The ports that the VIPs belong to, and the endpoints that get new connections; `None` if no traffic is counted.
    ports: Option<HashMap<VipKey, (PortName, Endpoints)>>,
}

impl Moved {
    /// Also remembers what the counter of traffic needs.
    pub fn count(&mut self) {
        self.ports.get_or_insert_default();
    }

    /// Records a VIP that was added or changed.
    pub fn add(&mut self, key: &VipKey, vip: &Vip) {
        self.vips.insert(*key, Some(vip.serving.clone().into()));
        match vip.close_after {
            Some(after) => _ = self.closing.insert(*key, after),
            None => _ = self.closing.remove(key),
        }
        if let Some(ports) = &mut self.ports {
            ports.insert(*key, (traffic::port(key, vip), eligible(vip)));
        }
    }

    /// Records a VIP that was removed.
    pub fn remove(&mut self, key: &VipKey) {
        self.vips.insert(*key, None);
        self.closing.remove(key);
    }

    /// Tells `counter` about the changes, and returns them as a commit. Forgets them. It keeps the removals in families whose sync
    /// has `failed`, because their tables may still serve these VIPs.
    pub fn take(&mut self, failed: &[Family], counter: Option<&TrafficCounter>) -> Commit {
        let in_force = |key: &VipKey, now: &mut Option<Endpoints>| now.is_some() || !failed.contains(&key.family());
        let vips: HashMap<_, _> = self.vips.extract_if(in_force).collect();
        if let (Some(counter), Some(ports)) = (counter, &mut self.ports) {
            let mut served = |key: &VipKey, now: &Option<Endpoints>| {
                now.clone().zip(ports.remove(key)).map(|(endpoints, (port, eligible))| Served {
                    port,
                    endpoints,
                    eligible,
                })
            };
            counter.changed(vips.iter().map(|(key, now)| (frontend(key), served(key, now))));
        }
        Commit {
            frontends: vips.into_iter().map(|(key, now)| (frontend(&key), now)).collect(),
            closing: self.closing.drain().map(|(key, after)| (frontend(&key), after)).collect(),
            ..Commit::default()
        }
    }
}

/// The endpoints of a VIP that get new connections.
fn eligible(vip: &Vip) -> Endpoints {
    match (&*vip.endpoints, &*vip.local_endpoints) {
        (_, []) => vip.endpoints.clone().into(),
        ([], _) => vip.local_endpoints.clone().into(),
        (all, local) => all.iter().chain(local).copied().collect(),
    }
}

#[cfg(test)]
mod tests {
    use localnet_proto::Protocol;

    use super::*;

    /// The kernel refused a Service in IPv6, and lacked the memory to remove it in IPv4. The flows of its IPv4 VIPs were deleted all
    /// the same, so that they moved to other endpoints.
    #[test]
    fn the_removals_of_a_family_that_fails_follow_when_it_succeeds() {
        let [v4, v6] = ["10.0.0.1", "fd00::1"].map(|address| address.parse().unwrap());
        let [v4, v6] = [v4, v6].map(|address| VipKey { address, protocol: Protocol::Udp, port: 53 });
        let mut moved = Moved::default();
        moved.remove(&v4);
        moved.remove(&v6);
        assert_eq!(moved.take(&[Family::V4], None).frontends, [(frontend(&v6), None)]);
        assert_eq!(moved.take(&[], None).frontends, [(frontend(&v4), None)]);

        // A VIP that a sync may have added in part is known at once, so that its removal counts.
        let vip = Vip::default();
        moved.add(&v4, &vip);
        assert_eq!(moved.take(&[Family::V4], None).frontends, [(frontend(&v4), Some(vip.serving.into()))]);
    }
}
