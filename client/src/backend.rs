//! [`Backend`]: the full-state model.

use localnet_proto::{Changes, Snapshot};

/// Makes a kernel subsystem hold the state of the node.
pub trait Backend: Send {
    /// The name it reports to the brain, for instance `nft`.
    fn name(&self) -> &'static str;

    /// Makes the subsystem hold exactly `state`. `changes` names what differs from the last sync that succeeded.
    ///
    /// On error it is called again, with this state or a newer one. An error of one service must not keep the others from
    /// being programmed.
    fn sync(&mut self, state: &Snapshot, changes: &Changes) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Removes everything that this backend ever wrote.
    fn cleanup(&mut self) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Resolves when the subsystem no longer holds what was synced, because someone else changed it: `sync` is then called
    /// with the present state and no changes. Never, unless the backend can notice. Must be cancel-safe.
    fn disturbed(&mut self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }
}
