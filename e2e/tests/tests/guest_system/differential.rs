//! The oracle and the ipvs backend agree about random clusters and packets.

use localnet_e2e::differential::{Pair, agree, host_side};
use localnet_vm::on_ipvs_with_host_side;

#[test]
fn oracle_and_ipvs_backend_agree() {
    on_ipvs_with_host_side(
        || host_side(Pair::IPVS),
        || agree(Pair::IPVS, 1).unwrap_or_else(|error| panic!("{error:#}")),
    );
}
