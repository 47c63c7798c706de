//! The backend's only interface to the system: to HNS and the network interfaces.

use std::net::IpAddr;

use crate::hcn::Hcn;

/// What the backend needs from a node. The tests have a fake implementation.
pub trait Kernel: Hcn + Sized {
    /// Opens HNS.
    ///
    /// # Errors
    /// Returns an error if the system has no HNS.
    fn open() -> anyhow::Result<Self>;

    /// Returns the hardware address, such as `00-15-5d-00-00-01`, of the interface that has this IP address; `None` if no
    /// interface has it.
    ///
    /// # Errors
    /// Returns an error if the interfaces cannot be listed.
    fn mac_of(&mut self, address: IpAddr) -> anyhow::Result<Option<String>>;
}
