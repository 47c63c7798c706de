//! Verifies every Case: its state gives the plan in `ebpf.txt`. The test `kernel` sends the packets.

use localnet_ebpf::desired::Desired;
use localnet_lab::{Flows, cases, expect_plan};
use localnet_proto::{Changes, Snapshot};

#[path = "../src/testing/config.rs"]
mod case;

/// The plan of a state under the configuration of `flows`.
fn plan(flows: &Flows, state: &Snapshot) -> String {
    let mut desired = Desired::new(case::config(flows));
    desired.vips.set_local_addresses(flows.local_addresses());
    desired.text(state, &Changes::everything())
}

#[test]
fn states_give_plans() {
    let cases = cases();
    assert!(!cases.is_empty());
    for case in cases {
        expect_plan(&case, "ebpf.txt", plan);
    }
}
