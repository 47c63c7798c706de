//! [`Backend`]: the full-state model.

use std::collections::BTreeSet;

use localnet_core::{Diagnostic, Mode};
use localnet_proto::{Changes, Family, ServiceKey, Snapshot};
use tokio::sync::watch;

use crate::{counts::Counts, vips::Effective};

/// Makes a kernel subsystem hold the state of the node.
pub trait Backend: Send {
    /// The backend's name in its reports to the brain, for instance `nft`.
    fn name(&self) -> &'static str;

    /// The mode of kube-proxy that the backend corresponds to; `None` if there is no such mode. The brain returns the
    /// mode at `/proxyMode`, and uses the metric names that kube-proxy has in this mode.
    fn mode(&self) -> Option<Mode> {
        None
    }

    /// Warnings for operators about the backend itself, as known when it starts. The brain posts each warning as an Event
    /// of the Node.
    fn warnings(&self) -> Vec<Diagnostic> {
        Vec::new()
    }

    /// The backend's counters besides those of its syncs; `None` if it has none. The receiver is notified when
    /// a counter changes between syncs.
    fn counts(&self) -> Option<watch::Receiver<Counts>> {
        None
    }

    /// The configuration in effect, for the report to the brain. `None` before the first sync, or if the backend does
    /// not report its configuration.
    fn configuration(&self) -> Option<Effective> {
        None
    }

    /// Makes the subsystem hold exactly `state`. `changes` contains everything that has changed in the state since the last
    /// sync that succeeded in both families.
    ///
    /// After an error, or if a family failed, the loop calls this function again with the same state or a newer one. A
    /// problem with one Service must not prevent the others from being programmed: the backend skips the affected part
    /// of the Service and reports it in [`Synced::skipped`].
    ///
    /// # Errors
    /// Returns an error if the sync failed in both families.
    fn sync(&mut self, state: &Snapshot, changes: &Changes) -> impl Future<Output = anyhow::Result<Synced>> + Send;

    /// Lets the next `sync` retry the Services that the kernel refused ([`Synced::refused`]), even if these Services have
    /// not changed. The loop calls this function with growing delays, and after a sync that failed in both families. Without
    /// this call, a backend does not retry such Services.
    fn retry_refused(&mut self) {}

    /// Removes everything that this backend ever wrote.
    ///
    /// # Errors
    /// Returns an error if something could not be removed.
    fn cleanup(&mut self) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Resolves when another program changed objects that the last sync had programmed. The loop then calls `sync` with the
    /// present state and no changes. The default, for a backend that cannot notice such changes, never resolves. Must be
    /// cancel-safe.
    fn disturbed(&mut self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }
}

/// The result of a sync. The default means that the subsystem holds the complete state.
#[derive(Debug, Default)]
#[must_use = "a family may have failed"]
pub struct Synced {
    /// The families in which the sync failed, each with the error. All other families hold the state. A family that the
    /// host does not support at all is not in the list.
    pub failed: Vec<(Family, anyhow::Error)>,
    /// Everything that is skipped; the subject of each diagnostic is the Service. The list is complete: it repeats the
    /// diagnostics of earlier syncs that still apply.
    pub skipped: Vec<Diagnostic>,
    /// The Services of which the kernel refused a part. They are retried when they change, and after
    /// [`Backend::retry_refused`]. A lack of memory or space in the kernel is not a refusal, but an error of the sync.
    pub refused: BTreeSet<ServiceKey>,
    /// The families that had a full sync because the applied state was unknown: the backend compared everything with the
    /// live state and wrote the differences. The first sync may leave this list empty.
    pub full: Vec<Family>,
}

impl Synced {
    /// Combines both families into one result.
    ///
    /// # Errors
    /// Returns the error of the first family that failed.
    pub fn whole(self) -> anyhow::Result<()> {
        self.failed.into_iter().next().map_or(Ok(()), |(family, error)| Err(error.context(family)))
    }
}
