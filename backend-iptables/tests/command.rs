//! Tests of the command line: `init` in a network namespace, and combinations of flags and commands that the program refuses.

use std::{fs, process::Command};

use localnet_lab::{Network, Topology};

fn localnet_iptables() -> Command {
    Command::new(env!("CARGO_BIN_EXE_localnet-iptables"))
}

/// A configuration that changes only settings of the network namespace. Limits that all namespaces share are 0, so they stay
/// unchanged.
const CONFIGURATION: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s, udpTimeout: 17s}
";
/// Each setting with its value before and after `init`.
const SETTINGS: [(&str, &str, &str); 2] = [
    ("/proc/sys/net/ipv4/conf/all/route_localnet", "0", "1"),
    ("/proc/sys/net/netfilter/nf_conntrack_udp_timeout", "30", "17"),
];

#[test]
fn init_sets_up_the_node_and_writes_no_rule() {
    let network = Network::build(Topology::default()).unwrap();
    let node = network.node();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.yaml");
    fs::write(&file, CONFIGURATION).unwrap();
    let rules = || node.output(Command::new("nft").args(["list", "ruleset"])).unwrap();
    let rules_before = rules();
    for arguments in [&["init", "--config"][..], &["--init-only", "--config"]] {
        for (name, before, after) in SETTINGS {
            node.run(|| Ok(fs::write(name, before)?)).unwrap();
            node.output(localnet_iptables().args(arguments).arg(&file)).unwrap();
            let now = node.run(|| Ok(fs::read_to_string(name)?)).unwrap();
            assert_eq!(now.trim(), after, "{arguments:?}: {name}");
        }
    }
    assert_eq!(rules(), rules_before);
}

#[test]
fn contradicting_flags_are_refused() {
    for (arguments, expected) in [
        (&["--cleanup", "--init-only"][..], "--cleanup: cannot be combined with --init-only"),
        (&["--init-only", "--dry-run"], "--dry-run changes nothing, but --init-only does"),
        (&["init", "--cleanup"], "--cleanup: does not apply to the command init"),
        (&["init", "--write-config-to", "/nowhere"], "--write-config-to: does not apply to the command init"),
    ] {
        let output = localnet_iptables().args(arguments).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {errors}");
        assert!(errors.contains(expected), "{arguments:?}: {errors}");
    }
}
