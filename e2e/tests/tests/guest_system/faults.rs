//! `--why-not` names the causes of the faults of `e2e/faults` with the ipvs backend.

use localnet_e2e::{Backend, faults::the_right_cause_ranks_first};
use localnet_vm::on_ipvs;

#[test]
fn the_right_cause_ranks_first_with_ipvs() {
    on_ipvs(|| the_right_cause_ranks_first(Backend::Ipvs).unwrap_or_else(|error| panic!("{error:#}")));
}
