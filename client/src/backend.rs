//! [`Backend`]: the full-state model.

use std::{borrow::Cow, collections::BTreeSet, time::Duration};

use localnet_proto::{Changes, Family, ServiceKey, Snapshot};
use tokio::sync::watch;

use crate::{source::Attempts, vips::Effective};

/// Makes a kernel subsystem hold the state of the node.
pub trait Backend: Send {
    /// The name it reports to the brain, for instance `nft`.
    fn name(&self) -> &'static str;

    /// What operators should know about the backend as such, from its start on: the brain makes each an Event of its Node.
    fn warnings(&self) -> Vec<Warning> {
        Vec::new()
    }

    /// What it counts beside its syncs, and a notice when that changes. Nothing, unless the backend says so.
    fn counts(&self) -> Option<watch::Receiver<Counts>> {
        None
    }

    /// The configuration that it works with, to be reported to the brain; none if it does not report it, or before the first sync.
    fn configuration(&self) -> Option<Effective> {
        None
    }

    /// Makes the subsystem hold exactly `state`. `changes` names what differs from the last sync that succeeded in both
    /// families.
    ///
    /// On error, or when a family failed, it is called again, with this state or a newer one. What cannot be programmed of one
    /// service must not keep the others from being programmed: it is left out, and said in [`Synced::skipped`].
    fn sync(&mut self, state: &Snapshot, changes: &Changes) -> impl Future<Output = anyhow::Result<Synced>> + Send;

    /// What the kernel refused of services ([`Synced::refused`]) is to be tried again by the next `sync`, though they have not
    /// changed. The loop calls it now and then, the more rarely the longer it lasts; a backend does not do so by itself.
    fn retry_refused(&mut self) {}

    /// Removes everything that this backend ever wrote.
    fn cleanup(&mut self) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Resolves when the subsystem no longer holds what was synced, because someone else changed it: `sync` is then called
    /// with the present state and no changes. Never, unless the backend can notice. Must be cancel-safe.
    fn disturbed(&mut self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }
}

/// What came of a sync. The default: the subsystem holds all of the state.
#[derive(Debug, Default)]
#[must_use = "a family may have failed"]
pub struct Synced {
    /// Families in which the subsystem does not hold the state, and why; in the others it does. A family that the host does
    /// not have at all is none of them.
    pub failed: Vec<(Family, anyhow::Error)>,
    /// What is left out of services: all of it, not only what is new since the last sync.
    pub skipped: Vec<Skipped>,
    /// The services of which something is left out because the kernel refused it. It is tried again when they change, and when
    /// [`Backend::retry_refused`] says so. That the kernel lacks memory or room is no fault of a service: it is an error.
    pub refused: BTreeSet<ServiceKey>,
    /// Families in which it was not known what the subsystem holds, so that all of it was compared, and written where it
    /// differed. The first sync need not say so.
    pub full: Vec<Family>,
}

impl Synced {
    /// What came of it if both families count as one.
    ///
    /// # Errors
    /// That of the first family that failed.
    pub fn whole(self) -> anyhow::Result<()> {
        self.failed.into_iter().next().map_or(Ok(()), |(family, error)| Err(error.context(family)))
    }
}

/// What a backend counts beside its syncs, since it was started. Each field is by family, IPv4 first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Looks for flows that stick to endpoints which no longer serve.
    pub looks: [Looks; 2],
    /// The rules that it has in the kernel's tables, if it has rules there.
    pub rules: [Vec<RuleCount>; 2],
    /// Repairs: syncs after another process changed what the backend had programmed. Of both families together.
    pub repairs: u64,
}

impl Counts {
    /// There was a look for flows: how long it took and how many it ended, of the families whose flows were looked at.
    pub fn looked(&mut self, families: [Option<(Duration, usize)>; 2]) {
        for (looks, of_family) in self.looks.iter_mut().zip(families) {
            let Some((took, ended)) = of_family else { continue };
            looks.took.add(took);
            looks.ended += u64::try_from(ended).unwrap_or(u64::MAX);
        }
    }
}

/// The place of a family among two.
pub(crate) fn index(family: Family) -> usize {
    match family {
        Family::V4 => 0,
        Family::V6 => 1,
    }
}

/// Looks for flows that stick to endpoints which no longer serve.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Looks {
    /// How long they took.
    pub took: Attempts,
    /// How many flows they ended.
    pub ended: u64,
}

/// How many rules a backend has in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleCount {
    /// The table.
    pub table: &'static str,
    /// How many.
    pub total: u64,
    /// How many of them the last attempt wrote.
    pub last: u64,
}

/// Something that operators should know about a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// One word in CamelCase, for programs.
    pub reason: &'static str,
    /// For people.
    pub note: Cow<'static, str>,
}

/// Something of a service that is not programmed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Skipped {
    /// Which service.
    pub service: ServiceKey,
    /// What is left out and why.
    pub reason: String,
}
