//! [`Moved`]: the VIPs that changed since the last commit, as connection tracking and the counter of traffic need them. Pure.

use std::{collections::HashMap, mem, time::Duration};

use localnet_client::vips::{Vip, VipKey};
use localnet_linux::{
    conntrack::{Commit, Endpoints},
    traffic::{PortName, Served},
};

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

    /// Tells `counter` about the changes, and returns them as a commit. Forgets them.
    pub fn take(&mut self, counter: Option<&TrafficCounter>) -> Commit {
        let vips = mem::take(&mut self.vips);
        if let (Some(counter), Some(ports)) = (counter, &mut self.ports) {
            let mut ports = mem::take(ports);
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
            closing: mem::take(&mut self.closing).into_iter().map(|(key, after)| (frontend(&key), after)).collect(),
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
