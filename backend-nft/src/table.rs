//! One table: its desired state, its applied state, and the transaction that leads from one to the other.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    sync::Arc,
};

use localnet_client::DiffStore;
use localnet_linux::nft::{Chain, Element, ElementKey, Name, Set, Table, TableContent, Transaction};
use localnet_proto::Family;

use crate::{
    kernel::{ChainMatch, LiveTable},
    plan::{
        self,
        affinity::{self, Shape},
        sets::{Pool, SetId},
    },
    portions::{self, Elements, Filled, Limits, Portions},
};

/// One table, with its desired and its applied state.
#[derive(Debug)]
pub struct TableState {
    family: Family,
    table: Table,
    elements: Elements,
    /// The chains by name. A desired chain has a value; an applied chain may be `None`, which means that it differs.
    chains: DiffStore<Name, Option<Arc<Chain>>>,
    /// The order in which a new table declares its chains, chosen for human readers.
    fixed: Vec<Name>,
    /// The chains that pick an endpoint, by pool and number of slots.
    lb: BTreeMap<(Pool, u32), Name>,
    /// The needs of session affinity.
    affinity: Shape,
    /// The chains of session affinity.
    affinity_chains: Vec<Name>,
    /// Chains in the kernel that nothing refers to.
    stale: BTreeSet<Name>,
    /// Chains that pick an endpoint and were filled before any element leads to them.
    prepared: BTreeSet<Name>,
    /// The declarations of the kernel's table; none if they are unknown or the table does not exist.
    held: Option<Held>,
    /// Whether the table existed when it was last read, whatever its contents.
    is_there: bool,
    /// The result of the transaction in progress.
    next: Option<Next>,
}

/// The kernel's sets.
#[derive(Clone, Debug)]
struct Held {
    /// The sets by their ID; `None` for a set that does not exist.
    sets: Vec<Option<Arc<Set>>>,
    /// The number of elements in each set.
    counts: [usize; SetId::ALL.len()],
    /// The sets of each slot's clients, which packets fill.
    clients: Clients,
}

/// The sets of clients, indexed by slot.
type Clients = Vec<Arc<Set>>;

#[derive(Debug)]
struct Next {
    held: Held,
    stale: BTreeSet<Name>,
}

impl TableState {
    /// An empty desired state with an unknown applied state.
    pub fn new(family: Family) -> Self {
        Self {
            family,
            table: plan::table(family),
            elements: std::array::from_fn(|_| DiffStore::new()),
            chains: DiffStore::new(),
            fixed: Vec::new(),
            lb: BTreeMap::new(),
            affinity: Shape::default(),
            affinity_chains: Vec::new(),
            stale: BTreeSet::new(),
            prepared: BTreeSet::new(),
            held: None,
            is_there: false,
            next: None,
        }
    }

    /// The family of the table.
    pub fn family(&self) -> Family {
        self.family
    }

    /// The table's family and name.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Adds an element to the desired state.
    pub fn set(&mut self, set: SetId, element: Element) {
        self.elements[set as usize].set(element.key, (element.data, element.comment));
    }

    /// Removes an element from the desired state.
    pub fn remove(&mut self, set: SetId, key: &ElementKey) {
        self.elements[set as usize].remove(key);
    }

    /// Sets the chains that always exist.
    pub fn set_fixed_chains(&mut self, chains: Vec<Chain>) {
        for name in std::mem::take(&mut self.fixed) {
            if !chains.iter().any(|chain| chain.name == name) {
                self.chains.remove(&name);
            }
        }
        for chain in chains {
            self.fixed.push(chain.name.clone());
            self.chains.set(chain.name.clone(), Some(Arc::new(chain)));
        }
    }

    /// Sets the chains that pick an endpoint, with the slots that each picks from.
    pub fn set_pools(&mut self, used: &BTreeMap<(Pool, u32), usize>, chain: impl Fn(Pool, u32) -> Chain) {
        if self.lb.keys().eq(used.keys()) {
            return;
        }
        let chains = &mut self.chains;
        self.lb.retain(|pool, name| {
            let stays = used.contains_key(pool);
            if !stays {
                chains.remove(name);
            }
            stays
        });
        for (pool, slots) in used.keys() {
            self.lb.entry((*pool, *slots)).or_insert_with(|| {
                let chain = chain(*pool, *slots);
                let name = chain.name.clone();
                chains.set(name.clone(), Some(Arc::new(chain)));
                name
            });
        }
    }

    /// Sets the needs of session affinity. Returns whether this adds the first need or removes the last one.
    pub fn set_affinity(&mut self, affinity: Shape) -> bool {
        if affinity == self.affinity {
            return false;
        }
        let before = self.has_affinity();
        let chains = affinity.chains();
        for name in std::mem::take(&mut self.affinity_chains) {
            if !chains.iter().any(|chain| chain.name == name) {
                self.chains.remove(&name);
            }
        }
        for chain in chains {
            self.affinity_chains.push(chain.name.clone());
            self.chains.set(chain.name.clone(), Some(Arc::new(chain)));
        }
        self.affinity = affinity;
        before != self.has_affinity()
    }

    /// The needs of session affinity.
    pub fn affinity(&self) -> &Shape {
        &self.affinity
    }

    /// Whether anything has session affinity.
    pub fn has_affinity(&self) -> bool {
        self.affinity.slots() > 0
    }

    /// Whether the set should exist.
    fn wants(&self, set: SetId) -> bool {
        !set.is_of_affinity() || self.has_affinity()
    }

    /// The set of a slot's clients, if the kernel has it.
    pub fn clients(&self, slot: u32) -> Option<&Arc<Set>> {
        self.held.as_ref()?.clients.get(slot as usize)
    }

    /// Whether the applied state is known. Otherwise the table must be read before a diff is possible.
    pub fn is_known(&self) -> bool {
        self.held.is_some()
    }

    /// The desired chain of that name, if there is one.
    pub fn chain(&self, name: &str) -> Option<Arc<Chain>> {
        self.chains.desired(&name.into()).cloned().flatten()
    }

    /// Sets the applied state, as read from the kernel; `None` if there is no table. A table that differs too much to
    /// be changed in place will be replaced as a whole.
    pub fn adopt(&mut self, found: Option<LiveTable>) {
        self.forget();
        self.is_there = found.is_some();
        let Some(found) = found else { return };
        let Some((sets, clients)) = compatible_sets(self.family, &found) else { return };
        if found.chains.iter().any(|(_, comparison)| *comparison == ChainMatch::DeclarationDiffers) {
            return;
        }
        let chains: Vec<_> = found
            .chains
            .into_iter()
            .map(|(name, comparison)| {
                let chain = if comparison == ChainMatch::Exact { self.chain(&name) } else { None };
                (name, chain)
            })
            .collect();
        self.chains.adopt(chains);
        let mut counts = [0; SetId::ALL.len()];
        for id in SetId::ALL.into_iter().filter(|id| sets[*id as usize].is_none()) {
            self.elements[id as usize].adopt([]);
        }
        for (set, elements) in found.sets.into_iter().flatten() {
            let Some(id) = SetId::of_name(&set.name) else { continue };
            counts[id as usize] = elements.len();
            let entries = elements.into_iter().map(|element| (element.key, (element.data, element.comment)));
            self.elements[id as usize].adopt(entries);
        }
        self.held = Some(Held { sets, counts, clients });
    }

    /// Appends the new chains that pick an endpoint, and returns their names. They are sent before the elements that
    /// lead to them. In a common transaction, a packet that is being processed could find the new elements but still
    /// empty chains.
    pub fn preparation(&self, transaction: &mut Transaction) -> BTreeSet<Name> {
        let mut names = BTreeSet::new();
        if self.held.is_none() {
            return names;
        }
        for change in self.chains.diff().set {
            let (name, Some(chain)) = (change.key, change.value) else { continue };
            let is_there = change.replaces.is_some() || self.stale.contains(name) || self.prepared.contains(name);
            if !is_there && self.lb.values().any(|lb| lb == name) {
                transaction.declare_chain(&self.table, &without_rules(chain));
                transaction.add_rules(&self.table, chain);
                names.insert(name.clone());
            }
        }
        names
    }

    /// Records that the preparation was applied.
    pub fn prepared(&mut self, names: BTreeSet<Name>) {
        self.prepared.extend(names);
    }

    /// The changes from the applied to the desired state, and the number of transactions they need: 0 if both are
    /// equal. [`transaction`](Self::transaction) creates each of them.
    pub fn changes(&mut self, limits: Limits) -> Portions {
        let (next, portions) = match self.held.as_ref().and_then(|held| self.in_place(held)) {
            Some((next, changes)) => (next, Portions::in_place(changes, &self.elements, limits)),
            None => {
                if self.held.is_none() {
                    self.elements.iter_mut().for_each(DiffStore::pack);
                }
                let (next, changes) = self.anew();
                (next, Portions::anew(changes, self.is_there, &self.elements, limits))
            }
        };
        self.next = Some(next);
        portions
    }

    /// The transaction of this index. Valid until the next `set`, `remove`, `commit` or `forget`.
    pub fn transaction(&self, portions: &Portions, index: usize) -> Transaction {
        portions.transaction(index, &self.elements)
    }

    /// The whole table, which replaces an existing one.
    fn anew(&self) -> (Next, portions::Changes) {
        let mut held = Held { sets: vec![None; SetId::ALL.len()], counts: [0; SetId::ALL.len()], clients: Vec::new() };
        let [mut before, mut after] = [Transaction::new(), Transaction::new()];
        before.add_table(&self.table).delete_table(&self.table).add_table(&self.table);
        let chains: Vec<_> = self.wanted_chains().collect();
        chains.iter().for_each(|chain| _ = before.declare_chain(&self.table, &without_rules(chain)));
        let mut sets = Vec::new();
        for id in SetId::ALL.into_iter().filter(|id| self.wants(*id)) {
            let count = self.elements[id as usize].iter_desired().count();
            let set = Arc::new(id.declaration(self.family, Set::size_for(count)));
            before.add_set(&self.table, &set);
            held.counts[id as usize] = count;
            held.sets[id as usize] = Some(set.clone());
            sets.push(Filled { id, set, all: true, at_once: false });
        }
        held.clients = self.wanted_clients().collect();
        held.clients.iter().for_each(|set| _ = before.add_set(&self.table, set));
        chains.iter().for_each(|chain| _ = after.add_rules(&self.table, chain));
        let next = Next { held, stale: BTreeSet::new() };
        (next, portions::Changes { family: self.family, before, sets, after })
    }

    /// The desired chains, in the order in which a new table declares them.
    fn wanted_chains(&self) -> impl Iterator<Item = Arc<Chain>> {
        let names = self.fixed.iter().chain(self.lb.values()).chain(&self.affinity_chains);
        names.filter_map(|name| self.chain(name))
    }

    /// The desired sets of clients.
    fn wanted_clients(&self) -> impl Iterator<Item = Arc<Set>> {
        (0..self.affinity.slots()).map(|slot| Arc::new(affinity::clients(self.family, slot)))
    }

    /// The complete desired content of the table.
    pub fn content(&self) -> TableContent {
        let sets = SetId::ALL.into_iter().filter(|id| self.wants(*id)).map(|id| {
            let desired = || self.elements[id as usize].iter_desired();
            let mut elements = Vec::with_capacity(desired().count());
            elements.extend(desired().map(|(key, value)| portions::element(key, value)));
            (Arc::new(id.declaration(self.family, Set::size_for(elements.len()))), elements)
        });
        let clients = self.wanted_clients().map(|set| (set, Vec::new()));
        let chains = self.wanted_chains().map(|chain| Chain::clone(&chain)).collect();
        TableContent { table: self.table.clone(), sets: sets.chain(clients).collect(), chains }
    }

    /// The differences only; `None` if the elements do not fit into the existing sets. A table that remembers clients
    /// is not replaced for that reason, because what packets wrote would be lost. Only the sets that are too small are
    /// replaced.
    fn in_place(&self, held: &Held) -> Option<(Next, portions::Changes)> {
        let table = &self.table;
        let mut before = Transaction::new();
        let mut held = held.clone();
        let mut outgrown = Vec::new();
        for (index, elements) in self.elements.iter().enumerate() {
            for entry in elements.diff_in((Bound::Unbounded, Bound::Unbounded)) {
                held.counts[index] += usize::from(entry.desired.is_some());
                held.counts[index] -= usize::from(entry.applied.is_some());
            }
            let size = held.sets[index].as_ref().and_then(|set| set.size);
            if size.is_some_and(|size| held.counts[index] > size as usize) {
                outgrown.push(index);
            }
        }
        if !outgrown.is_empty() && held.clients.is_empty() {
            return None;
        }

        let chains = self.chains.diff();
        let mut stale = self.stale.clone();
        let changed = chains.set.iter().filter(|change| !self.prepared.contains(change.key));
        let wanted = || changed.clone().filter_map(|change| Some((change, change.value.as_ref()?)));
        stale.extend(self.prepared.iter().filter(|name| self.chain(name).is_none()).cloned());
        let mut flushed = BTreeSet::new();
        for (change, chain) in wanted() {
            if change.replaces.is_none() {
                before.declare_chain(table, &without_rules(chain));
            }
            if change.replaces.is_some() || stale.remove(change.key) {
                flushed.insert(change.key.clone());
            }
        }
        stale.extend(chains.removed.iter().map(|(name, _)| Name::clone(name)));
        let mut filled: Vec<&Arc<Chain>> = wanted().map(|(_, chain)| chain).collect();
        if !outgrown.is_empty() {
            // Nothing may refer to a set that is deleted.
            filled = self.chains.iter_desired().filter_map(|(_, chain)| chain.as_ref()).collect();
            flushed.extend(stale.iter().cloned().chain(filled.iter().map(|chain| chain.name.clone())));
        }
        for name in &flushed {
            before.flush_chain(table, name);
        }

        for index in &outgrown {
            if let Some(set) = held.sets[*index].take() {
                before.delete_set(table, &set.name);
            }
        }
        let mut fresh = BTreeSet::new();
        for id in SetId::ALL.into_iter().filter(|id| self.wants(*id)) {
            let index = id as usize;
            if held.sets[index].is_none() {
                let set = Arc::new(id.declaration(self.family, Set::size_for(held.counts[index])));
                before.add_set(table, &set);
                held.sets[index] = Some(set);
                fresh.insert(index);
            }
        }
        for set in self.wanted_clients().skip(held.clients.len()) {
            before.add_set(table, &set);
            held.clients.push(set);
        }

        for chain in filled {
            before.add_rules(table, chain);
        }
        let sets = SetId::ALL.into_iter().zip(&held.sets).filter_map(|(id, set)| {
            let (set, index) = (set.clone()?, id as usize);
            Some(Filled { id, set, all: fresh.contains(&index), at_once: outgrown.contains(&index) })
        });
        let sets = sets.collect();
        let changes = portions::Changes { family: self.family, before, sets, after: Transaction::new() };
        Some((Next { held, stale }, changes))
    }

    /// Records that the transaction was applied.
    pub fn commit(&mut self) {
        let Some(next) = self.next.take() else { return };
        self.held = Some(next.held);
        self.is_there = true;
        self.stale = next.stale;
        self.prepared.clear();
        self.chains.commit();
        for elements in &mut self.elements {
            elements.commit();
        }
    }

    /// Marks the applied state as unknown.
    pub fn forget(&mut self) {
        self.held = None;
        self.next = None;
        self.stale.clear();
        self.prepared.clear();
        self.chains.forget();
        for elements in &mut self.elements {
            elements.forget();
        }
    }

    /// Appends changes that empty unused chains that refer to each other. They are sent before the removal of these
    /// chains.
    pub fn emptying_of_stale_chains(&self, transaction: &mut Transaction) {
        // The chains that pick an endpoint refer to no other chain.
        let picks = |name: &Name| name.starts_with("lb-") && !name.starts_with("lb-affinity-");
        if !self.stale.iter().all(picks) {
            self.stale.iter().for_each(|name| _ = transaction.flush_chain(&self.table, name));
        }
    }

    /// Appends the removal of chains and sets that nothing refers to. It is sent after the changes, because the kernel
    /// may keep a reference until the transaction that dropped it has ended.
    pub fn removal_of_stale_chains(&self, transaction: &mut Transaction) {
        for name in &self.stale {
            transaction.flush_chain(&self.table, name);
        }
        for name in &self.stale {
            transaction.delete_chain(&self.table, name);
        }
        let Some(held) = &self.held else { return };
        let unwanted = SetId::ALL.into_iter().filter(|id| !self.wants(*id));
        let unwanted = unwanted.filter_map(|id| held.sets[id as usize].as_ref());
        for set in unwanted.chain(held.clients.iter().skip(self.affinity.slots() as usize)) {
            transaction.delete_set(&self.table, &set.name);
        }
    }

    /// Records that the removal was applied.
    pub fn stale_chains_are_deleted(&mut self) {
        self.stale.clear();
        let unwanted: Vec<SetId> = SetId::ALL.into_iter().filter(|id| !self.wants(*id)).collect();
        if let Some(held) = &mut self.held {
            unwanted.into_iter().for_each(|id| held.sets[id as usize] = None);
            held.clients.truncate(self.affinity.slots() as usize);
        }
    }
}

/// The declaration of a chain, without its rules.
fn without_rules(chain: &Chain) -> Arc<Chain> {
    Arc::new(Chain { rules: Vec::new(), ..chain.clone() })
}

/// The kernel's sets by ID, and the sets of clients. `None` if a declaration differs in more than its size.
fn compatible_sets(family: Family, found: &LiveTable) -> Option<(Vec<Option<Arc<Set>>>, Clients)> {
    let mut sets = vec![None; SetId::ALL.len()];
    let mut clients = BTreeMap::new();
    for found in &found.sets {
        let (set, _) = found.as_ref()?;
        match (SetId::of_name(&set.name), affinity::slot_of_clients(&set.name)) {
            (Some(id), _) if **set == id.declaration(family, set.size?) => sets[id as usize] = Some(set.clone()),
            (None, Some(slot)) if **set == affinity::clients(family, slot) => _ = clients.insert(slot, set.clone()),
            _ => return None,
        }
    }
    let all_there = SetId::ALL.into_iter().all(|id| id.is_of_affinity() || sets[id as usize].is_some());
    let in_order = (0..).zip(clients.keys()).all(|(slot, found)| slot == *found);
    (all_there && in_order).then(|| (sets, clients.into_values().collect()))
}
