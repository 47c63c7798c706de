//! [`Inspector`]: lists the desired and the live rules for the command `localnet`.

use std::collections::BTreeSet;

use anyhow::Context as _;
use localnet_client::{
    inspect::{Inspect, Listing, Place},
    vips::Config,
};
use localnet_linux::{addresses::NodeAddresses, nfacct, nft::family_name, sysctl::Settings};
use localnet_proto::{Changes, Family, Snapshot};

use crate::{
    Flavour, Kernel as _, Tools,
    desired::Desired,
    plan::{Dispatch, Table, fixed},
    program,
    save::{dispatch, is_ours, leads_to, normal, split, targets},
};

/// Lists rules with the tools of the flavour in which the backend has its chains.
#[derive(Debug)]
pub struct Inspector {
    desired: Desired,
    tools: Tools,
}

impl Inspector {
    /// Opens the kernel of this network namespace. Must be called in a tokio runtime.
    ///
    /// # Errors
    /// Returns an error if the tools of iptables are missing, or the addresses of the node cannot be read.
    pub async fn open(config: Config) -> anyhow::Result<Self> {
        let mut desired = program::desired(config, program::kernel_is_liberal(&Settings::default()));
        if nfacct::check().is_ok() {
            desired.count_packets();
        }
        desired.vips.set_local_addresses(NodeAddresses::default().list().await?);
        Ok(Self { desired, tools: Tools::find(Flavour::of_proxy())? })
    }
}

impl Inspect for Inspector {
    fn planned(&mut self, state: &Snapshot) -> Listing {
        self.desired.update(state, &Changes::everything());
        let families = Family::BOTH.into_iter().filter(|family| self.tools.has_family(*family));
        families.flat_map(|family| planned(&self.desired, family)).collect()
    }

    async fn live(&mut self) -> anyhow::Result<Listing> {
        let mut all = Listing::new();
        for family in Family::BOTH {
            if self.tools.has_family(family) {
                let mut ours = Ours::new(family);
                let read = self.tools.save(family, &mut |line| ours.line(line));
                read.with_context(|| format!("cannot read the {family} tables"))?;
                all.append(&mut ours.sorted(&self.desired));
            }
        }
        Ok(all)
    }
}

/// Lists the desired rules of a family.
pub fn planned(desired: &Desired, family: Family) -> Listing {
    let mut ours = Ours::new(family);
    desired.listing(family).lines().for_each(|line| ours.line(line));
    ours.sorted(desired)
}

/// Our rules in a text that `iptables-save` prints, or that `iptables-restore` reads.
struct Ours {
    family: Family,
    entries: Vec<(Table, &'static str)>,
    targets: BTreeSet<&'static str>,
    table: Option<Table>,
    listing: Listing,
}

impl Ours {
    fn new(family: Family) -> Self {
        Self { family, entries: fixed::entries(), targets: targets(), table: None, listing: Listing::new() }
    }

    fn place(&self, table: Table, chain: &str) -> Place {
        Place { table: format!("{} {table}", family_name(self.family)), name: chain.to_owned() }
    }

    fn line(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix('*') {
            self.table = Table::named(name);
        }
        let Some(table) = self.table else { return };
        let is_whole = |chain: &str| dispatch(table, chain).is_some() || is_ours(table, chain);
        let is_jump = |chain: &str, rule: &str| self.entries.contains(&(table, chain)) && leads_to(rule, &self.targets);
        if let Some(name) = line.strip_prefix(':').and_then(|rest| rest.split(' ').next()) {
            if is_whole(name) {
                let place = self.place(table, name);
                self.listing.entry(place).or_default();
            }
        } else if let Some((operation, rest)) = line.split_once(' ')
            && let Some((chain, rule)) = split(rest)
            && (is_whole(chain) || is_jump(chain, rule))
        {
            let place = self.place(table, chain);
            let rules = self.listing.entry(place).or_default();
            match operation {
                "-A" => rules.push(normal(rule).into_owned()),
                // The jumps of a plan.
                "-I" => rules.insert(0, rule.to_owned()),
                _ => {}
            }
        }
    }

    /// The result. In a dispatch chain, only the tail has an order.
    fn sorted(mut self, desired: &Desired) -> Listing {
        for chain in Dispatch::ALL {
            let place = self.place(chain.table, chain.name);
            if let Some(rules) = self.listing.get_mut(&place) {
                let own = rules.len().saturating_sub(desired.ruleset(self.family).tail(chain).len());
                rules[..own].sort_unstable();
            }
        }
        self.listing
    }
}
