//! The transactions that turn a table's applied state into its desired state. Each transaction is built only when it
//! is sent, so the elements of a large change never exist twice. No commit blocks the kernel for long, and no VIP ever
//! lacks its rules.
//!
//! ```text
//!  in place   declarations, rules │ elements of VIPs a…b │ elements of VIPs c…d │ …           │ base chains
//!  anew       the same, with all rules at the end. To replace a live table, a substitute table is filled first, and its
//!             last portion deletes the live table. Then the new table is filled, and its last portion deletes the
//!             substitute.
//! ```
//!
//! All elements of one VIP are in one portion, whichever sets they are in. New base chains come last, so packets enter
//! a table only when it is complete. A live table changes in one transaction, unless that would block the kernel for
//! too long. Pure.

use std::{collections::BTreeSet, ops::Bound, sync::Arc};

use localnet_client::{DiffStore, Difference, KeyRange};
use localnet_linux::nft::{Change, Element, ElementData, ElementKey, Name, Set, Table, Transaction, Tuple};
use localnet_proto::Family;

use crate::sets::Sets;

/// The largest number of elements in one commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// For a table that packets enter.
    pub entered: usize,
    /// For a table without base chains. No packets enter it, and smaller portions need less memory.
    pub filled: usize,
}

impl Limits {
    /// No limit: one commit contains all changes.
    pub const NONE: Self = Self { entered: usize::MAX, filled: usize::MAX };
}

impl Default for Limits {
    /// In a measurement, a commit of 65,536 elements took 0.15 s.
    fn default() -> Self {
        Self { entered: 65_536, filled: 8_192 }
    }
}

/// What is left of an attempt to replace a live table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Substitute {
    /// No substitute table.
    #[default]
    Absent,
    /// A substitute table that no packets enter.
    Partial,
    /// A substitute table that packets enter, so they do not enter the table itself.
    Entered,
}

/// The value and the comment of an element.
pub type Value = (ElementData, Option<Name>);

/// The elements of all sets, by the position of the set.
pub type Elements = Vec<DiffStore<ElementKey, Value>>;

/// The changes of a table: sets with elements to send, and everything that is sent before and after the elements.
#[derive(Debug)]
pub struct Changes<S> {
    /// The table's family.
    pub family: Family,
    /// The changes before the elements.
    pub before: Transaction,
    /// The sets that may have elements to send.
    pub sets: Vec<Filled<S>>,
    /// The changes after the elements.
    pub after: Transaction,
}

/// A set, and which of its elements to send.
#[derive(Clone, Debug)]
pub struct Filled<S> {
    /// The ID of the set.
    pub id: S,
    /// The declaration of the set.
    pub set: Arc<Set>,
    /// Whether the set is new and empty. If so, all of its elements are sent, not only the diff.
    pub all: bool,
    /// Whether the set replaces a set that packets use. If so, all of its elements are sent in one portion.
    pub at_once: bool,
}

/// A sequence of transactions, each built on demand.
#[derive(Debug)]
pub struct Portions<S> {
    changes: Changes<S>,
    /// The tables to write, in order: the substitute, if there is one, then the table itself. Both have the same portions.
    tables: Vec<Table>,
    /// The substitute of an earlier attempt. The last transaction deletes it, so that packets enter one table at any time.
    leftover: Option<Table>,
    /// The first key of each portion except the first portion.
    starts: Vec<ElementKey>,
    count: usize,
}

/// All keys.
const ALL: KeyRange<'static, ElementKey> = (Bound::Unbounded, Bound::Unbounded);

impl<S: Sets> Portions<S> {
    /// Changes a table in place.
    pub fn in_place(changes: Changes<S>, elements: &Elements, limits: Limits, substitute: Substitute) -> Self {
        let size = changes.size(elements);
        let limit = (size > limits.entered).then_some(limits.entered);
        Self::cut(vec![S::table(changes.family)], changes, elements, size, limit).after(substitute)
    }

    /// Writes a whole table. If the table exists already (`is_there`), every packet still finds a complete table.
    pub fn anew(
        changes: Changes<S>,
        is_there: bool,
        elements: &Elements,
        limits: Limits,
        substitute: Substitute,
    ) -> Self {
        let is_entered = is_there && substitute != Substitute::Entered;
        let most = if is_entered { limits.entered } else { limits.filled };
        let size = changes.size(elements);
        let limit = (size > most).then_some(limits.filled);
        let new = limit.filter(|_| is_entered).and_then(|_| S::substitute(changes.family));
        let tables = new.into_iter().chain([S::table(changes.family)]).collect();
        Self::cut(tables, changes, elements, size, limit).after(substitute)
    }

    /// The same transactions, which also delete the substitute of an earlier attempt.
    fn after(mut self, substitute: Substitute) -> Self {
        let leftover = S::substitute(self.changes.family).filter(|_| substitute != Substitute::Absent);
        // A new substitute replaces it.
        self.leftover = leftover.filter(|leftover| !self.tables.contains(leftover));
        self
    }

    fn cut(tables: Vec<Table>, changes: Changes<S>, elements: &Elements, size: usize, limit: Option<usize>) -> Self {
        let starts = limit.map(|limit| changes.starts(elements, limit)).unwrap_or_default();
        let changes = if limit.is_some() { changes.entered_last() } else { changes };
        let is_nothing = size == 0 && changes.before.is_empty() && changes.after.is_empty();
        let count = if is_nothing { 0 } else { tables.len() * (starts.len() + 1) };
        Self { changes, tables, leftover: None, starts, count }
    }

    /// The number of transactions; 0 if there is nothing to change.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The transaction of this index.
    pub fn transaction(&self, index: usize, elements: &Elements) -> Transaction {
        let of_table = self.starts.len() + 1;
        let (round, portion) = (index / of_table, index % of_table);
        let mut transaction = Transaction::new();
        let Some(table) = self.tables.get(round) else { return transaction };
        let (is_first, is_last) = (portion == 0, portion == self.starts.len());
        if is_first {
            append(&mut transaction, &self.changes.before, table);
        }
        let range = self.range(portion);
        for filled in &self.changes.sets {
            // Elements without a VIP are deleted last, because they must outlive the elements of VIPs that need them.
            let range = if filled.is_cut() { Some(range) } else { is_last.then_some(ALL) };
            let gone = range.into_iter().flat_map(|range| filled.entries(elements, range));
            let gone = gone.filter_map(|entry| Some(element(entry.key, entry.applied?))).collect();
            transaction.delete_elements(table, &filled.set, gone);
        }
        for filled in &self.changes.sets {
            let range = if filled.is_cut() { Some(range) } else { is_first.then_some(ALL) };
            let new = range.into_iter().flat_map(|range| filled.entries(elements, range));
            let new = new.filter_map(|entry| Some(element(entry.key, entry.desired?))).collect();
            transaction.add_elements(table, &filled.set, new);
        }
        if is_last {
            append(&mut transaction, &self.changes.after, table);
            if let Some(other) = self.tables.iter().chain(&self.leftover).find(|other| *other != table) {
                transaction.delete_table(other);
            }
        }
        transaction
    }

    /// The range of keys in a portion.
    fn range(&self, portion: usize) -> KeyRange<'_, ElementKey> {
        let start = portion.checked_sub(1).and_then(|before| self.starts.get(before));
        let end = self.starts.get(portion);
        (start.map_or(Bound::Unbounded, Bound::Included), end.map_or(Bound::Unbounded, Bound::Excluded))
    }
}

impl<S: Sets> Changes<S> {
    /// The number of elements that the changes add and delete.
    fn size(&self, elements: &Elements) -> usize {
        self.sets.iter().flat_map(|filled| filled.entries(elements, ALL)).map(|entry| size(&entry)).sum()
    }

    /// The same changes, with new base chains and their rules at the very end.
    fn entered_last(self) -> Self {
        let is_base = |change: &Change| match change {
            Change::AddChain(_, chain) if chain.hook.is_some() => Some(chain.name.clone()),
            _ => None,
        };
        let bases: BTreeSet<Name> = self.before.changes().iter().filter_map(is_base).collect();
        let is_entered = |change: &Change| match change {
            Change::AddChain(_, chain) => bases.contains(&chain.name),
            Change::AddRule(_, chain, _) => bases.contains(chain),
            _ => false,
        };
        let part = |transaction: Transaction| transaction.into_changes().into_iter().partition(is_entered);
        let (entered, before): (Vec<Change>, Vec<Change>) = part(self.before);
        let (rules, mut after): (Vec<Change>, Vec<Change>) = part(self.after);
        after.extend(entered.into_iter().chain(rules));
        Self { before: before.into(), after: after.into(), ..self }
    }

    /// The keys at which to split the changes into portions of at most `limit` elements. A VIP with more elements has a
    /// portion of its own.
    fn starts(&self, elements: &Elements, limit: usize) -> Vec<ElementKey> {
        let cut = self.sets.iter().filter(|filled| filled.is_cut());
        let mut sets: Vec<_> = cut.map(|filled| filled.entries(elements, ALL).peekable()).collect();
        let mut starts = Vec::new();
        let mut held = 0;
        while let Some(next) = sets.iter_mut().filter_map(|set| Some(vip(self.family, set.peek()?.key))).min() {
            let mut count = 0;
            for set in &mut sets {
                while let Some(entry) = set.next_if(|entry| vip(self.family, entry.key) == next) {
                    count += size(&entry);
                }
            }
            if held > 0 && held + count > limit {
                starts.push(Tuple::from_bytes(next).into());
                held = 0;
            }
            held += count;
        }
        starts
    }
}

type Entry<'a> = Difference<'a, ElementKey, Value>;

impl<S: Sets> Filled<S> {
    /// Whether each element is sent in the portion of its VIP.
    fn is_cut(&self) -> bool {
        !self.at_once && S::ALL[self.id.index()].2.has_vip()
    }

    /// The entries to send in a range of keys.
    fn entries<'a>(
        &self,
        elements: &'a Elements,
        range: KeyRange<'_, ElementKey>,
    ) -> Box<dyn Iterator<Item = Entry<'a>> + 'a> {
        let store = &elements[self.id.index()];
        if self.all {
            let desired = store.desired_in(range);
            return Box::new(desired.map(|(key, value)| Entry { key, applied: None, desired: Some(value) }));
        }
        Box::new(store.diff_in(range))
    }
}

/// The number of elements that an entry adds and deletes.
fn size(entry: &Entry<'_>) -> usize {
    usize::from(entry.applied.is_some()) + usize::from(entry.desired.is_some())
}

/// Converts an entry of a store to an element.
pub fn element(key: &ElementKey, (data, comment): &Value) -> Element {
    Element { key: key.clone(), data: data.clone(), comment: comment.clone() }
}

/// The prefix of a key that identifies its VIP: address, protocol and port. For a ClusterIP, the prefix is only the
/// address, which sorts before all VIPs with this address.
fn vip(family: Family, key: &ElementKey) -> &[u8] {
    let key = key.start().as_bytes();
    let length = match family {
        Family::V4 => 4 + 4 + 4,
        Family::V6 => 16 + 4 + 4,
    };
    key.get(..length).unwrap_or(key)
}

/// Appends the changes, redirected to `table`.
fn append(transaction: &mut Transaction, changes: &Transaction, table: &Table) {
    for change in changes.changes() {
        let mut change = change.clone();
        match &mut change {
            Change::AddTable(of)
            | Change::DeleteTable(of)
            | Change::AddChain(of, _)
            | Change::FlushChain(of, _)
            | Change::DeleteChain(of, _)
            | Change::AddRule(of, ..)
            | Change::AddSet(of, _)
            | Change::FlushSet(of, _)
            | Change::DeleteSet(of, _)
            | Change::AddElements(of, ..)
            | Change::DeleteElements(of, ..) => *of = table.clone(),
        }
        transaction.push(change);
    }
}
