//! Reads kube-proxy's rules with the tools `nft`, `iptables-save` and `ipset`, and its virtual servers over netlink. Changes nothing.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    process::Command,
};

use anyhow::{Context as _, bail, ensure};
use localnet_client::route::Packet;
use localnet_proto::{ByFamily, Family, Protocol};

use super::{
    Mode, ipset,
    iptables::Tables,
    ipvs::Ipvs,
    nftables::Table,
    verdict::{Unknown, Verdicts},
};
use crate::kernel;

/// The rules of one address family.
#[derive(Debug)]
pub enum OfFamily {
    /// Mode iptables.
    Iptables(Tables),
    /// Mode nftables.
    Nftables(Table),
    /// Mode ipvs.
    Ipvs(Ipvs),
}

/// kube-proxy's rules on this node.
#[derive(Debug)]
pub struct Rules {
    /// kube-proxy's mode.
    pub mode: Mode,
    /// The rules by family; `None` if a family has none.
    pub families: ByFamily<Option<OfFamily>>,
}

impl Rules {
    /// Reads the rules of this node. `bound` are the addresses of kube-ipvs0.
    ///
    /// # Errors
    /// Returns an error if there are no rules of kube-proxy, or those of two modes or flavours, or if they cannot be read.
    pub fn read(bound: &BTreeSet<IpAddr>) -> anyhow::Result<Self> {
        let mut found: Vec<(Mode, &str, ByFamily<Option<OfFamily>>)> = Vec::new();
        let nftables = of_each(|family| {
            let family = if family == Family::V4 { "ip" } else { "ip6" };
            let text = output("nft", &["--json", "list", "table", family, "kube-proxy"])?;
            text.map(|text| Table::parse(&text).context("reading the output of nft")).transpose()
        })?;
        if nftables.values().iter().any(Option::is_some) {
            found.push((Mode::Nftables, "nftables", nftables.map(|table| table.map(OfFamily::Nftables))));
        }
        for flavour in ["legacy", "nft"] {
            let tables = of_each(|family| {
                let program = if family == Family::V4 { "iptables" } else { "ip6tables" };
                let text = output(&format!("{program}-{flavour}-save"), &[])?;
                let read = text.map(|text| (Tables::parse(&text), text));
                Ok(read.filter(|(tables, _)| tables.has_kube_proxy()))
            })?;
            if tables.values().iter().flatten().any(|(tables, _)| tables.is_ipvs()) {
                let saved = tables.map(|read| read.map(|(_, text)| text));
                found.push((Mode::Ipvs, "ipvs", of_ipvs(saved, bound)?));
            } else if tables.values().iter().any(Option::is_some) {
                let tables = tables.map(|read| read.map(|(tables, _)| OfFamily::Iptables(tables)));
                found.push((Mode::Iptables, flavour, tables));
            }
        }
        let names: Vec<&str> = found.iter().map(|(_, name, _)| *name).collect();
        ensure!(
            names.len() < 2,
            "this node has rules of kube-proxy in {}; remove those of the modes that no longer run with `kube-proxy --cleanup`",
            names.join(" and ")
        );
        match found.pop() {
            Some((mode, _, families)) => Ok(Self { mode, families }),
            None => bail!("this node has no rules of kube-proxy in mode nftables, iptables or ipvs"),
        }
    }

    /// What the rules do with a packet. `None` if they do not cover its address family.
    pub fn verdicts(&self, packet: &Packet, local: &[IpAddr]) -> Option<Result<Verdicts, Unknown>> {
        Some(match self.families[Family::of(packet.destination)].as_ref()? {
            OfFamily::Iptables(tables) => tables.verdicts(packet, local),
            OfFamily::Nftables(table) => table.verdicts(packet, local),
            OfFamily::Ipvs(ipvs) => ipvs.verdicts(packet, local),
        })
    }

    /// The destinations that the rules name, without NodePorts.
    pub fn destinations(&self) -> Vec<(SocketAddr, Protocol)> {
        let families = self.families.values().iter().flatten();
        let mut all: Vec<_> = families
            .flat_map(|of| match of {
                OfFamily::Iptables(tables) => tables.destinations().collect::<Vec<_>>(),
                OfFamily::Nftables(table) => table.destinations().collect(),
                OfFamily::Ipvs(ipvs) => ipvs.destinations().collect(),
            })
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// Mode ipvs: adds the sets and virtual servers to rules that `iptables-save` printed.
fn of_ipvs(saved: ByFamily<Option<String>>, bound: &BTreeSet<IpAddr>) -> anyhow::Result<ByFamily<Option<OfFamily>>> {
    let sets = output("ipset", &["save"])?;
    let sets = ipset::parse(&sets.context("kube-proxy's mode is ipvs, and ipset cannot list its sets: install ipset")?);
    let servers = kernel::virtual_servers()?;
    let of = |text: String| OfFamily::Ipvs(Ipvs::new(Tables::with_sets(&text, &sets), &servers, bound.clone()));
    Ok(saved.map(|text| text.map(of)))
}

fn of_each<T>(read: impl Fn(Family) -> anyhow::Result<T>) -> anyhow::Result<ByFamily<T>> {
    Ok(ByFamily::new(read(Family::V4)?, read(Family::V6)?))
}

/// The output of a tool. `None` if the tool is not installed, or fails because there is nothing to list.
fn output(program: &str, arguments: &[&str]) -> anyhow::Result<Option<String>> {
    let output = match Command::new(program).args(arguments).output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        output => output.with_context(|| format!("running {program}"))?,
    };
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(
        !error.contains("not permitted") && !error.contains("denied"),
        "{program} may not read the rules: run this command as root, or with CAP_NET_ADMIN"
    );
    Ok(output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned()))
}
