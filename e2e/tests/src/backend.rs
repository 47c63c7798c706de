//! The backends under test: how to start each of them, list its rules and flush them.

use std::process::Command;

use localnet_lab::{Namespace, Sandbox};

use crate::program;

/// A backend, and the tools that list its rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// `localnet-nft`: its own tables, over netlink.
    Nft,
    /// `localnet-iptables`: kube-proxy's chains, with the tools of this flavour: `legacy` or `nft`.
    Iptables(&'static str),
    /// `localnet-ipvs`: IPVS, and its own tables. It needs a kernel with IPVS.
    Ipvs,
    /// `localnet-ebpf`: its own programs and maps, in a [`Sandbox`].
    Ebpf,
}

impl Backend {
    /// The backends that run on every kernel.
    pub const ALL: [Self; 3] = [Self::Nft, Self::Iptables("nft"), Self::Iptables("legacy")];

    /// The name of the backend's program.
    pub fn program(self) -> &'static str {
        match self {
            Self::Nft => "localnet-nft",
            Self::Iptables(_) => "localnet-iptables",
            Self::Ipvs => "localnet-ipvs",
            Self::Ebpf => "localnet-ebpf",
        }
    }

    /// The flags that only this backend needs.
    pub fn flags(self) -> Vec<&'static str> {
        match self {
            Self::Nft | Self::Ipvs => Vec::new(),
            // Its programs serve only the processes of the node.
            Self::Ebpf => vec!["--nft"],
            Self::Iptables(flavour) => vec!["--iptables-flavour", flavour],
        }
    }

    /// All rules of the node of the backend's kind, in a stable order, without counters.
    ///
    /// # Errors
    /// Returns an error if the tools fail.
    pub fn listing(self, node: &Namespace) -> anyhow::Result<Vec<String>> {
        let mut parts = Vec::new();
        if self == Self::Ipvs {
            parts = virtual_servers(node)?;
        }
        match self {
            // The kernel lists elements in any order.
            Self::Nft | Self::Ipvs => {
                let listing = node.output(Command::new("nft").args(["list", "ruleset"]))?;
                parts.extend(listing.split([' ', ',', '\n', '\t']).map(str::to_owned));
            }
            Self::Ebpf => {
                let served = node.output(Command::new(program(self.program())?).arg("dump"))?;
                parts.extend(served.lines().map(str::to_owned));
            }
            Self::Iptables(flavour) => {
                for tables in ["iptables", "ip6tables"] {
                    let saved = node.output(&mut Command::new(format!("{tables}-{flavour}-save")))?;
                    let mut table = "";
                    for line in saved.lines().filter(|line| !line.starts_with('#') && *line != "COMMIT") {
                        table = line.strip_prefix('*').unwrap_or(table);
                        let line = line.split(" [").next().unwrap_or(line);
                        // The kernel's own chains exist only after their first use.
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

    /// The listing with the handles that the kernel assigns to rules, so that rewritten rules differ. ip_tables has no handles,
    /// so its listing keeps the order of the rules. eBPF programs and maps have the inodes of their pins.
    ///
    /// # Errors
    /// Returns an error if the tools fail.
    pub fn identity(self, node: &Namespace) -> anyhow::Result<String> {
        if self == Self::Ebpf {
            let pins = node.output(Command::new("find").args([Sandbox::BPFFS, "-printf", "%p %i\n"]))?;
            return Ok(pins + &self.listing(node)?.join("\n"));
        }
        let Self::Iptables("legacy") = self else {
            let listing = node.output(Command::new("nft").args(["-a", "-s", "list", "ruleset"]))?;
            // Skip the comments about rules that nft cannot list.
            let kept = listing.lines().filter(|line| !line.trim_start().starts_with('#'));
            let rules: String = kept.flat_map(|line| [line, "\n"]).collect();
            return Ok(if self == Self::Ipvs { virtual_servers(node)?.join("\n") + "\n" + &rules } else { rules });
        };
        let mut all = String::new();
        for tables in ["iptables", "ip6tables"] {
            let saved = node.output(&mut Command::new(format!("{tables}-legacy-save")))?;
            let kept = saved.lines().filter(|line| !line.starts_with('#'));
            all.extend(kept.flat_map(|line| [line.split(" [").next().unwrap_or(line), "\n"]));
        }
        Ok(all)
    }

    /// Removes all rules, as other programs on a node may do.
    ///
    /// # Errors
    /// Returns an error if the tools fail.
    pub fn flush(self, node: &Namespace) -> anyhow::Result<()> {
        match self {
            Self::Nft => _ = node.output(Command::new("nft").args(["flush", "ruleset"]))?,
            Self::Ebpf => {
                _ = node.output(Command::new("rm").args(["-r", &format!("{}/localnet-ebpf", Sandbox::BPFFS)]))?;
            }
            Self::Ipvs => {
                node.output(Command::new("ipvsadm").arg("-C"))?;
                node.output(Command::new("nft").args(["flush", "ruleset"]))?;
            }
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

/// The virtual servers and destinations, sorted, and the addresses of VIPs.
fn virtual_servers(node: &Namespace) -> anyhow::Result<Vec<String>> {
    let listing = node.output(Command::new("ipvsadm").args(["-S", "-n"]))?;
    let mut lines: Vec<String> = listing.lines().map(|line| line.trim_end().to_owned()).collect();
    lines.sort();
    lines.push(node.output(Command::new("ip").args(["-o", "address", "show", "dev", "kube-ipvs0"]))?);
    Ok(lines)
}
