//! [`Refused`]: reads how many packets the rules have refused.

use localnet_linux::{
    nft::{Error, Kernel as _, Netlink},
    traffic::{Reading, Reason, Source},
};
use localnet_linux_backend::elements::{frontend, read_vip};
use localnet_proto::Family;

use crate::plan::{self, sets};

/// Reads the sets in which the rules count refused packets.
#[derive(Debug)]
pub(crate) struct Refused {
    kernel: Netlink,
}

impl Refused {
    /// Connects to the nf_tables of the calling thread's network namespace.
    ///
    /// # Errors
    /// Returns an error if the kernel has no nf_tables.
    pub(crate) fn open() -> Result<Self, Error> {
        Ok(Self { kernel: Netlink::open()? })
    }
}

impl Source for Refused {
    fn read(&mut self) -> anyhow::Result<Reading> {
        let mut reading = Reading::default();
        for family in Family::BOTH {
            if !self.kernel.has_family(family) {
                continue;
            }
            for reason in Reason::ALL {
                let counted = self.kernel.packets(&plan::table(family), &sets::refused(family, reason))?;
                for (key, packets) in counted.into_iter().flatten() {
                    reading.refused.extend(read_vip(&key).map(|vip| ((frontend(&vip), reason), packets)));
                }
            }
        }
        Ok(reading)
    }
}
