//! [`DiffStore`]: the desired state and the applied state of a kernel subsystem, and their diff.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map},
    ops::Bound,
};

/// The desired and the applied entries, and their diff. A diff costs O(changes).
///
/// Fill in the desired state with [`set`](Self::set), [`remove`](Self::remove) and [`replace`](Self::replace). Request
/// the [`diff`](Self::diff) and apply it to the kernel. Then:
/// - If the kernel accepted the diff, call [`commit`](Self::commit).
/// - If it is unknown what the kernel now holds, call [`forget`](Self::forget).
/// - If the kernel refused the diff and changed nothing, call neither. The next diff is the same.
///
/// Invariant: applying `diff(a → b)` to `a` gives `b`, and `diff(b → b)` is empty.
#[derive(Clone, Debug)]
pub struct DiffStore<K, V> {
    entries: BTreeMap<K, Entry<V>>,
    /// The keys whose entry is not `Same`. Empty unless applied entries are known.
    dirty: BTreeSet<K>,
    applied: Applied,
    /// Whether entries were added one by one since the last [`DiffStore::pack`].
    loose: bool,
}

/// What is known about the applied entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Applied {
    /// Nothing. Every entry is `Same` and holds the desired value.
    Unknown,
    /// There are none, so all entries differ. Every entry is `Same` and holds the desired value, because a first fill is then
    /// as cheap as in `Unknown`.
    Nothing,
    /// Each entry has its applied value.
    Known,
}

#[derive(Clone, Debug)]
enum Entry<V> {
    /// The desired and the applied value are equal, and are stored once. See also [`Applied`].
    Same(V),
    /// Desired but not applied.
    New(V),
    /// Applied but not desired.
    Unwanted(V),
    /// Desired and applied, with different values. Boxed to keep the entries small: there is an entry for each kernel
    /// object, but few entries are of this kind.
    Differs(Box<Pair<V>>),
    /// Neither desired nor applied: [`DiffStore::change`] starts from it, and never leaves it in the store.
    Taken,
}

#[derive(Clone, Debug)]
struct Pair<V> {
    desired: V,
    applied: V,
}

impl<V> Entry<V> {
    fn is_same(&self) -> bool {
        matches!(self, Self::Same(_))
    }

    fn desired(&self) -> Option<&V> {
        match self {
            Self::Same(value) | Self::New(value) => Some(value),
            Self::Unwanted(_) | Self::Taken => None,
            Self::Differs(pair) => Some(&pair.desired),
        }
    }

    fn applied(&self) -> Option<&V> {
        match self {
            Self::Same(value) | Self::Unwanted(value) => Some(value),
            Self::New(_) | Self::Taken => None,
            Self::Differs(pair) => Some(&pair.applied),
        }
    }

    fn into_desired(self) -> Option<V> {
        match self {
            Self::Same(value) | Self::New(value) => Some(value),
            Self::Unwanted(_) | Self::Taken => None,
            Self::Differs(pair) => Some(pair.desired),
        }
    }

    fn into_applied(self) -> Option<V> {
        match self {
            Self::Same(value) | Self::Unwanted(value) => Some(value),
            Self::New(_) | Self::Taken => None,
            Self::Differs(pair) => Some(pair.applied),
        }
    }
}

impl<V: PartialEq> Entry<V> {
    /// The entry of these values, desired and applied. `None` if there is neither.
    fn of(values: (Option<V>, Option<V>)) -> Option<Self> {
        Some(match values {
            (None, None) => return None,
            (Some(desired), Some(applied)) if desired == applied => Self::Same(desired),
            (Some(desired), Some(applied)) => Self::Differs(Box::new(Pair { desired, applied })),
            (Some(desired), None) => Self::New(desired),
            (None, Some(applied)) => Self::Unwanted(applied),
        })
    }
}

/// The difference at one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference<'a, K, V> {
    /// The key of the two values.
    pub key: &'a K,
    /// The applied value. `None` if there is none or if it is unknown.
    pub applied: Option<&'a V>,
    /// The desired value, if there is one.
    pub desired: Option<&'a V>,
}

/// The keys between two bounds.
pub type KeyRange<'r, K> = (Bound<&'r K>, Bound<&'r K>);

/// The changes that turn the applied entries into the desired ones.
#[derive(Debug, PartialEq, Eq)]
pub struct Diff<'a, K, V> {
    /// Whether the applied entries are unknown. If so, replace all of them with `set`.
    pub unknown: bool,
    /// The entries that are new or different. Each has the applied value that it replaces, if there is one.
    pub set: Vec<Set<'a, K, V>>,
    /// The entries to remove, with their applied values.
    pub removed: Vec<(&'a K, &'a V)>,
}

/// One entry to set.
#[derive(Debug, PartialEq, Eq)]
pub struct Set<'a, K, V> {
    /// The key of the entry.
    pub key: &'a K,
    /// The desired value.
    pub value: &'a V,
    /// The applied value at this key, if there is one.
    pub replaces: Option<&'a V>,
}

impl<K, V> Diff<'_, K, V> {
    /// Whether there is nothing to change.
    pub fn is_empty(&self) -> bool {
        !self.unknown && self.set.is_empty() && self.removed.is_empty()
    }
}

impl<K: Ord + Clone, V: PartialEq> Default for DiffStore<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Ord + Clone, V: PartialEq> DiffStore<K, V> {
    /// A store with no desired entries and with unknown applied entries.
    pub fn new() -> Self {
        Self { entries: BTreeMap::new(), dirty: BTreeSet::new(), applied: Applied::Unknown, loose: false }
    }

    /// Sets all applied entries, as read from the kernel.
    pub fn adopt(&mut self, applied: impl IntoIterator<Item = (K, V)>) {
        self.forget();
        self.applied = Applied::Nothing;
        let mut applied = applied.into_iter().peekable();
        if applied.peek().is_none() {
            return;
        }
        self.mark_new();
        for (key, value) in applied {
            self.change(key, |entry| (entry.into_desired(), Some(value)));
        }
        let differs = self.entries.iter().filter(|(_, entry)| !entry.is_same());
        self.dirty = differs.map(|(key, _)| key.clone()).collect();
    }

    /// Sets the desired value at `key`.
    pub fn set(&mut self, key: K, value: V) {
        // A backend spends most of its start on the first fill. This path needs only one lookup for each entry.
        if self.applied != Applied::Known {
            self.entries.insert(key, Entry::Same(value));
            self.loose = true;
            return;
        }
        self.change(key, |entry| (Some(value), entry.into_applied()));
    }

    /// Removes the desired value at `key`.
    pub fn remove(&mut self, key: &K) {
        if self.applied != Applied::Known {
            self.entries.remove(key);
            return;
        }
        self.change(key.clone(), |entry| (None, entry.into_applied()));
    }

    /// Replaces all desired entries.
    pub fn replace(&mut self, desired: impl IntoIterator<Item = (K, V)>) {
        let mut left: BTreeSet<K> = self.entries.keys().cloned().collect();
        for (key, value) in desired {
            left.remove(&key);
            self.set(key, value);
        }
        for key in left {
            self.remove(&key);
        }
    }

    /// The desired value at `key`.
    pub fn desired(&self, key: &K) -> Option<&V> {
        self.entries.get(key)?.desired()
    }

    /// All desired entries, ordered by key.
    pub fn iter_desired(&self) -> impl Iterator<Item = (&K, &V)> {
        self.desired_in((Bound::Unbounded, Bound::Unbounded))
    }

    /// The desired entries in a range of keys.
    pub fn desired_in<'a>(&'a self, range: KeyRange<'_, K>) -> impl Iterator<Item = (&'a K, &'a V)> + use<'a, K, V> {
        self.entries.range(range).filter_map(|(key, entry)| Some((key, entry.desired()?)))
    }

    /// The diff from applied to desired entries. Costs O(changes), unless the applied entries are unknown.
    pub fn diff(&self) -> Diff<'_, K, V> {
        let mut diff = Diff { unknown: self.applied == Applied::Unknown, set: Vec::new(), removed: Vec::new() };
        for Difference { key, applied, desired } in self.diff_in((Bound::Unbounded, Bound::Unbounded)) {
            match (applied, desired) {
                (replaces, Some(value)) => diff.set.push(Set { key, value, replaces }),
                (Some(applied), None) => diff.removed.push((key, applied)),
                (None, None) => {}
            }
        }
        diff
    }

    /// The diff of a range of keys, in the order of the keys. The iterator computes it step by step, without collecting
    /// it. While no applied entries are known, every desired entry counts as different.
    pub fn diff_in<'a>(&'a self, range: KeyRange<'_, K>) -> impl Iterator<Item = Difference<'a, K, V>> + use<'a, K, V> {
        let is_known = self.applied == Applied::Known;
        let dirty = is_known.then(|| self.dirty.range(range)).into_iter().flatten();
        let dirty = dirty.filter_map(|key| {
            let (key, entry) = self.entries.get_key_value(key)?;
            Some(Difference { key, applied: entry.applied(), desired: entry.desired() })
        });
        let all = (!is_known).then(|| self.desired_in(range)).into_iter().flatten();
        dirty.chain(all.map(|(key, value)| Difference { key, applied: None, desired: Some(value) }))
    }

    /// Records that the diff was applied.
    pub fn commit(&mut self) {
        if self.applied != Applied::Known {
            self.pack();
        }
        for key in std::mem::take(&mut self.dirty) {
            let btree_map::Entry::Occupied(mut place) = self.entries.entry(key) else { continue };
            match std::mem::replace(place.get_mut(), Entry::Taken).into_desired() {
                Some(value) => *place.get_mut() = Entry::Same(value),
                None => _ = place.remove(),
            }
        }
        self.applied = if self.entries.is_empty() { Applied::Nothing } else { Applied::Known };
    }

    /// Sets the applied value at `key` after a commit. Call this if the kernel accepted the diff except for this key.
    pub fn found(&mut self, key: K, applied: Option<V>) {
        if self.applied == Applied::Nothing {
            self.mark_new();
            self.dirty = self.entries.keys().cloned().collect();
        }
        if self.applied == Applied::Known {
            self.change(key, |entry| (entry.into_desired(), applied));
        }
    }

    /// Marks the applied entries as unknown.
    pub fn forget(&mut self) {
        if std::mem::replace(&mut self.applied, Applied::Unknown) != Applied::Known {
            return;
        }
        self.dirty.clear();
        let entries = std::mem::take(&mut self.entries).into_iter();
        self.entries = entries.filter_map(|(key, entry)| Some((key, Entry::Same(entry.into_desired()?)))).collect();
    }

    /// Gives each entry its applied value, which is none.
    fn mark_new(&mut self) {
        let desired = std::mem::take(&mut self.entries).into_iter();
        self.entries = desired.filter_map(|(key, entry)| Some((key, Entry::New(entry.into_desired()?)))).collect();
        self.applied = Applied::Known;
    }

    /// Rebuilds the entries after a first fill. This halves their memory, because a tree that is built in the order of
    /// its keys has full nodes. [`commit`](Self::commit) also does this.
    pub fn pack(&mut self) {
        if std::mem::take(&mut self.loose) {
            self.entries = std::mem::take(&mut self.entries).into_iter().collect();
        }
    }

    /// Replaces the desired and the applied value at `key` with the pair that `change` returns. Looks up the key only once,
    /// because most of a change's cost is lookups.
    fn change(&mut self, key: K, change: impl FnOnce(Entry<V>) -> (Option<V>, Option<V>)) {
        match self.entries.entry(key) {
            btree_map::Entry::Vacant(place) => {
                let Some(entry) = Entry::of(change(Entry::Taken)) else { return };
                self.dirty.insert(place.key().clone());
                place.insert(entry);
            }
            btree_map::Entry::Occupied(mut place) => {
                let before = std::mem::replace(place.get_mut(), Entry::Taken);
                let was_same = before.is_same();
                let after = Entry::of(change(before));
                match (was_same, after.as_ref().is_none_or(Entry::is_same)) {
                    (true, false) => _ = self.dirty.insert(place.key().clone()),
                    (false, true) => _ = self.dirty.remove(place.key()),
                    _ => {}
                }
                match after {
                    Some(after) => *place.get_mut() = after,
                    None => _ = place.remove(),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::btree_map, prelude::*};

    use super::*;

    type Map = BTreeMap<u8, u8>;

    fn applied(diff: &Diff<'_, u8, u8>, mut kernel: Map) -> Map {
        if diff.unknown {
            kernel.clear();
        }
        for set in &diff.set {
            assert_eq!(kernel.insert(*set.key, *set.value).as_ref(), set.replaces, "key {}", set.key);
        }
        for (key, value) in &diff.removed {
            assert_eq!(kernel.remove(key).as_ref(), Some(*value), "key {key}");
        }
        kernel
    }

    fn map() -> impl Strategy<Value = Map> {
        btree_map(0..12_u8, 0..3_u8, 0..8)
    }

    proptest! {
        #[test]
        fn applying_the_diff_gives_the_desired_state(kernel in map(), steps in proptest::collection::vec((map(), 0..4_u8), 1..8), adopt in any::<bool>()) {
            let mut store = DiffStore::new();
            let mut kernel = kernel;
            if adopt {
                store.adopt(kernel.clone());
            }
            for (desired, fate) in steps {
                store.replace(desired.clone());
                prop_assert!(store.iter_desired().eq(desired.iter()));
                match fate {
                    0 => continue,
                    1 => {
                        kernel = applied(&store.diff(), kernel);
                        kernel.retain(|key, _| key % 2 == 0);
                        store.forget();
                    }
                    2 => store.adopt(kernel.clone()),
                    _ => {
                        kernel = applied(&store.diff(), kernel);
                        store.commit();
                        prop_assert!(store.diff().is_empty());
                        prop_assert_eq!(&kernel, &desired);
                    }
                }
            }
            kernel = applied(&store.diff(), kernel);
            prop_assert!(store.iter_desired().eq(kernel.iter()));
        }
    }

    /// The last entry is removed, and the kernel keeps it.
    #[test]
    fn a_removal_that_the_kernel_refused_is_tried_again() {
        let mut store = DiffStore::new();
        store.set(1, 2);
        store.commit();
        store.remove(&1);
        store.commit();
        assert!(store.diff().is_empty());
        store.found(1, Some(2));
        assert_eq!(store.diff().removed, [(&1, &2)]);
    }

    #[test]
    fn a_diff_contains_only_changes() {
        let mut store = DiffStore::new();
        store.replace((0..1000).map(|key| (key, key)));
        assert!(store.diff().unknown);
        store.commit();
        store.set(7, 0);
        store.set(8, 8);
        store.remove(&9);
        store.remove(&1001);
        let diff = store.diff();
        assert_eq!(diff.set, [Set { key: &7, value: &0, replaces: Some(&7) }]);
        assert_eq!(diff.removed, [(&9, &9)]);
        store.set(7, 7);
        store.set(9, 9);
        assert!(store.diff().is_empty(), "an undone change is not a change");
    }
}
