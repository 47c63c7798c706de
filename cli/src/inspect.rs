//! Reads the plan and the live state of the backends other than nft, both as text. For nft, [`crate::path`] and [`crate::kernel`]
//! do this with types, because they also read single elements.

use std::{fmt::Write as _, net::IpAddr};

use localnet_client::{
    inspect::{Inspect, Listing, Place},
    route::Packet,
};
use localnet_iptables::inspect::Inspector as Iptables;
use localnet_linux::nft::family_name;
use localnet_proto::Family;

use crate::{
    explain::PathRow,
    shadow::{iptables::Tables, verdict::Unknown},
    world::World,
};

/// A backend whose plan and live state are read as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inspected {
    /// iptables, with either flavour of the tools.
    Iptables,
}

/// What the kernel should hold, and what it holds.
#[derive(Debug)]
pub struct Listings {
    /// The plan for the state.
    pub planned: Listing,
    /// The live state.
    pub live: Listing,
}

impl Inspected {
    /// The backend that programs this machine; `None` if it is nft, or if its kernel objects cannot be read.
    pub fn of(world: &World) -> Option<Self> {
        (world.other.as_deref()? == "iptables").then_some(Self::Iptables)
    }

    /// Plans the state of `world`, and reads the kernel of this network namespace.
    ///
    /// # Errors
    /// Returns an error if the kernel cannot be read.
    pub async fn read(self, world: &World) -> anyhow::Result<Listings> {
        match self {
            Self::Iptables => read::<Iptables>(world).await,
        }
    }

    /// Returns the steps of a packet, and whether the kernel holds each, for an answer. If they are unknown, also returns the reason.
    pub async fn path(self, world: &World, packet: &Packet) -> (Vec<PathRow>, Option<String>) {
        match self.read(world).await.and_then(|listings| Ok(listings.path(packet, &world.local)?)) {
            Ok(steps) => (steps, None),
            Err(error) => (Vec::new(), Some(format!("{error:#}"))),
        }
    }
}

impl Listings {
    /// The planned rules of iptables that a packet meets, in order, each with whether the kernel holds it. `local` are the addresses of
    /// the node's interfaces.
    ///
    /// # Errors
    /// Returns an error if the packet meets a rule that this program cannot evaluate.
    pub fn path(&self, packet: &Packet, local: &[IpAddr]) -> Result<Vec<PathRow>, Unknown> {
        let family = family_name(Family::of(packet.destination));
        let tables = tables(&self.planned, family);
        let row = |(table, rule): (&str, &str)| {
            let (chain, text) = rule.strip_prefix("-A ").and_then(|rule| rule.split_once(' ')).unwrap_or_default();
            let live = self.live.get(&Place { table: format!("{family} {table}"), name: chain.to_owned() });
            let is_held = live.is_some_and(|rules| rules.iter().any(|held| held == text));
            let held = if is_held { "yes" } else { "no" };
            PathRow { place: format!("{table} {chain}"), text: text.to_owned(), handle: None, held, found: None }
        };
        Ok(tables.path(packet, local)?.into_iter().map(row).collect())
    }
}

/// The iptables rules of a family (`ip` or `ip6`), for evaluation.
pub fn tables(listing: &Listing, family: &str) -> Tables {
    let mut text = String::new();
    for (place, rules) in listing {
        let Some(table) = place.table.strip_prefix(family).and_then(|table| table.strip_prefix(' ')) else { continue };
        // Writing to a string cannot fail.
        _ = writeln!(text, "*{table}");
        rules.iter().for_each(|rule| _ = writeln!(text, "-A {} {rule}", place.name));
    }
    Tables::parse(&text)
}

async fn read<I: Inspect>(world: &World) -> anyhow::Result<Listings> {
    let mut inspector = I::open(world.configuration.config.clone()).await?;
    let planned = inspector.planned(&world.state);
    Ok(Listings { planned, live: inspector.live().await? })
}
