//! The backends that these tests are about: how each is started, what it has written, and who flushes it.

use std::process::Command;

use localnet_lab::Namespace;

/// A backend, and the tools that show what it has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// Own tables, over netlink
    Nft,
    /// kube-proxy's chains, by the tools that are named so: `legacy` or `nft`
    Iptables(&'static str),
}

impl Backend {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Nft, Self::Iptables("nft"), Self::Iptables("legacy")];

    /// The name of its program.
    pub fn program(self) -> &'static str {
        match self {
            Self::Nft => "localnet-nft",
            Self::Iptables(_) => "localnet-iptables",
        }
    }

    /// What it is told beside what all backends are told.
    pub fn flags(self) -> Vec<&'static str> {
        match self {
            Self::Nft => Vec::new(),
            Self::Iptables(flavour) => vec!["--iptables-flavour", flavour],
        }
    }

    /// All rules of the node that are of its kind, in one order, without counters.
    ///
    /// # Errors
    /// The tools do not list them.
    pub fn listing(self, node: &Namespace) -> anyhow::Result<Vec<String>> {
        let mut parts = Vec::new();
        match self {
            // The kernel tells elements in whatever order.
            Self::Nft => {
                let listing = node.output(Command::new("nft").args(["list", "ruleset"]))?;
                parts.extend(listing.split([' ', ',', '\n', '\t']).map(str::to_owned));
            }
            Self::Iptables(flavour) => {
                for tables in ["iptables", "ip6tables"] {
                    let saved = node.output(&mut Command::new(format!("{tables}-{flavour}-save")))?;
                    let mut table = "";
                    for line in saved.lines().filter(|line| !line.starts_with('#') && *line != "COMMIT") {
                        table = line.strip_prefix('*').unwrap_or(table);
                        let line = line.split(" [").next().unwrap_or(line);
                        // The kernel's own chains are there once somebody has named them.
                        if line.ends_with(" ACCEPT") && line.starts_with(':') {
                            continue;
                        }
                        parts.push(format!("{tables} {table} {line}"));
                    }
                }
            }
        }
        parts.sort();
        Ok(parts)
    }

    /// The same with what the kernel gives to a rule when it is made: rules that are written anew differ. For ip_tables, which
    /// gives nothing, with its order.
    ///
    /// # Errors
    /// The tools do not list them.
    pub fn identity(self, node: &Namespace) -> anyhow::Result<String> {
        let Self::Iptables("legacy") = self else {
            let listing = node.output(Command::new("nft").args(["-a", "-s", "list", "ruleset"]))?;
            // What is said of rules that nft cannot list as its own.
            let kept = listing.lines().filter(|line| !line.trim_start().starts_with('#'));
            return Ok(kept.flat_map(|line| [line, "\n"]).collect());
        };
        let mut all = String::new();
        for tables in ["iptables", "ip6tables"] {
            let saved = node.output(&mut Command::new(format!("{tables}-legacy-save")))?;
            let kept = saved.lines().filter(|line| !line.starts_with('#'));
            all.extend(kept.flat_map(|line| [line.split(" [").next().unwrap_or(line), "\n"]));
        }
        Ok(all)
    }

    /// What others do that keep house: all rules are gone.
    ///
    /// # Errors
    /// The tools do not flush them.
    pub fn flush(self, node: &Namespace) -> anyhow::Result<()> {
        match self {
            Self::Nft => _ = node.output(Command::new("nft").args(["flush", "ruleset"]))?,
            Self::Iptables(flavour) => {
                for tables in ["iptables", "ip6tables"] {
                    for table in ["nat", "filter"] {
                        node.output(Command::new(format!("{tables}-{flavour}")).args(["-w", "-t", table, "-F"]))?;
                    }
                }
            }
        }
        Ok(())
    }
}
