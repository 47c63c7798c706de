//! Reads the plan and the live state of the backends other than nft, both as text. For nft, [`crate::path`] and [`crate::kernel`]
//! do this with types, because they also read single elements.

use std::{
    fmt::Write as _,
    net::{IpAddr, SocketAddr},
};

use localnet_client::{
    inspect::{Inspect, Listing, Place},
    route::Packet,
};
use localnet_iptables::inspect::Inspector as Iptables;
use localnet_ipvs::{Host, IpvsBackend};
use localnet_linux::{
    ipvs::{self, Change, Frontend},
    nft::family_name,
};
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
    /// IPVS.
    Ipvs,
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
        Self::named(world.other.as_deref()?)
    }

    /// The backend with that name, as backends report it.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "iptables" => Some(Self::Iptables),
            "ipvs" => Some(Self::Ipvs),
            _ => None,
        }
    }

    /// Plans the state of `world`, and reads the kernel of this network namespace.
    ///
    /// # Errors
    /// Returns an error if the kernel cannot be read.
    pub async fn read(self, world: &World) -> anyhow::Result<Listings> {
        match self {
            Self::Iptables => read::<Iptables>(world).await,
            Self::Ipvs => read::<IpvsBackend<Host>>(world).await,
        }
    }

    /// Returns the steps of a packet, and whether the kernel holds each, for an answer. If they are unknown, also returns the reason.
    pub async fn path(self, world: &World, packet: &Packet) -> (Vec<PathRow>, Option<String>) {
        match self.read(world).await.and_then(|listings| self.steps(&listings, world, packet)) {
            Ok(steps) => (steps, None),
            Err(error) => (Vec::new(), Some(format!("{error:#}"))),
        }
    }

    /// Returns the steps of a packet, and whether the kernel holds each.
    ///
    /// # Errors
    /// Returns an error if the packet meets a rule that this program cannot evaluate.
    pub fn steps(self, listings: &Listings, world: &World, packet: &Packet) -> anyhow::Result<Vec<PathRow>> {
        match self {
            Self::Iptables => Ok(listings.rules(packet, &world.local)?),
            Self::Ipvs => Ok(listings.objects(packet)),
        }
    }
}

impl Listings {
    /// The planned rules of iptables that a packet meets, in order. `local` are the addresses of the node's interfaces.
    ///
    /// # Errors
    /// Returns an error if the packet meets a rule that this program cannot evaluate.
    pub fn rules(&self, packet: &Packet, local: &[IpAddr]) -> Result<Vec<PathRow>, Unknown> {
        let family = family_name(Family::of(packet.destination));
        let tables = tables(&self.planned, family);
        let row = |(table, rule): (&str, &str)| {
            let (chain, text) = rule.strip_prefix("-A ").and_then(|rule| rule.split_once(' ')).unwrap_or_default();
            self.row(&Place { table: format!("{family} {table}"), name: chain.to_owned() }, text)
        };
        Ok(tables.path(packet, local)?.into_iter().map(row).collect())
    }

    /// The planned objects of IPVS and its tables that name a packet's destination: the virtual server with its destinations, the
    /// address, and the elements of sets and maps.
    pub fn objects(&self, packet: &Packet) -> Vec<PathRow> {
        let to = SocketAddr::new(packet.destination, packet.port);
        let deletion = ipvs::script(&[Change::DeleteServer(Frontend::new(packet.protocol, to))]);
        let server = deletion.trim_start_matches("-D ").trim_end();
        let (address, protocol) = (packet.destination.to_string(), packet.protocol.as_lowercase());
        let element = format!("{address} . {protocol} . {}", packet.port);
        let names = |line: &str| {
            let begins =
                |with: &str| line.strip_prefix(with).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '));
            begins(&address) && !line.contains(" . ")
                || begins(&element)
                || begins(&format!("-A {server}"))
                || begins(&format!("-a {server}"))
        };
        let lines = self.planned.iter().flat_map(|(place, lines)| lines.iter().map(move |line| (place, line)));
        lines.filter(|(_, line)| names(line)).map(|(place, line)| self.row(place, line)).collect()
    }

    /// The row of a planned line.
    fn row(&self, place: &Place, line: &str) -> PathRow {
        let is_held = self.live.get(place).is_some_and(|lines| lines.iter().any(|held| held == line));
        // The family is that of the packet.
        let table = place.table.split(' ').next_back().unwrap_or_default();
        let (place, held) = (format!("{table} {}", place.name), if is_held { "yes" } else { "no" });
        PathRow { place, text: line.to_owned(), handle: None, held, found: None }
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

#[cfg(test)]
mod tests {
    use localnet_client::route::Origin;
    use localnet_proto::Protocol;

    use super::*;

    #[test]
    fn objects_of_ipvs_are_those_of_the_destination() {
        let place = |table: &str, name: &str| Place { table: table.to_owned(), name: name.to_owned() };
        let lines = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
        let planned = Listing::from([
            (
                place("IPVS", "virtual servers"),
                lines(&[
                    "-A -t 172.30.0.1:80 -s rr",
                    "-A -t 172.30.0.1:8080 -s rr",
                    "-A -u 172.30.0.1:80 -s rr",
                    "-a -t 172.30.0.1:80 -r 10.180.0.1:8080 -m -w 1",
                ]),
            ),
            (place("interface", "kube-ipvs0"), lines(&["172.30.0.1", "172.30.0.10"])),
            (place("ip localnet-ipvs", "cluster-ips"), lines(&["172.30.0.1"])),
            (
                place("ip localnet-ipvs", "vips"),
                lines(&["172.30.0.1 . tcp . 80 comment \"shop/web:http\"", "172.30.0.1 . tcp . 8080"]),
            ),
        ]);
        let mut live = planned.clone();
        live.get_mut(&place("IPVS", "virtual servers")).unwrap().pop();
        let packet = Packet {
            source: [10, 180, 0, 9].into(),
            destination: [172, 30, 0, 1].into(),
            protocol: Protocol::Tcp,
            port: 80,
            origin: Origin::Pod,
        };
        let rows = Listings { planned, live }.objects(&packet);
        let rows: Vec<_> = rows.iter().map(|row| format!("{} {}: {}", row.held, row.place, row.text)).collect();
        let expected = [
            "yes IPVS virtual servers: -A -t 172.30.0.1:80 -s rr",
            "no IPVS virtual servers: -a -t 172.30.0.1:80 -r 10.180.0.1:8080 -m -w 1",
            "yes interface kube-ipvs0: 172.30.0.1",
            "yes localnet-ipvs cluster-ips: 172.30.0.1",
            "yes localnet-ipvs vips: 172.30.0.1 . tcp . 80 comment \"shop/web:http\"",
        ];
        assert_eq!(rows, expected);
    }
}
