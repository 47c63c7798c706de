//! Who is compared with whom: a backend of ours, and kube-proxy in one of its modes.

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
    /// Both by both flavours of the tools.
    pub(crate) const IPTABLES: [Self; 2] = [
        Self { backend: Backend::Iptables("nft"), mode: Mode::Iptables("legacy") },
        Self { backend: Backend::Iptables("legacy"), mode: Mode::Iptables("nft") },
    ];
}
