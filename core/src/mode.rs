//! [`Mode`]: the kernel subsystem that a backend programs.

use serde::{Serialize, Serializer};

crate::names! {
    /// The kernel subsystem that a backend programs, as kube-proxy's configuration names it (`mode`).
    Mode {
        /// Rules of ip_tables.
        Iptables = "iptables",
        /// Virtual servers of IPVS.
        Ipvs = "ipvs",
        /// Rules of nf_tables.
        Nftables = "nftables",
        /// The Host Networking Service of Windows.
        Kernelspace = "kernelspace",
    }
}

/// A mode is serialized as its name.
impl Serialize for Mode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}
