//! Runs tests on a kernel that has IPVS: this machine's kernel if possible, otherwise that of a small virtual machine (guest).
//!
//! ```text
//!  #[test] ── on_ipvs(|| …) ─┬─ this kernel has IPVS, or this is the guest ─▶ the test itself
//!                            └─ otherwise: Guest::boot (once per process) ─▶ the same test program, this test alone, inside
//! ```
//!
//! | file | content |
//! |---|---|
//! | [`relay`] | runs a test here, or the same test in the guest |
//! | [`guest`] | a running guest: boot, run programs, stop |
//! | [`nic`] | the guest's network interfaces, for programs in the guest |
//! | `options` | a guest's configuration |
//! | `qemu` | the guest's process and its command line |
//! | `image` | the files that `build.sh` made, and the choice between KVM and emulation |
//! | `folder` | the folder through which host and guest exchange files |
//! | `script` | renders a command as a shell script; pure |
//!
//! The guest has a Debian kernel with all of its network modules. It sees this machine's files, so programs need not be copied;
//! its own changes stay in its memory. It has no network unless [`Options::network`] gives it one. It knows nothing of localnet.

pub mod guest;
pub mod nic;
pub mod relay;

mod folder;
mod image;
mod options;
mod qemu;
mod script;

pub use guest::{Guest, MARKER};
pub use options::{Network, Options};
pub use relay::{HostSide, on_ipvs, on_ipvs_with_host_side};
