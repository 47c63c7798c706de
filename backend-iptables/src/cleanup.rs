//! Two inputs of `iptables-restore`: one removes all our chains and rules, but not the kubelet's; the other checks that the
//! kernel's own chains jump to ours.

use std::{collections::BTreeSet, fmt::Write as _};

use crate::{
    plan::{Table, fixed, names},
    save::Found,
};

/// The input that removes what this backend, or a kube-proxy in iptables mode, left in the tables. Empty if nothing is left.
pub fn removal(saved: &str) -> String {
    let found = Found::read(saved);
    let mut text = String::new();
    for table in Table::ALL {
        let mut chains: BTreeSet<&str> =
            found.chains.keys().filter(|id| id.table == table).map(|id| &*id.name).collect();
        chains.extend(found.dispatch.keys().filter(|chain| chain.table == table).map(|chain| chain.name));
        if declares(saved, table.as_str(), names::CANARY) {
            chains.insert(names::CANARY);
        }
        let jumps: Vec<_> = found.jumps.iter().filter(|((of, _), _)| *of == table).collect();
        if chains.is_empty() && jumps.is_empty() {
            continue;
        }
        _ = writeln!(text, "*{table}");
        chains.iter().for_each(|chain| _ = writeln!(text, ":{chain} - [0:0]"));
        for ((_, from), rules) in jumps {
            rules.iter().for_each(|rule| _ = writeln!(text, "-D {from} {rule}"));
        }
        chains.iter().for_each(|chain| _ = writeln!(text, "-X {chain}"));
        text.push_str("COMMIT\n");
    }
    if declares(saved, "mangle", names::CANARY) {
        _ = writeln!(text, "*mangle\n:{0} - [0:0]\n-X {0}\nCOMMIT", names::CANARY);
    }
    text
}

/// Returns the input for a check: a restore accepts it only if the kernel's own chains in `table` still jump to ours.
pub fn check(table: Table) -> String {
    let mut text = format!("*{table}\n");
    for jump in fixed::jumps().iter().filter(|jump| jump.table == table) {
        _ = writeln!(text, "-C {} {}", jump.from, jump.rule);
    }
    text.push_str("COMMIT\n");
    text
}

fn declares(saved: &str, table: &str, chain: &str) -> bool {
    let mut of = None;
    saved.lines().any(|line| {
        if let Some(name) = line.strip_prefix('*') {
            of = Some(name);
        }
        of == Some(table) && line.strip_prefix(':').and_then(|rest| rest.split(' ').next()) == Some(chain)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cleanup_keeps_the_chains_of_the_kubelet_and_others() {
        let saved = "\
*filter
:INPUT ACCEPT [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-PROXY-CANARY - [0:0]
-A INPUT -j KUBE-FIREWALL
-A INPUT -m comment --comment \"x\" -j KUBE-SERVICES
-A KUBE-FIREWALL -j DROP
COMMIT
*nat
:KUBE-MARK-DROP - [0:0]
:KUBE-SVC-A - [0:0]
COMMIT
*mangle
:KUBE-IPTABLES-HINT - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
:KUBE-PROXY-CANARY - [0:0]
COMMIT
";
        let expected = "\
*filter
:KUBE-PROXY-CANARY - [0:0]
:KUBE-SERVICES - [0:0]
-D INPUT -m comment --comment \"x\" -j KUBE-SERVICES
-X KUBE-PROXY-CANARY
-X KUBE-SERVICES
COMMIT
*nat
:KUBE-SVC-A - [0:0]
-X KUBE-SVC-A
COMMIT
*mangle
:KUBE-PROXY-CANARY - [0:0]
-X KUBE-PROXY-CANARY
COMMIT
";
        assert_eq!(removal(saved), expected);
        assert_eq!(removal("*filter\n:INPUT ACCEPT [0:0]\nCOMMIT\n"), "");
    }
}
