//! [`NftBackend`]: turns each state into one transaction for each table, or into several portions for a large change.
//! It reads tables whose contents are unknown, and skips what the kernel refuses.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use anyhow::Context as _;
use localnet_client::{
    Backend, Counts, Mode, Synced,
    vips::{self, Config, Effective},
};
use localnet_linux::{
    conntrack::{Commit, Frontend},
    nft::{Change, Element, Error, Table, TableContent, Transaction, TransactionSize, family_name},
};
use localnet_linux_backend::{
    blocking,
    elements::live_vips,
    live::LinuxBackend,
    portions::{Limits, Portions},
    traffic::TrafficCounter,
};
use localnet_proto::{ByFamily, Changes, Family, ServiceKey, Snapshot};
use tracing::{debug, info, warn};

use crate::{
    affinity::{Chore, Fate, Place},
    desired::Desired,
    kernel::Kernel,
    plan::{
        self,
        sets::{SetId, Sets as _},
    },
};

/// Programs nf_tables.
#[derive(Debug)]
pub struct NftBackend<K> {
    kernel: K,
    desired: Desired,
    /// Whether another proxy serves the Services that the state does not contain.
    is_canary: bool,
    /// Counts the traffic of Services, if the operator wants that.
    traffic: Option<TrafficCounter>,
    /// Whether no sync has run yet.
    first: bool,
    /// The VIPs in each table when it was last read.
    found: ByFamily<Vec<Frontend>>,
    generations: Generations,
    /// The largest number of elements in one transaction.
    limits: Limits,
    /// Whether a substitute table may exist. This is so after the start, because an earlier run may have been killed, and
    /// after a failed transaction.
    has_substitute: ByFamily<bool>,
    /// Whether this sync had to read the table.
    read: ByFamily<bool>,
}

/// Generation numbers of the ruleset; `None` where unknown.
#[derive(Clone, Copy, Debug, Default)]
struct Generations {
    /// The generation at which each table was read.
    read: ByFamily<Option<u32>>,
    /// The newest generation up to which only this process has changed the tables since they were read.
    undisturbed: Option<u32>,
}

/// How many times the clients are read again if some of them expire before they are changed.
const ATTEMPTS: usize = 8;

/// How many times a table is read again because another program committed before a Service was refused. Then the Service is at
/// fault, because a program may commit all the time.
const MAX_OVERTAKEN: usize = 3;

/// The largest number of Services that may be refused in one sync. If the kernel refuses more, the Services are not at
/// fault, and the sync fails.
const MAX_REFUSED: usize = 16;

impl<K: Kernel> NftBackend<K> {
    /// The backend beside another proxy, which serves the Services that the state does not contain.
    #[must_use]
    pub fn canary(self, is_canary: bool) -> Self {
        Self { is_canary, ..self }
    }

    /// The backend with a counter of the Services' traffic.
    #[must_use]
    pub fn counting(mut self, traffic: Option<TrafficCounter>) -> Self {
        if traffic.is_some() {
            self.desired.moved().count();
            self.desired.count_refused();
        }
        Self { traffic, ..self }
    }

    /// A backend that has neither read nor written anything yet.
    pub fn new(config: Config, kernel: K) -> Self {
        Self {
            kernel,
            desired: Desired::new(config),
            is_canary: false,
            traffic: None,
            first: true,
            found: ByFamily::default(),
            generations: Generations::default(),
            limits: Limits::default(),
            has_substitute: ByFamily::new(true, true),
            read: ByFamily::default(),
        }
    }

    /// The same backend with other limits of one transaction.
    #[must_use]
    pub fn with_limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// The desired content of the tables, after a sync.
    pub fn plan(&self) -> Vec<TableContent> {
        self.desired.content()
    }

    /// The kernel that the backend writes to.
    pub fn kernel(&self) -> &K {
        &self.kernel
    }

    /// Checks that nf_tables can be used, and has all features that the backend needs. If not, for instance because privileges
    /// are missing, retries are useless.
    ///
    /// # Errors
    /// Returns an error with the cause and its remedy.
    pub fn check(&mut self) -> Result<(), Error> {
        // Reading needs the same privileges as writing, and reading a table that does not exist is cheap.
        self.kernel.read(&Table::new(Family::V4, "localnet-check"), &|_| None)?;
        if let Some(refused) = self.lacks(&plan::probe::probe())? {
            return Err(Error::Lacking { refused });
        }
        if let Some(refused) = self.lacks(&plan::probe::hashing())? {
            let why =
                format!("endpoints are chosen at random, because this kernel cannot hash (module nft_hash): {refused}");
            self.desired.choose_at_random(&why);
        }
        Ok(())
    }

    /// What the kernel refuses in a transaction whose last change it must refuse; `None` if it refuses only that.
    fn lacks(&mut self, probe: &Transaction) -> Result<Option<String>, Error> {
        match self.kernel.apply(probe) {
            Err(Error::Refused { change, .. }) if change + 1 == probe.changes().len() => Ok(None),
            // The kernel was too short of memory for an answer.
            Err(error) if error.is_shortage() => Ok(None),
            Err(error @ Error::Refused { .. }) => Ok(Some(error.to_string())),
            result => result.map(|_| None),
        }
    }

    /// Applies `state`, which differs from the previous state only in `changes`. The tables are
    /// independent: if the kernel cannot translate IPv6, IPv4 is still programmed.
    ///
    /// # Errors
    /// Returns an error if neither family can be programmed: the kernel refuses something that belongs to no single
    /// Service, or it cannot be reached.
    pub fn apply(&mut self, state: &Snapshot, changes: &Changes) -> anyhow::Result<Synced> {
        if std::mem::take(&mut self.first) && !self.kernel.has_family(Family::V6) {
            info!("this host has no IPv6; programming only IPv4");
        }
        for notice in self.desired.update(state, changes) {
            warn!("{notice}");
        }
        self.read = ByFamily::default();
        let mut failed = self.write();
        if self.desired.release() && failed.is_empty() {
            failed = self.write();
        }
        for (_, error) in &mut failed {
            let cause = std::mem::replace(error, anyhow::Error::msg(""));
            *error = cause.context(format!("cannot program nf_tables with revision {}", state.revision));
        }
        if failed.len() == Family::BOTH.iter().filter(|family| self.kernel.has_family(**family)).count() {
            return Err(failed.remove(0).1);
        }
        self.remove_stale_chains();
        self.change_clients();
        let full = Family::BOTH.into_iter().filter(|family| self.read[*family]).collect();
        Ok(Synced { failed, skipped: self.desired.vips.skipped(), refused: self.desired.vips.refused(), full })
    }

    /// Records the commit of another process. Returns whether the tables must be read again.
    pub fn committed_elsewhere(&mut self, tables: &BTreeSet<Table>, generation: u32) -> bool {
        let is_next = |last: u32| generation == last.wrapping_add(1);
        let mut touched = Family::BOTH.into_iter().filter(|family| tables.contains(&plan::table(*family))).peekable();
        if touched.peek().is_none() {
            self.generations.undisturbed = self.generations.undisturbed.map(|last| match is_next(last) {
                true => generation,
                false => last,
            });
            return false;
        }
        // A read includes all commits that precede it.
        let is_newer = |read: u32| generation.wrapping_sub(read).cast_signed() > 0;
        touched.any(|family| self.generations.read[family].is_none_or(is_newer))
    }

    /// Records that notifications were lost, so that the commits of other processes are unknown. Returns whether the
    /// tables must be read again.
    pub fn lost_sight(&mut self) -> bool {
        self.generations.undisturbed.is_none() || self.kernel.generation() != self.generations.undisturbed
    }

    /// Whether the next sync knows the contents of the tables, and need not read them.
    pub fn knows_tables(&mut self) -> bool {
        let tables = self.desired.tables();
        Family::BOTH.into_iter().all(|family| tables[family].is_known() || !self.kernel.has_family(family))
    }

    /// Whether another program has committed since the tables were read. A refusal can then be its doing: for instance, it may
    /// have deleted the table.
    fn is_overtaken(&mut self) -> bool {
        self.generations.undisturbed.is_some_and(|last| self.kernel.generation() != Some(last))
    }

    fn apply_transaction(&mut self, transaction: &Transaction) -> Result<TransactionSize, Error> {
        let sent = self.kernel.apply(transaction)?;
        let next = self.generations.undisturbed.map(|last| last.wrapping_add(1));
        if next.is_some() && self.kernel.generation() == next {
            self.generations.undisturbed = next;
        }
        Ok(sent)
    }

    /// Writes both tables. Repeats this if the kernel refused a Service, because the Service must then leave the other
    /// table as well. Also repeats it if another program has changed the tables.
    fn write(&mut self) -> Vec<(Family, anyhow::Error)> {
        let mut refused = 0;
        loop {
            let refused_before = refused;
            let mut failed = Vec::new();
            for family in Family::BOTH {
                if !self.kernel.has_family(family) {
                    continue;
                }
                failed.extend(self.write_table(family, &mut refused).err().map(|error| (family, error)));
            }
            // After a failure, `knows_tables` is false too, but an immediate retry would fail again.
            if refused == refused_before && (!failed.is_empty() || self.knows_tables()) {
                return failed;
            }
        }
    }

    fn write_table(&mut self, family: Family, refused: &mut usize) -> anyhow::Result<()> {
        // Whether the table was just read. If the kernel then refuses a change, the change itself is at fault.
        let (mut fresh, mut overtaken) = (false, 0);
        loop {
            fresh |= self.read_unknown(family)?;
            self.prepare(family)?;
            self.read_substitute(family)?;
            let portions = self.desired.tables()[family].changes(self.limits);
            let Some((index, transaction, error)) = self.apply_portions(family, &portions) else {
                self.desired.commit(family);
                if portions.count() == 0
                    && let Err(error) = self.remove_substitute(family)
                {
                    debug!(%error, "cannot delete the substitute table");
                    return Ok(());
                }
                self.has_substitute[family] = false;
                return Ok(());
            };
            let failed = if fresh { self.pinpoint(transaction, error) } else { Some((transaction, error)) };
            if portions.count() > 1 {
                // Also if the answer to the first portion was lost.
                self.has_substitute[family] = true;
                if index > 0 || failed.is_none() {
                    // The table now holds a part of the change.
                    self.desired.forget(family);
                }
            }
            let Some((transaction, error)) = failed else {
                if portions.count() == 1 {
                    self.desired.commit(family);
                    return Ok(());
                }
                continue;
            };
            // A lack of memory or space can hit any element, so the refused element is not at fault.
            let owner = if error.is_shortage() { None } else { self.owner(&transaction, &error) };
            if owner.is_some() && fresh && overtaken < MAX_OVERTAKEN && self.is_overtaken() {
                overtaken += 1;
                self.forget();
                continue;
            }
            match owner {
                Some(service) if fresh && *refused < MAX_REFUSED => {
                    *refused += 1;
                    let text = format!("the kernel refuses it; retrying later: {error}");
                    if self.desired.refuse(&service, text.clone()) {
                        warn!("{}", vips::refused(&service, text));
                    } else {
                        debug!(%service, text, "still refused");
                    }
                }
                _ => {
                    self.forget();
                    if fresh || !matches!(error, Error::Refused { .. }) {
                        return Err(self.named(owner, error));
                    }
                    info!("the tables differ from the applied state; reading them ({error})");
                }
            }
        }
    }

    /// Applies the portions in order. If one fails, stops and returns its index, its transaction and the error.
    fn apply_portions(&mut self, family: Family, portions: &Portions<SetId>) -> Option<(usize, Transaction, Error)> {
        for index in 0..portions.count() {
            let transaction = self.desired.tables()[family].transaction(portions, index);
            match self.apply_transaction(&transaction) {
                Ok(sent) => debug!(?family, sent.messages, sent.bytes, sent.elements, "transaction applied"),
                Err(error) => return Some((index, transaction, error)),
            }
        }
        None
    }

    /// Reads the substitute table if it may exist.
    fn read_substitute(&mut self, family: Family) -> Result<(), Error> {
        let may_exist = self.has_substitute[family];
        let found = if may_exist { self.kernel.read(&plan::substitute(family), &|_| None)? } else { None };
        self.has_substitute[family] = found.is_some();
        self.desired.tables()[family].set_substitute(found.as_ref());
        Ok(())
    }

    /// Deletes the substitute table if it exists. No packets enter it, because the table itself is complete.
    fn remove_substitute(&mut self, family: Family) -> Result<(), Error> {
        if self.has_substitute[family] {
            let mut removal = Transaction::new();
            removal.delete_table(&plan::substitute(family));
            self.apply_transaction(&removal)?;
        }
        Ok(())
    }

    /// Adds and fills new chains before elements lead to them. A refusal needs no handling here: the transaction with
    /// the elements then also contains these chains, and its errors are handled.
    ///
    /// # Errors
    /// Returns an error if the outcome is unknown: that transaction could then add the rules a second time.
    fn prepare(&mut self, family: Family) -> Result<(), Error> {
        let mut transaction = Transaction::new();
        let names = self.desired.tables()[family].preparation(&mut transaction);
        if transaction.is_empty() {
            return Ok(());
        }
        match self.apply_transaction(&transaction) {
            Ok(_) => self.desired.tables()[family].prepared(names),
            Err(error) if error.hides_outcome() => {
                self.forget();
                return Err(error);
            }
            Err(error) => debug!(%error, "cannot add new chains in advance; adding them with the rules that use them"),
        }
        Ok(())
    }

    /// Finds the element that the kernel refuses. The errors of older kernels identify only the set, so this sends the
    /// transaction again, with each element of that set as a change of its own. Returns `None` if the kernel now
    /// accepts the transaction.
    fn pinpoint(&mut self, transaction: Transaction, error: Error) -> Option<(Transaction, Error)> {
        let change = match &error {
            Error::Refused { change, element: None, .. } if !error.is_shortage() => *change,
            _ => return Some((transaction, error)),
        };
        let mut single = Transaction::new();
        for (index, sent) in transaction.changes().iter().enumerate() {
            match sent {
                Change::AddElements(table, set, elements) if index == change => {
                    for element in elements {
                        single.add_elements(table, set, vec![element.clone()]);
                    }
                }
                other => _ = single.push(other.clone()),
            }
        }
        match self.apply_transaction(&single) {
            Err(Error::Refused { change, element: None, what, errno, message }) => {
                Some((single, Error::Refused { change, element: Some(0), what, errno, message }))
            }
            Err(error) => Some((single, error)),
            Ok(_) => None,
        }
    }

    /// Reads the table if its contents are unknown. Returns whether it was read.
    fn read_unknown(&mut self, family: Family) -> anyhow::Result<bool> {
        let has_other = self.desired.tables()[family.other()].is_known();
        let table = &self.desired.tables()[family];
        if table.is_known() {
            return Ok(false);
        }
        loop {
            let affinity = self.desired.affinity(family).clone();
            let generation = self.kernel.generation();
            self.generations.read[family] = generation;
            if !has_other {
                self.generations.undisturbed = generation;
            }
            let table = &self.desired.tables()[family];
            let found = self.kernel.read(table.table(), &|name| table.chain(name));
            let found = found.with_context(|| format!("read {}", name(table.table())))?;
            self.found[family] = found.iter().flat_map(|found| live_vips(found, &ANSWERING)).collect();
            self.desired.adopt(family, found);
            // The slots that were read may change the desired chains. If so, the table was compared with outdated
            // chains and is read again.
            if *self.desired.affinity(family) == affinity {
                break;
            }
        }
        self.read[family] = true;
        Ok(true)
    }

    /// The Service whose element the kernel refused.
    fn owner(&self, transaction: &Transaction, error: &Error) -> Option<ServiceKey> {
        let Error::Refused { change, element: Some(index), .. } = error else { return None };
        let Change::AddElements(_, set, elements) = transaction.changes().get(*change)? else { return None };
        let element: &Element = elements.get(*index)?;
        self.desired.owner(SetId::of_name(&set.name)?, element)
    }

    fn named(&self, owner: Option<ServiceKey>, error: Error) -> anyhow::Error {
        match owner {
            Some(service) => anyhow::Error::new(error).context(format!("Service {service}")),
            None => error.into(),
        }
    }

    /// Removes chains that nothing refers to. Such chains are harmless: if the kernel still refuses the removal, a
    /// later sync retries it.
    fn remove_stale_chains(&mut self) {
        for family in Family::BOTH {
            let removal = self.desired.tables()[family].removal();
            match removal.iter().try_for_each(|transaction| self.apply_transaction(transaction).map(drop)) {
                Ok(()) => self.desired.tables()[family].removed(),
                Err(error) if error.hides_outcome() => self.desired.forget(family),
                Err(error) => debug!(%error, "cannot delete unused chains yet"),
            }
        }
    }

    /// Updates the remembered clients of session affinity. The slot of a removed endpoint stays empty until its clients
    /// are deleted, because another endpoint in the slot would receive them. Clients of a port with a new timeout get
    /// that timeout. After a failure, the clients stay unchanged until the next sync, which tries again.
    fn change_clients(&mut self) {
        for (place, chore) in self.desired.chores() {
            match self.change_clients_in(place, &chore) {
                Ok(()) => self.desired.done(&place),
                Err(error) => debug!(%error, place.slot, "cannot update the clients of session affinity"),
            }
        }
    }

    fn change_clients_in(&mut self, place: Place, chore: &Chore) -> Result<(), Error> {
        let table = &self.desired.tables()[place.family];
        let Some(set) = table.numbered(place.slot).cloned() else { return Ok(()) };
        let table = table.table().clone();
        let mut attempts = 1..=ATTEMPTS;
        loop {
            let clients = self.kernel.elements(&table, &set)?.unwrap_or_default();
            // The kernel may list an element twice while packets add others.
            let clients: BTreeMap<_, _> = clients.into_iter().map(|client| (client.key.clone(), client)).collect();
            let [mut gone, mut new] = [Vec::new(), Vec::new()];
            for client in clients.into_values() {
                match chore.fate(place.family, &client) {
                    Fate::Stays => continue,
                    Fate::Forgotten => {}
                    Fate::Renewed(expiry) => new.push(Element::expiring(client.key.clone(), expiry)),
                }
                gone.push(client);
            }
            let mut transaction = Transaction::new();
            if transaction.delete_elements(&table, &set, gone).add_elements(&table, &set, new).is_empty() {
                return Ok(());
            }
            match self.apply_transaction(&transaction) {
                // A client expired after it was read.
                Err(Error::Refused { .. }) if attempts.next().is_some() => {}
                result => return result.map(drop),
            }
        }
    }

    /// Removes both tables; they may be absent.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses the removal or cannot be reached.
    pub fn remove_all(&mut self) -> anyhow::Result<()> {
        let mut transaction = Transaction::new();
        for family in Family::BOTH.into_iter().filter(|family| self.kernel.has_family(*family)) {
            // The kernel refuses to delete an absent table, but accepts adding an existing one.
            for table in [plan::table(family), plan::substitute(family)] {
                transaction.add_table(&table).delete_table(&table);
            }
        }
        self.forget();
        self.kernel.apply(&transaction).context("failed to remove the tables ip localnet and ip6 localnet")?;
        Ok(())
    }
}

impl<K: Kernel> LinuxBackend for NftBackend<K> {
    fn set_local_addresses(&mut self, addresses: Vec<IpAddr>) -> bool {
        self.desired.vips.set_local_addresses(addresses)
    }

    fn forget(&mut self) {
        Family::BOTH.into_iter().for_each(|family| self.desired.forget(family));
    }

    fn take_commit(&mut self, failed: &[Family]) -> Commit {
        let found = std::mem::take(&mut self.found);
        // Beside another proxy, that proxy may serve them now.
        let remembered = if self.is_canary { Vec::new() } else { found.values().concat() };
        let mut commit = Commit { remembered, ..self.desired.moved().take(failed, self.traffic.as_ref()) };
        if self.is_canary {
            let removed = commit.frontends.extract_if(.., |(_, now)| now.is_none());
            commit.handed_over = removed.map(|(frontend, _)| frontend).collect();
        }
        commit
    }

    fn count(&self, counts: &mut Counts) {
        counts.traffic = self.traffic.as_ref().and_then(TrafficCounter::counted);
    }
}

impl<K: Kernel> Backend for NftBackend<K> {
    fn name(&self) -> &'static str {
        "nft"
    }

    fn mode(&self) -> Option<Mode> {
        Some(Mode::Nftables)
    }

    fn configuration(&self) -> Option<Effective> {
        self.desired.vips.effective()
    }

    async fn sync(&mut self, state: &Snapshot, changes: &Changes) -> anyhow::Result<Synced> {
        blocking(|| self.apply(state, changes))
    }

    fn retry_refused(&mut self) {
        self.desired.vips.retry_refused();
    }

    async fn cleanup(&mut self) -> anyhow::Result<()> {
        blocking(|| self.remove_all())
    }
}

/// The sets that together contain every VIP for which a table has a verdict or endpoints.
const ANSWERING: [SetId; 4] = [SetId::Services, SetId::LocalServices, SetId::NoEndpoints, SetId::AffinityVips];

fn name(table: &Table) -> String {
    format!("table {} {}", family_name(table.family), table.name)
}

#[cfg(test)]
mod tests;
