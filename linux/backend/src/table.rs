//! One table: its desired state, its applied state, and the transactions that lead from one to the other.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    sync::Arc,
};

use localnet_client::DiffStore;
use localnet_linux::nft::{
    Chain, ChainMatch, Element, LiveTable, Name, Set, Table, TableContent, Transaction,
    spread::{self, Choice},
};
use localnet_proto::Family;

use crate::{
    portions::{self, Elements, Filled, Limits, Portions, Substitute},
    sets::Sets,
};

/// One table, with its desired and its applied state.
#[derive(Debug)]
pub struct TableState<S> {
    family: Family,
    table: Table,
    elements: Elements,
    /// The chains by name. The desired value is never `None`. The applied value is `None` if the live chain differs from the
    /// desired one.
    chains: DiffStore<Name, Option<Arc<Chain>>>,
    /// The order in which a new table declares its chains, chosen for human readers.
    fixed: Vec<Name>,
    /// The chains that pick an endpoint, by map and choice, each with its number of users.
    picking: BTreeMap<(S, Choice), (usize, Name)>,
    /// The chains that use the numbered sets.
    numbered_chains: Vec<Name>,
    /// How many of the numbered sets are desired.
    numbered: u32,
    /// Whether rules count packets.
    counts: bool,
    /// Chains in the kernel that nothing refers to.
    stale: BTreeSet<Name>,
    /// New chains that pick an endpoint. The kernel already has their rules, but no element leads to them yet.
    prepared: BTreeSet<Name>,
    /// The declarations of the kernel's table; none if they are unknown or the table does not exist.
    held: Option<Held>,
    /// Whether the table existed when it was last read, whatever its contents.
    is_there: bool,
    /// The substitute table.
    substitute: Substitute,
    /// The result of the transaction in progress.
    next: Option<Next>,
}

/// The kernel's sets.
#[derive(Clone, Debug)]
struct Held {
    /// The sets by their position; `None` for a set that does not exist.
    sets: Vec<Option<Arc<Set>>>,
    /// The number of elements in each set.
    counts: Vec<usize>,
    /// The numbered sets.
    numbered: Vec<Arc<Set>>,
    /// The sets in which rules count packets.
    counting: Vec<Arc<Set>>,
}

#[derive(Debug)]
struct Next {
    held: Held,
    stale: BTreeSet<Name>,
}

impl<S: Sets> TableState<S> {
    /// An empty desired state with an unknown applied state.
    pub fn new(family: Family) -> Self {
        Self {
            family,
            table: S::table(family),
            elements: S::ALL.iter().map(|_| DiffStore::new()).collect(),
            chains: DiffStore::new(),
            fixed: Vec::new(),
            picking: BTreeMap::new(),
            numbered_chains: Vec::new(),
            numbered: 0,
            counts: false,
            stale: BTreeSet::new(),
            prepared: BTreeSet::new(),
            held: None,
            is_there: false,
            substitute: Substitute::Absent,
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

    /// Adds an element to the desired state, or removes it.
    pub fn change(&mut self, set: S, element: Element, present: bool) {
        let elements = &mut self.elements[set.index()];
        if present {
            elements.set(element.key, (element.data, element.comment));
        } else {
            elements.remove(&element.key);
        }
    }

    /// Sets the chains that always exist.
    pub fn set_fixed_chains(&mut self, chains: Vec<Chain>) {
        let before = std::mem::take(&mut self.fixed);
        self.fixed = self.replace_chains(&before, chains);
    }

    /// Sets how many numbered sets there are, and the chains that use them. The optional sets exist if there is at
    /// least one numbered set.
    pub fn set_numbered(&mut self, count: u32, chains: Vec<Chain>) {
        let before = std::mem::take(&mut self.numbered_chains);
        self.numbered_chains = self.replace_chains(&before, chains);
        self.numbered = count;
    }

    /// Sets whether the sets in which rules count packets exist. A table with such sets is not replaced when another set becomes too
    /// small, because the counts would be lost.
    pub fn count(&mut self, counts: bool) {
        self.counts = counts;
    }

    fn replace_chains(&mut self, before: &[Name], chains: Vec<Chain>) -> Vec<Name> {
        let names: Vec<Name> = chains.iter().map(|chain| chain.name.clone()).collect();
        before.iter().filter(|name| !names.contains(name)).for_each(|name| self.chains.remove(name));
        chains.into_iter().for_each(|chain| self.chains.set(chain.name.clone(), Some(Arc::new(chain))));
        names
    }

    /// Adds (`present`) or removes a user of the chain `name`, which picks an endpoint from the slots of `map`.
    /// The chain exists while it has users. Returns whether it appears or disappears.
    pub fn count_picking(
        &mut self,
        map: S,
        choice: Choice,
        name: &Name,
        chain: impl FnOnce() -> Chain,
        present: bool,
    ) -> bool {
        let (users, _) = self.picking.entry((map, choice)).or_insert_with(|| (0, name.clone()));
        *users = if present { *users + 1 } else { users.saturating_sub(1) };
        match *users {
            0 => {
                self.picking.remove(&(map, choice));
                self.chains.remove(name);
                true
            }
            1 if present => {
                self.chains.set(name.clone(), Some(Arc::new(chain())));
                true
            }
            _ => false,
        }
    }

    /// Whether the set should exist.
    fn wants(&self, set: S) -> bool {
        !set.is_optional() || self.numbered > 0
    }

    /// The sets that should exist.
    fn wanted_sets(&self) -> impl Iterator<Item = S> {
        S::ALL.iter().map(|row| row.0).filter(|set| self.wants(*set))
    }

    /// The numbered set of that number, if the kernel has it.
    pub fn numbered(&self, number: u32) -> Option<&Arc<Set>> {
        self.held.as_ref()?.numbered.get(number as usize)
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
        let Some(Compatible { sets, numbered, counting }) = compatible_sets::<S>(self.family, &found) else { return };
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
        let mut counts = vec![0; sets.len()];
        for (elements, _) in self.elements.iter_mut().zip(&sets).filter(|(_, set)| set.is_none()) {
            elements.adopt([]);
        }
        for (set, elements) in found.sets.into_iter().flatten() {
            let Some(index) = S::of_name(&set.name).map(Sets::index) else { continue };
            counts[index] = elements.len();
            let entries = elements.into_iter().map(|element| (element.key, (element.data, element.comment)));
            self.elements[index].adopt(entries);
        }
        self.held = Some(Held { sets, counts, numbered, counting });
    }

    /// Records the substitute table, as read from the kernel; `None` if there is none. The next changes delete it.
    pub fn set_substitute(&mut self, found: Option<&LiveTable>) {
        let is_base = |name: &Name| self.chain(name).is_some_and(|chain| chain.hook.is_some());
        let enters = |found: &LiveTable| found.chains.iter().any(|(name, _)| is_base(name));
        self.substitute = match found {
            None => Substitute::Absent,
            Some(found) if enters(found) => Substitute::Entered,
            Some(_) => Substitute::Partial,
        };
    }

    /// Appends the new chains that pick an endpoint, and returns their names. They are sent before the elements that
    /// lead to them. If one transaction contained both, a packet that is being processed could find the new elements
    /// but still empty chains.
    pub fn preparation(&self, transaction: &mut Transaction) -> BTreeSet<Name> {
        let mut names = BTreeSet::new();
        if self.held.is_none() {
            return names;
        }
        for change in self.chains.diff().set {
            let (name, Some(chain)) = (change.key, change.value) else { continue };
            let is_there = change.replaces.is_some() || self.stale.contains(name) || self.prepared.contains(name);
            if !is_there && self.picking.values().any(|(_, picking)| picking == name) {
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

    /// The transactions that lead from the applied to the desired state; none if the states are equal.
    /// [`transaction`](Self::transaction) creates each transaction.
    pub fn changes(&mut self, limits: Limits) -> Portions<S> {
        let (next, portions) = match self.held.as_ref().and_then(|held| self.in_place(held)) {
            Some((next, changes)) => (next, Portions::in_place(changes, &self.elements, limits, self.substitute)),
            None => {
                if self.held.is_none() {
                    self.elements.iter_mut().for_each(DiffStore::pack);
                }
                let (next, changes) = self.anew();
                (next, Portions::anew(changes, self.is_there, &self.elements, limits, self.substitute))
            }
        };
        self.next = Some(next);
        portions
    }

    /// The transaction of this index. Valid until the next `change`, `commit` or `forget`.
    pub fn transaction(&self, portions: &Portions<S>, index: usize) -> Transaction {
        portions.transaction(index, &self.elements)
    }

    /// The whole table, which replaces an existing one.
    fn anew(&self) -> (Next, portions::Changes<S>) {
        let length = S::ALL.len();
        let (numbered, counting) = (self.wanted_numbered().collect(), self.wanted_counting().collect());
        let mut held = Held { sets: vec![None; length], counts: vec![0; length], numbered, counting };
        let [mut before, mut after] = [Transaction::new(), Transaction::new()];
        before.add_table(&self.table).delete_table(&self.table).add_table(&self.table);
        let chains: Vec<_> = self.wanted_chains().collect();
        chains.iter().for_each(|chain| _ = before.declare_chain(&self.table, &without_rules(chain)));
        let mut sets = Vec::new();
        for id in self.wanted_sets() {
            let index = id.index();
            let count = self.elements[index].iter_desired().count();
            let set = Arc::new(id.declaration(self.family, Set::size_for(count)));
            before.add_set(&self.table, &set);
            held.counts[index] = count;
            held.sets[index] = Some(set.clone());
            sets.push(Filled { id, set, all: true, at_once: false });
        }
        held.numbered.iter().chain(&held.counting).for_each(|set| _ = before.add_set(&self.table, set));
        chains.iter().for_each(|chain| _ = after.add_rules(&self.table, chain));
        let next = Next { held, stale: BTreeSet::new() };
        (next, portions::Changes { family: self.family, before, sets, after })
    }

    /// The desired chains, in the order in which a new table declares them.
    fn wanted_chains(&self) -> impl Iterator<Item = Arc<Chain>> {
        let picking = self.picking.values().map(|(_, name)| name);
        let names = self.fixed.iter().chain(picking).chain(&self.numbered_chains);
        names.filter_map(|name| self.chain(name))
    }

    /// The desired numbered sets.
    fn wanted_numbered(&self) -> impl Iterator<Item = Arc<Set>> {
        (0..self.numbered).filter_map(|number| S::numbered(self.family, number).map(Arc::new))
    }

    /// The desired sets in which rules count packets.
    fn wanted_counting(&self) -> impl Iterator<Item = Arc<Set>> {
        let sets = if self.counts { S::counting(self.family) } else { Vec::new() };
        sets.into_iter().map(Arc::new)
    }

    /// The complete desired content of the table.
    pub fn content(&self) -> TableContent {
        let sets = self.wanted_sets().map(|id| {
            let desired = || self.elements[id.index()].iter_desired();
            let mut elements = Vec::with_capacity(desired().count());
            elements.extend(desired().map(|(key, value)| portions::element(key, value)));
            (Arc::new(id.declaration(self.family, Set::size_for(elements.len()))), elements)
        });
        let numbered = self.wanted_numbered().chain(self.wanted_counting()).map(|set| (set, Vec::new()));
        let chains = self.wanted_chains().map(|chain| Chain::clone(&chain)).collect();
        TableContent { table: self.table.clone(), sets: sets.chain(numbered).collect(), chains }
    }

    /// The differences between the applied and the desired state. `None` if the table has to be replaced, because the
    /// elements do not fit into the existing sets. A table with numbered or counting sets is not replaced, because the elements
    /// that packets added would be lost. Instead, only the sets that are too small are replaced.
    fn in_place(&self, held: &Held) -> Option<(Next, portions::Changes<S>)> {
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
        if !outgrown.is_empty() && held.numbered.is_empty() && held.counting.is_empty() {
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
        for id in self.wanted_sets() {
            let index = id.index();
            if held.sets[index].is_none() {
                let set = Arc::new(id.declaration(self.family, Set::size_for(held.counts[index])));
                before.add_set(table, &set);
                held.sets[index] = Some(set);
                fresh.insert(index);
            }
        }
        for set in self.wanted_numbered().skip(held.numbered.len()) {
            before.add_set(table, &set);
            held.numbered.push(set);
        }
        for set in self.wanted_counting() {
            if !held.counting.iter().any(|held| held.name == set.name) {
                before.add_set(table, &set);
                held.counting.push(set);
            }
        }

        for chain in filled {
            before.add_rules(table, chain);
        }
        let sets = S::ALL.iter().zip(&held.sets).filter_map(|((id, ..), set)| {
            let (id, set, index) = (*id, set.as_ref()?, id.index());
            let all = fresh.contains(&index);
            let is_sent = all || self.elements[index].diff_in((Bound::Unbounded, Bound::Unbounded)).next().is_some();
            is_sent.then(|| Filled { id, set: set.clone(), all, at_once: outgrown.contains(&index) })
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

    /// The transactions that remove the chains and sets that nothing refers to; none if there are no such chains and sets. They
    /// are sent after the changes, because the kernel may keep a reference until the transaction that removes the reference has
    /// ended.
    pub fn removal(&self) -> Vec<Transaction> {
        let [mut emptying, mut removal] = [Transaction::new(), Transaction::new()];
        // Chains may refer to each other, but those that pick an endpoint do not.
        if !self.stale.iter().all(|name| spread::is_picking(name)) {
            self.stale.iter().for_each(|name| _ = emptying.flush_chain(&self.table, name));
        }
        self.stale.iter().for_each(|name| _ = removal.flush_chain(&self.table, name));
        self.stale.iter().for_each(|name| _ = removal.delete_chain(&self.table, name));
        if let Some(held) = &self.held {
            let unwanted = S::ALL.iter().zip(&held.sets).filter(|((id, ..), _)| !self.wants(*id));
            let unwanted = unwanted.filter_map(|(_, set)| set.as_ref());
            let counting = held.counting.iter().filter(|_| !self.counts);
            for set in unwanted.chain(held.numbered.iter().skip(self.numbered as usize)).chain(counting) {
                removal.delete_set(&self.table, &set.name);
            }
        }
        [emptying, removal].into_iter().filter(|transaction| !transaction.is_empty()).collect()
    }

    /// Records that the removal was applied.
    pub fn removed(&mut self) {
        self.stale.clear();
        let Some(held) = &mut self.held else { return };
        if self.numbered == 0 {
            S::ALL.iter().zip(&mut held.sets).filter(|((id, ..), _)| id.is_optional()).for_each(|(_, set)| *set = None);
        }
        held.numbered.truncate(self.numbered as usize);
        held.counting.retain(|_| self.counts);
    }
}

/// The declaration of a chain, without its rules.
fn without_rules(chain: &Chain) -> Arc<Chain> {
    Arc::new(Chain { rules: Vec::new(), ..chain.clone() })
}

/// The kernel's sets.
struct Compatible {
    /// By their position.
    sets: Vec<Option<Arc<Set>>>,
    numbered: Vec<Arc<Set>>,
    counting: Vec<Arc<Set>>,
}

/// The sets of the kernel's table. `None` if a declaration differs in more than its size and its comment.
fn compatible_sets<S: Sets>(family: Family, found: &LiveTable) -> Option<Compatible> {
    let mut sets = vec![None; S::ALL.len()];
    let (mut numbered, mut counting) = (BTreeMap::new(), Vec::new());
    let is = |found: &Set, wanted: Set| *found == Set { comment: found.comment.clone(), ..wanted };
    for found in &found.sets {
        let (set, _) = found.as_ref()?;
        match (S::of_name(&set.name), S::number_of(&set.name)) {
            (Some(id), _) if is(set, id.declaration(family, set.size?)) => sets[id.index()] = Some(set.clone()),
            (None, Some(number)) if is(set, S::numbered(family, number)?) => {
                numbered.insert(number, set.clone());
            }
            _ if S::counting(family).into_iter().any(|wanted| is(set, wanted)) => counting.push(set.clone()),
            _ => return None,
        }
    }
    let all_there = S::ALL.iter().all(|(id, ..)| id.is_optional() || sets[id.index()].is_some());
    let in_order = (0..).zip(numbered.keys()).all(|(number, found)| number == *found);
    (all_there && in_order).then(|| Compatible { sets, numbered: numbered.into_values().collect(), counting })
}
