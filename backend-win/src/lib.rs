//! The Windows backend. It programs each VIP as a load balancer of HNS, the Host Networking Service, through its API HCN.
//!
//! ```text
//!  Snapshot ──► client::vips ──► desired ──► plan ──► diff ──► backend ──► hcn::Hcn ──► computenetwork.dll
//!               pure             pure         ▲        ▲         │                      (crate localnet-hcn)
//!                                          inventory: what HNS lists ◄──┘
//! ```
//!
//! - [`hcn`]: the documents and errors of HCN, and one test suite for every implementation.
//! - [`desired`]: the VIPs as frontends, kept up to date.
//! - [`inventory`]: the objects that HNS lists.
//! - [`plan`]: computes load balancers and remote endpoints from frontends.
//! - [`diff`]: the difference between the plan and HNS, and the owners of HNS's objects.
//! - [`served`]: reads back what HNS serves.
//! - [`inspect`]: lists the plan and what HNS holds of it as text.
//! - [`Recording`]: an HNS in a file.
//! - [`WinBackend`]: reads HNS, plans, compares and writes. It also polls HNS for changes.
//!
//! Everything is tested on Linux, except `windows` and the crate `localnet-hcn`. Those run under Wine with our own
//! `computenetwork.dll` (`e2e/wine`). `docs/backends/windows.md` describes what is programmed and what cannot be tested on
//! Linux.

mod backend;
pub mod desired;
pub mod diff;
pub mod dry_run;
pub mod hcn;
pub mod inventory;
pub mod kernel;
pub mod options;
pub mod plan;
pub mod program;
pub mod recording;
pub mod served;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(windows)]
pub mod windows;

pub use backend::{WinBackend, inspect};
pub use kernel::{Kernel, Machine};
pub use options::Options;
pub use program::Win;
pub use recording::Recording;
