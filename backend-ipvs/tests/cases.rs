//! Verifies that the state of every Case yields the plan in `ipvs.txt`. The tests in `guest/` verify the packets, which need
//! IPVS.

#[path = "guest/planned.rs"]
mod planned;

use localnet_lab::{Flows, cases, check_that_mistakes_show, expect_plan};
use localnet_proto::{Changes, Snapshot};
use planned::desired;

/// The plan of a state, in the configuration of `flows`.
fn plan(flows: &Flows, state: &Snapshot) -> String {
    desired(flows).text(state, &Changes::everything())
}

#[test]
fn states_give_plans() {
    let cases = cases();
    assert!(!cases.is_empty());
    for case in cases {
        expect_plan(&case, "ipvs.txt", plan);
    }
}

#[test]
fn a_mistake_in_any_line_of_a_plan_is_detected() {
    for case in cases() {
        check_that_mistakes_show(&case, 17, plan);
    }
}
