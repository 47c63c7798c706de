//! Whether a list that lacks many objects is believed (docs/decisions/0021-shrink-guard.md).
//!
//! Only removals that follow from an absence are held back: what a list has is taken over at once, and what a watch says to be
//! deleted is deleted. Decides and remembers; the pump has the clock and acts.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use localnet_proto::ServiceKey;
use tokio::{sync::Notify, time::Instant};

use crate::cluster::Kind;

/// For how long objects stay that are missing from a list, unless told otherwise.
pub const HOLD: Duration = Duration::from_secs(300);
/// Losing fewer Services or endpoints than these is never suspicious.
const LEAST: usize = 20;
/// How many lists are asked for while removals are held back.
const LISTS: u32 = 5;
/// So many of what is missing are named.
const NAMED: usize = 3;

/// How much is missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lack {
    /// Services, or endpoints.
    pub lost: usize,
    /// How many are known.
    pub of: usize,
}

impl Lack {
    /// Whether it looks more like a mistake than like a change: more than half, and not just a few.
    fn is_suspicious(self) -> bool {
        self.lost >= LEAST && self.lost > self.of / 2
    }
}

/// Removals that are held back.
#[derive(Debug)]
struct Held {
    since: Instant,
    lack: Lack,
    objects: BTreeSet<ServiceKey>,
    /// Asks the source for another list; without it, what the source says now is what it said before.
    relist: Option<Arc<Notify>>,
    /// When to act next.
    next: Instant,
}

/// Holds back removals that look like a mistake.
#[derive(Debug)]
pub(crate) struct Guard {
    hold: Duration,
    held: BTreeMap<Kind, Held>,
}

impl Guard {
    /// A guard that holds removals back for so long; none if that is no time.
    pub(crate) fn new(hold: Duration) -> Self {
        Self { hold, held: BTreeMap::new() }
    }

    /// Whether a kind is guarded: the others are of one object, or a few.
    pub(crate) fn watches(kind: Kind) -> bool {
        matches!(kind, Kind::Service | Kind::Slice)
    }

    /// `missing` are all objects that are known and that a source does not have any more. Those that may go.
    ///
    /// A source that can be asked for another list by `relist` is believed when one that comes after the time still lacks
    /// them.
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

    /// What is held back of a kind.
    pub(crate) fn held(&self, kind: Kind) -> BTreeSet<ServiceKey> {
        self.held.get(&kind).map(|held| held.objects.clone()).unwrap_or_default()
    }

    /// The source has said something of this object: that is what counts. Whether it was held back.
    pub(crate) fn forget(&mut self, kind: Kind, namespace: &str, name: &str) -> bool {
        let Some(held) = self.held.get_mut(&kind) else { return false };
        let was = held.objects.remove(&ServiceKey::new(namespace, name));
        if held.objects.is_empty() {
            self.held.remove(&kind);
        }
        was
    }

    /// When to act, if nothing else happens.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.held.values().map(|held| held.next).min()
    }

    /// Asks for further lists, and says what may go.
    pub(crate) fn act(&mut self, now: Instant) -> Vec<(Kind, ServiceKey)> {
        let mut gone = Vec::new();
        let step = self.hold / LISTS;
        self.held.retain(|kind, held| {
            if held.next > now {
                return true;
            }
            let Some(relist) = &held.relist else {
                gone.extend(std::mem::take(&mut held.objects).into_iter().map(|key| (*kind, key)));
                return false;
            };
            relist.notify_one();
            held.next = now + step;
            true
        });
        gone
    }

    /// How many objects of a kind are held back, and a line on them that says what will happen.
    pub(crate) fn describe(&self, kind: Kind) -> Option<(usize, String)> {
        let Held { lack, objects, relist, .. } = self.held.get(&kind)?;
        let what = if kind == Kind::Service { "Services" } else { "endpoints" };
        let until = if relist.is_some() {
            "they stay until a list that is asked for after that time lacks them, too"
        } else {
            "they stay for that time"
        };
        let named: Vec<String> = objects.iter().take(NAMED).map(ToString::to_string).collect();
        let text = format!(
            "{} of {} {what} are missing at once ({}{}); {until} (--shrink-hold {} s); bring them back, or restart the brain if they are to go now",
            lack.lost,
            lack.of,
            named.join(", "),
            if objects.len() > NAMED { ", …" } else { "" },
            self.hold.as_secs(),
        );
        Some((objects.len(), text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(count: usize) -> BTreeSet<ServiceKey> {
        (0..count).map(|number| ServiceKey::new("shop", &*format!("web-{number}"))).collect()
    }

    #[test]
    fn more_than_half_at_once_is_held_back_unless_it_is_a_few() {
        // Those that the source lost, of those that were known; whether the loss is held back.
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
                assert_eq!(judge(HOLD), held, "{lost} of {of}");
                assert!(!judge(Duration::ZERO), "{lost} of {of}: it is switched off");
            }
        }
    }

    #[test]
    fn files_are_believed_after_the_time_and_lists_when_a_later_one_agrees() {
        let (now, all) = (Instant::now(), Lack { lost: 50, of: 50 });
        let at = |seconds| now + Duration::from_secs(seconds);
        let mut files = Guard::new(HOLD);
        assert!(files.judge(Kind::Slice, keys(50), all, None, now).is_empty());
        assert_eq!(files.due(), Some(at(300)));
        // A second reread does not begin the time anew.
        assert!(files.judge(Kind::Slice, keys(50), all, None, at(299)).is_empty());
        assert!(files.act(at(299)).is_empty());
        assert_eq!((files.act(at(300)).len(), files.due()), (50, None));

        let (mut lists, relist) = (Guard::new(HOLD), Arc::new(Notify::new()));
        assert!(lists.judge(Kind::Service, keys(50), all, Some(&relist), now).is_empty());
        for minute in 1..=6 {
            assert_eq!(lists.due(), Some(at(60 * minute)));
            assert!(lists.act(at(60 * minute)).is_empty(), "nobody has confirmed it");
        }
        assert!(lists.judge(Kind::Service, keys(50), all, Some(&relist), at(299)).is_empty());
        assert_eq!(lists.judge(Kind::Service, keys(50), all, Some(&relist), at(361)).len(), 50);
        assert_eq!((lists.due(), lists.held(Kind::Service).len()), (None, 0));
    }

    #[test]
    fn what_comes_back_is_no_longer_held() {
        let (now, relist) = (Instant::now(), Arc::new(Notify::new()));
        let mut guard = Guard::new(HOLD);
        guard.judge(Kind::Service, keys(50), Lack { lost: 50, of: 60 }, Some(&relist), now);
        assert!(guard.forget(Kind::Service, "shop", "web-0"));
        assert!(!guard.forget(Kind::Service, "shop", "web-0"));
        assert!(!guard.forget(Kind::Slice, "shop", "web-1"));
        assert_eq!(guard.held(Kind::Service).len(), 49);
        // A list that lacks a few is believed at once.
        assert_eq!(guard.judge(Kind::Service, keys(9), Lack { lost: 9, of: 60 }, Some(&relist), now).len(), 9);
        assert_eq!(guard.due(), None);
    }
}
