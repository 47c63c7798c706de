//! Runs tests on a kernel that has IPVS: this machine's own if it can, else that of a small guest.
//!
//! ```text
//!  #[test] ── on_ipvs(|| …) ─┬─ this kernel has IPVS, or this is the guest ─▶ the test itself
//!                            └─ otherwise: Guest::boot (once per process) ─▶ the same test program, this test alone, inside
//! ```
//!
//! | file | step |
//! |---|---|
//! | [`relay`] | a test's body here, or the test in the guest |
//! | [`guest`] | a running guest: boot, run programs, end |
//! | [`card`] | its network cards, seen from inside |
//! | `qemu` | the process of the guest, and its command line |
//! | `image` | what `build.sh` made, and whether the processor can be shared |
//! | `folder` | the folder through which host and guest exchange files |
//! | `script` | a command as a shell script; pure |
//!
//! The guest has a Debian kernel with all of its network modules and sees this machine's files, so programs need not be copied; what
//! it writes stays in its memory and is gone with it. It has no network to anywhere, unless it is given one. It knows nothing of localnet.

pub mod card;
pub mod guest;
pub mod relay;

mod folder;
mod image;
mod qemu;
mod script;

pub use guest::{Guest, MARKER, Network, Options};
pub use relay::{Outside, on_ipvs, on_ipvs_beside};
