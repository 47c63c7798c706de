//! [`IpvsBackend`]: applies the diff of each state. If the applied state is unknown, it first reads the live state. It skips
//! what the kernel refuses.
//!
//! A sync deletes virtual servers first, and adds destinations to those that have none. Then it writes rules, adds virtual servers and
//! the other destinations, removes destinations, and binds addresses last.
//! In this order, packets never reach a virtual server whose rules are missing. Our tables list the VIPs of all our virtual
//! servers, so that a restarted backend knows which virtual servers are its own.

use std::{collections::BTreeSet, net::IpAddr};

use anyhow::Context as _;
use localnet_client::{
    Backend, Code, Counts, Diagnostic, Mode, Subject, Synced,
    vips::{self, Config, Effective},
};
use localnet_linux::{
    conntrack::Commit,
    ipvs::{Change, Frontend, Scheduler, ServerState, VirtualServer},
    nft::{Error, Kernel as _, TableContent, Transaction},
};
use localnet_linux_backend::{elements::live_vips, live::LinuxBackend, portions::Limits, traffic::TrafficCounter};
use localnet_proto::{ByFamily, Changes, Family, Snapshot};
use tracing::{debug, info, warn};

use crate::{
    Options,
    desired::Desired,
    kernel::Kernel,
    plan::{self, INTERFACE, sets::SetId},
};

/// The warning that KEP-5495 asks for, in kube-proxy's words.
pub(crate) const DEPRECATION: &str =
    "The ipvs proxier is now deprecated and may be removed in a future release. Please use 'nftables' instead.";

/// Programs IPVS through a `Kernel`.
#[derive(Debug)]
pub struct IpvsBackend<K> {
    kernel: K,
    desired: Desired,
    /// Counts the traffic of Services, if the operator wants that.
    traffic: Option<TrafficCounter>,
    /// Whether this backend has not synced yet.
    first: bool,
    /// The VIPs that the tables contained when they were last read.
    found: ByFamily<Vec<Frontend>>,
    /// Whether the last sync added something that the kernel had refused before.
    recheck: bool,
    /// Whether the last sync read a family's table.
    read: ByFamily<bool>,
    /// The virtual server whose destinations were checked last.
    checked: Option<Frontend>,
    /// The virtual server whose draining destinations were checked last.
    drained: Option<Frontend>,
}

/// The kernel's errors if an object does not exist (ENOENT, ESRCH) or already exists (EEXIST).
const EXISTENCE: [i32; 3] = [2, 3, 17];
/// The kernel's error for a scheduler that it does not have.
const MISSING: i32 = 2;

impl<K: Kernel> IpvsBackend<K> {
    /// A backend that has neither read nor written anything yet.
    pub fn new(config: Config, options: Options, kernel: K) -> Self {
        Self {
            kernel,
            desired: Desired::new(config, options),
            traffic: None,
            first: true,
            found: Default::default(),
            recheck: false,
            read: ByFamily::default(),
            checked: None,
            drained: None,
        }
    }

    /// The backend with a counter of the Services' traffic.
    #[must_use]
    pub fn counting(mut self, traffic: Option<TrafficCounter>) -> Self {
        if traffic.is_some() {
            self.desired.moved().count();
        }
        Self { traffic, ..self }
    }

    /// The desired state, as of the last sync.
    pub fn desired(&self) -> &Desired {
        &self.desired
    }

    /// The desired tables, as of the last sync.
    pub fn plan(&self) -> Vec<TableContent> {
        self.desired.content()
    }

    /// The kernel that the backend programs.
    pub fn kernel(&mut self) -> &mut K {
        &mut self.kernel
    }

    /// Checks that IPVS is usable with the operator's options. If the check fails, a retry cannot help.
    ///
    /// # Errors
    /// Returns an error if IPVS is missing, the process lacks privileges, or the kernel lacks the scheduler. The message
    /// contains the remedy.
    pub fn check(&mut self) -> anyhow::Result<()> {
        let scheduler = self.desired.options().scheduler.clone();
        let in_use = self.kernel.heads()?.iter().any(|server| server.scheduler == scheduler);
        if !in_use {
            // The only way to learn whether the kernel has the scheduler is to add a virtual server that uses it. No host has the
            // address of this virtual server (RFC 5737).
            let probe = plan::frontend(&localnet_client::vips::VipKey {
                address: IpAddr::from([198, 51, 100, 0]),
                protocol: localnet_proto::Protocol::Tcp,
                port: 20_000,
            });
            let add = Change::AddServer(VirtualServer::new(probe, scheduler));
            let applied = self.kernel.change(&[add, Change::DeleteServer(probe)])?;
            if let Some(refused) = applied.refused.into_iter().find(|refused| refused.change == 0) {
                return Err(refused.into());
            }
        }
        Ok(())
    }

    fn families(&mut self) -> Vec<Family> {
        let nft = self.kernel.nft();
        Family::BOTH.into_iter().filter(|family| nft.has_family(*family)).collect()
    }

    /// Applies `state`. `changes` lists everything that differs from the previous state.
    ///
    /// # Errors
    /// Returns an error if IPVS does not answer, or if the kernel refuses the rules of every family.
    pub async fn apply(&mut self, state: &Snapshot, changes: &Changes) -> anyhow::Result<Synced> {
        if std::mem::take(&mut self.first) && !self.kernel.nft().has_family(Family::V6) {
            info!("this host has no IPv6; programming only IPv4");
        }
        for notice in self.desired.update(state, changes) {
            warn!("{notice}");
        }
        self.read = ByFamily::default();
        let written = self.write().await;
        if written.is_err() {
            self.forget();
        }
        let failed = written.with_context(|| format!("cannot program IPVS with revision {}", state.revision))?;
        let full = Family::BOTH.into_iter().filter(|family| self.read[*family]).collect();
        Ok(Synced { failed, skipped: self.desired.skipped(), refused: self.desired.refused(), full })
    }

    async fn write(&mut self) -> anyhow::Result<Vec<(Family, anyhow::Error)>> {
        // Right after a read, the applied state is exact. If the kernel then refuses a change, the reason is the change itself,
        // not an outdated applied state.
        let mut fresh = self.read_unknown().await?;
        loop {
            let deletions = self.desired.servers().deletions();
            // A refused deletion means that the server was deleted already, unless the kernel is short of a resource. Then its VIP must
            // stay in the tables, so that a later sync knows that the server is ours.
            without_shortage(self.change(&deletions)?)?;
            let additions = self.desired.servers().first_destinations();
            let mut refused = without_shortage(self.change(&additions)?)?;
            let mut failed = self.write_tables()?;
            // If the rules of a family are not written, its virtual servers must not be added.
            let mut families = self.families();
            families.retain(|family| failed.iter().all(|(of, _)| of != family));
            let surprise = |refused: &Refused| EXISTENCE.contains(&refused.errno) && refused.scheduler.is_none();
            let additions = self.desired.servers().additions(|family| families.contains(&family));
            refused.extend(self.change(&additions)?);
            let incomplete = refused.iter().filter(|one| one.short.is_some() || !fresh && surprise(one));
            let incomplete = incomplete.map(|refused| refused.frontend).collect();
            let removals = self.desired.servers().removals(|family| families.contains(&family), &incomplete);
            refused.extend(self.change(&removals)?);
            if !fresh && refused.iter().any(surprise) {
                info!("the virtual servers differ from the applied state; reading them");
                // The kernel may have refused these changes only because the applied state was wrong.
                self.desired.servers_mut().retry_refused();
                self.forget();
                fresh = self.read_unknown().await?;
                continue;
            }
            let missing: BTreeSet<Scheduler> = refused.iter().filter_map(|refused| refused.scheduler.clone()).collect();
            if missing.iter().any(|scheduler| self.desired.lacks(scheduler)) {
                continue;
            }
            // While the kernel refused them, flows to their VIPs began untranslated.
            self.recheck |= self.desired.servers_mut().settle();
            let mut short: Vec<_> = refused.into_iter().filter_map(|refused| refused.short).collect();
            short.extend(self.write_addresses(&families).await?);
            failed.extend(short);
            if !failed.is_empty() {
                // After a shortage, only a full sync shows which changes were made. The caller retries.
                self.desired.servers_mut().forget();
                self.desired.addresses().forget();
            }
            return Ok(failed);
        }
    }

    /// Applies changes of virtual servers and returns those that were refused.
    fn change(&mut self, changes: &[Change]) -> anyhow::Result<Vec<Refused>> {
        if changes.is_empty() {
            return Ok(Vec::new());
        }
        let applied = self.kernel.change(changes)?;
        debug!(changes = applied.changes, batches = applied.batches, "virtual servers changed");
        for (frontend, why) in self.desired.servers_mut().applied(changes, &applied.refused) {
            let service = self.desired.service(&frontend).cloned();
            match service {
                Some(service) => warn!("{}", vips::refused(&service, why)),
                None => warn!("{why}"),
            }
        }
        let refused = applied.refused.into_iter().map(|refused| {
            let change = &changes[refused.change];
            let scheduler = match change {
                Change::AddServer(server) | Change::UpdateServer(server) if refused.errno == MISSING => {
                    Some(server.scheduler.clone())
                }
                _ => None,
            };
            let (errno, frontend) = (refused.errno, *change.frontend());
            let family = Family::of(frontend.address.ip());
            Refused { errno, frontend, scheduler, short: refused.is_shortage().then(|| (family, refused.into())) }
        });
        Ok(refused.collect())
    }

    /// Writes both tables. If one fails, the other is written nevertheless.
    fn write_tables(&mut self) -> anyhow::Result<Vec<(Family, anyhow::Error)>> {
        let families = self.families();
        let mut failed: Vec<(Family, anyhow::Error)> = Vec::new();
        for family in &families {
            if let Err(error) = self.write_table(*family) {
                self.desired.table(*family).forget();
                failed.push((*family, error));
            }
        }
        match failed.len() == families.len() {
            true => Err(failed.remove(0).1),
            false => Ok(failed),
        }
    }

    fn write_table(&mut self, family: Family) -> anyhow::Result<()> {
        let mut fresh = false;
        loop {
            if !self.desired.table(family).is_known() {
                fresh = true;
                self.read_table(family)?;
            }
            let table = self.desired.table(family);
            let changes = table.changes(Limits::NONE);
            if changes.count() == 0 {
                table.commit();
                // The backend may have crashed before it removed them.
                self.remove_stale_chains(family);
                return Ok(());
            }
            let transaction = table.transaction(&changes, 0);
            match self.kernel.nft().apply(&transaction) {
                Ok(sent) => {
                    debug!(?family, sent.messages, sent.bytes, sent.elements, "transaction applied");
                    self.desired.table(family).commit();
                    self.remove_stale_chains(family);
                    return Ok(());
                }
                Err(error @ Error::Refused { .. }) if !fresh => {
                    info!("the tables differ from the applied state; reading them ({error})");
                    self.desired.table(family).forget();
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Removes chains that nothing refers to. Such chains are harmless: if the kernel refuses the removal, a later change retries
    /// it.
    fn remove_stale_chains(&mut self, family: Family) {
        let removal = self.desired.table(family).removal();
        match removal.iter().try_for_each(|transaction| self.kernel.nft().apply(transaction).map(drop)) {
            Ok(()) => self.desired.table(family).removed(),
            Err(error) if error.hides_outcome() => self.desired.table(family).forget(),
            Err(error) => debug!(%error, "cannot delete unused chains yet"),
        }
    }

    /// Adds and removes addresses of these families. Returns the families for which the kernel is short of a resource.
    async fn write_addresses(&mut self, families: &[Family]) -> anyhow::Result<Vec<(Family, anyhow::Error)>> {
        let [mut add, mut remove] = self.desired.address_changes();
        for addresses in [&mut add, &mut remove] {
            addresses.retain(|address| families.contains(&Family::of(*address)));
        }
        let mut refused = Vec::new();
        if !add.is_empty() || !remove.is_empty() {
            let changed = self.kernel.bind(add, remove).await?;
            debug!(added = changed.added, removed = changed.removed, "addresses of {INTERFACE} changed");
            refused = changed.refused;
        }
        // While the node lacked the address, flows to it began untranslated.
        let is_added = |address| refused.iter().all(|refused| refused.address != address);
        self.recheck |= self.desired.retried_addresses().any(is_added);
        let short = refused.iter().filter(|refused| refused.is_shortage);
        let short = short.map(|refused| (Family::of(refused.address), anyhow::anyhow!("{refused}"))).collect();
        for news in self.desired.addresses_changed(refused) {
            warn!("{news}");
        }
        Ok(short)
    }

    /// Reads the live state if the applied state is unknown. Returns whether it did.
    async fn read_unknown(&mut self) -> anyhow::Result<bool> {
        if self.desired.servers().is_known() {
            return Ok(false);
        }
        self.read = ByFamily::new(true, true);
        let mut ledger = BTreeSet::new();
        for family in self.families() {
            // If a table cannot be read here, its VIPs are unknown. A later write to this table fails and reports the error.
            match self.read_table(family) {
                Ok(vips) => ledger.extend(vips),
                Err(error) => debug!(%error, "the table cannot be read"),
            }
        }
        let addresses = self.kernel.addresses().await?;
        let servers = self.kernel.servers()?;
        let ours = self.ours(servers, &ledger, &addresses.clone().unwrap_or_default());
        self.desired.servers_mut().adopt(ours);
        match addresses {
            Some(addresses) => self.desired.addresses().adopt(addresses.into_iter().map(|address| (address, ()))),
            None => self.desired.addresses().adopt([]),
        }
        Ok(true)
    }

    /// Selects the virtual servers that belong to this backend: their VIP is desired, was applied before, is in our tables, or has its
    /// address on our interface. A virtual server with an excluded address never belongs to this backend.
    fn ours(
        &self,
        servers: Vec<ServerState>,
        ledger: &BTreeSet<Frontend>,
        addresses: &BTreeSet<IpAddr>,
    ) -> Vec<ServerState> {
        let is_ours = |state: &ServerState| {
            let frontend = &state.server.frontend;
            let address = frontend.address.ip();
            let known =
                self.desired.servers().knows(frontend) || ledger.contains(frontend) || addresses.contains(&address);
            known && !self.desired.options().excludes(address)
        };
        servers.into_iter().filter(is_ours).collect()
    }

    /// Reads a table and returns the VIPs in it.
    fn read_table(&mut self, family: Family) -> Result<Vec<Frontend>, Error> {
        self.read[family] = true;
        let table = self.desired.table(family);
        let found = self.kernel.nft().read(table.table(), &|name| table.chain(name))?;
        let vips: Vec<Frontend> = found.iter().flat_map(|found| live_vips(found, &[SetId::Vips])).collect();
        self.found[family].clone_from(&vips);
        self.desired.table(family).adopt(found);
        Ok(vips)
    }

    /// Removes our virtual servers, the interface and both tables. It is no error if they are missing.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses a removal or does not answer.
    pub async fn remove_all(&mut self) -> anyhow::Result<()> {
        self.forget();
        self.read_unknown().await?;
        let held = self.kernel.servers()?;
        let ledger = self.found.values().concat().into_iter().collect();
        let addresses = self.kernel.addresses().await?.unwrap_or_default();
        let ours = self.ours(held, &ledger, &addresses);
        let deletions: Vec<_> = ours.iter().map(|state| Change::DeleteServer(state.server.frontend)).collect();
        self.forget();
        if !deletions.is_empty() {
            let applied = self.kernel.change(&deletions)?;
            if let Some(refused) = applied.refused.into_iter().find(|refused| !EXISTENCE.contains(&refused.errno)) {
                return Err(refused.into());
            }
        }
        self.kernel.delete_interface().await?;
        let mut transaction = Transaction::new();
        for family in self.families() {
            // Deleting a missing table is an error, but adding an existing one is not.
            transaction.add_table(&plan::table(family)).delete_table(&plan::table(family));
        }
        self.kernel.nft().apply(&transaction).context("cannot remove tables ip localnet-ipvs and ip6 localnet-ipvs")?;
        Ok(())
    }
}

impl<K: Kernel> LinuxBackend for IpvsBackend<K> {
    fn set_local_addresses(&mut self, addresses: Vec<IpAddr>) -> bool {
        self.desired.set_local_addresses(addresses)
    }

    fn forget(&mut self) {
        self.desired.forget();
    }

    fn take_commit(&mut self, failed: &[Family]) -> Commit {
        let remembered = std::mem::take(&mut self.found).values().concat();
        let Commit { frontends, .. } = self.desired.moved().take(failed, self.traffic.as_ref());
        Commit { frontends, remembered, recheck: std::mem::take(&mut self.recheck), ..Commit::default() }
    }

    fn count(&self, counts: &mut Counts) {
        counts.traffic = self.traffic.as_ref().and_then(TrafficCounter::counted);
    }
}

impl<K: Kernel> Backend for IpvsBackend<K> {
    fn name(&self) -> &'static str {
        "ipvs"
    }

    fn mode(&self) -> Option<Mode> {
        Some(Mode::Ipvs)
    }

    fn warnings(&self) -> Vec<Diagnostic> {
        vec![Diagnostic::new(Code::IpvsDeprecated, Subject::Program, DEPRECATION)]
    }

    fn configuration(&self) -> Option<Effective> {
        self.desired.configuration()
    }

    async fn sync(&mut self, state: &Snapshot, changes: &Changes) -> anyhow::Result<Synced> {
        self.apply(state, changes).await
    }

    fn retry_refused(&mut self) {
        self.desired.retry_refused();
    }

    async fn cleanup(&mut self) -> anyhow::Result<()> {
        self.remove_all().await
    }
}

/// A refused change of a virtual server or destination.
struct Refused {
    errno: i32,
    frontend: Frontend,
    /// The requested scheduler, if the kernel lacks it.
    scheduler: Option<Scheduler>,
    /// The family and the error, if the kernel refused the change only because it is short of a resource.
    short: Option<(Family, anyhow::Error)>,
}

/// Returns an error if the kernel refused one of these changes only because it is short of a resource.
fn without_shortage(mut refused: Vec<Refused>) -> anyhow::Result<Vec<Refused>> {
    match refused.iter_mut().find_map(|refused| refused.short.take()) {
        Some((_, error)) => Err(error),
        None => Ok(refused),
    }
}

mod check;
mod inspect;
#[cfg(test)]
mod tests;
