//! `--why-not` names the causes of the faults of `e2e/faults`, with the backends that run on every kernel.

use localnet_e2e::{Backend, faults::the_right_cause_ranks_first, scenario};

#[test]
fn the_right_cause_ranks_first_with_nft() {
    the_right_cause_ranks_first(Backend::Nft).unwrap();
}

#[test]
fn the_right_cause_ranks_first_with_iptables_nft() {
    the_right_cause_ranks_first(Backend::Iptables("nft")).unwrap();
}

#[test]
fn the_right_cause_ranks_first_with_iptables_legacy() {
    the_right_cause_ranks_first(Backend::Iptables("legacy")).unwrap();
}

#[test]
fn every_fault_has_a_description() {
    for folder in scenario::all().unwrap() {
        let text = std::fs::read_to_string(folder.join("fault.yaml")).unwrap();
        assert!(text.starts_with("# "), "{}", folder.display());
        scenario::read(&folder).unwrap();
    }
}
