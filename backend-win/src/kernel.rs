//! The one seam to the system.

use std::net::IpAddr;

use crate::hcn::{Hcn, fake::FakeHcn};

/// What the backend needs of a node. The second implementor is the tests' fake.
pub trait Kernel: Hcn {
    /// The hardware address of the interface that has an address, as in `00-15-5d-00-00-01`; `None`: no interface has it.
    ///
    /// # Errors
    /// Interfaces cannot be listed.
    fn mac_of(&mut self, address: IpAddr) -> anyhow::Result<Option<String>>;
}

impl Kernel for FakeHcn {
    fn mac_of(&mut self, address: IpAddr) -> anyhow::Result<Option<String>> {
        Ok(self.interfaces.get(&address).cloned())
    }
}
