//! [`WinBackend`]: state in, differences out. HNS is looked at before each sync, and now and then in between: what it lists counts, and
//! not what we remember of it.

mod write;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use ipnet::IpNet;
use localnet_client::{
    Backend, Skipped, Synced,
    vips::{Config, Effective},
};
use localnet_proto::{Changes, Family, Node, Snapshot};
use tokio::time;
use tracing::{debug, info, warn};

use crate::{
    Options,
    desired::{self, Desired},
    diff::{Diff, Memory, Owner, Write, diff},
    hcn::{
        Failure, Features, Kind, Reason, Version,
        schema::{self, NetworkType, Query},
    },
    inventory::{self, Changed, Inventory},
    kernel::Kernel,
    plan::{self, Frontend, Plan, Surroundings, balancer::has_ipv6, remote::Host},
};
use write::Outcome;

/// How often HNS is looked at, and for how many times as long as that took it is not.
const LOOK: Duration = Duration::from_secs(2);
const LOOK_REST: u32 = 10;
/// How often all that is known of it is read again, and the same of that.
const READ: Duration = Duration::from_secs(30);
const READ_REST: u32 = 100;

/// Programs HNS.
#[derive(Debug)]
pub struct WinBackend<K> {
    kernel: K,
    options: Options,
    desired: Desired,
    inventory: Inventory,
    memory: Memory,
    version: Option<Version>,
    /// This HNS has refused to change a load balancer in place.
    cannot_modify: bool,
    /// The node, as far as it is known.
    node: Node,
    host: Option<Host>,
    /// Load balancers that HNS does not take as they are, and why.
    refused: BTreeMap<Frontend, (plan::Planned, String)>,
    /// Why, as it was said already.
    said: BTreeSet<String>,
    /// NodePorts are to be answered on some addresses only.
    narrow: bool,
    /// What was said of this HNS.
    introduced: bool,
    /// HNS could not be looked at, which was said.
    unreadable: bool,
    look_at: Instant,
    read_at: Instant,
}

impl<K: Kernel> WinBackend<K> {
    /// A backend that has neither read nor written anything yet.
    pub fn new(config: Config, options: Options, kernel: K) -> Self {
        let now = Instant::now();
        Self {
            kernel,
            options,
            narrow: desired::narrows_node_ports(&config),
            desired: Desired::new(config),
            inventory: Inventory::default(),
            memory: Memory::default(),
            version: None,
            cannot_modify: false,
            node: Node::default(),
            host: None,
            refused: BTreeMap::new(),
            said: BTreeSet::new(),
            introduced: false,
            unreadable: false,
            look_at: now,
            read_at: now + READ,
        }
    }

    /// What the backend writes to.
    pub fn kernel(&mut self) -> &mut K {
        &mut self.kernel
    }

    /// Makes HNS hold `state`, of which only `changes` differs from the state before.
    ///
    /// # Errors
    /// HNS cannot be reached, or has no such network.
    pub fn apply(&mut self, state: &Snapshot, changes: &Changes) -> anyhow::Result<Synced> {
        for notice in self.desired.update(state, changes) {
            warn!("{notice}");
        }
        self.node.clone_from(&state.node);
        let applied = self.write_all();
        if applied.is_err() {
            self.inventory.forget();
        }
        applied.with_context(|| format!("program HNS with revision {}", state.revision))
    }

    /// The plan for the state of the last sync and what HNS holds now. Changes nothing.
    ///
    /// # Errors
    /// HNS cannot be reached, or has no such network.
    pub fn plan(&mut self, state: &Snapshot, changes: &Changes) -> anyhow::Result<(Plan, Vec<Skipped>)> {
        self.desired.update(state, changes);
        self.node.clone_from(&state.node);
        self.look()?;
        let plan = self.planned()?;
        let skipped = self.skipped(&plan);
        Ok((plan, skipped))
    }

    fn write_all(&mut self) -> anyhow::Result<Synced> {
        let mut read = self.inventory.network().is_none();
        self.look()?;
        let mut plan = self.planned()?;
        let mut outcome = self.write(&plan);
        if !outcome.taken.is_empty() {
            // Somebody has what is not in the list that we know: the list is wrong.
            info!("load balancers are not as they were left: reading them");
            self.inventory.forget();
            read = true;
            self.look()?;
            plan = self.planned()?;
            let calls = outcome.calls;
            outcome = self.write(&plan);
            outcome.calls += calls;
            for (write, failure) in std::mem::take(&mut outcome.taken) {
                self.refuse(write, &failure);
            }
        }
        debug!(calls = outcome.calls, balancers = plan.balancers.len(), "HNS written");
        let refused = self.refused.values().map(|(planned, _)| planned.service.clone()).collect();
        let full = if read { Family::BOTH.to_vec() } else { Vec::new() };
        Ok(Synced { failed: outcome.failed, skipped: self.skipped(&plan), refused, full })
    }

    /// What this HNS can do.
    fn features(&self) -> Features {
        self.version.map_or(Features::of(Version::default()), Features::of)
    }

    /// Looks at HNS; says what differs from how it was left.
    fn look(&mut self) -> anyhow::Result<Changed> {
        let began = Instant::now();
        if self.version.is_none() {
            let version = schema::read_version(&self.kernel.version()?)?;
            if !Features::of(version).v2 {
                bail!("HNS is of version {version}: 9.2 is the first that has its present API; update Windows");
            }
            self.version = Some(version);
        }
        let root = self.options.forward_health_check_vip.then_some(self.options.root_endpoint.as_str());
        let changed = self.inventory.look(&mut self.kernel, self.options.network.as_deref(), root)?;
        debug!(?changed, took = ?began.elapsed(), "HNS looked at");
        self.look_at = Instant::now() + LOOK.max(began.elapsed() * LOOK_REST);
        self.host()?;
        Ok(changed)
    }

    /// In an overlay network it has to be known which interface is the node's.
    fn host(&mut self) -> anyhow::Result<()> {
        if self.inventory.kind() != NetworkType::Overlay {
            self.host = None;
            return Ok(());
        }
        if self.options.source_vip.is_none() {
            bail!(
                "the network is an overlay: name the address that packets come from (--source-vip, or winkernel.sourceVip)"
            );
        }
        let Some(address) = self.node.primary_address(Family::V4) else {
            bail!("the network is an overlay, and the Node object has no IPv4 address: see status.addresses");
        };
        if self.host.as_ref().is_none_or(|host| host.address != address) {
            let Some(mac) = self.kernel.mac_of(address)? else {
                bail!("no interface has {address}, which is the node's address: is the brain that of this node?");
            };
            self.host = Some(Host { address, mac });
        }
        Ok(())
    }

    fn planned(&mut self) -> anyhow::Result<Plan> {
        self.introduce();
        let surroundings = Surroundings {
            inventory: &self.inventory,
            options: &self.options,
            features: self.features(),
            host: self.host.as_ref(),
            local: self.desired.local(),
        };
        Ok(plan::plan(self.desired.wants(), &surroundings))
    }

    /// Says once what this HNS cannot do.
    fn introduce(&mut self) {
        if std::mem::replace(&mut self.introduced, true) {
            return;
        }
        let features = self.features();
        let version = self.version.unwrap_or_default();
        info!(%version, network = ?self.inventory.kind(), "HNS found");
        if !has_ipv6(features, self.inventory.kind()) {
            info!("this HNS, or an overlay network, has no load balancers for IPv6: only IPv4 is programmed");
        }
        if self.options.dsr && !features.dsr {
            warn!("this HNS has no direct server return: ClusterIPs do without (winkernel.enableDSR)");
        }
        if self.narrow {
            warn!("HNS answers NodePorts on all of the node's addresses, or on none (nodePortAddresses)");
        }
    }

    fn skipped(&self, plan: &Plan) -> Vec<Skipped> {
        let refused = self.refused.values();
        let refused = refused.map(|(planned, why)| Skipped { service: planned.service.clone(), reason: why.clone() });
        let mut skipped: Vec<_> =
            self.desired.skipped().into_iter().chain(plan.skipped.iter().cloned()).chain(refused).collect();
        skipped.sort_unstable();
        skipped.dedup();
        skipped
    }

    fn owner(&self) -> Owner<'_> {
        let service_cidrs: &[IpNet] = &self.node.service_cidrs;
        Owner { service_cidrs, host: self.host.as_ref() }
    }

    /// What is to be done, without what HNS has refused already.
    fn diff(&mut self, plan: &Plan) -> Diff {
        let mut diff = diff(plan, &self.inventory, &self.memory, &self.owner());
        for (frontend, by) in &diff.blocked {
            if let Some(planned) = plan.balancers.get(frontend) {
                let why = format!(
                    "{frontend} is part of a load balancer of somebody else ({by}), which also does other things"
                );
                self.refused.insert(*frontend, (planned.clone(), why));
            }
        }
        let blocked: BTreeSet<Frontend> = diff.blocked.iter().map(|(frontend, _)| *frontend).collect();
        self.refused.retain(|frontend, (refused, _)| {
            let same = plan.balancers.get(frontend).is_some_and(|planned| planned == refused);
            same && (blocked.contains(frontend) || diff.balancers.iter().any(|write| write.frontend == *frontend))
        });
        diff.balancers.retain(|write| !self.refused.contains_key(&write.frontend));
        diff
    }

    fn refuse(&mut self, write: Write, failure: &Failure) {
        // HNS says the same where it has no ports left to translate with, which comes with a hundred load balancers or so.
        let remedy = match failure.reason() {
            Reason::Exists => {
                "; something else has it, or the node is out of dynamic ports: direct server return (--enable-dsr) takes none"
            }
            _ => "",
        };
        let why = format!("{}: {failure}{remedy}", write.frontend);
        let told = format!("service {}: {why}", write.planned.service);
        if self.said.contains(&told) {
            debug!("still: {told}");
        } else {
            warn!("{told}");
            self.said.insert(told);
        }
        self.refused.insert(write.frontend, (write.planned, why));
    }

    /// The next sync tries what HNS refused again; it is said again if that goes well meanwhile.
    pub fn retry_refused(&mut self) {
        let service = |(planned, why): &(plan::Planned, String)| format!("service {}: {why}", planned.service);
        self.said = std::mem::take(&mut self.refused).values().map(service).collect();
    }

    /// Looks at HNS; says whether something is to be done.
    fn is_disturbed(&mut self) -> anyhow::Result<bool> {
        let began = Instant::now();
        let all = began >= self.read_at;
        if all {
            self.inventory.forget();
            self.host = None;
        }
        let changed = self.look()?;
        if all {
            self.read_at = Instant::now() + READ.max(began.elapsed() * READ_REST);
        }
        // What the last sync left undone is its caller's to try again.
        if changed == Changed::default() {
            return Ok(false);
        }
        let plan = self.planned()?;
        let diff = self.diff(&plan);
        if !diff.is_empty() {
            info!(
                balancers = diff.balancers.len() + diff.delete_balancers.len(),
                endpoints = diff.create_endpoints.len() + diff.delete_endpoints.len(),
                "HNS does not hold what it should: somebody changed it, or endpoints came or went"
            );
        }
        Ok(!diff.is_empty())
    }

    /// Removes the load balancers and endpoints that have identifiers of ours, on whatever network; with `everything`, all load balancers
    /// of the host, as kube-proxy does it at its start. What cannot be removed stops nothing else.
    ///
    /// # Errors
    /// HNS cannot be reached, or refuses some of it.
    pub fn remove_all(&mut self, everything: bool) -> anyhow::Result<()> {
        let mut outcome = Outcome::default();
        let mut removed = [0; 2];
        for id in inventory::list(&mut self.kernel, Kind::LoadBalancer, &Query::all())? {
            if everything || id.is_ours() {
                let deleted = self.delete_balancer(id, &mut outcome);
                removed[0] += usize::from(deleted.is_ok());
                outcome.note(None, deleted.with_context(|| format!("delete load balancer {id}")));
            }
        }
        for id in inventory::list(&mut self.kernel, Kind::Endpoint, &Query::all())? {
            if id.is_ours() {
                let deleted = self.delete_endpoint(id, &mut outcome);
                removed[1] += usize::from(deleted.is_ok());
                outcome.note(None, deleted.with_context(|| format!("delete endpoint {id}")));
            }
        }
        info!(load_balancers = removed[0], endpoints = removed[1], "removed");
        let failed = outcome.failed.len();
        match outcome.failed.into_iter().next() {
            Some((_, error)) => Err(error.context(format!("{failed} objects could not be removed; the first"))),
            None => Ok(()),
        }
    }
}

impl<K: Kernel> Backend for WinBackend<K> {
    fn name(&self) -> &'static str {
        "win"
    }

    fn configuration(&self) -> Option<Effective> {
        self.desired.configuration()
    }

    async fn sync(&mut self, state: &Snapshot, changes: &Changes) -> anyhow::Result<Synced> {
        self.apply(state, changes)
    }

    fn retry_refused(&mut self) {
        self.retry_refused();
    }

    async fn cleanup(&mut self) -> anyhow::Result<()> {
        self.remove_all(false)
    }

    async fn disturbed(&mut self) {
        loop {
            time::sleep_until(self.look_at.into()).await;
            match self.is_disturbed() {
                Ok(true) => return,
                Ok(false) => self.unreadable = false,
                Err(error) => {
                    self.look_at = Instant::now() + LOOK;
                    // What is not known is read again, whenever HNS is back.
                    self.inventory.forget();
                    if !std::mem::replace(&mut self.unreadable, true) {
                        warn!("HNS cannot be looked at; will be tried again: {error:#}");
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
