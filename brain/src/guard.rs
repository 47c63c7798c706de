//! The shrink guard (docs/decisions/0021-shrink-guard.md): delays removals when a list suddenly lacks many objects.
//!
//! The guard holds only removals of objects that a list lacks. Objects in a list take effect immediately, and so do
//! deletions that a watch reports. This module decides which removals to hold. The pump provides the time and applies the
//! decisions.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use localnet_cluster::{Lack, objects::Kind};
use localnet_proto::ServiceKey;
use tokio::{sync::Notify, time::Instant};

/// How many lists the guard requests while it holds removals.
const LISTS: u32 = 5;
/// Maximum number of missing objects that a message names.
const MAX_NAMED: usize = 3;

/// The held removals of one kind.
#[derive(Debug)]
struct Held {
    since: Instant,
    lack: Lack,
    objects: BTreeSet<ServiceKey>,
    /// Requests another list from the source. `None` for files, because the brain has already read them completely.
    relist: Option<Arc<Notify>>,
    /// When to request the next list, or to release the removals.
    next: Instant,
}

/// Holds suspicious removals.
#[derive(Debug)]
pub(crate) struct Guard {
    hold: Duration,
    held: BTreeMap<Kind, Held>,
}

impl Guard {
    /// A guard that holds removals for `hold`. Zero switches it off.
    pub(crate) fn new(hold: Duration) -> Self {
        Self { hold, held: BTreeMap::new() }
    }

    /// Whether the guard covers a kind. The other kinds have one or a few objects.
    pub(crate) fn watches(kind: Kind) -> bool {
        matches!(kind, Kind::Service | Kind::Slice)
    }

    /// Returns the `missing` objects if they may be removed now. Otherwise holds them, and returns no objects. `missing`
    /// contains all known objects that are not in the source's list.
    ///
    /// If `relist` is set, the source can send further lists. A list that arrives after the hold time and still lacks the
    /// objects confirms their removal.
    pub(crate) fn judge(
        &mut self,
        kind: Kind,
        missing: BTreeSet<ServiceKey>,
        lack: Lack,
        relist: Option<&Arc<Notify>>,
        now: Instant,
    ) -> BTreeSet<ServiceKey> {
        let before = self.held.remove(&kind);
        let since = before.as_ref().map_or(now, |held| held.since);
        let confirmed = relist.is_some() && now >= since + self.hold;
        if self.hold.is_zero() || confirmed || !lack.is_suspicious() {
            return missing;
        }
        let step = if relist.is_some() { self.hold / LISTS } else { self.hold };
        let next = before.map_or(now + step, |held| held.next);
        self.held.insert(kind, Held { since, lack, objects: missing, relist: relist.cloned(), next });
        BTreeSet::new()
    }

    /// The held objects of a kind.
    pub(crate) fn held(&self, kind: Kind) -> BTreeSet<ServiceKey> {
        self.held.get(&kind).map(|held| held.objects.clone()).unwrap_or_default()
    }

    /// Stops holding an object, because the source has reported a change to it. Returns whether the object was held.
    pub(crate) fn forget(&mut self, kind: Kind, namespace: &str, name: &str) -> bool {
        let Some(held) = self.held.get_mut(&kind) else { return false };
        let was = held.objects.remove(&ServiceKey::new(namespace, name));
        if held.objects.is_empty() {
            self.held.remove(&kind);
        }
        was
    }

    /// Stops holding the objects of a kind, because the source has sent a list that takes effect immediately.
    pub(crate) fn release(&mut self, kind: Kind) {
        self.held.remove(&kind);
    }

    /// When to call [`act`](Self::act) next.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.held.values().map(|held| held.next).min()
    }

    /// Requests the lists that are due. Returns the objects that may be removed now.
    pub(crate) fn act(&mut self, now: Instant) -> Vec<(Kind, ServiceKey)> {
        let mut released = Vec::new();
        let step = self.hold / LISTS;
        self.held.retain(|kind, held| {
            if held.next > now {
                return true;
            }
            let Some(relist) = &held.relist else {
                released.extend(std::mem::take(&mut held.objects).into_iter().map(|key| (*kind, key)));
                return false;
            };
            relist.notify_one();
            held.next = now + step;
            true
        });
        released
    }

    /// The number of held objects of a kind, and a message that explains when they will be removed.
    pub(crate) fn describe(&self, kind: Kind) -> Option<(usize, String)> {
        let Held { lack, objects, relist, .. } = self.held.get(&kind)?;
        let what = if kind == Kind::Service { "Services" } else { "endpoints" };
        let then = if relist.is_some() {
            "removes them if a list after that time also lacks them"
        } else {
            "then removes them"
        };
        let named: Vec<String> = objects.iter().take(MAX_NAMED).map(ToString::to_string).collect();
        let text = format!(
            "{} of {} {what} are suddenly missing ({}{}); the brain keeps them for {} s (--shrink-hold) and {then}; restore them, or restart the brain to remove them now",
            lack.lost,
            lack.of,
            named.join(", "),
            if objects.len() > MAX_NAMED { ", …" } else { "" },
            self.hold.as_secs(),
        );
        Some((objects.len(), text))
    }
}

#[cfg(test)]
mod tests {
    use localnet_cluster::SHRINK_HOLD;

    use super::*;

    fn keys(count: usize) -> BTreeSet<ServiceKey> {
        (0..count).map(|number| ServiceKey::new("shop", &*format!("web-{number}"))).collect()
    }

    #[test]
    fn a_loss_of_more_than_half_is_held_unless_it_is_small() {
        // (lost, of), and whether the loss is held.
        let rows = [
            ((0, 0), false),
            ((19, 19), false),
            ((20, 20), true),
            ((20, 39), true),
            ((20, 40), false),
            ((600, 1200), false),
            ((601, 1200), true),
            ((700, 1200), true),
            ((1200, 1200), true),
            ((150, 200), true),
        ];
        let now = Instant::now();
        for ((lost, of), held) in rows {
            for relist in [None, Some(Arc::default())] {
                let judge = |hold| {
                    let mut guard = Guard::new(hold);
                    let go = guard.judge(Kind::Service, keys(lost), Lack { lost, of }, relist.as_ref(), now);
                    assert_eq!(go.len() + guard.held(Kind::Service).len(), lost);
                    assert_eq!(guard.describe(Kind::Service).is_some(), guard.due().is_some());
                    go.is_empty() && lost > 0
                };
                assert_eq!(judge(SHRINK_HOLD), held, "{lost} of {of}");
                assert!(!judge(Duration::ZERO), "{lost} of {of}: the guard is switched off");
            }
        }
    }

    #[test]
    fn time_confirms_files_and_a_later_list_confirms_a_list() {
        let (now, all) = (Instant::now(), Lack { lost: 50, of: 50 });
        let at = |seconds| now + Duration::from_secs(seconds);
        let mut files = Guard::new(SHRINK_HOLD);
        assert!(files.judge(Kind::Slice, keys(50), all, None, now).is_empty());
        assert_eq!(files.due(), Some(at(300)));
        // A second reread does not restart the hold time.
        assert!(files.judge(Kind::Slice, keys(50), all, None, at(299)).is_empty());
        assert!(files.act(at(299)).is_empty());
        assert_eq!((files.act(at(300)).len(), files.due()), (50, None));

        let (mut lists, relist) = (Guard::new(SHRINK_HOLD), Arc::new(Notify::new()));
        assert!(lists.judge(Kind::Service, keys(50), all, Some(&relist), now).is_empty());
        for minute in 1..=6 {
            assert_eq!(lists.due(), Some(at(60 * minute)));
            assert!(lists.act(at(60 * minute)).is_empty(), "no list has confirmed the loss");
        }
        assert!(lists.judge(Kind::Service, keys(50), all, Some(&relist), at(299)).is_empty());
        assert_eq!(lists.judge(Kind::Service, keys(50), all, Some(&relist), at(361)).len(), 50);
        assert_eq!((lists.due(), lists.held(Kind::Service).len()), (None, 0));
    }

    #[test]
    fn restored_objects_are_released() {
        let (now, relist) = (Instant::now(), Arc::new(Notify::new()));
        let mut guard = Guard::new(SHRINK_HOLD);
        guard.judge(Kind::Service, keys(50), Lack { lost: 50, of: 60 }, Some(&relist), now);
        assert!(guard.forget(Kind::Service, "shop", "web-0"));
        assert!(!guard.forget(Kind::Service, "shop", "web-0"));
        assert!(!guard.forget(Kind::Slice, "shop", "web-1"));
        assert_eq!(guard.held(Kind::Service).len(), 49);
        // A small loss takes effect immediately.
        assert_eq!(guard.judge(Kind::Service, keys(9), Lack { lost: 9, of: 60 }, Some(&relist), now).len(), 9);
        assert_eq!(guard.due(), None);
    }
}
