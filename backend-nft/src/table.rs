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
        affinity::{self, Shape},
        sets::{Pool, SetId},
    },
    portions,
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
    /// What session affinity needs.
    affinity: Shape,
    /// Its chains.
    affinity_chains: Vec<Name>,
    /// Chains that are in the kernel, but nothing refers to them any more.
    stale: BTreeSet<Name>,
    /// Chains that pick, filled before anything leads to them.
    prepared: BTreeSet<Name>,
    /// What the kernel's table was declared with; none when it is not known, or there is no table.
    held: Option<Held>,
    /// There was a table when it was read last, whatever it held.
    is_there: bool,
    /// What the transaction under way will have led to.
    next: Option<Next>,
}

/// The kernel's sets.
#[derive(Clone, Debug)]
struct Held {
    /// By their id; none if it is not there.
    sets: Vec<Option<Arc<Set>>>,
    /// How many elements each has.
    counts: [usize; SetId::ALL.len()],
    /// The clients of each slot, which packets write.
    clients: Clients,
}

/// By slot.
type Clients = Vec<Arc<Set>>;

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
            affinity: Shape::default(),
            affinity_chains: Vec::new(),
            stale: BTreeSet::new(),
            prepared: BTreeSet::new(),
            held: None,
            is_there: false,
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

    /// This is what session affinity needs. Says whether it needs anything now and did not before, or the other way round.
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

    /// What session affinity needs.
    pub fn affinity(&self) -> &Shape {
        &self.affinity
    }

    /// Whether anything has session affinity.
    pub fn has_affinity(&self) -> bool {
        self.affinity.slots() > 0
    }

    /// Whether the set should be there.
    fn wants(&self, set: SetId) -> bool {
        !set.is_of_affinity() || self.has_affinity()
    }

    /// The set of a slot's clients, if it is in the kernel.
    pub fn clients(&self, slot: u32) -> Option<&Arc<Set>> {
        self.held.as_ref()?.clients.get(slot as usize)
    }

    /// Whether it is known what is in the kernel; otherwise it must be read before changes can be told.
    pub fn is_known(&self) -> bool {
        self.held.is_some()
    }

    /// The chain of that name, if there should be one.
    pub fn chain(&self, name: &str) -> Option<Arc<Chain>> {
        self.chains.desired(&name.into()).cloned().flatten()
    }

    /// This was found in the kernel, or that there is no table. What differs too much to be changed in place is replaced as a whole.
    pub fn adopt(&mut self, found: Option<Found>) {
        self.forget();
        self.is_there = found.is_some();
        let Some(found) = found else { return };
        let Some((sets, clients)) = compatible_sets(self.family, &found) else { return };
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

    /// Appends new chains that pick, to be sent before the elements that lead to them: a packet that is under way while both come
    /// at once finds the elements new, but every chain as it was, and that is empty. Says which.
    pub fn preparation(&self, transaction: &mut Transaction) -> BTreeSet<Name> {
        let mut names = BTreeSet::new();
        if self.held.is_none() {
            return names;
        }
        for change in self.chains.diff().set {
            let (name, Some(chain)) = (change.key, change.value) else { continue };
            let is_there = change.replaces.is_some() || self.stale.contains(name) || self.prepared.contains(name);
            if !is_there && self.lb.values().any(|lb| lb == name) {
                transaction.declare_chain(&self.table, &Arc::new(Chain { rules: Vec::new(), ..Chain::clone(chain) }));
                transaction.add_rules(&self.table, chain);
                names.insert(name.clone());
            }
        }
        names
    }

    /// That was applied.
    pub fn prepared(&mut self, names: BTreeSet<Name>) {
        self.prepared.extend(names);
    }

    /// What leads from what is there to what should be, in portions of about so many elements. None if it is the same.
    pub fn changes(&mut self, limit: usize) -> Vec<Transaction> {
        let mut transaction = Transaction::new();
        let next = match &self.held {
            Some(held) => self.in_place(held, &mut transaction),
            None => None,
        };
        let is_in_place = next.is_some();
        self.next = Some(match next {
            Some(next) => next,
            None => self.anew(&mut transaction),
        });
        match is_in_place {
            true if transaction.is_empty() => Vec::new(),
            true => portions::in_place(self.family, transaction, limit),
            false => portions::anew(self.family, transaction, self.is_there, limit),
        }
    }

    /// The whole table, in place of one that may exist.
    fn anew(&self, transaction: &mut Transaction) -> Next {
        let content = self.content();
        let mut held = Held { sets: vec![None; SetId::ALL.len()], counts: [0; SetId::ALL.len()], clients: Vec::new() };
        for (set, elements) in &content.sets {
            match SetId::of_name(&set.name) {
                Some(id) => {
                    held.counts[id as usize] = elements.len();
                    held.sets[id as usize] = Some(set.clone());
                }
                None => held.clients.push(set.clone()),
            }
        }
        transaction.add_table(&self.table).delete_table(&self.table).add_content(content);
        Next { held, stale: BTreeSet::new() }
    }

    /// All that it should hold.
    pub fn content(&self) -> TableContent {
        let sets = SetId::ALL.into_iter().filter(|id| self.wants(*id)).map(|id| {
            let desired = || self.elements[id as usize].iter_desired();
            let mut elements = Vec::with_capacity(desired().count());
            elements.extend(desired().map(element));
            (Arc::new(id.declaration(self.family, Set::size_for(elements.len()))), elements)
        });
        let clients =
            (0..self.affinity.slots()).map(|slot| (Arc::new(affinity::clients(self.family, slot)), Vec::new()));
        let names = self.fixed.iter().chain(self.lb.values()).chain(&self.affinity_chains);
        let chains = names.filter_map(|name| self.chain(name)).map(|chain| Chain::clone(&chain)).collect();
        TableContent { table: self.table.clone(), sets: sets.chain(clients).collect(), chains }
    }

    /// Only the differences; none if an element more would not fit. A table that remembers clients is not replaced for that,
    /// only its sets that are too small: what packets wrote would be lost.
    fn in_place(&self, held: &Held, transaction: &mut Transaction) -> Option<Next> {
        let table = &self.table;
        let diffs: Vec<_> = self.elements.iter().map(DiffStore::diff).collect();
        let mut held = held.clone();
        let mut outgrown = Vec::new();
        for (index, diff) in diffs.iter().enumerate() {
            let new = diff.set.iter().filter(|set| set.replaces.is_none()).count();
            held.counts[index] = held.counts[index] + new - diff.removed.len();
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
                transaction.declare_chain(table, &Arc::new(Chain { rules: Vec::new(), ..Chain::clone(chain) }));
            }
            if change.replaces.is_some() || stale.remove(change.key) {
                flushed.insert(change.key.clone());
            }
        }
        stale.extend(chains.removed.iter().map(|(name, _)| Name::clone(name)));
        let mut filled: Vec<&Arc<Chain>> = wanted().map(|(_, chain)| chain).collect();
        if !outgrown.is_empty() {
            // Nothing may refer to a set that goes.
            filled = self.chains.iter_desired().filter_map(|(_, chain)| chain.as_ref()).collect();
            flushed.extend(stale.iter().cloned().chain(filled.iter().map(|chain| chain.name.clone())));
        }
        for name in &flushed {
            transaction.flush_chain(table, name);
        }

        for index in &outgrown {
            if let Some(set) = held.sets[*index].take() {
                transaction.delete_set(table, &set.name);
            }
        }
        let mut fresh = BTreeSet::new();
        for id in SetId::ALL.into_iter().filter(|id| self.wants(*id)) {
            let index = id as usize;
            if held.sets[index].is_none() {
                let set = Arc::new(id.declaration(self.family, Set::size_for(held.counts[index])));
                transaction.add_set(table, &set);
                held.sets[index] = Some(set);
                fresh.insert(index);
            }
        }
        for slot in held.clients.len()..self.affinity.slots() as usize {
            let set = Arc::new(affinity::clients(self.family, u32::try_from(slot).unwrap_or(u32::MAX)));
            transaction.add_set(table, &set);
            held.clients.push(set);
        }

        for chain in filled {
            transaction.add_rules(table, chain);
        }
        let sets = || held.sets.iter().enumerate().filter_map(|(index, set)| Some((index, set.as_ref()?)));
        for (index, set) in sets().filter(|(index, _)| !fresh.contains(index)) {
            let diff = &diffs[index];
            let replaced = diff.set.iter().filter_map(|set| Some((set.key, set.replaces?)));
            let gone = diff.removed.iter().copied().chain(replaced).map(element).collect();
            transaction.delete_elements(table, set, gone);
        }
        for (index, set) in sets() {
            let new = if fresh.contains(&index) {
                self.elements[index].iter_desired().map(element).collect()
            } else {
                diffs[index].set.iter().map(|set| element((set.key, set.value))).collect()
            };
            transaction.add_elements(table, set, new);
        }
        Some(Next { held, stale })
    }

    /// The transaction was applied.
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

    /// It is no longer known what the table holds.
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

    /// Appends what makes chains let go of each other that nothing else refers to any more, to be sent before their removal.
    pub fn emptying_of_stale_chains(&self, transaction: &mut Transaction) {
        // Those that pick refer to none.
        let picks = |name: &Name| name.starts_with("lb-") && !name.starts_with("lb-affinity-");
        if !self.stale.iter().all(picks) {
            self.stale.iter().for_each(|name| _ = transaction.flush_chain(&self.table, name));
        }
    }

    /// Appends the removal of chains and sets that nothing refers to any more. To be sent after the changes: the kernel may
    /// hold on to a reference until the transaction that dropped it is over.
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

    /// That removal was applied.
    pub fn stale_chains_are_gone(&mut self) {
        self.stale.clear();
        let unwanted: Vec<SetId> = SetId::ALL.into_iter().filter(|id| !self.wants(*id)).collect();
        if let Some(held) = &mut self.held {
            unwanted.into_iter().for_each(|id| held.sets[id as usize] = None);
            held.clients.truncate(self.affinity.slots() as usize);
        }
    }
}

fn element((key, (data, comment)): (&ElementKey, &Value)) -> Element {
    Element { key: key.clone(), data: data.clone(), comment: comment.clone() }
}

/// The kernel's sets in our order, and those of clients, if they are declared as ours are but for their size.
fn compatible_sets(family: Family, found: &Found) -> Option<(Vec<Option<Arc<Set>>>, Clients)> {
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
