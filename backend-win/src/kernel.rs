//! The backend's only interface to the system: to HNS and the network interfaces.

use std::{collections::BTreeMap, net::IpAddr};

use crate::hcn::Hcn;

/// What the backend needs from a node. The tests have a fake implementation.
pub trait Kernel: Hcn {
    /// Returns the hardware address, such as `00-15-5d-00-00-01`, of the interface that has each IP address of the node.
    ///
    /// # Errors
    /// Returns an error if the interfaces cannot be listed.
    fn interfaces(&mut self) -> anyhow::Result<BTreeMap<IpAddr, String>>;
}

/// The kernel of this machine.
pub trait Machine: Kernel + Sized {
    /// Opens HNS.
    ///
    /// # Errors
    /// Returns an error if the system has no HNS.
    fn open() -> anyhow::Result<Self>;
}
