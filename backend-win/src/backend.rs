//! [`WinBackend`] applies states to HNS. It reads HNS before each sync and polls it between syncs. What HNS lists is
//! authoritative, not what the backend remembers.

pub mod inspect;
mod write;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Context as _, bail};
use ipnet::IpNet;
use localnet_client::{
    Backend, Code, Diagnostic, Mode, Subject, Synced,
    vips::{Config, Effective},
};
use localnet_proto::{Changes, Family, Node, Snapshot};
use tokio::time::{self, Instant};
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

/// The pause between polls of HNS. It is longer if the last poll was slow: at least `CHECK_REST` times the duration of that poll.
const CHECK: Duration = Duration::from_secs(2);
const CHECK_REST: u32 = 10;
/// The pause between reads of all documents. It is at least `READ_REST` times the duration of the last read.
const READ: Duration = Duration::from_secs(30);
const READ_REST: u32 = 100;

/// The backend that programs HNS.
#[derive(Debug)]
pub struct WinBackend<K> {
    kernel: K,
    options: Options,
    desired: Desired,
    inventory: Inventory,
    memory: Memory,
    version: Option<Version>,
    /// Whether this HNS has refused to change a load balancer in place.
    cannot_modify: bool,
    /// The node, as far as it is known.
    node: Node,
    host: Option<Host>,
    /// The planned load balancers that HNS has refused, by frontend, each with the error.
    refused: BTreeMap<Frontend, (plan::Planned, String)>,
    /// The refusals that were logged already.
    logged: BTreeSet<String>,
    /// Whether the configuration restricts NodePorts to some of the node's addresses, which HNS does not support.
    narrow: bool,
    /// Whether the limits of this HNS were logged.
    introduced: bool,
    /// Whether the last read of HNS failed and the failure was logged.
    unreadable: bool,
    check_at: Instant,
    read_at: Instant,
}

impl<K: Kernel> WinBackend<K> {
    /// Creates a backend that has not read or written anything yet.
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
            logged: BTreeSet::new(),
            introduced: false,
            unreadable: false,
            check_at: now,
            read_at: now + READ,
        }
    }

    /// The interface to HNS and the node.
    pub fn kernel(&mut self) -> &mut K {
        &mut self.kernel
    }

    /// Makes HNS hold `state`. `changes` lists everything that differs from the previous state.
    ///
    /// # Errors
    /// Returns an error if HNS is unavailable or does not have the network.
    pub fn apply(&mut self, state: &Snapshot, changes: &Changes) -> anyhow::Result<Synced> {
        for notice in self.desired.update(state, changes) {
            warn!("{notice}");
        }
        self.node.clone_from(&state.node);
        let applied = self.write_all();
        if applied.is_err() {
            self.inventory.forget();
        }
        applied.with_context(|| format!("cannot program HNS with revision {}", state.revision))
    }

    /// Returns the plan that follows from the state and from the objects that HNS holds now. It changes nothing.
    ///
    /// # Errors
    /// Returns an error if HNS is unavailable or does not have the network.
    pub fn plan(&mut self, state: &Snapshot, changes: &Changes) -> anyhow::Result<(Plan, Vec<Diagnostic>)> {
        self.desired.update(state, changes);
        self.node.clone_from(&state.node);
        self.refresh()?;
        let plan = self.planned()?;
        let skipped = self.skipped(&plan);
        Ok((plan, skipped))
    }

    fn write_all(&mut self) -> anyhow::Result<Synced> {
        let mut read = self.inventory.network().is_none();
        self.refresh()?;
        let mut plan = self.planned()?;
        let mut outcome = self.write(&plan);
        if !outcome.taken.is_empty() {
            // HNS has a load balancer that the inventory lacks, so the inventory is outdated.
            info!("the load balancers differ from the applied state; reading them");
            self.inventory.forget();
            read = true;
            self.refresh()?;
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

    fn features(&self) -> Features {
        self.version.map_or(Features::of(Version::default()), Features::of)
    }

    /// Reads the changes in HNS. Returns what differs from the last read.
    fn refresh(&mut self) -> anyhow::Result<Changed> {
        let began = Instant::now();
        if self.version.is_none() {
            let version = schema::read_version(&self.kernel.version()?)?;
            if !Features::of(version).v2 {
                bail!("HNS has version {version}, but localnet-win needs 9.2 or later: update Windows");
            }
            self.version = Some(version);
        }
        let root = self.options.forward_health_check_vip.then_some(self.options.root_endpoint.as_str());
        let changed = self.inventory.refresh(&mut self.kernel, self.options.network.as_deref(), root)?;
        debug!(?changed, took_ms = began.elapsed().as_secs_f64() * 1000.0, "HNS read");
        self.check_at = Instant::now() + CHECK.max(began.elapsed() * CHECK_REST);
        self.host()?;
        Ok(changed)
    }

    /// Determines the node's interface, which an overlay network needs.
    fn host(&mut self) -> anyhow::Result<()> {
        if self.inventory.kind() != NetworkType::Overlay {
            self.host = None;
            return Ok(());
        }
        if self.options.source_vip.is_none() {
            bail!(
                "the network is an overlay: set the source address of load-balanced packets with --source-vip or winkernel.sourceVip"
            );
        }
        let Some(address) = self.node.primary_address(Family::V4) else {
            bail!("the network is an overlay, but the Node object has no IPv4 address: check its status.addresses");
        };
        if self.host.as_ref().is_none_or(|host| host.address != address) {
            let Some(mac) = self.kernel.interfaces()?.remove(&address) else {
                bail!(
                    "no interface has the node's address {address}: check that the brain serves the state of this node"
                );
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

    /// Logs once what this HNS does not support.
    fn introduce(&mut self) {
        if std::mem::replace(&mut self.introduced, true) {
            return;
        }
        let features = self.features();
        let version = self.version.unwrap_or_default();
        info!(%version, network = ?self.inventory.kind(), "HNS found");
        if !has_ipv6(features, self.inventory.kind()) {
            info!("this HNS or network does not support load balancers for IPv6; programming only IPv4");
        }
        if self.options.dsr && !features.dsr {
            warn!("this HNS does not support direct server return; ignoring winkernel.enableDSR");
        }
        if self.narrow {
            warn!(
                "HNS answers NodePorts on all addresses of the node or on none; it cannot select some of them (nodePortAddresses)"
            );
        }
    }

    fn skipped(&self, plan: &Plan) -> Vec<Diagnostic> {
        let refused = self.refused.values();
        let refused = refused
            .map(|(planned, why)| Diagnostic::new(Code::HnsRefused, Subject::service(&planned.service), why.clone()));
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

    /// Returns the difference between plan and HNS, without load balancers that HNS has refused already.
    fn diff(&mut self, plan: &Plan) -> Diff {
        let mut diff = diff(plan, &self.inventory, &self.memory, &self.owner());
        for (frontend, by) in &diff.blocked {
            if let Some(planned) = plan.balancers.get(frontend) {
                let why = format!(
                    "{frontend} is part of another program's load balancer ({by}), which has other frontends too; delete that load balancer"
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
        // HNS also returns this error if the node has no dynamic ports left for address translation. About a hundred load
        // balancers use up these ports.
        let remedy = match failure.reason() {
            Reason::Exists => {
                "; another program uses it, or the node has no dynamic ports left; direct server return (--enable-dsr) needs no ports"
            }
            _ => "",
        };
        let why = format!("{}: {failure}{remedy}", write.frontend);
        let line = format!("Service {}: {why}", write.planned.service);
        if self.logged.contains(&line) {
            debug!("still: {line}");
        } else {
            warn!("{line}");
            self.logged.insert(line);
        }
        self.refused.insert(write.frontend, (write.planned, why));
    }

    /// Lets the next sync retry the load balancers that HNS has refused. If HNS refuses one again for the same reason, the
    /// refusal is not logged again.
    pub fn retry_refused(&mut self) {
        let service = |(planned, why): &(plan::Planned, String)| format!("Service {}: {why}", planned.service);
        self.logged = std::mem::take(&mut self.refused).values().map(service).collect();
    }

    /// Reads the changes in HNS. Returns whether a sync is needed.
    fn is_disturbed(&mut self) -> anyhow::Result<bool> {
        let began = Instant::now();
        let all = began >= self.read_at;
        if all {
            self.inventory.forget();
            self.host = None;
        }
        let changed = self.refresh()?;
        if all {
            self.read_at = Instant::now() + READ.max(began.elapsed() * READ_REST);
        }
        // HNS is unchanged, and the caller itself retries what the last sync could not do.
        if changed == Changed::default() {
            return Ok(false);
        }
        let plan = self.planned()?;
        let diff = self.diff(&plan);
        if !diff.is_empty() {
            info!(
                balancers = diff.balancers.len() + diff.delete_balancers.len(),
                endpoints = diff.create_endpoints.len() + diff.delete_endpoints.len(),
                "HNS differs from the desired state; repairing HNS"
            );
        }
        Ok(!diff.is_empty())
    }

    /// Removes the load balancers and endpoints with our identifiers from all networks. If `everything` is set, it removes all
    /// load balancers of the host, as kube-proxy does at its start. If one removal fails, the remaining objects are still
    /// removed.
    ///
    /// # Errors
    /// Returns an error if HNS is unavailable or refuses a removal.
    pub fn remove_all(&mut self, everything: bool) -> anyhow::Result<()> {
        let mut outcome = Outcome::default();
        let mut removed = [0; 2];
        for id in inventory::list(&mut self.kernel, Kind::LoadBalancer, &Query::all())? {
            if everything || id.is_ours() {
                let deleted = self.delete_balancer(id, &mut outcome);
                removed[0] += usize::from(deleted.is_ok());
                outcome.note(None, deleted.with_context(|| format!("failed to delete load balancer {id}")));
            }
        }
        for id in inventory::list(&mut self.kernel, Kind::Endpoint, &Query::all())? {
            if id.is_ours() {
                let deleted = self.delete_endpoint(id, &mut outcome);
                removed[1] += usize::from(deleted.is_ok());
                outcome.note(None, deleted.with_context(|| format!("failed to delete endpoint {id}")));
            }
        }
        info!(load_balancers = removed[0], endpoints = removed[1], "objects were removed");
        let failed = outcome.failed.len();
        match outcome.failed.into_iter().next() {
            Some((_, error)) => Err(error.context(format!("failed to remove {failed} objects; the first error"))),
            None => Ok(()),
        }
    }
}

impl<K: Kernel> Backend for WinBackend<K> {
    fn name(&self) -> &'static str {
        "win"
    }

    fn mode(&self) -> Option<Mode> {
        Some(Mode::Kernelspace)
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
            time::sleep_until(self.check_at).await;
            match self.is_disturbed() {
                Ok(true) => return,
                Ok(false) => self.unreadable = false,
                Err(error) => {
                    self.check_at = Instant::now() + CHECK;
                    // The inventory may be outdated, so everything is read again once HNS is available.
                    self.inventory.forget();
                    if !std::mem::replace(&mut self.unreadable, true) {
                        warn!("cannot read HNS; retrying: {error:#}");
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
