//! One table: what it should hold, what it is known to hold, and the transaction that leads from one to the other.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use localnet_client::DiffStore;
use localnet_linux::nft::{
    Chain, Element, ElementData, ElementKey, Family, Name, Set, Table, TableContent, Transaction,
};

use crate::{
    kernel::{Found, Likeness},
    plan::{
        self,
        sets::{self, Pool, SetId},
    },
};

/// What an element maps to, and its comment.
type Value = (ElementData, Option<Name>);

/// One table.
#[derive(Debug)]
pub struct TableState {
    family: Family,
    table: Table,
    elements: [DiffStore<ElementKey, Value>; SetId::ALL.len()],
    /// Wanted chains are known; of what is in the kernel it may be known only that it is another.
    chains: DiffStore<Name, Option<Arc<Chain>>>,
    /// The order in which chains are declared in a new table: as a human reads them.
    fixed: Vec<Name>,
    /// The chains that pick, by what they pick from.
    lb: BTreeMap<(Pool, u32), Name>,
    /// Chains that are in the kernel, but nothing refers to them any more.
    stale: BTreeSet<Name>,
    /// What the kernel's table was declared with; none when it is not known, or there is no table.
    held: Option<Held>,
    /// What the transaction under way will have led to.
    next: Option<Next>,
}

/// The kernel's sets.
#[derive(Clone, Debug)]
struct Held {
    sets: Vec<Arc<Set>>,
    /// How many elements each has.
    counts: [usize; SetId::ALL.len()],
}

#[derive(Debug)]
struct Next {
    held: Held,
    stale: BTreeSet<Name>,
}

impl TableState {
    /// Should hold nothing, and nothing is known of what it holds.
    pub fn new(family: Family) -> Self {
        Self {
            family,
            table: plan::table(family),
            elements: std::array::from_fn(|_| DiffStore::new()),
            chains: DiffStore::new(),
            fixed: Vec::new(),
            lb: BTreeMap::new(),
            stale: BTreeSet::new(),
            held: None,
            next: None,
        }
    }

    /// Its family.
    pub fn family(&self) -> Family {
        self.family
    }

    /// Which table.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The element is to be there.
    pub fn set(&mut self, set: SetId, element: Element) {
        self.elements[set as usize].set(element.key, (element.data, element.comment));
    }

    /// The element is to be gone.
    pub fn remove(&mut self, set: SetId, key: &ElementKey) {
        self.elements[set as usize].remove(key);
    }

    /// These are the chains that are always there.
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

    /// These are the chains that pick, and nothing else picks.
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

    /// Whether it is known what is in the kernel; otherwise it must be read before changes can be told.
    pub fn is_known(&self) -> bool {
        self.held.is_some()
    }

    /// The chain of that name, if there should be one.
    pub fn chain(&self, name: &str) -> Option<Arc<Chain>> {
        self.chains.desired(&name.into()).cloned().flatten()
    }

    /// This was found in the kernel. What differs too much to be changed in place is replaced as a whole.
    pub fn adopt(&mut self, found: Found) {
        self.forget();
        let Some(sets) = compatible_sets(self.family, &found) else { return };
        if found.chains.iter().any(|(_, likeness)| *likeness == Likeness::OtherDeclaration) {
            return;
        }
        let chains: Vec<_> = found
            .chains
            .into_iter()
            .map(|(name, likeness)| {
                let chain = if likeness == Likeness::Same { self.chain(&name) } else { None };
                (name, chain)
            })
            .collect();
        self.chains.adopt(chains);
        let mut counts = [0; SetId::ALL.len()];
        for (set, elements) in found.sets.into_iter().flatten() {
            let Some(id) = SetId::of_name(&set.name) else { continue };
            counts[id as usize] = elements.len();
            let entries = elements.into_iter().map(|element| (element.key, (element.data, element.comment)));
            self.elements[id as usize].adopt(entries);
        }
        self.held = Some(Held { sets, counts });
    }

    /// Appends what leads from what is there to what should be.
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

    /// The whole table, in place of one that may exist.
    fn anew(&self, transaction: &mut Transaction) -> Next {
        let content = self.content();
        transaction.add_table(&self.table).delete_table(&self.table).add_content(&content);
        let counts = std::array::from_fn(|index| content.sets[index].1.len());
        let sets = content.sets.into_iter().map(|(set, _)| set).collect();
        Next { held: Held { sets, counts }, stale: BTreeSet::new() }
    }

    /// All that it should hold.
    pub fn content(&self) -> TableContent {
        let sets = SetId::ALL.into_iter().map(|id| {
            let elements: Vec<Element> = self.elements[id as usize].iter_desired().map(element).collect();
            (Arc::new(id.declaration(self.family, sets::size_for(elements.len()))), elements)
        });
        let names = self.fixed.iter().chain(self.lb.values());
        let chains = names.filter_map(|name| self.chain(name)).map(|chain| Chain::clone(&chain)).collect();
        TableContent { table: self.table.clone(), sets: sets.collect(), chains }
    }

    /// Only the differences; none if an element more would not fit.
    fn in_place(&self, held: &Held, transaction: &mut Transaction) -> Option<Next> {
        let table = &self.table;
        let diffs: Vec<_> = self.elements.iter().map(DiffStore::diff).collect();
        let mut counts = held.counts;
        for (index, diff) in diffs.iter().enumerate() {
            let new = diff.set.iter().filter(|set| set.replaces.is_none()).count();
            counts[index] = counts[index] + new - diff.removed.len();
            if held.sets[index].size.is_some_and(|size| counts[index] > size as usize) {
                return None;
            }
        }

        let chains = self.chains.diff();
        let mut stale = self.stale.clone();
        let wanted = || chains.set.iter().filter_map(|change| Some((change, change.value.as_ref()?)));
        for (change, chain) in wanted() {
            if change.replaces.is_none() {
                transaction.declare_chain(table, &Arc::new(Chain { rules: Vec::new(), ..Chain::clone(chain) }));
            }
            if change.replaces.is_some() || stale.remove(change.key) {
                transaction.flush_chain(table, change.key);
            }
        }
        for (_, chain) in wanted() {
            transaction.add_rules(table, chain);
        }
        for (diff, set) in diffs.iter().zip(&held.sets) {
            let replaced = diff.set.iter().filter_map(|set| Some((set.key, set.replaces?)));
            let gone = diff.removed.iter().copied().chain(replaced).map(element).collect();
            transaction.delete_elements(table, set, gone);
        }
        for (diff, set) in diffs.iter().zip(&held.sets) {
            let new = diff.set.iter().map(|set| element((set.key, set.value))).collect();
            transaction.add_elements(table, set, new);
        }
        stale.extend(chains.removed.iter().map(|(name, _)| Name::clone(name)));
        Some(Next { held: Held { sets: held.sets.clone(), counts }, stale })
    }

    /// The transaction was applied.
    pub fn commit(&mut self) {
        let Some(next) = self.next.take() else { return };
        self.held = Some(next.held);
        self.stale = next.stale;
        self.chains.commit();
        for elements in &mut self.elements {
            elements.commit();
        }
    }

    /// It is no longer known what the table holds.
    pub fn forget(&mut self) {
        self.held = None;
        self.next = None;
        self.stale.clear();
        self.chains.forget();
        for elements in &mut self.elements {
            elements.forget();
        }
    }

    /// Appends the removal of chains that nothing refers to any more. To be sent after the changes: the kernel may hold
    /// on to a reference until the transaction that dropped it is over.
    pub fn removal_of_stale_chains(&self, transaction: &mut Transaction) {
        for name in &self.stale {
            transaction.flush_chain(&self.table, name);
        }
        for name in &self.stale {
            transaction.delete_chain(&self.table, name);
        }
    }

    /// That removal was applied.
    pub fn stale_chains_are_gone(&mut self) {
        self.stale.clear();
    }
}

fn element((key, (data, comment)): (&ElementKey, &Value)) -> Element {
    Element { key: key.clone(), data: data.clone(), comment: comment.clone() }
}

/// The kernel's sets in our order, if they are declared as ours are but for their size.
fn compatible_sets(family: Family, found: &Found) -> Option<Vec<Arc<Set>>> {
    if found.sets.len() != SetId::ALL.len() {
        return None;
    }
    SetId::ALL
        .into_iter()
        .map(|id| {
            let (set, _) = found.sets.iter().flatten().find(|(set, _)| *set.name == *id.name())?;
            (**set == id.declaration(family, set.size?)).then(|| set.clone())
        })
        .collect()
}
