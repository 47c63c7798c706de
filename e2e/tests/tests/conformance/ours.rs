//! Our backends, at all levels. localnet-ipvs is tested elsewhere, because it needs a kernel with IPVS.

use localnet_conformance::Options;

use crate::{all_levels, passes, program};

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

#[test]
fn iptables_passes() {
    let iptables = program("localnet-iptables");
    let flush =
        "sh -c 'for one in iptables ip6tables; do for table in nat filter; do $one -w -t $table -F; done; done'";
    let options = Options {
        flush: Some(flush.to_owned()),
        cleanup: Some(format!("{iptables} cleanup")),
        read_back: Some(format!("{iptables} dump")),
        ..all_levels(format!("{iptables} --api {{api}} {{flags}}"))
    };
    let outcomes = passes(&options);
    assert!(outcomes.count() >= 200, "{} checks", outcomes.count());
}
