//! [`Backend`]: the full-state model.

use localnet_proto::{Changes, Family, ServiceKey, Snapshot};

/// Makes a kernel subsystem hold the state of the node.
pub trait Backend: Send {
    /// The name it reports to the brain, for instance `nft`.
    fn name(&self) -> &'static str;

    /// What operators should know about the backend as such, from its start on: the brain makes each an Event of its Node.
    fn warnings(&self) -> Vec<Warning> {
        Vec::new()
    }

    /// Makes the subsystem hold exactly `state`. `changes` names what differs from the last sync that succeeded in both
    /// families.
    ///
    /// On error, or when a family failed, it is called again, with this state or a newer one. What cannot be programmed of one
    /// service must not keep the others from being programmed: it is left out, and said in [`Synced::skipped`].
    fn sync(&mut self, state: &Snapshot, changes: &Changes) -> impl Future<Output = anyhow::Result<Synced>> + Send;

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
    /// What is left out of services until they change: all of it, not only what is new since the last sync.
    pub skipped: Vec<Skipped>,
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

/// Something that operators should know about a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Warning {
    /// One word in CamelCase, for programs.
    pub reason: &'static str,
    /// For people.
    pub note: &'static str,
}

/// Something of a service that is not programmed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Skipped {
    /// Which service.
    pub service: ServiceKey,
    /// What is left out and why.
    pub reason: String,
}
