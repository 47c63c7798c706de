//! Random clusters and packets: the oracle agrees with the ipvs backend, and `localnet shadow` with kube-proxy's mode ipvs.

use localnet_e2e::differential::{Pair, agree, host_side};
use localnet_vm::on_ipvs_with_host_side;

#[test]
fn oracle_and_ipvs_backend_agree() {
    on_ipvs_with_host_side(
        || host_side(Pair::IPVS),
        || agree(Pair::IPVS, 1).unwrap_or_else(|error| panic!("{error:#}")),
    );
}

#[test]
fn shadow_raises_no_false_alarm_beside_kube_proxy_ipvs() {
    on_ipvs_with_host_side(
        || host_side(Pair::SHADOWED_IPVS),
        || agree(Pair::SHADOWED_IPVS, 1).unwrap_or_else(|error| panic!("{error:#}")),
    );
}
