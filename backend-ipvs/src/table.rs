//! The desired and the applied state of one nf_tables table, and the transaction that turns one into the other.

use std::{collections::BTreeMap, sync::Arc};

use localnet_client::DiffStore;
use localnet_linux::nft::{
    Chain, ChainMatch, Element, ElementData, ElementKey, LiveTable, Name, Set, Table, TableContent, Transaction,
};
use localnet_proto::Family;

use crate::plan::{self, chains, sets::SetId};

/// The data and the comment of an element.
type Value = (ElementData, Option<Name>);

/// The desired and applied state of one table.
#[derive(Debug)]
pub struct TableState {
    family: Family,
    table: Table,
    elements: [DiffStore<ElementKey, Value>; SetId::ALL.len()],
    /// The chains that always exist.
    fixed: Vec<Arc<Chain>>,
    /// How many VIPs use each chain that picks a slot, by number of slots. In the kernel, such a chain stays as long as the
    /// table.
    picking: BTreeMap<u32, usize>,
    /// The applied state; `None` if it is unknown or the table is missing.
    held: Option<Held>,
    /// The applied state after the current transaction.
    next: Option<Held>,
}

/// The applied state, except for the elements.
#[derive(Clone, Debug)]
struct Held {
    sets: Vec<Arc<Set>>,
    counts: [usize; SetId::ALL.len()],
    chains: BTreeMap<Name, Arc<Chain>>,
}

impl TableState {
    /// An empty desired state and an unknown applied state.
    pub fn new(family: Family) -> Self {
        Self {
            family,
            table: plan::table(family),
            elements: std::array::from_fn(|_| DiffStore::new()),
            fixed: Vec::new(),
            picking: BTreeMap::new(),
            held: None,
            next: None,
        }
    }

    /// The table.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Adds or replaces a desired element.
    pub fn set(&mut self, set: SetId, element: Element) {
        self.elements[set as usize].set(element.key, (element.data, element.comment));
    }

    /// Removes an element from the desired state.
    pub fn remove(&mut self, set: SetId, key: &ElementKey) {
        self.elements[set as usize].remove(key);
    }

    /// Sets the chains that always exist.
    pub fn set_fixed_chains(&mut self, chains: Vec<Chain>) {
        self.fixed = chains.into_iter().map(Arc::new).collect();
    }

    /// Adds (`more`) or removes a user of the chain that picks one of `slots` slots.
    pub fn count_picking(&mut self, slots: u32, more: bool) {
        let users = self.picking.entry(slots).or_default();
        *users = if more { *users + 1 } else { users.saturating_sub(1) };
        if *users == 0 {
            self.picking.remove(&slots);
        }
    }

    /// Whether the applied state is known. If not, read the table before you call `changes`.
    pub fn is_known(&self) -> bool {
        self.held.is_some()
    }

    fn chains(&self) -> impl Iterator<Item = Arc<Chain>> {
        self.fixed.iter().cloned().chain(self.picking.keys().map(|slots| Arc::new(chains::lb(*slots))))
    }

    /// The desired chain with that name.
    pub fn chain(&self, name: &str) -> Option<Arc<Chain>> {
        self.chains().find(|chain| *chain.name == *name)
    }

    /// Takes what was read from the kernel as the applied state. A table that differs in more than elements stays unknown, so
    /// that the next transaction replaces it.
    pub fn adopt(&mut self, found: LiveTable) {
        self.forget();
        let mut sets = Vec::new();
        for id in SetId::ALL {
            let same = |set: &&Arc<Set>| set.size.is_some_and(|size| ***set == id.declaration(self.family, size));
            let Some(set) = found.sets.iter().flatten().map(|(set, _)| set).find(same) else { return };
            sets.push(set.clone());
        }
        let all_alike = found.chains.iter().all(|(_, comparison)| *comparison == ChainMatch::Exact);
        if found.sets.len() != sets.len() || !all_alike {
            return;
        }
        let chains = found.chains.iter().filter_map(|(name, _)| Some((name.clone(), self.chain(name)?))).collect();
        let mut counts = [0; SetId::ALL.len()];
        for (set, elements) in found.sets.into_iter().flatten() {
            let Some(id) = SetId::of_name(&set.name) else { continue };
            counts[id as usize] = elements.len();
            let entries = elements.into_iter().map(|element| (element.key, (element.data, element.comment)));
            self.elements[id as usize].adopt(entries);
        }
        self.held = Some(Held { sets, counts, chains });
    }

    /// Appends the diff to a transaction.
    pub fn changes(&mut self, transaction: &mut Transaction) {
        let next = match &self.held {
            Some(held) => self.in_place(held, transaction),
            None => None,
        };
        self.next = Some(match next {
            Some(next) => next,
            None => self.anew(transaction),
        });
    }

    /// Appends the whole table, which replaces any existing one.
    fn anew(&self, transaction: &mut Transaction) -> Held {
        let content = self.content();
        let mut counts = [0; SetId::ALL.len()];
        let sets = content.sets.iter().enumerate().map(|(index, (set, elements))| {
            counts[index] = elements.len();
            Arc::clone(set)
        });
        let sets = sets.collect();
        transaction.add_table(&self.table).delete_table(&self.table).add_content(content);
        Held { sets, counts, chains: self.chains().map(|chain| (chain.name.clone(), chain)).collect() }
    }

    /// The desired content of the table.
    pub fn content(&self) -> TableContent {
        let sets = SetId::ALL.into_iter().map(|id| {
            let elements: Vec<Element> = self.elements[id as usize].iter_desired().map(element).collect();
            (Arc::new(id.declaration(self.family, Set::size_for(elements.len()))), elements)
        });
        let chains = self.chains().map(|chain| Chain::clone(&chain)).collect();
        TableContent { table: self.table.clone(), sets: sets.collect(), chains }
    }

    /// Appends only the diff. Returns `None` if a set is too small or an existing chain differs.
    fn in_place(&self, held: &Held, transaction: &mut Transaction) -> Option<Held> {
        let table = &self.table;
        let mut next = held.clone();
        for chain in self.chains() {
            match held.chains.get(&chain.name) {
                Some(there) if *there == chain => {}
                Some(_) => return None,
                None => {
                    transaction.add_chain(table, &chain);
                    next.chains.insert(chain.name.clone(), chain);
                }
            }
        }
        let diffs: Vec<_> = self.elements.iter().map(DiffStore::diff).collect();
        for (index, diff) in diffs.iter().enumerate() {
            let new = diff.set.iter().filter(|set| set.replaces.is_none()).count();
            next.counts[index] = held.counts[index] + new - diff.removed.len();
            if held.sets[index].size.is_some_and(|size| next.counts[index] > size as usize) {
                return None;
            }
        }
        for (set, diff) in held.sets.iter().zip(&diffs) {
            let replaced = diff.set.iter().filter_map(|set| Some((set.key, set.replaces?)));
            let gone = diff.removed.iter().copied().chain(replaced).map(element).collect();
            transaction.delete_elements(table, set, gone);
        }
        for (set, diff) in held.sets.iter().zip(&diffs) {
            let new = diff.set.iter().map(|set| element((set.key, set.value))).collect();
            transaction.add_elements(table, set, new);
        }
        Some(next)
    }

    /// Records that the transaction was applied.
    pub fn commit(&mut self) {
        let Some(next) = self.next.take() else { return };
        self.held = Some(next);
        for elements in &mut self.elements {
            elements.commit();
        }
    }

    /// Forgets the applied state.
    pub fn forget(&mut self) {
        self.held = None;
        self.next = None;
        for elements in &mut self.elements {
            elements.forget();
        }
    }
}

fn element((key, (data, comment)): (&ElementKey, &Value)) -> Element {
    Element { key: key.clone(), data: data.clone(), comment: comment.clone() }
}
