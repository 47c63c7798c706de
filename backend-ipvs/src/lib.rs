//! The IPVS backend. Each VIP is a virtual server, and its address is on a dummy interface. An nf_tables table of each family
//! does what IPVS cannot do, such as filtering and masquerading.
//!
//! ```text
//!  Snapshot ──► client::vips ──► desired (plan) ─┬─► servers (IPVS)       ──► changes ──────┐
//!               pure             pure            ├─► addresses (kube-ipvs0) ► differences ──┼─► kernel: the only I/O
//!                                                └─► table ×2 (nf_tables) ──► Transaction ──┘
//! ```
//!
//! - [`plan`]: turns one VIP into a virtual server and elements, and the facts of the node into chains.
//! - [`servers`]: the desired and applied virtual servers, their diff, and the destinations that drain.
//! - `localnet_linux_backend::table`: the desired and applied state of an nf_tables table, and its diff.
//! - [`desired`]: the desired state of all Services, updated at each change.
//! - [`IpvsBackend`]: applies the diff, and skips what the kernel refuses. If the applied state is unknown, it first reads the
//!   live state.
//! - [`served`]: lists the VIPs and endpoints that IPVS and the tables serve.
//! - [`LiveBackend`]: an [`IpvsBackend`] for a live node. It repairs changes by other programs, follows the node's addresses, and
//!   deletes stale flows.
//!
//! `docs/backends/ipvs.md` has a table of every object in the kernel.

mod backend;
pub mod desired;
mod dry_run;
pub mod kernel;
pub mod live;
pub mod options;
pub mod plan;
pub mod program;
pub mod served;
pub mod servers;
mod statistics;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use backend::IpvsBackend;
pub use kernel::{Host, Kernel};
pub use live::LiveBackend;
pub use localnet_linux_backend::live::LinuxBackend;
pub use options::Options;
pub use program::Ipvs;
