//! Selects the set of iptables tools that the host's other programs use: legacy or nft. The tools of one set do not see the rules
//! of the other set.

use clap::ValueEnum;
use localnet_proto::Family;

use crate::{plan::names, tool::run};

/// A set of iptables tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Flavour {
    /// The kernel's ip_tables
    Legacy,
    /// nf_tables, through the iptables-nft tools
    Nft,
}

impl Flavour {
    /// The name of a program of this flavour, such as `ip6tables-nft-restore`.
    pub fn program(self, family: Family, tool: &str) -> String {
        let tables = match family {
            Family::V4 => "iptables",
            Family::V6 => "ip6tables",
        };
        let flavour = match self {
            Self::Legacy => "legacy",
            Self::Nft => "nft",
        };
        format!("{tables}-{flavour}-{tool}")
    }

    /// If the chains of a table have more lines than this, they are written in several sections. With nf_tables, `iptables-restore`
    /// searches the names of a section in a list, so its time grows with the square of a section's length. With ip_tables, the
    /// kernel replaces the whole table for each section, so there should be few.
    pub(crate) fn section_lines(self) -> usize {
        match self {
            Self::Legacy => usize::MAX,
            Self::Nft => 4000,
        }
    }

    /// After this many lines, a new process of `iptables-restore` reads the next sections. With nf_tables, a process remembers the
    /// names of all sections, and searches them for each jump.
    pub(crate) fn process_lines(self) -> usize {
        self.section_lines().saturating_mul(8)
    }

    /// The flavour with a chain that the kubelet creates as a hint. If neither flavour has such a chain, the flavour with more
    /// rules.
    pub fn of_host() -> Self {
        let nft = Family::BOTH.map(|family| saved(Self::Nft, family));
        if nft.iter().any(|text| has_hint(text)) {
            return Self::Nft;
        }
        let legacy = match Self::Legacy.is_in_use() {
            true => Family::BOTH.map(|family| saved(Self::Legacy, family)),
            false => Default::default(),
        };
        choose(&nft, &legacy)
    }

    /// The flavour in which a Service proxy has chains. It differs from the host's flavour if the operator chose it. If neither or
    /// both flavours have such chains, the host's flavour.
    pub fn of_proxy() -> Self {
        let host = Self::of_host();
        let other = if host == Self::Nft { Self::Legacy } else { Self::Nft };
        let has_chains = |flavour: Self| {
            let declared = format!(":{} ", names::SERVICES);
            let is_declared = |family| saved(flavour, family).lines().any(|line| line.starts_with(&declared));
            flavour.is_in_use() && Family::BOTH.into_iter().any(is_declared)
        };
        if !has_chains(host) && has_chains(other) { other } else { host }
    }

    /// Whether the kernel may have that table in this flavour.
    pub(crate) fn has_table(self, family: Family, table: &str) -> bool {
        let path = match family {
            Family::V4 => "/proc/thread-self/net/ip_tables_names",
            Family::V6 => "/proc/thread-self/net/ip6_tables_names",
        };
        let names = std::fs::read_to_string(path).unwrap_or_default();
        self == Self::Nft || names.lines().any(|name| name == table)
    }

    /// Whether the kernel may have rules in this flavour. The check does not run the tools, which would load ip_tables into the
    /// kernel.
    pub fn is_in_use(self) -> bool {
        let tables = ["/proc/thread-self/net/ip_tables_names", "/proc/thread-self/net/ip6_tables_names"];
        let used = |path| std::fs::read_to_string(path).is_ok_and(|names| !names.is_empty());
        self == Self::Nft || tables.into_iter().any(used)
    }
}

fn saved(flavour: Flavour, family: Family) -> String {
    let mut text = String::new();
    let read = run(&flavour.program(family, "save"), &[], &mut |line| text.extend([line, "\n"]));
    if read.is_ok() { text } else { String::new() }
}

fn has_hint(saved: &str) -> bool {
    let hints = [":KUBE-IPTABLES-HINT ", ":KUBE-KUBELET-CANARY "];
    saved.lines().any(|line| hints.iter().any(|hint| line.starts_with(hint)))
}

/// Chooses a flavour by the same rules as the wrapper of `iptables` in Kubernetes' images.
fn choose(nft: &[String], legacy: &[String]) -> Flavour {
    if nft.iter().any(|text| has_hint(text)) {
        return Flavour::Nft;
    }
    if legacy.iter().any(|text| has_hint(text)) {
        return Flavour::Legacy;
    }
    let rules =
        |saved: &[String]| saved.iter().flat_map(|text| text.lines()).filter(|line| line.starts_with('-')).count();
    if rules(legacy) > rules(nft) { Flavour::Legacy } else { Flavour::Nft }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_rules_choose() {
        const HINT: &str = "*mangle\n:KUBE-IPTABLES-HINT - [0:0]\n";
        const CANARY: &str = "*mangle\n:KUBE-KUBELET-CANARY - [0:0]\n";
        for (nft, legacy, expected) in [
            ("", "", Flavour::Nft),
            ("", "-A INPUT -j DROP\n", Flavour::Legacy),
            ("-A INPUT -j DROP\n", "-A INPUT -j DROP\n", Flavour::Nft),
            ("-A INPUT -j DROP\n", HINT, Flavour::Legacy),
            (CANARY, "-A INPUT -j DROP\n", Flavour::Nft),
            (HINT, CANARY, Flavour::Nft),
        ] {
            assert_eq!(choose(&[nft.to_owned()], &[legacy.to_owned()]), expected, "{nft} {legacy}");
        }
    }
}
