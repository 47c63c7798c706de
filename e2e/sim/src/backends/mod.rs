//! The backends under test. To add one, implement [`Subsystem`] and [`Program`] in a file of its own, and add a variant to [`Name`].

pub mod ebpf;
pub mod iptables;
pub mod ipvs;
pub mod nft;
pub mod win;

use clap::ValueEnum;
use localnet_client::Backend;

use crate::{flows::Node, kernel::Kernel, subsystem::Subsystem};

/// A backend under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Name {
    /// `localnet-nft`
    Nft,
    /// `localnet-iptables`
    Iptables,
    /// `localnet-ipvs`
    Ipvs,
    /// `localnet-win`
    Win,
    /// `localnet-ebpf`
    Ebpf,
}

impl Name {
    /// The backend that a seed selects.
    pub fn of_seed(seed: u64) -> Self {
        let all = Self::value_variants();
        all[usize::try_from(seed).unwrap_or_default() % all.len()]
    }
}

/// The backend that programs a subsystem. It implements its own kernel trait for [`Kernel`] of the subsystem.
pub trait Program: Subsystem {
    /// The backend on a live node.
    type Backend: Backend + 'static;

    /// Opens the backend as on a live node.
    fn open(kernel: Kernel<Self>, node: Node) -> impl Future<Output = anyhow::Result<Self::Backend>> + Send;
}
