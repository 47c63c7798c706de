//! The ipvs backend: each VIP is a virtual server, its address on a dummy interface; what IPVS cannot do is in an nf_tables table.
//!
//! ```text
//!  Snapshot ──► client::vips ──► desired (plan) ─┬─► servers (IPVS)       ──► changes ──────┐
//!               pure             pure            ├─► addresses (kube-ipvs0) ► differences ──┼─► kernel: the only I/O
//!                                                └─► table ×2 (nf_tables) ──► Transaction ──┘
//! ```
//!
//! - [`plan`]: one VIP as a virtual server and as elements, or the node's facts as chains.
//! - [`servers`]: what differs from what IPVS is known to hold; destinations that are on their way out.
//! - [`table`]: what differs from what an nf_tables table is known to hold.
//! - [`desired`]: what follows from all services together, kept up to date.
//! - [`IpvsBackend`]: reads what is not known, applies what differs, leaves out what is refused.
//! - [`LiveBackend`]: that on a live node: repairs what others change, follows the node's addresses, ends stale flows.
//!
//! `docs/backends/ipvs.md` has a table of every object in the kernel.

pub mod args;
mod backend;
pub mod desired;
pub mod dry_run;
#[cfg(test)]
mod fake;
pub mod kernel;
mod live;
pub mod options;
pub mod plan;
pub mod servers;
pub mod table;

pub use backend::IpvsBackend;
pub use kernel::{Host, Kernel};
pub use live::LiveBackend;
pub use options::Options;
