//! [`DiffStore`]: what a kernel subsystem should hold, against what it is known to hold.

use std::collections::{BTreeMap, BTreeSet};

/// What should be there, what is known to be there, and the difference, which costs only what changed.
///
/// Fill in the desired state ([`set`](Self::set), [`remove`](Self::remove), [`replace`](Self::replace)), ask for the
/// [`diff`](Self::diff), and apply it; then [`commit`](Self::commit) if the kernel said yes, or [`forget`](Self::forget) if
/// it is not known what the kernel now holds. After a refusal that changed nothing, do neither: the same diff is still due.
///
/// Law: applying `diff(a → b)` to `a` gives `b`, and `diff(b → b)` is empty.
#[derive(Clone, Debug)]
pub struct DiffStore<K, V> {
    entries: BTreeMap<K, Entry<V>>,
    /// Keys whose entry is not `Same`. Not kept while nothing is known of what is applied: then it is all of them.
    dirty: BTreeSet<K>,
    /// Whether the applied side is known.
    known: bool,
}

#[derive(Clone, Debug)]
enum Entry<V> {
    /// Desired and applied are equal, and kept once.
    Same(V),
    /// Desired, and not applied.
    New(V),
    /// Applied, and not desired.
    Unwanted(V),
    /// Both, and different. Boxed because few are: there is an entry for everything in the kernel.
    Differs(Box<Pair<V>>),
}

#[derive(Clone, Debug)]
struct Pair<V> {
    desired: V,
    applied: V,
}

impl<V> Entry<V> {
    fn desired(&self) -> Option<&V> {
        match self {
            Self::Same(value) | Self::New(value) => Some(value),
            Self::Unwanted(_) => None,
            Self::Differs(pair) => Some(&pair.desired),
        }
    }

    fn into_desired(self) -> Option<V> {
        match self {
            Self::Same(value) | Self::New(value) => Some(value),
            Self::Unwanted(_) => None,
            Self::Differs(pair) => Some(pair.desired),
        }
    }

    fn into_applied(self) -> Option<V> {
        match self {
            Self::Same(value) | Self::Unwanted(value) => Some(value),
            Self::New(_) => None,
            Self::Differs(pair) => Some(pair.applied),
        }
    }
}

/// What to do to get from what is applied to what is desired.
#[derive(Debug, PartialEq, Eq)]
pub struct Diff<'a, K, V> {
    /// It is not known what is applied: replace all of it with `set`.
    pub unknown: bool,
    /// Entries that are new or different, with the value that is replaced if there is one.
    pub set: Vec<Set<'a, K, V>>,
    /// Entries that are to go, with the value they have.
    pub removed: Vec<(&'a K, &'a V)>,
}

/// One entry to set.
#[derive(Debug, PartialEq, Eq)]
pub struct Set<'a, K, V> {
    /// Its key.
    pub key: &'a K,
    /// Its value.
    pub value: &'a V,
    /// The value that it has now, if it is there.
    pub replaces: Option<&'a V>,
}

impl<K, V> Diff<'_, K, V> {
    /// Nothing is to be done.
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
    /// Nothing is desired, and nothing is known of what is applied.
    pub fn new() -> Self {
        Self { entries: BTreeMap::new(), dirty: BTreeSet::new(), known: false }
    }

    /// This is what was found to be applied, and nothing else is.
    pub fn adopt(&mut self, applied: impl IntoIterator<Item = (K, V)>) {
        self.forget();
        self.known = true;
        for (key, value) in applied {
            let desired = self.take_desired(&key);
            self.put(key, desired, Some(value));
        }
        let differs = self.entries.iter().filter(|(_, entry)| !matches!(entry, Entry::Same(_)));
        self.dirty = differs.map(|(key, _)| key.clone()).collect();
    }

    /// `value` is desired at `key`.
    pub fn set(&mut self, key: K, value: V) {
        // A first fill is most of the work of a backend's start: one look-up for each entry.
        if !self.known {
            self.entries.insert(key, Entry::New(value));
            return;
        }
        let applied = self.take_applied(&key);
        self.put(key, Some(value), applied);
    }

    /// Nothing is desired at `key`.
    pub fn remove(&mut self, key: &K) {
        let applied = self.take_applied(key);
        self.put(key.clone(), None, applied);
    }

    /// This is all that is desired.
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

    /// All that is desired, by key.
    pub fn iter_desired(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries.iter().filter_map(|(key, entry)| Some((key, entry.desired()?)))
    }

    /// How to get to what is desired. Costs only what differs, unless all is unknown.
    pub fn diff(&self) -> Diff<'_, K, V> {
        let mut diff = Diff { unknown: !self.known, set: Vec::new(), removed: Vec::new() };
        if !self.known {
            diff.set.extend(self.iter_desired().map(|(key, value)| Set { key, value, replaces: None }));
            return diff;
        }
        for key in &self.dirty {
            let Some((key, entry)) = self.entries.get_key_value(key) else { continue };
            match entry {
                Entry::Same(_) => {}
                Entry::New(value) => diff.set.push(Set { key, value, replaces: None }),
                Entry::Unwanted(applied) => diff.removed.push((key, applied)),
                Entry::Differs(pair) => {
                    diff.set.push(Set { key, value: &pair.desired, replaces: Some(&pair.applied) });
                }
            }
        }
        diff
    }

    /// The diff was applied.
    pub fn commit(&mut self) {
        if !self.known {
            self.known = true;
            // Nothing is known to be applied, so everything is new. The entries are added in order: that fills their nodes.
            let entries = std::mem::take(&mut self.entries).into_iter();
            self.entries = entries.filter_map(|(key, entry)| Some((key, Entry::Same(entry.into_desired()?)))).collect();
            return;
        }
        for key in std::mem::take(&mut self.dirty) {
            if let Some(value) = self.entries.remove(&key).and_then(Entry::into_desired) {
                self.entries.insert(key, Entry::Same(value));
            }
        }
    }

    /// Whatever was committed, this is what is applied at `key`: the kernel took the others, and not this one.
    pub fn found(&mut self, key: K, applied: Option<V>) {
        if self.known {
            let desired = self.take_desired(&key);
            self.put(key, desired, applied);
        }
    }

    /// It is no longer known what is applied.
    pub fn forget(&mut self) {
        if !std::mem::take(&mut self.known) {
            return;
        }
        self.dirty.clear();
        for (key, entry) in std::mem::take(&mut self.entries) {
            if let Some(desired) = entry.into_desired() {
                self.entries.insert(key, Entry::New(desired));
            }
        }
    }

    /// Takes an entry out for a new desired value: what is applied.
    fn take_applied(&mut self, key: &K) -> Option<V> {
        self.entries.remove(key)?.into_applied()
    }

    /// Takes an entry out for a new applied value: what is desired.
    fn take_desired(&mut self, key: &K) -> Option<V> {
        self.entries.remove(key)?.into_desired()
    }

    fn put(&mut self, key: K, desired: Option<V>, applied: Option<V>) {
        let entry = match (desired, applied) {
            (None, None) => {
                self.dirty.remove(&key);
                return;
            }
            (Some(desired), Some(applied)) if desired == applied => {
                self.dirty.remove(&key);
                self.entries.insert(key, Entry::Same(desired));
                return;
            }
            (Some(desired), Some(applied)) => Entry::Differs(Box::new(Pair { desired, applied })),
            (Some(desired), None) => Entry::New(desired),
            (None, Some(applied)) => Entry::Unwanted(applied),
        };
        if self.known {
            self.dirty.insert(key.clone());
        }
        self.entries.insert(key, entry);
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
        fn applying_the_diff_gives_what_is_desired(kernel in map(), steps in proptest::collection::vec((map(), 0..4_u8), 1..8), adopt in any::<bool>()) {
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

    #[test]
    fn a_diff_holds_only_what_changed() {
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
        assert!(store.diff().is_empty(), "there and back again is no change");
    }
}
