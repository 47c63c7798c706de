//! The only interface to the system.

use std::net::IpAddr;

use crate::hcn::{Hcn, fake::FakeHcn};

/// What the backend needs from a node. The tests have a fake implementation.
pub trait Kernel: Hcn {
    /// Returns the hardware address of the interface with an address, such as `00-15-5d-00-00-01`; `None` if no interface has
    /// it.
    ///
    /// # Errors
    /// Returns an error if the interfaces cannot be listed.
    fn mac_of(&mut self, address: IpAddr) -> anyhow::Result<Option<String>>;
}

impl Kernel for FakeHcn {
    fn mac_of(&mut self, address: IpAddr) -> anyhow::Result<Option<String>> {
        Ok(self.interfaces.get(&address).cloned())
    }
}
