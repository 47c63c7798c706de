//! Compares the fake with the real tools of both flavours, in network namespaces. Needs root and iptables.

use localnet_lab::{Network, Topology};

use super::*;
use crate::{Flavour, Tools};

/// What the tools answer to an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Accepted,
    /// The input is refused. The backend looks for the cause at the line that the tool names.
    Refused {
        /// The line that `iptables-legacy-restore` names.
        legacy: usize,
        /// The line that `iptables-nft-restore` names.
        nft: usize,
    },
}

use Answer::{Accepted, Refused};

/// An input whose line is refused by both.
const fn refused(line: usize) -> Answer {
    Refused { legacy: line, nft: line }
}

/// The inputs one after the other.
const INPUTS: &[(&str, Answer)] = &[
    (
        "*nat\n:KUBE-A - [0:0]\n-A KUBE-A -s 10.0.0.1/32 -j RETURN\n-A KUBE-A -s 10.0.0.2/32 -j RETURN\nCOMMIT\n",
        Accepted,
    ),
    // A chain that is missing. The lines before and after the refused one have no effect.
    ("*nat\n:KUBE-D - [0:0]\n-A KUBE-A -j KUBE-B\n:KUBE-E - [0:0]\nCOMMIT\n", Refused { legacy: 3, nft: 5 }),
    ("*nat\n-A KUBE-B -j RETURN\n:KUBE-E - [0:0]\nCOMMIT\n", refused(2)),
    ("*nat\n-X KUBE-B\n:KUBE-E - [0:0]\nCOMMIT\n", refused(2)),
    // A chain that the input declares too late.
    ("*nat\n-A KUBE-A -j KUBE-B\n:KUBE-B - [0:0]\nCOMMIT\n", Refused { legacy: 2, nft: 4 }),
    // A table that is missing.
    ("*none\n:KUBE-E - [0:0]\nCOMMIT\n", refused(1)),
    // Earlier sections stay. A section that is refused changes nothing, and later ones are not read.
    (
        "*filter\n:KUBE-F - [0:0]\nCOMMIT\n*nat\n:KUBE-D - [0:0]\n-A KUBE-A -j KUBE-B\nCOMMIT\n*filter\n:KUBE-G - [0:0]\nCOMMIT\n",
        Refused { legacy: 6, nft: 7 },
    ),
    // The input ends before the section does, as when the writer is killed.
    ("*filter\n:KUBE-G - [0:0]\nCOMMIT\n*nat\n:KUBE-D - [0:0]\n", refused(6)),
    // A chain with rules, and a chain that rules lead to.
    ("*nat\n-X KUBE-A\nCOMMIT\n", refused(2)),
    ("*nat\n:KUBE-B - [0:0]\n-A KUBE-A -j KUBE-B\nCOMMIT\n", Accepted),
    ("*nat\n-X KUBE-B\nCOMMIT\n", refused(2)),
    ("*nat\n-X KUBE-B\n-D KUBE-A -j KUBE-B\nCOMMIT\n", Refused { legacy: 2, nft: 4 }),
    // A declaration empties a chain that exists.
    ("*nat\n:KUBE-A - [0:0]\n-A KUBE-A -s 10.0.0.3/32 -j KUBE-B\nCOMMIT\n", Accepted),
    // But not one of the kernel's own chains.
    ("*nat\n-A POSTROUTING -j KUBE-B\nCOMMIT\n", Accepted),
    ("*nat\n:POSTROUTING ACCEPT [0:0]\nCOMMIT\n", Accepted),
    ("*nat\n-D POSTROUTING -j KUBE-B\nCOMMIT\n", Accepted),
    ("*nat\n-I KUBE-A -s 10.0.0.4/32 -j RETURN\n-C KUBE-A -s 10.0.0.3/32 -j KUBE-B\nCOMMIT\n", Accepted),
    ("*nat\n-C KUBE-A -s 10.0.0.9/32 -j RETURN\nCOMMIT\n", refused(2)),
    ("*nat\n-D KUBE-A -s 10.0.0.9/32 -j RETURN\nCOMMIT\n", refused(2)),
    ("*nat\n-D KUBE-A -s 10.0.0.3/32 -j KUBE-B\n-X KUBE-B\nCOMMIT\n", Accepted),
    // The first of equal rules is deleted.
    (
        "*nat\n-A KUBE-A -s 10.0.0.5/32 -j RETURN\n-A KUBE-A -s 10.0.0.4/32 -j RETURN\n-D KUBE-A -s 10.0.0.4/32 -j RETURN\nCOMMIT\n",
        Accepted,
    ),
    ("*nat\n:KUBE-A - [0:0]\n-X KUBE-A\nCOMMIT\n*filter\n-X KUBE-F\n-X KUBE-G\nCOMMIT\n", Accepted),
];

/// Our chains, their rules, and the rules that lead to them, sorted by chain.
fn held(kernel: &mut impl Kernel) -> Vec<String> {
    let mut lines = Vec::new();
    let mut keep = |line: &str| {
        let line = line.split(" - [").next().unwrap();
        if line.contains("KUBE-") {
            lines.push(line.to_owned());
        }
    };
    kernel.save(Family::V4, &mut keep).unwrap();
    lines.sort_by_key(|line| line.trim_start_matches("-A ").split(' ').next().unwrap().to_owned());
    lines
}

/// The refused line of an answer.
fn line(answer: Result<(), Error>) -> Option<usize> {
    match answer {
        Ok(()) => None,
        Err(Error::Refused { line, .. }) => Some(line),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn the_fake_answers_and_holds_what_the_tools_do() {
    for flavour in [Flavour::Nft, Flavour::Legacy] {
        let network = Network::build(Topology::default()).unwrap();
        let compare = || {
            let (mut fake, mut tools) = (Fake::default(), Tools::find(flavour)?);
            for (input, answer) in INPUTS {
                let expected = match (*answer, flavour) {
                    (Accepted, _) => None,
                    (Refused { legacy, .. }, Flavour::Legacy) => Some(legacy),
                    (Refused { nft, .. }, Flavour::Nft) => Some(nft),
                };
                // Of two lines that the tools name, the fake names the one of ip_tables.
                let of_fake = if let Refused { legacy, .. } = *answer { Some(legacy) } else { None };
                // The backend tests only whether rules exist, and only with ip_tables. With nf_tables, the tool always finds them.
                if input.contains("-C ") && flavour == Flavour::Legacy {
                    assert_eq!(line(fake.test(Family::V4, input)), of_fake, "{input}");
                    assert_eq!(line(tools.test(Family::V4, input)), expected, "{flavour:?} {input}");
                }
                assert_eq!(line(fake.restore(Family::V4, input)), of_fake, "{input}");
                assert_eq!(line(tools.restore(Family::V4, input)), expected, "{flavour:?} {input}");
                assert_eq!(held(&mut fake), held(&mut tools), "{flavour:?} {input}");
            }
            Ok(())
        };
        network.node().run(compare).unwrap();
    }
}
