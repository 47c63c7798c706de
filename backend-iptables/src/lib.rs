//! The iptables backend. It programs the chains that kube-proxy programs, and writes only those that changed.
//!
//! ```text
//!  Snapshot ──► client::vips ──► desired (plan) ──► ruleset ×2 (DiffStores) ──► iptables-restore ×2
//!               pure             pure               pure                        kernel: the only I/O
//! ```
//!
//! - [`plan`]: turns one port of a Service, or the facts of the node, into chains and rules in the notation of `iptables-save`.
//! - [`desired`]: the desired state of all Services, updated at each change.
//! - [`ruleset`]: compares the desired with the applied state and renders the diff for `iptables-restore`.
//! - [`save`]: parses the live state from the output of `iptables-save`.
//! - [`inspect`]: lists the desired and the live rules for the command `localnet`.
//! - [`served`]: lists the VIPs and endpoints that the live state serves.
//! - [`IptablesBackend`]: reads tables whose content is unknown, writes the diff, and skips Services that the kernel refuses.
//! - [`LiveBackend`]: an [`IptablesBackend`] for a live node. It repairs changes by other programs, follows the node's addresses,
//!   and deletes stale flows.
//!
//! `docs/backends/iptables.md` has a table of every chain.

mod backend;
pub mod cleanup;
pub mod desired;
mod dry_run;
pub mod flavour;
pub mod inspect;
pub mod kernel;
pub mod live;
mod lock;
pub mod plan;
pub mod program;
pub mod ruleset;
pub mod save;
pub mod served;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod tool;
mod watch;

pub use backend::IptablesBackend;
pub use flavour::Flavour;
pub use kernel::{Kernel, Tools};
pub use live::LiveBackend;
pub use localnet_linux_backend::live::LinuxBackend;
pub use program::Iptables;
