//! Compares the fake with the real tools of both flavours, in network namespaces. Needs root and iptables.

use localnet_lab::{Network, Topology};

use super::*;
use crate::{Flavour, Tools};

/// The inputs one after the other, and whether each is accepted.
const INPUTS: &[(&str, bool)] = &[
    ("*nat\n:KUBE-A - [0:0]\n-A KUBE-A -s 10.0.0.1/32 -j RETURN\n-A KUBE-A -s 10.0.0.2/32 -j RETURN\nCOMMIT\n", true),
    // A chain that is missing.
    ("*nat\n-A KUBE-A -j KUBE-B\nCOMMIT\n", false),
    ("*nat\n-A KUBE-B -j RETURN\nCOMMIT\n", false),
    ("*nat\n-X KUBE-B\nCOMMIT\n", false),
    // Earlier sections stay. A section that is refused changes nothing.
    ("*filter\n:KUBE-F - [0:0]\nCOMMIT\n*nat\n:KUBE-D - [0:0]\n-A KUBE-A -j KUBE-B\nCOMMIT\n", false),
    // A chain with rules, and a chain that rules lead to.
    ("*nat\n-X KUBE-A\nCOMMIT\n", false),
    ("*nat\n:KUBE-B - [0:0]\n-A KUBE-A -j KUBE-B\nCOMMIT\n", true),
    ("*nat\n-X KUBE-B\nCOMMIT\n", false),
    // A declaration empties a chain that exists.
    ("*nat\n:KUBE-A - [0:0]\n-A KUBE-A -s 10.0.0.3/32 -j KUBE-B\nCOMMIT\n", true),
    ("*nat\n-I KUBE-A -s 10.0.0.4/32 -j RETURN\n-C KUBE-A -s 10.0.0.3/32 -j KUBE-B\nCOMMIT\n", true),
    ("*nat\n-C KUBE-A -s 10.0.0.9/32 -j RETURN\nCOMMIT\n", false),
    ("*nat\n-D KUBE-A -s 10.0.0.9/32 -j RETURN\nCOMMIT\n", false),
    ("*nat\n-D KUBE-A -s 10.0.0.3/32 -j KUBE-B\n-X KUBE-B\nCOMMIT\n", true),
    ("*nat\n:KUBE-A - [0:0]\n-X KUBE-A\nCOMMIT\n*filter\n-X KUBE-F\nCOMMIT\n", true),
];

/// Our chains and their rules, sorted by chain.
fn held(kernel: &mut impl Kernel) -> Vec<String> {
    let mut lines = Vec::new();
    let mut keep = |line: &str| {
        let line = line.split(" - [").next().unwrap();
        if line.starts_with(":KUBE-") || line.starts_with("-A KUBE-") {
            lines.push(line.to_owned());
        }
    };
    kernel.save(Family::V4, &mut keep).unwrap();
    lines.sort_by_key(|line| line.trim_start_matches("-A ").split(' ').next().unwrap().to_owned());
    lines
}

#[test]
fn the_fake_accepts_and_holds_what_the_tools_do() {
    for flavour in [Flavour::Nft, Flavour::Legacy] {
        let network = Network::build(Topology::default()).unwrap();
        let compare = || {
            let (mut fake, mut tools) = (Fake::default(), Tools::find(flavour)?);
            for (input, is_accepted) in INPUTS {
                // The backend tests only whether rules exist, and only with ip_tables. With nf_tables, the tool always finds them.
                if input.contains("-C ") && flavour == Flavour::Legacy {
                    assert_eq!(fake.test(Family::V4, input).is_ok(), *is_accepted, "{input}");
                    assert_eq!(tools.test(Family::V4, input).is_ok(), *is_accepted, "{flavour:?} {input}");
                }
                assert_eq!(fake.restore(Family::V4, input).is_ok(), *is_accepted, "{input}");
                assert_eq!(tools.restore(Family::V4, input).is_ok(), *is_accepted, "{flavour:?} {input}");
                assert_eq!(held(&mut fake), held(&mut tools), "{flavour:?} {input}");
            }
            Ok(())
        };
        network.node().run(compare).unwrap();
    }
}
