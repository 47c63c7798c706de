//! The iptables backend: kube-proxy's chains, of which only those that changed are written.
//!
//! ```text
//!  Listener's calls ──► client::vips ──► desired (plan) ──► ruleset ×2 (DiffStores) ──► iptables-restore ×2
//!                       pure             pure               pure                        kernel: the only I/O
//! ```
//!
//! - [`plan`]: one port of a service, or the node's facts, as chains and lines, in the notation of `iptables-save`.
//! - [`desired`]: what follows from all services together, kept up to date.
//! - [`ruleset`]: what differs from what the tables are known to hold, as the input of a restore.
//! - [`save`]: reads what is there.
//! - [`served`]: what that serves.
//! - [`IptablesBackend`]: reads what is not known, writes what differs, leaves out what is refused.
//! - [`LiveBackend`]: that on a live node: repairs what others change, follows the node's addresses, ends stale flows.
//!
//! `docs/backends/iptables.md` has a table of every chain.

pub mod args;
mod backend;
pub mod cleanup;
pub mod desired;
pub mod dry_run;
#[cfg(test)]
mod fake;
pub mod flavour;
pub mod kernel;
mod live;
mod lock;
pub mod plan;
pub mod ruleset;
pub mod save;
pub mod served;
mod watch;

pub use backend::IptablesBackend;
pub use flavour::Flavour;
pub use kernel::{Kernel, Tools};
pub use live::LiveBackend;
