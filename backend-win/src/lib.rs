//! The Windows backend: each VIP is a load balancer of HNS, the Host Networking Service, which is programmed through HCN.
//!
//! ```text
//!  Snapshot ──► client::vips ──► desired ──► plan ──► diff ──► backend ──► hcn::Hcn ──► computenetwork.dll
//!               pure             pure         ▲        ▲         │                      (crate localnet-hcn)
//!                                          inventory: what HNS lists ◄──┘
//! ```
//!
//! - [`hcn`]: the documents of HCN, what its failures mean, a fake, and one suite of tests for every implementor.
//! - [`desired`]: VIPs as frontends, kept up to date.
//! - [`inventory`]: what HNS holds, as far as it was listed.
//! - [`plan`]: frontends as load balancers and remote endpoints.
//! - [`diff`]: what differs from what HNS holds, and whose that is.
//! - [`WinBackend`]: looks, plans, compares, writes; and looks again now and then.
//!
//! All of it is tested on Linux. What is left for Windows are `windows` and the crate `localnet-hcn`; they run under Wine with a
//! `computenetwork.dll` of ours (`e2e/wine`). `docs/backends/windows.md` says what is programmed, and what no Linux machine can show.

pub mod args;
mod backend;
pub mod desired;
pub mod diff;
pub mod dry_run;
pub mod hcn;
pub mod inventory;
pub mod kernel;
pub mod options;
pub mod plan;
#[cfg(windows)]
pub mod windows;

pub use backend::WinBackend;
pub use kernel::Kernel;
pub use options::Options;
