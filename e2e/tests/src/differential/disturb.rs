//! Disturbs our backend between two states: `kill -9`, and edits of the kernel's rules by another program. Then the packets of
//! the state are sent again, and their outcomes must be the same.

use std::{fmt, process::Command};

use crate::Backend;
use anyhow::Context as _;
use localnet_lab::{Namespace, Sandbox};
use serde_json::{Value, json};

use super::random::Random;

/// A disturbance. If the backend is killed, the edit happens before it is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Disturbance {
    pub(crate) kill: bool,
    pub(crate) edit: Option<Edit>,
}

/// An edit of the rules by another program, in one transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Edit {
    /// Deletes an element of a set or map, a destination of IPVS, or the pin of an eBPF map. iptables has neither, so a rule is
    /// deleted.
    Element,
    /// Deletes a rule, a virtual server of IPVS, or the pin of an eBPF program.
    Rule,
    /// Deletes all rules of a table, all virtual servers of IPVS, or all pins.
    Flush,
    /// Deletes the table with everything that it has stored, or the interface of the ipvs backend. iptables needs its tables, so
    /// one of them is flushed.
    Table,
}

/// An edit that was made.
#[derive(Clone, Debug, Default)]
pub(crate) struct Edited {
    /// The edit, for messages.
    pub(crate) edit: String,
    /// Whether the edit may have removed the clients of session affinity.
    pub(crate) forgets: bool,
    /// Whether the edit may have ended flows.
    pub(crate) cuts: bool,
}

/// The percentage of states without a disturbance.
const QUIET: usize = 40;

impl Disturbance {
    pub(crate) fn random(random: &mut Random) -> Option<Self> {
        if random.percent(QUIET) {
            return None;
        }
        let edit = random.weighted(&[
            (2, None),
            (2, Some(Edit::Element)),
            (2, Some(Edit::Rule)),
            (1, Some(Edit::Flush)),
            (1, Some(Edit::Table)),
        ]);
        Some(Self { kill: edit.is_none() || random.percent(40), edit })
    }
}

impl fmt::Display for Disturbance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kill, edit } = self;
        match (kill, edit) {
            (true, Some(edit)) => write!(f, "{edit:?} while killed"),
            (false, Some(edit)) => write!(f, "{edit:?}"),
            (_, None) => f.write_str("Killed"),
        }
    }
}

impl Edit {
    /// Makes the edit at a place that `random` selects.
    pub(crate) fn make(self, backend: Backend, node: &Namespace, random: &mut Random) -> anyhow::Result<Edited> {
        match backend {
            Backend::Nft => self.by_nft("localnet", node, random),
            Backend::Iptables(flavour) => self.by_iptables(flavour, node, random),
            Backend::Ipvs if random.percent(50) => self.by_nft("localnet-ipvs", node, random),
            Backend::Ipvs => self.by_ipvsadm(node, random),
            Backend::Ebpf => self.by_pins(node, random),
        }
    }

    /// Edits the tables with this name.
    fn by_nft(self, name: &str, node: &Namespace, random: &mut Random) -> anyhow::Result<Edited> {
        let listing: Value = serde_json::from_str(&node.output(Command::new("nft").args(["-j", "list", "ruleset"]))?)?;
        let of_kinds = |kinds: &'static [&'static str]| {
            let objects = listing["nftables"].as_array().into_iter().flatten();
            let all = objects.flat_map(move |object| kinds.iter().filter_map(|kind| object.get(kind)));
            all.filter(move |object| object["table"] == name || object["name"] == name)
        };
        let (kind, mut all): (_, Vec<Value>) = match self {
            Self::Element => ("element", of_kinds(&["set", "map"]).flat_map(elements).collect()),
            Self::Rule => ("rule", of_kinds(&["rule"]).map(|rule| only(rule, "chain", "handle")).collect()),
            Self::Flush | Self::Table => {
                ("table", of_kinds(&["table"]).map(|table| only(table, "name", "name")).collect())
            }
        };
        // The kernel lists elements in any order.
        all.sort_by_cached_key(Value::to_string);
        anyhow::ensure!(!all.is_empty(), "there is no {kind} to edit: {listing}");
        let (does, object) = (if self == Self::Flush { "flush" } else { "delete" }, random.pick(&all));
        let command = json!({ "nftables": [{ does: { kind: object } }] }).to_string();
        node.output_with_input(Command::new("nft").args(["-j", "-f", "-"]), &command)?;
        let is_memory = object["name"].as_str().is_some_and(|name| name.starts_with("affinity"));
        let forgets = self == Self::Table || self == Self::Element && is_memory;
        Ok(Edited { edit: command, forgets, cuts: false })
    }

    /// Deletes the pin of a map or of a program, or all pins.
    fn by_pins(self, node: &Namespace, random: &mut Random) -> anyhow::Result<Edited> {
        let pins =
            node.output(Command::new("find").args([Sandbox::BPFFS, "-type", "f", "-path", "*/localnet-ebpf/*"]))?;
        let (mut all, kind): (Vec<&str>, _) = match self {
            Self::Element => (pins.lines().collect(), "/maps-"),
            Self::Rule => (pins.lines().collect(), "/links-"),
            Self::Flush | Self::Table => return Self::without(&pins.lines().collect::<Vec<_>>(), node),
        };
        all.retain(|pin| pin.contains(kind));
        all.sort_unstable();
        anyhow::ensure!(!all.is_empty(), "there is no pin in {kind}: {pins}");
        Self::without(&[*random.pick(&all)], node)
    }

    /// Deletes pins. If a map has no pin, the backend creates all maps again.
    fn without(pins: &[&str], node: &Namespace) -> anyhow::Result<Edited> {
        node.output(Command::new("rm").args(pins))?;
        let forgets = pins.iter().any(|pin| pin.contains("/maps-"));
        Ok(Edited { edit: format!("deleted {pins:?}"), forgets, cuts: false })
    }

    /// Deletes a destination, a virtual server, all of them, or the interface with the addresses of VIPs.
    fn by_ipvsadm(self, node: &Namespace, random: &mut Random) -> anyhow::Result<Edited> {
        let listing = node.output(Command::new("ipvsadm").args(["-S", "-n"]))?;
        let of_kind = |kind: &'static str| {
            let mut all: Vec<Vec<&str>> = listing.lines().map(|line| line.split_whitespace().collect()).collect();
            all.retain(|words| words.first() == Some(&kind));
            // The kernel lists servers and destinations in any order.
            all.sort_unstable();
            all
        };
        let mut command = Command::new("ipvsadm");
        match self {
            // `-a -t VIP -r ENDPOINT … -w WEIGHT`
            Self::Element => {
                let mut all = of_kind("-a");
                // The backend does not restore a draining endpoint that it is about to delete itself.
                all.retain(|words| words.last() != Some(&"0"));
                anyhow::ensure!(!all.is_empty(), "there is no destination to delete: {listing}");
                command.arg("-d").args(&random.pick(&all)[1..5]);
            }
            // `-A -t VIP …`
            Self::Rule => {
                let all = of_kind("-A");
                anyhow::ensure!(!all.is_empty(), "there is no virtual server to delete: {listing}");
                command.arg("-D").args(&random.pick(&all)[1..3]);
            }
            Self::Flush => _ = command.arg("-C"),
            Self::Table => {
                command = Command::new("ip");
                command.args(["link", "delete", "kube-ipvs0"]);
            }
        }
        node.output(&mut command)?;
        let ends = self != Self::Table;
        Ok(Edited { edit: format!("{command:?}"), forgets: ends, cuts: ends })
    }

    fn by_iptables(self, flavour: &str, node: &Namespace, random: &mut Random) -> anyhow::Result<Edited> {
        let (tools, table) = (*random.pick(&["iptables", "ip6tables"]), *random.pick(&["nat", "filter"]));
        let mut command = Command::new(format!("{tools}-{flavour}"));
        command.args(["-w", "-t", table]);
        let is_flush = matches!(self, Self::Flush | Self::Table);
        if is_flush {
            command.arg("-F");
        } else {
            let saved = node.output(Command::new(format!("{tools}-{flavour}-save")).args(["-t", table]))?;
            let rules = saved.lines().filter_map(|line| line.strip_prefix("-A ")?.split(' ').next());
            let chains: Vec<&str> = rules.collect();
            let at = random.below(chains.len());
            let chain = *chains.get(at).with_context(|| format!("there is no rule to delete: {saved}"))?;
            let number = chains[..=at].iter().filter(|other| **other == chain).count();
            command.args(["-D", chain, &number.to_string()]);
        }
        node.output(&mut command)?;
        // A list of clients is deleted with the last rule that refers to it.
        Ok(Edited { edit: format!("{command:?}"), forgets: is_flush && table == "nat", cuts: false })
    }
}

/// The elements of a set or map, as objects for a command.
fn elements(set: &Value) -> impl Iterator<Item = Value> {
    let elements = set["elem"].as_array().into_iter().flatten();
    elements.map(
        |element| json!({ "family": set["family"], "table": set["table"], "name": set["name"], "elem": [element] }),
    )
}

/// The fields of an object that a command needs.
fn only(object: &Value, one: &str, other: &str) -> Value {
    let mut named = json!({ "family": object["family"], one: object[one], other: object[other] });
    if let Some(table) = object.get("table") {
        named["table"] = table.clone();
    }
    named
}
