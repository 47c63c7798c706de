//! Reads the plan and the live state of the backends other than nft, both as text. For nft, [`crate::path`] and [`crate::kernel`]
//! do this with types, because they also read single elements.

use localnet_client::{
    Snapshot,
    inspect::{Inspect, Listing},
    vips::Config,
};
use localnet_iptables::inspect::Inspector as Iptables;

/// A backend whose plan and live state are read as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inspected {
    /// iptables, with either flavour of the tools.
    Iptables,
}

/// What the kernel should hold, and what it holds.
#[derive(Debug)]
pub struct Listings {
    /// The plan for the state.
    pub planned: Listing,
    /// The live state.
    pub live: Listing,
}

impl Inspected {
    /// The backend with that name, as backends report it.
    pub fn named(name: &str) -> Option<Self> {
        (name == "iptables").then_some(Self::Iptables)
    }

    /// Plans a state, and reads the kernel of this network namespace.
    ///
    /// # Errors
    /// Returns an error if the kernel cannot be read.
    pub async fn read(self, state: &Snapshot, config: &Config) -> anyhow::Result<Listings> {
        match self {
            Self::Iptables => read::<Iptables>(state, config).await,
        }
    }
}

async fn read<I: Inspect>(state: &Snapshot, config: &Config) -> anyhow::Result<Listings> {
    let mut inspector = I::open(config.clone()).await?;
    let planned = inspector.planned(state);
    Ok(Listings { planned, live: inspector.live().await? })
}
