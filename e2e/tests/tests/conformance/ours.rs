//! Our backends, at all levels. localnet-ipvs is tested elsewhere, because it needs a kernel with IPVS.

use localnet_client::served::Lack;
use localnet_conformance::{Level, Options, claims::Claim};

use crate::{all_levels, levels, passes, program};

#[test]
fn nft_passes() {
    let nft = program("localnet-nft");
    let options = Options {
        flush: Some("nft flush ruleset".to_owned()),
        cleanup: Some(format!("{nft} cleanup")),
        read_back: Some(format!("{nft} dump")),
        ..all_levels(format!("{nft} --api {{api}} {{flags}}"))
    };
    let outcomes = passes(&options);
    assert!(outcomes.count() >= 200, "{} checks", outcomes.count());
}

/// Its reports are those of `localnetv1`, which have counts. What differs is how it reads the state.
#[test]
fn nft_that_reads_localnet_v1_passes() {
    let nft = program("localnet-nft");
    let options = Options {
        read_back: Some(format!("{nft} dump")),
        ..levels(format!("{nft} --draft-v1 --api {{api}} {{flags}}"), &[Level::Wire, Level::State])
    };
    let outcomes = passes(&options);
    assert!(outcomes.count() >= 185, "{} checks", outcomes.count());
}

#[test]
fn iptables_passes() {
    let iptables = program("localnet-iptables");
    let flush =
        "sh -c 'for one in iptables ip6tables; do for table in nat filter; do $one -w -t $table -F; done; done'";
    let options = Options {
        // The kernel's match `statistic` cannot hash.
        claims: Claim::ALL.into_iter().filter(|claim| *claim != Claim::Hash).collect(),
        flush: Some(flush.to_owned()),
        cleanup: Some(format!("{iptables} cleanup")),
        read_back: Some(format!("{iptables} dump")),
        ..all_levels(format!("{iptables} --api {{api}} {{flags}}"))
    };
    let outcomes = passes(&options);
    assert!(outcomes.count() >= 200, "{} checks", outcomes.count());
}

/// Alone, without the nft backend. Its programs serve no clients outside, no SCTP and no source ranges. They know without a detector
/// which senders are pods, and do not drop packets to unused addresses of the Service CIDRs.
#[test]
fn ebpf_passes() {
    let ebpf = program("localnet-ebpf");
    let excluded = [Claim::Sctp, Claim::Untouched, Claim::Scopes, Claim::Hash, Claim::Outside];
    let options = Options {
        claims: Claim::ALL.into_iter().filter(|claim| !excluded.contains(claim)).collect(),
        flush: Some("rm -r /sys/fs/bpf/localnet-ebpf".to_owned()),
        cleanup: Some(format!("{ebpf} cleanup")),
        read_back: Some(format!("{ebpf} dump")),
        sandbox: true,
        cannot_hold: [Lack::Outside].into_iter().collect(),
        ..all_levels(format!("{ebpf} --api {{api}} {{flags}}"))
    };
    let outcomes = passes(&options);
    assert!(outcomes.count() >= 200, "{} checks", outcomes.count());
}
