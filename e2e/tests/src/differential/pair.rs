//! The pairs to compare: one of our backends, and kube-proxy in one of its modes.

use crate::Backend;

use crate::kube_proxy::Mode;

/// A backend, and the mode of kube-proxy that it is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The backend.
    pub backend: Backend,
    /// The mode of kube-proxy.
    pub mode: Mode,
}

impl Pair {
    /// The nft backend.
    pub const NFT: Self = Self { backend: Backend::Nft, mode: Mode::Nftables };
    /// The iptables backend. Each program uses each flavour of the tools in one of the pairs.
    pub const IPTABLES: [Self; 2] = [
        Self { backend: Backend::Iptables("nft"), mode: Mode::Iptables("legacy") },
        Self { backend: Backend::Iptables("legacy"), mode: Mode::Iptables("nft") },
    ];
}
