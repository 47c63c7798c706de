//! A backend's plan, and what the kernel holds of it, both as text. `localnet diff` and `localnet explain` compare the two.

use std::collections::BTreeMap;

use localnet_proto::Snapshot;

/// A place in the kernel that has lines, such as a chain or a set.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The table or subsystem, such as `ip nat`.
    pub table: String,
    /// The name within the table, such as `KUBE-SERVICES`.
    pub name: String,
}

/// The lines of each place, in the notation of the subsystem's own tool. If the kernel ignores the order of lines, they are sorted.
pub type Listing = BTreeMap<Place, Vec<String>>;

/// Lists what a backend plans, and what the kernel holds of it. Changes nothing.
pub trait Inspect {
    /// Lists what the kernel should hold for a state.
    fn planned(&mut self, state: &Snapshot) -> Listing;

    /// Lists the backend's part of the live state. What belongs to the backend may depend on the state that was planned last.
    ///
    /// # Errors
    /// Returns an error if the kernel cannot be read.
    fn live(&mut self) -> impl Future<Output = anyhow::Result<Listing>>;
}
