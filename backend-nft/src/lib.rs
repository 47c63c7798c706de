//! The nft backend: Services and endpoints are elements of a constant number of sets and maps.
//!
//! ```text
//!  Snapshot ──► client::vips ──► desired (plan) ──► table ×2 (DiffStores) ──► Transaction ×2 ──► kernel
//!               pure             pure               pure                                        the only I/O
//! ```
//!
//! - [`plan`]: the elements of one VIP, and the chains that depend on the node, such as those with its addresses.
//! - [`desired`]: the plan of all Services together, kept up to date.
//! - [`affinity`]: the slot of each endpoint.
//! - `localnet_linux_backend::table`: the diff between the desired and the applied state of a table.
//! - [`portions`]: that diff, split if it is too large for one transaction.
//! - [`served`]: what the kernel's tables serve.
//! - [`NftBackend`]: reads tables whose contents are unknown, applies diffs, and skips what the kernel refuses.
//! - [`LiveBackend`]: the same on a live node. It also repairs changes by other programs, follows the node's addresses,
//!   and deletes stale flows.
//!
//! `docs/backends/nft.md` has a table of every object in the kernel.

pub mod affinity;
mod backend;
pub mod desired;
mod dry_run;
pub mod kernel;
pub mod kube_proxy;
pub mod live;
pub mod plan;
pub mod program;
mod refused;
pub mod served;

pub use backend::NftBackend;
pub use kernel::{Kernel, Netlink};
pub use live::LiveBackend;
#[cfg(any(test, feature = "testing"))]
pub use localnet_linux::nft::testing;
pub use localnet_linux_backend::{live::LinuxBackend, portions};
pub use program::Nft;
