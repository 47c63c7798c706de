//! [`NftBackend`]: state in; out, for each table, one transaction, or several portions of a large load; what is not known is read, what is
//! refused is left out.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use anyhow::Context as _;
use localnet_client::{
    Backend, Synced,
    vips::{Config, Effective, Notice},
};
use localnet_linux::{
    conntrack::{Commit, Frontend},
    nft::{Change, Element, Error, Family, Sent, Table, TableContent, Transaction},
};
use localnet_proto::{Changes, ServiceKey, Snapshot};
use tracing::{debug, info, warn};

use crate::{
    affinity::{Chore, Fate, Place},
    desired::{Desired, frontend},
    kernel::{Found, Kernel},
    plan::{self, elements, model_family, sets::SetId},
    portions::PORTION,
    table::TableState,
};

/// Programs nf_tables.
#[derive(Debug)]
pub struct NftBackend<K> {
    kernel: K,
    desired: Desired,
    /// Nothing was synced yet.
    first: bool,
    /// The VIPs in the tables when they were read last.
    found: [Vec<Frontend>; 2],
    generations: Generations,
    /// So many elements go into one transaction.
    portion: usize,
    /// Where a substitute may have been left by someone who was killed, by us if a transaction failed.
    has_substitute: [bool; 2],
    /// The tables that this sync had to read.
    read: [bool; 2],
}

/// Numbers of the ruleset's generations; none where they are not known.
#[derive(Clone, Copy, Debug, Default)]
struct Generations {
    /// What each table was read at.
    read: [Option<u32>; 2],
    /// Up to here no other process has touched the tables since they were read.
    undisturbed: Option<u32>,
}

/// How often clients are looked up again because some expired before they were changed.
const ATTEMPTS: usize = 8;

/// So many services may be refused in one sync before it is given up: then it is not the services.
const MAX_REFUSED: usize = 16;

impl<K: Kernel> NftBackend<K> {
    /// A backend that has neither read nor written anything yet.
    pub fn new(config: Config, kernel: K) -> Self {
        Self {
            kernel,
            desired: Desired::new(config),
            first: true,
            found: [Vec::new(), Vec::new()],
            generations: Generations::default(),
            portion: PORTION,
            has_substitute: [true; 2],
            read: [false; 2],
        }
    }

    /// The tables as they should be, after a sync.
    pub fn plan(&self) -> Vec<TableContent> {
        self.desired.content()
    }

    /// What the backend writes to.
    pub fn kernel(&self) -> &K {
        &self.kernel
    }

    /// Fails if nf_tables cannot be used at all, as without privileges: then trying again is no use.
    ///
    /// # Errors
    /// That, and how to mend it.
    pub fn check(&mut self) -> Result<(), Error> {
        // Reading needs the same privileges as writing, and a table that does not exist costs nothing to read.
        self.kernel.read(&Table::new(Family::V4, "localnet-check"), &|_| None).map(drop)
    }

    /// Makes the kernel hold `state`, of which only `changes` differs from the state before. One table is no hostage of the
    /// other: a kernel that cannot translate IPv6 still gets IPv4.
    ///
    /// # Errors
    /// The kernel refuses something that is not of one service, or it cannot be reached, in both families.
    pub fn apply(&mut self, state: &Snapshot, changes: &Changes) -> anyhow::Result<Synced> {
        if std::mem::take(&mut self.first) && !self.kernel.has_family(Family::V6) {
            info!("this host has no IPv6: only IPv4 is programmed");
        }
        for notice in self.desired.update(state, changes) {
            warn!("{notice}");
        }
        self.read = [false; 2];
        let mut failed = self.write();
        for (_, error) in &mut failed {
            let cause = std::mem::replace(error, anyhow::Error::msg(""));
            *error = cause.context(format!("program nf_tables with revision {}", state.revision));
        }
        if failed.len() == Family::ALL.iter().filter(|family| self.kernel.has_family(**family)).count() {
            return Err(failed.remove(0).1);
        }
        self.remove_stale_chains();
        self.change_clients();
        let failed = failed.into_iter().map(|(family, error)| (model_family(family), error)).collect();
        let full = Family::ALL.into_iter().filter(|family| self.read[*family as usize]).map(model_family).collect();
        Ok(Synced { failed, skipped: self.desired.skipped(), refused: self.desired.refused(), full })
    }

    /// What the last sync changed for flows.
    pub fn take_commit(&mut self) -> Commit {
        let remembered = std::mem::take(&mut self.found).concat();
        Commit { frontends: self.desired.take_moved(), remembered, recheck: false }
    }

    /// It is no longer known what the tables hold: the next sync reads them.
    pub fn forget(&mut self) {
        Family::ALL.into_iter().for_each(|family| self.desired.forget(family));
    }

    /// The next sync tries what the kernel refused again.
    pub fn retry_refused(&mut self) {
        self.desired.retry_refused();
    }

    /// Tells the addresses of the node's interfaces; says whether the next sync moves NodePorts for it.
    pub fn set_local_addresses(&mut self, addresses: Vec<IpAddr>) -> bool {
        self.desired.set_local_addresses(addresses)
    }

    /// Tells of another process's commit; says whether the tables must be read again.
    pub fn committed_elsewhere(&mut self, tables: &BTreeSet<Table>, generation: u32) -> bool {
        let is_next = |known: u32| generation == known.wrapping_add(1);
        let mut touched = Family::ALL.into_iter().filter(|family| tables.contains(&plan::table(*family))).peekable();
        if touched.peek().is_none() {
            self.generations.undisturbed = self.generations.undisturbed.map(|known| match is_next(known) {
                true => generation,
                false => known,
            });
            return false;
        }
        // What was committed before a table was read was read with it.
        let is_newer = |read: u32| generation.wrapping_sub(read).cast_signed() > 0;
        touched.any(|family| self.generations.read[family as usize].is_none_or(is_newer))
    }

    /// Tells that nobody knows what other processes did; says whether the tables must be read again.
    pub fn lost_sight(&mut self) -> bool {
        self.generations.undisturbed.is_none() || self.kernel.generation() != self.generations.undisturbed
    }

    fn apply_transaction(&mut self, transaction: &Transaction) -> Result<Sent, Error> {
        let sent = self.kernel.apply(transaction)?;
        let next = self.generations.undisturbed.map(|known| known.wrapping_add(1));
        if next.is_some() && self.kernel.generation() == next {
            self.generations.undisturbed = next;
        }
        Ok(sent)
    }

    /// Writes both tables, and the first again if something that the second refused has to leave it, or if it turned out that
    /// someone has changed them.
    fn write(&mut self) -> Vec<(Family, anyhow::Error)> {
        let mut refused = 0;
        loop {
            let refused_before = refused;
            let mut failed = Vec::new();
            for family in Family::ALL {
                if !self.kernel.has_family(family) {
                    continue;
                }
                failed.extend(self.write_table(family, &mut refused).err().map(|error| (family, error)));
            }
            let here = |table: &&TableState| self.kernel.has_family(table.family());
            let is_forgotten = self.desired.tables().iter().filter(here).any(|table| !table.is_known());
            // A table that failed is forgotten too, but trying it at once again is no use.
            if refused == refused_before && (!failed.is_empty() || !is_forgotten) {
                return failed;
            }
        }
    }

    fn write_table(&mut self, family: Family, refused: &mut usize) -> anyhow::Result<()> {
        // What was just read is as the kernel has it: if it then refuses a change, the change is to blame.
        let mut fresh = false;
        loop {
            fresh |= self.read_unknown(family)?;
            self.prepare(family);
            let portions = self.desired.tables()[family as usize].changes(self.portion);
            let count = portions.len();
            let Some((index, transaction, error)) = self.apply_portions(family, portions) else {
                self.desired.commit(family);
                if let Err(error) = self.remove_substitute(family) {
                    debug!(%error, "a table that was to work for a moment is still there");
                }
                return Ok(());
            };
            let failed = if fresh { self.pinpoint(transaction, error) } else { Some((transaction, error)) };
            if count > 1 && (index > 0 || failed.is_none()) {
                // It is something in between now.
                self.desired.forget(family);
                self.has_substitute[family as usize] = true;
            }
            let Some((transaction, error)) = failed else {
                if count == 1 {
                    self.desired.commit(family);
                    return Ok(());
                }
                continue;
            };
            // Want of memory or of room strikes whoever comes next: that element is not to blame.
            let owner = if error.is_shortage() { None } else { self.owner(&transaction, &error) };
            match owner {
                Some(service) if fresh && *refused < MAX_REFUSED => {
                    *refused += 1;
                    let text = format!("left out, and tried again later: {error}");
                    if self.desired.refuse(&service, text.clone()) {
                        warn!("{}", Notice { service, text });
                    } else {
                        debug!(%service, text, "still refused");
                    }
                }
                _ => {
                    self.forget();
                    if fresh || !matches!(error, Error::Refused { .. }) {
                        return Err(self.named(owner, error));
                    }
                    info!("the tables are not as they were left: reading them ({error})");
                }
            }
        }
    }

    /// Says which failed, if one did.
    fn apply_portions(&mut self, family: Family, portions: Vec<Transaction>) -> Option<(usize, Transaction, Error)> {
        for (index, transaction) in portions.into_iter().enumerate() {
            match self.apply_transaction(&transaction) {
                Ok(sent) => debug!(?family, sent.messages, sent.bytes, sent.elements, "transaction applied"),
                Err(error) => return Some((index, transaction, error)),
            }
        }
        None
    }

    /// A table that was to work only until ours is complete. It may be absent.
    fn remove_substitute(&mut self, family: Family) -> Result<(), Error> {
        if !self.has_substitute[family as usize] {
            return Ok(());
        }
        let table = plan::substitute(family);
        if self.kernel.read(&table, &|_| None)?.is_some() {
            let mut removal = Transaction::new();
            removal.delete_table(&table);
            self.apply_transaction(&removal)?;
        }
        self.has_substitute[family as usize] = false;
        Ok(())
    }

    /// Fills new chains before anything leads to them. If that fails, all comes at once, and errors are dealt with there.
    fn prepare(&mut self, family: Family) {
        let mut transaction = Transaction::new();
        let names = self.desired.tables()[family as usize].preparation(&mut transaction);
        if transaction.is_empty() {
            return;
        }
        match self.apply_transaction(&transaction) {
            Ok(_) => self.desired.tables()[family as usize].prepared(names),
            Err(error) => debug!(%error, "new chains come with what leads to them"),
        }
    }

    /// Older kernels name only the set: to learn which element they refuse, each is sent as a change of its own.
    /// `None` if it refuses none of them now.
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

    /// Reads the table if it is not known what it holds; says whether it did.
    fn read_unknown(&mut self, family: Family) -> anyhow::Result<bool> {
        let has_other = self.desired.tables()[1 - family as usize].is_known();
        let table = &self.desired.tables()[family as usize];
        if table.is_known() {
            return Ok(false);
        }
        loop {
            let table = &self.desired.tables()[family as usize];
            let affinity = table.affinity().clone();
            let generation = self.kernel.generation();
            self.generations.read[family as usize] = generation;
            if !has_other {
                self.generations.undisturbed = generation;
            }
            let found = self.kernel.read(table.table(), &|name| table.chain(name));
            let found = found.with_context(|| format!("read {}", name(table.table())))?;
            self.found[family as usize] = found.iter().flat_map(frontends).collect();
            self.desired.adopt(family, found);
            // With the kernel's slots other chains may be wanted than those that it was compared with.
            if *self.desired.tables()[family as usize].affinity() == affinity {
                break;
            }
        }
        self.read[family as usize] = true;
        Ok(true)
    }

    /// The service whose element the kernel refused.
    fn owner(&self, transaction: &Transaction, error: &Error) -> Option<ServiceKey> {
        let Error::Refused { change, element: Some(index), .. } = error else { return None };
        let Change::AddElements(_, set, elements) = transaction.changes().get(*change)? else { return None };
        let element: &Element = elements.get(*index)?;
        self.desired.owner(SetId::of_name(&set.name)?, element)
    }

    fn named(&self, owner: Option<ServiceKey>, error: Error) -> anyhow::Error {
        match owner {
            Some(service) => anyhow::Error::new(error).context(format!("service {service}")),
            None => error.into(),
        }
    }

    /// Chains that nothing refers to any more are harmless: if the kernel is not ready to let them go, later will do.
    fn remove_stale_chains(&mut self) {
        for family in Family::ALL {
            let [mut emptying, mut removal] = [Transaction::new(), Transaction::new()];
            let table = &self.desired.tables()[family as usize];
            table.emptying_of_stale_chains(&mut emptying);
            table.removal_of_stale_chains(&mut removal);
            if removal.is_empty() {
                continue;
            }
            let emptied = if emptying.is_empty() { Ok(Sent::default()) } else { self.apply_transaction(&emptying) };
            match emptied.and_then(|_| self.apply_transaction(&removal)) {
                Ok(_) => self.desired.tables()[family as usize].stale_chains_are_gone(),
                Err(error) => debug!(%error, "unused chains stay for now"),
            }
        }
    }

    /// Clients of endpoints that have left are to be sent elsewhere when another endpoint gets the slot: until they are forgotten the
    /// slot stays empty. Clients of ports with another timeout than before are to have it. A failure does no other harm, and all is
    /// tried again after the next sync.
    fn change_clients(&mut self) {
        for (place, chore) in self.desired.chores() {
            match self.change_clients_in(place, &chore) {
                Ok(()) => self.desired.done(&place),
                Err(error) => debug!(%error, place.slot, "clients of session affinity are still as they were"),
            }
        }
    }

    fn change_clients_in(&mut self, place: Place, chore: &Chore) -> Result<(), Error> {
        let table = &self.desired.tables()[place.family as usize];
        let Some(set) = table.clients(place.slot).cloned() else { return Ok(()) };
        let table = table.table().clone();
        let mut attempts = 1..=ATTEMPTS;
        loop {
            let clients = self.kernel.elements(&table, &set)?.unwrap_or_default();
            // The kernel may tell an element twice while packets add others.
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
                // One of them expired meanwhile.
                Err(Error::Refused { .. }) if attempts.next().is_some() => {}
                result => return result.map(drop),
            }
        }
    }

    /// Removes both tables; they may be absent.
    ///
    /// # Errors
    /// The kernel refuses it or cannot be reached.
    pub fn remove_all(&mut self) -> anyhow::Result<()> {
        let mut transaction = Transaction::new();
        for family in Family::ALL.into_iter().filter(|family| self.kernel.has_family(*family)) {
            // Deleting what is absent is an error; adding what is there is not.
            for table in [plan::table(family), plan::substitute(family)] {
                transaction.add_table(&table).delete_table(&table);
            }
        }
        self.forget();
        self.kernel.apply(&transaction).context("remove the tables ip localnet and ip6 localnet")?;
        Ok(())
    }
}

impl<K: Kernel> Backend for NftBackend<K> {
    fn name(&self) -> &'static str {
        "nft"
    }

    fn configuration(&self) -> Option<Effective> {
        self.desired.configuration()
    }

    async fn sync(&mut self, state: &Snapshot, changes: &Changes) -> anyhow::Result<Synced> {
        blocking(|| self.apply(state, changes))
    }

    fn retry_refused(&mut self) {
        self.retry_refused();
    }

    async fn cleanup(&mut self) -> anyhow::Result<()> {
        blocking(|| self.remove_all())
    }
}

/// A big transaction keeps the kernel busy for a while: other tasks of this thread go elsewhere meanwhile.
pub(crate) fn blocking<T>(work: impl FnOnce() -> T) -> T {
    use tokio::runtime::{Handle, RuntimeFlavor};
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}

/// The VIPs that a table answers, whatever became of it since it was ours.
fn frontends(found: &Found) -> impl Iterator<Item = Frontend> {
    let maps = found.sets.iter().flatten().filter(|(set, _)| {
        SetId::of_name(&set.name).is_some_and(|id| {
            let answers =
                matches!(id, SetId::Services | SetId::LocalServices | SetId::NoEndpoints | SetId::AffinityVips);
            answers && Family::ALL.into_iter().any(|family| set.key == id.declaration(family, 1).key)
        })
    });
    maps.flat_map(|(_, elements)| elements)
        .filter_map(|element| elements::read_vip(element.key.start()))
        .map(|vip| frontend(&vip))
}

fn name(table: &Table) -> String {
    format!("table {} {}", table.family.as_str(), table.name)
}

#[cfg(test)]
mod tests;
