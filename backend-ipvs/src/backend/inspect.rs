//! Lists the desired and the live state for the command `localnet`: virtual servers as `ipvsadm -S` prints them, the addresses of
//! the interface, and the tables in nft's notation.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use localnet_client::{
    inspect::{Inspect, Listing, Place},
    vips::Config,
};
use localnet_linux::{
    addresses::NodeAddresses,
    ipvs::{self, Scheduler},
    nft::{ChainMatch, Kernel as _, Table, element_line, family_name},
};
use localnet_linux_backend::{elements::live_vips, live::LinuxBackend as _};
use localnet_proto::{Changes, Family, Snapshot};

use super::IpvsBackend;
use crate::{
    Host, Kernel, Options,
    plan::{INTERFACE, server::Plan, sets::SetId},
};

impl IpvsBackend<Host> {
    /// Opens the kernel of this network namespace to inspect it. Must be called in a tokio runtime.
    ///
    /// The backend does not report its scheduler, so the most frequent one of the virtual servers on its interface counts as
    /// configured.
    ///
    /// # Errors
    /// Returns an error if the kernel lacks IPVS, or if it cannot be read.
    pub async fn open(config: Config) -> anyhow::Result<Self> {
        let mut host = Host::open()?;
        let mut counts: BTreeMap<Scheduler, usize> = BTreeMap::new();
        let addresses = host.addresses().await?.unwrap_or_default();
        for server in host.heads()?.into_iter().filter(|server| addresses.contains(&server.frontend.address.ip())) {
            *counts.entry(server.scheduler).or_default() += 1;
        }
        let most = counts.into_iter().max_by_key(|(_, count)| *count).map(|(scheduler, _)| scheduler);
        let options = Options { scheduler: most.unwrap_or_default(), ..Options::default() };
        let mut backend = Self::new(config, options, host);
        backend.set_local_addresses(NodeAddresses::except(INTERFACE).list().await?);
        Ok(backend)
    }
}

impl Inspect for IpvsBackend<Host> {
    fn planned(&mut self, state: &Snapshot) -> Listing {
        self.planned_lines(state)
    }

    async fn live(&mut self) -> anyhow::Result<Listing> {
        self.live_lines().await
    }
}

impl<K: Kernel> IpvsBackend<K> {
    pub(super) fn planned_lines(&mut self, state: &Snapshot) -> Listing {
        self.desired.update(state, &Changes::everything());
        let families = self.families();
        let is_of_host = |address: IpAddr| families.contains(&Family::of(address));
        let servers = self.desired.servers().wanted().filter(|plan| is_of_host(plan.server.frontend.address.ip()));
        let servers = ipvs::script(&servers.flat_map(Plan::changes).collect::<Vec<_>>());
        let addresses = self.desired.wanted_addresses().filter(|address| is_of_host(*address));
        let mut listing = Listing::from([of_servers(&servers), of_addresses(addresses)]);
        for content in self.desired.content() {
            let family = content.table.family;
            if !families.contains(&family) {
                continue;
            }
            for (set, elements) in &content.sets {
                let lines = elements.iter().map(|element| element_line(set, element));
                listing.insert(place(&content.table, &set.name), sorted(lines));
            }
            for chain in &content.chains {
                let rules = chain.rules.iter().map(|rule| rule.line(family));
                listing.insert(place(&content.table, &chain.name), rules.collect());
            }
        }
        listing
    }

    pub(super) async fn live_lines(&mut self) -> anyhow::Result<Listing> {
        let (mut listing, mut ledger) = (Listing::new(), BTreeSet::new());
        for family in self.families() {
            let table = self.desired.table(family);
            let Some(found) = self.kernel.nft().read(table.table(), &|name| table.chain(name))? else { continue };
            ledger.extend(live_vips(&found, &[SetId::Vips]));
            for (set, elements) in found.sets.iter().flatten() {
                let lines = elements.iter().map(|element| element_line(set, element));
                listing.insert(place(table.table(), &set.name), sorted(lines));
            }
            for (name, matched) in &found.chains {
                let rules = match (matched, table.chain(name)) {
                    (ChainMatch::Exact, Some(chain)) => chain.rules.iter().map(|rule| rule.line(family)).collect(),
                    _ => vec!["rules that differ from the plan".to_owned()],
                };
                listing.insert(place(table.table(), name), rules);
            }
        }
        let addresses = self.kernel.addresses().await?.unwrap_or_default();
        let servers = self.kernel.servers()?;
        let mut ours = self.ours(servers, &ledger, &addresses);
        for state in &mut ours {
            let frontend = state.server.frontend;
            let serves = |address: &SocketAddr| self.desired.servers().serves(&frontend, address);
            // A destination that is no longer desired drains.
            state.destinations.retain(|one| one.destination.weight > 0 || serves(&one.destination.address));
        }
        listing.extend([of_servers(&ipvs::listing(&ours)), of_addresses(addresses)]);
        Ok(listing)
    }
}

fn of_servers(lines: &str) -> (Place, Vec<String>) {
    let place = Place { table: "IPVS".to_owned(), name: "virtual servers".to_owned() };
    (place, sorted(lines.lines().map(str::to_owned)))
}

fn of_addresses(addresses: impl IntoIterator<Item = IpAddr>) -> (Place, Vec<String>) {
    let place = Place { table: "interface".to_owned(), name: INTERFACE.to_owned() };
    (place, sorted(addresses.into_iter().map(|address| address.to_string())))
}

fn place(table: &Table, name: &str) -> Place {
    Place { table: format!("{} {}", family_name(table.family), table.name), name: name.to_owned() }
}

fn sorted(lines: impl Iterator<Item = String>) -> Vec<String> {
    let mut lines: Vec<String> = lines.collect();
    lines.sort_unstable();
    lines
}
