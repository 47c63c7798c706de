//! Limits of connection tracking, in a temporary network namespace.

use std::{fs, time::Duration};

use localnet_linux::{conntrack::Limits, sysctl::Settings};

fn setting(name: &str) -> String {
    let text = fs::read_to_string(format!("/proc/sys/net/netfilter/{name}"));
    text.expect("the kernel has connection tracking").trim().to_owned()
}

#[test]
fn timeouts_are_set_in_the_network_namespace_alone() {
    let names = ["nf_conntrack_tcp_timeout_established", "nf_conntrack_udp_timeout", "nf_conntrack_tcp_be_liberal"];
    let before = names.map(setting);
    let thread = std::thread::spawn(move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("these tests need root");
        let limits = Limits {
            tcp_established_timeout: Some(Duration::from_secs(12_345)),
            udp_timeout: Some(Duration::from_secs(17)),
            tcp_be_liberal: true,
            ..Limits::default()
        };
        let failed: Vec<_> = limits.apply(&Settings::default()).into_iter().filter_map(Result::err).collect();
        assert!(failed.is_empty(), "{failed:?}");
        assert_eq!(names.map(setting), ["12345", "17", "1"]);
    });
    thread.join().unwrap();
    assert_eq!(names.map(setting), before, "the machine's own timeouts do not change");
}
