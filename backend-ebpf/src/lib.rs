//! The eBPF backend. Its programs run in the kernel when a process of this node calls `connect` or `sendmsg`, and replace a VIP by
//! an endpoint before the first packet exists.
//!
//! ```text
//!  Snapshot ──► client::vips ──► plan ──► desired (DiffStores) ──► kernel: the maps ◄── programs (decide)
//!               pure             pure     pure                     the only I/O          in the kernel
//! ```
//!
//! - [`plan`]: turns one VIP into elements of the maps.
//! - [`desired`]: the desired and the applied content of the maps, and their diff.
//! - [`EbpfBackend`]: reads maps whose content is unknown, and applies the diff.
//! - [`host`]: attaches the programs, and pins them. `maps` reads and writes the maps.
//! - [`inspect`]: lists the planned and the live elements of the maps as text.
//! - [`outside`]: runs the nft backend in the same process.
//! - [`layout`], [`decide`]: the keys and values of the maps, and what the programs decide. `programs/main.rs` includes these two
//!   files, too.
//!
//! `docs/backends/ebpf.md` explains the programs and maps.

mod backend;
pub mod decide;
pub mod desired;
mod dry_run;
pub mod host;
pub mod inspect;
pub mod kernel;
pub mod layout;
pub mod live;
mod maps;
pub mod outside;
pub mod plan;
pub mod program;
pub mod served;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod words;

pub use backend::EbpfBackend;
pub use live::LiveBackend;
pub use localnet_linux_backend::live::LinuxBackend;
pub use program::Ebpf;
