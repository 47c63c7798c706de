//! Every Case: its state gives the plan in `ipvs.txt`. Where packets go is in `guest/`, as that needs IPVS.

#[path = "guest/planned.rs"]
mod planned;

use localnet_lab::{cases, expect_file};
use localnet_proto::Changes;
use planned::dry_run;

#[test]
fn states_give_plans() {
    let cases = cases();
    assert!(!cases.is_empty());
    for case in cases {
        let text = dry_run(&case).text(&case.read_state().unwrap(), &Changes::everything());
        expect_file(&case.file("ipvs.txt"), &text);
    }
}
