//! The pairs to compare: one of our backends, and kube-proxy in one of its modes.

use std::fmt;

use crate::{Backend, kube_proxy::Mode};

/// The proxy that programs the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Side {
    Ours,
    KubeProxy,
}

/// A backend, and the mode of kube-proxy that it is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The backend.
    pub backend: Backend,
    /// The mode of kube-proxy; `None` if only the backend is compared with the oracle.
    pub kube_proxy: Option<Mode>,
}

impl Pair {
    /// The nft backend.
    pub const NFT: Self = Self { backend: Backend::Nft, kube_proxy: Some(Mode::Nftables) };
    /// The iptables backend. Each program uses each flavour of the tools in one of the pairs.
    pub const IPTABLES: [Self; 2] = [
        Self { backend: Backend::Iptables("nft"), kube_proxy: Some(Mode::Iptables("legacy")) },
        Self { backend: Backend::Iptables("legacy"), kube_proxy: Some(Mode::Iptables("nft")) },
    ];
    /// All pairs with kube-proxy.
    pub(crate) const WITH_KUBE_PROXY: [Self; 3] = [Self::NFT, Self::IPTABLES[0], Self::IPTABLES[1]];
    /// The ipvs backend, without kube-proxy.
    pub const IPVS: Self = Self { backend: Backend::Ipvs, kube_proxy: None };

    /// kube-proxy's mode ipvs. `localnet shadow` evaluates packets, and no packet is compared.
    pub const SHADOWED_IPVS: Self = Self { backend: Backend::Nft, kube_proxy: Some(Mode::Ipvs) };

    /// The ebpf backend with the nft backend in its process, without kube-proxy.
    pub const EBPF: Self = Self { backend: Backend::Ebpf, kube_proxy: None };

    /// Whether kube-proxy runs in mode iptables.
    pub(crate) fn is_iptables(self) -> bool {
        matches!(self.kube_proxy, Some(Mode::Iptables(_)))
    }

    /// Whether `localnet shadow` evaluates packets, and no packet is compared.
    pub(crate) fn is_only_evaluated(self) -> bool {
        self == Self::SHADOWED_IPVS
    }

    /// The proxies that run.
    pub(crate) fn sides(self) -> impl Iterator<Item = Side> {
        [Some(Side::Ours), self.kube_proxy.map(|_| Side::KubeProxy)].into_iter().flatten()
    }
}

impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.backend)?;
        self.kube_proxy.map_or(Ok(()), |mode| write!(f, " and kube-proxy {mode:?}"))
    }
}
