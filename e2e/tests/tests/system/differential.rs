//! The oracle, a backend and kube-proxy agree about random clusters and packets.

use localnet_e2e::differential::{Pair, agree, agree_between_nodes};

#[test]
fn oracle_nft_backend_and_kube_proxy_agree() -> anyhow::Result<()> {
    agree(Pair::NFT, 1)
}

#[test]
fn oracle_iptables_backend_and_kube_proxy_agree() -> anyhow::Result<()> {
    Pair::IPTABLES.into_iter().try_for_each(|pair| agree(pair, Pair::IPTABLES.len()))
}

/// A run has a quarter of the packets, because each repair of pins takes up to 10 s.
#[test]
fn oracle_and_ebpf_backend_agree() -> anyhow::Result<()> {
    agree(Pair::EBPF, 4)
}

/// On two nodes, a state takes longer to reach, so a run has fewer packets.
#[test]
fn oracles_of_two_nodes_a_backend_and_kube_proxy_agree() -> anyhow::Result<()> {
    agree_between_nodes(10)
}
