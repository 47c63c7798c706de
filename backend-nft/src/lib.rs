//! The nft backend: services and endpoints are elements of a constant number of sets and maps.
//!
//! ```text
//!  Snapshot ──► client::vips ──► desired (plan) ──► table ×2 (DiffStores) ──► Transaction ×2 ──► kernel
//!               pure             pure               pure                                        the only I/O
//! ```
//!
//! - [`plan`]: one VIP, or the node's facts, as elements and chains.
//! - [`desired`]: what follows from all services together, kept up to date.
//! - [`whole`]: the same for one state, kept nowhere.
//! - [`affinity`]: which endpoint has which slot.
//! - [`table`]: what differs from what the kernel is known to hold.
//! - [`portions`]: the same, cut if it is too much for the kernel at once.
//! - [`served`]: what the kernel's tables serve, read back.
//! - [`NftBackend`]: reads what is not known, applies what differs, leaves out what is refused.
//! - [`LiveBackend`]: that on a live node: repairs what others change, follows the node's addresses, ends stale flows.
//!
//! `docs/backends/nft.md` has a table of every object in the kernel.

pub mod affinity;
pub mod args;
mod backend;
pub mod desired;
pub mod dry_run;
#[cfg(test)]
mod fake;
pub mod kernel;
pub mod kube_proxy;
mod live;
pub mod plan;
pub mod portions;
pub mod served;
pub mod table;
pub mod whole;

pub use backend::NftBackend;
pub use kernel::{Kernel, Netlink};
pub use live::LiveBackend;
