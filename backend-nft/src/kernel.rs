//! The one seam to the kernel: nf_tables as `linux` has it, for all backends that write there.

pub use localnet_linux::nft::{Found, Kernel, Likeness, Netlink};
