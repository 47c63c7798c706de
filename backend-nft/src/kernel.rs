//! The only access to the kernel: the nf_tables interface of the `linux` crate, which all backends share.

pub use localnet_linux::nft::{ChainMatch, Kernel, LiveTable, Netlink};
