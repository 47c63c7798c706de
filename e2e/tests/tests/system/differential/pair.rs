//! The pairs to compare: one of our backends, and kube-proxy in one of its modes.

use localnet_e2e::Backend;

use crate::kube_proxy::Mode;

/// A backend, and the mode of kube-proxy that it is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) backend: Backend,
    pub(crate) mode: Mode,
}

impl Pair {
    pub(crate) const NFT: Self = Self { backend: Backend::Nft, mode: Mode::Nftables };
    /// Each program uses each flavour of the tools in one of the pairs.
    pub(crate) const IPTABLES: [Self; 2] = [
        Self { backend: Backend::Iptables("nft"), mode: Mode::Iptables("legacy") },
        Self { backend: Backend::Iptables("legacy"), mode: Mode::Iptables("nft") },
    ];
}
