//! [`WinBackend`]: state in, differences out. HNS is looked at before each sync, and now and then in between: what it lists counts, and
//! not what we remember of it.
//!
//! The order of a sync: load balancers that go, endpoints that come, load balancers that come or change, endpoints that go. So whatever a
//! load balancer names is there, and what it named before is there until it no longer does.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use ipnet::IpNet;
use localnet_client::{Backend, Skipped, Synced, vips::Config};
use localnet_proto::{Changes, Family, Node, Snapshot};
use tokio::time;
use tracing::{debug, info, warn};

use crate::{
    Options,
    desired::{self, Desired},
    diff::{Diff, Memory, Owner, Write, diff},
    hcn::{
        Failure, Features, Guid, Reason, Version,
        schema::{self, Endpoint, LoadBalancer, NetworkType, Odd},
    },
    inventory::Inventory,
    kernel::Kernel,
    plan::{self, Frontend, Plan, Surroundings, balancer::has_ipv6, remote::Host},
};

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
    /// Load balancers that HNS does not take as they are, and why. Tried again when all is read again.
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

/// What came of writing.
#[derive(Debug, Default)]
struct Outcome {
    failed: Vec<(Family, anyhow::Error)>,
    /// Frontends that are taken, though nobody is listed who has them.
    taken: Vec<(Write, Failure)>,
    /// What was done: how many calls.
    calls: usize,
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
        self.look()?;
        let mut plan = self.planned()?;
        let mut outcome = self.write(&plan);
        if !outcome.taken.is_empty() {
            // Somebody has what is not in the list that we know: the list is wrong.
            info!("load balancers are not as they were left: reading them");
            self.inventory.forget();
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
        Ok(Synced { failed: outcome.failed, skipped: self.skipped(&plan) })
    }

    /// What this HNS can do.
    fn features(&self) -> Features {
        self.version.map_or(Features::of(Version::default()), Features::of)
    }

    fn look(&mut self) -> anyhow::Result<()> {
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
        self.host()
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
        let why = format!("{}: {failure}", write.frontend);
        let told = format!("service {}: {why}", write.planned.service);
        if self.said.contains(&told) {
            debug!("still: {told}");
        } else {
            warn!("{told}");
            self.said.insert(told);
        }
        self.refused.insert(write.frontend, (write.planned, why));
    }

    fn write(&mut self, plan: &Plan) -> Outcome {
        let diff = self.diff(plan);
        let mut outcome = Outcome::default();
        for id in &diff.delete_balancers {
            let shown = self.inventory.balancers().get(id).and_then(Option::as_ref);
            let family = shown.and_then(|shown| Frontend::all_of(shown).first().map(Frontend::family));
            let deleted = self.delete_balancer(*id, &mut outcome);
            outcome.note(family, deleted.with_context(|| format!("delete load balancer {id}")));
        }
        for id in &diff.replace_endpoints {
            let deleted = self.delete_endpoint(*id, &mut outcome);
            outcome.note(None, deleted.with_context(|| format!("replace endpoint {id}")));
        }
        let mut names: BTreeMap<Guid, Option<Guid>> = BTreeMap::new();
        for (id, endpoint) in &diff.create_endpoints {
            let family = endpoint.addresses().next().map(Family::of);
            match self.create_endpoint(*id, endpoint, &mut outcome) {
                Ok(made) => _ = names.insert(*id, Some(made)),
                Err(error) => {
                    names.insert(*id, None);
                    outcome.note(family, Err(error));
                }
            }
        }
        for mut write in diff.balancers {
            let endpoints = &mut write.planned.document.host_compute_endpoints;
            *endpoints = endpoints.iter().filter_map(|id| names.get(id).copied().unwrap_or(Some(*id))).collect();
            if endpoints.is_empty() {
                continue;
            }
            let family = write.frontend.family();
            if let Err(failure) = self.write_balancer(&write, &mut outcome) {
                match failure.reason() {
                    Reason::Exists => outcome.taken.push((write, failure)),
                    Reason::Invalid => self.refuse(write, &failure),
                    _ => {
                        let what = format!("load balancer {} of service {}", write.frontend, write.planned.service);
                        outcome.note(Some(family), Err(anyhow::Error::new(failure).context(what)));
                    }
                }
            }
        }
        for id in &diff.delete_endpoints {
            let deleted = self.delete_endpoint(*id, &mut outcome);
            outcome.note(None, deleted.with_context(|| format!("delete endpoint {id}")));
        }
        outcome
    }

    fn delete_balancer(&mut self, id: Guid, outcome: &mut Outcome) -> Result<(), Failure> {
        outcome.calls += 1;
        gone(self.kernel.delete_load_balancer(id))?;
        self.inventory.deleted_balancer(id);
        self.memory.lost(id);
        Ok(())
    }

    fn delete_endpoint(&mut self, id: Guid, outcome: &mut Outcome) -> Result<(), Failure> {
        outcome.calls += 1;
        match gone(self.kernel.delete_endpoint(id)) {
            Ok(()) => self.inventory.deleted_endpoint(id),
            // A load balancer that is not ours, or that could not be changed, still names it. It is tried again.
            Err(failure) if failure.reason() == Reason::InUse => debug!(%id, %failure, "an endpoint stays"),
            Err(failure) => return Err(failure),
        }
        Ok(())
    }

    fn create_endpoint(&mut self, id: Guid, wanted: &Endpoint, outcome: &mut Outcome) -> anyhow::Result<Guid> {
        outcome.calls += 1;
        let addresses: Vec<String> = wanted.addresses().map(|address| address.to_string()).collect();
        let context = || format!("make an endpoint for {}", addresses.join(", "));
        let network = self.inventory.network().context("no network is known").with_context(context)?;
        let settings = schema::write(wanted);
        let made = match self.kernel.create_endpoint(network, id, &settings) {
            // Ours, but on another network, where it is not listed: that of a life before.
            Err(failure) if failure.reason() == Reason::Exists => {
                self.delete_endpoint(id, outcome).with_context(context)?;
                outcome.calls += 1;
                self.kernel.create_endpoint(network, id, &settings).with_context(context)?
            }
            made => made.with_context(context)?,
        };
        let made: Endpoint = schema::read("endpoint", &made).with_context(context)?;
        let id = made.id.unwrap_or(id);
        self.inventory.made_endpoint(id, made);
        Ok(id)
    }

    fn write_balancer(&mut self, write: &Write, outcome: &mut Outcome) -> Result<(), Failure> {
        let wanted = &write.planned.document;
        let settings = schema::write(wanted);
        if let Some(id) = write.instead_of {
            if self.features().modify_load_balancer && !self.cannot_modify {
                outcome.calls += 1;
                match self.kernel.modify_load_balancer(id, &settings) {
                    Ok(shown) => {
                        self.wrote(id, wanted, &shown);
                        return Ok(());
                    }
                    Err(failure) if failure.reason() == Reason::Unsupported => {
                        info!(%failure, "HNS does not change load balancers in place, though its version says so");
                        self.cannot_modify = true;
                    }
                    Err(failure) if failure.reason() == Reason::NotFound => {}
                    Err(failure) => return Err(failure),
                }
            }
            self.delete_balancer(id, outcome)?;
        }
        outcome.calls += 1;
        let id = write.frontend.id();
        let shown = self.kernel.create_load_balancer(id, &settings)?;
        self.wrote(id, wanted, &shown);
        Ok(())
    }

    /// A load balancer was written, and is shown so.
    fn wrote(&mut self, asked_for: Guid, wanted: &LoadBalancer, shown: &str) {
        match schema::read::<LoadBalancer>("load balancer", shown) {
            Ok(shown) => {
                let id = shown.id.unwrap_or(asked_for);
                self.memory.wrote(id, wanted, &shown);
                self.inventory.made_balancer(id, shown);
            }
            Err(odd @ Odd { .. }) => {
                warn!(%odd, "HNS shows a load balancer of ours in a way that is not understood");
                self.memory.wrote(asked_for, wanted, wanted);
                self.inventory.made_balancer(asked_for, wanted.clone());
            }
        }
    }

    /// Looks at HNS; says whether something is to be done.
    fn is_disturbed(&mut self) -> anyhow::Result<bool> {
        let began = Instant::now();
        let all = began >= self.read_at;
        if all {
            self.inventory.forget();
            // They are tried again, and said again if that goes well meanwhile.
            let service = |(planned, why): &(plan::Planned, String)| format!("service {}: {why}", planned.service);
            self.said = std::mem::take(&mut self.refused).values().map(service).collect();
        }
        self.look()?;
        if all {
            self.read_at = Instant::now() + READ.max(began.elapsed() * READ_REST);
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

    /// Removes the load balancers and endpoints that have identifiers of ours; with `everything`, all load balancers of the host, as
    /// kube-proxy does it at its start.
    ///
    /// # Errors
    /// HNS cannot be reached, or refuses it.
    pub fn remove_all(&mut self, everything: bool) -> anyhow::Result<()> {
        self.inventory.forget();
        let root = None;
        self.inventory.look(&mut self.kernel, self.options.network.as_deref(), root)?;
        let mut outcome = Outcome::default();
        let balancers: Vec<Guid> =
            self.inventory.balancers().keys().copied().filter(|id| everything || id.is_ours()).collect();
        for id in &balancers {
            self.delete_balancer(*id, &mut outcome).with_context(|| format!("delete load balancer {id}"))?;
        }
        let endpoints: Vec<Guid> = self.inventory.endpoints().map(|(id, _)| id).filter(|id| id.is_ours()).collect();
        for id in &endpoints {
            self.delete_endpoint(*id, &mut outcome).with_context(|| format!("delete endpoint {id}"))?;
        }
        info!(load_balancers = balancers.len(), endpoints = endpoints.len(), "removed");
        Ok(())
    }
}

impl Outcome {
    fn note(&mut self, family: Option<Family>, result: anyhow::Result<()>) {
        if let Err(error) = result {
            self.failed.push((family.unwrap_or(Family::V4), error));
        }
    }
}

/// What is not there need not be deleted.
fn gone(result: Result<(), Failure>) -> Result<(), Failure> {
    match result {
        Err(failure) if failure.reason() == Reason::NotFound => Ok(()),
        other => other,
    }
}

impl<K: Kernel> Backend for WinBackend<K> {
    fn name(&self) -> &'static str {
        "win"
    }

    async fn sync(&mut self, state: &Snapshot, changes: &Changes) -> anyhow::Result<Synced> {
        self.apply(state, changes)
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
