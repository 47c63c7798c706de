//! The configuration of a guest.

use std::path::PathBuf;

/// The configuration of a guest.
#[derive(Clone, Debug)]
pub struct Options {
    /// Memory in MiB, at most 2048. It also holds the files that the guest writes.
    pub memory_mib: u32,
    /// The number of processors, at most 4.
    pub cpus: u32,
    /// What the guest can reach; nothing by default.
    pub network: Option<Network>,
}

/// Connects a guest to a network namespace of this machine. A connection that the guest opens to an IPv4 address through one of
/// its interfaces ([`crate::nic`]) comes from that namespace. Nothing can connect to the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// The path of the namespace (`/run/netns/NAME`).
    pub namespace: PathBuf,
    /// The number of the guest's interfaces (`eth0` and so on). Each has a wire of its own, so that several namespaces of the guest
    /// can have one.
    pub nics: usize,
}

impl Default for Options {
    /// 1 GiB, one processor and no network. With two emulated processors, one may keep executing code that the other has replaced:
    /// the kernel patches itself when hooks come and go, and that processor then hangs forever.
    fn default() -> Self {
        Self { memory_mib: 1024, cpus: 1, network: None }
    }
}
