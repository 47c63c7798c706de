//! The kernel of the tests: an IPVS that refuses what the real one refuses, an interface, and enough of nf_tables to read a table
//! back. Tests on a real kernel verify what nf_tables refuses.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use localnet_linux::{
    dummy::{self, Changed},
    ipvs::{
        self, Applied, Change, Connections, Destination, DestinationState, Frontend, Refused, ServerState,
        VirtualServer,
    },
    nft::{
        self, Chain, ChainMatch, Change as Rules, Element, ElementKey, Error, LiveTable, Name, Set, Table, Transaction,
        TransactionSize,
    },
};
use localnet_proto::Family;

use crate::{kernel::Kernel, plan::INTERFACE};

/// The live state, and a log of the requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct FakeKernel {
    pub(crate) servers: BTreeMap<Frontend, FakeServer>,
    pub(crate) addresses: Option<BTreeSet<IpAddr>>,
    pub(crate) tables: BTreeMap<Table, FakeTable>,
    /// The schedulers that the kernel lacks.
    pub(crate) lacks: BTreeSet<String>,
    /// The destinations that the kernel refuses.
    pub(crate) hated: BTreeSet<SocketAddr>,
    /// The addresses that the kernel refuses to add to the interface.
    pub(crate) hated_addresses: BTreeSet<IpAddr>,
    /// Whether refusals report a shortage of memory, which the refused object did not cause.
    pub(crate) short: bool,
    /// The family whose rules the kernel refuses.
    pub(crate) no_rules: Option<Family>,
    /// After how many more transactions the answer to one is lost.
    pub(crate) unanswered_after: Option<usize>,
    /// The requests as text, one line for each.
    pub(crate) log: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FakeServer {
    pub(crate) server: VirtualServer,
    pub(crate) destinations: BTreeMap<SocketAddr, (Destination, u32)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FakeTable {
    pub(crate) chains: BTreeMap<Name, Chain>,
    pub(crate) sets: BTreeMap<Name, (Arc<Set>, BTreeMap<ElementKey, Element>)>,
}

const MISSING: i32 = 2;
const NO_SERVER: i32 = 3;
const EXISTS: i32 = 17;
const INVALID: i32 = 22;
const NO_MEMORY: i32 = 12;

impl FakeKernel {
    fn make(&mut self, change: &Change) -> Result<(), i32> {
        let lacks = |server: &VirtualServer| self.lacks.contains(server.scheduler.as_str());
        match change {
            Change::AddServer(server) | Change::UpdateServer(server) if lacks(server) => return Err(MISSING),
            Change::AddServer(server) => {
                if self.servers.contains_key(&server.frontend) {
                    return Err(EXISTS);
                }
                let fake = FakeServer { server: server.clone(), destinations: BTreeMap::new() };
                self.servers.insert(server.frontend, fake);
            }
            Change::UpdateServer(server) => {
                self.servers.get_mut(&server.frontend).ok_or(NO_SERVER)?.server = server.clone();
            }
            Change::DeleteServer(frontend) => _ = self.servers.remove(frontend).ok_or(NO_SERVER)?,
            Change::AddDestination(frontend, one) => {
                let all = &mut self.servers.get_mut(frontend).ok_or(NO_SERVER)?.destinations;
                if self.hated.contains(&one.address) {
                    return Err(if self.short { NO_MEMORY } else { INVALID });
                }
                if all.contains_key(&one.address) {
                    return Err(EXISTS);
                }
                all.insert(one.address, (*one, 0));
            }
            Change::UpdateDestination(frontend, one) => {
                let all = &mut self.servers.get_mut(frontend).ok_or(NO_SERVER)?.destinations;
                all.get_mut(&one.address).ok_or(MISSING)?.0 = *one;
            }
            Change::DeleteDestination(frontend, one) => {
                let all = &mut self.servers.get_mut(frontend).ok_or(NO_SERVER)?.destinations;
                _ = all.remove(one).ok_or(MISSING)?;
            }
        }
        Ok(())
    }

    fn table(&mut self, table: &Table) -> &mut FakeTable {
        self.tables.get_mut(table).expect("the table exists")
    }

    fn chain(&mut self, table: &Table, name: &Name) -> &mut Chain {
        self.table(table).chains.get_mut(name).expect("the chain exists")
    }

    fn set(&mut self, table: &Table, set: &Set) -> &mut BTreeMap<ElementKey, Element> {
        &mut self.table(table).sets.get_mut(&set.name).expect("the set exists").1
    }

    fn write(&mut self, change: &Rules) {
        match change {
            Rules::AddTable(table) => _ = self.tables.entry(table.clone()).or_default(),
            Rules::DeleteTable(table) => _ = self.tables.remove(table).expect("the table exists"),
            Rules::AddChain(table, chain) => {
                let chains = &mut self.table(table).chains;
                chains.entry(chain.name.clone()).or_insert_with(|| Chain::clone(chain));
            }
            Rules::FlushChain(table, name) => self.chain(table, name).rules.clear(),
            Rules::DeleteChain(table, name) => {
                assert!(self.chain(table, name).rules.is_empty(), "rules are deleted before their chain");
                self.table(table).chains.remove(name);
            }
            Rules::AddRule(table, name, rule) => self.chain(table, name).rules.push(rule.clone()),
            Rules::AddSet(table, set) => {
                _ = self.table(table).sets.entry(set.name.clone()).or_insert_with(|| (set.clone(), BTreeMap::new()));
            }
            Rules::AddElements(table, set, elements) => {
                let held = self.set(table, set);
                held.extend(elements.iter().map(|element| (element.key.clone(), element.clone())));
            }
            Rules::DeleteElements(table, set, elements) => {
                let held = self.set(table, set);
                elements.iter().for_each(|one| _ = held.remove(&one.key).expect("the element exists"));
            }
            other => panic!("the fake does not support {other:?}"),
        }
    }
}

impl nft::Kernel for FakeKernel {
    fn apply(&mut self, transaction: &Transaction) -> Result<TransactionSize, Error> {
        let of_family =
            |change: &Rules| matches!(change, Rules::AddTable(table) if Some(table.family) == self.no_rules);
        if transaction.changes().iter().any(of_family) {
            return Err(Error::TransactionRefused { errno: NO_MEMORY, message: None });
        }
        transaction.changes().iter().for_each(|change| self.write(change));
        self.log.push("rules".to_owned());
        let is_lost = self.unanswered_after == Some(0);
        self.unanswered_after = self.unanswered_after.and_then(|transactions| transactions.checked_sub(1));
        if is_lost { Err(Error::Unanswered) } else { Ok(TransactionSize::default()) }
    }

    fn read(&mut self, table: &Table, wanted: &dyn Fn(&str) -> Option<Arc<Chain>>) -> Result<Option<LiveTable>, Error> {
        let Some(found) = self.tables.get(table) else { return Ok(None) };
        let sets = found.sets.values().map(|(set, elements)| Some((set.clone(), elements.values().cloned().collect())));
        let chains = found.chains.values().map(|found| {
            let comparison = match wanted(&found.name) {
                Some(chain) if *chain == *found => ChainMatch::Exact,
                Some(_) => ChainMatch::RulesDiffer,
                None => ChainMatch::NotDesired,
            };
            (found.name.clone(), comparison)
        });
        Ok(Some(LiveTable { sets: sets.collect(), chains: chains.collect() }))
    }

    fn elements(&mut self, _table: &Table, _set: &Set) -> Result<Option<Vec<Element>>, Error> {
        Ok(None)
    }

    fn has_family(&self, _family: Family) -> bool {
        true
    }
}

impl Kernel for FakeKernel {
    fn nft(&mut self) -> &mut impl nft::Kernel {
        self
    }

    fn servers(&mut self) -> Result<Vec<ServerState>, ipvs::Error> {
        let state = |fake: &FakeServer| ServerState {
            server: fake.server.clone(),
            destinations: fake.destinations.values().map(destination_state).collect(),
        };
        Ok(self.servers.values().map(state).collect())
    }

    fn heads(&mut self) -> Result<Vec<VirtualServer>, ipvs::Error> {
        Ok(self.servers.values().map(|fake| fake.server.clone()).collect())
    }

    fn destinations(&mut self, frontend: &Frontend) -> Result<Vec<DestinationState>, ipvs::Error> {
        let destinations = self.servers.get(frontend).map(|fake| fake.destinations.values().map(destination_state));
        Ok(destinations.into_iter().flatten().collect())
    }

    fn change(&mut self, changes: &[Change]) -> Result<Applied, ipvs::Error> {
        let mut refused = Vec::new();
        for (index, change) in changes.iter().enumerate() {
            if let Err(errno) = self.make(change) {
                refused.push(Refused::new(index, change, errno));
            }
        }
        self.log.push(ipvs::script(changes).trim_end().replace('\n', "; "));
        Ok(Applied { changes: changes.len(), batches: 1, refused })
    }

    async fn addresses(&mut self) -> Result<Option<BTreeSet<IpAddr>>, dummy::Error> {
        Ok(self.addresses.clone())
    }

    async fn bind(&mut self, add: Vec<IpAddr>, remove: Vec<IpAddr>) -> Result<Changed, dummy::Error> {
        self.log.push(format!("addresses +{add:?} -{remove:?}"));
        let held = self.addresses.get_or_insert_default();
        let (hated, taken): (Vec<_>, Vec<_>) = add.into_iter().partition(|one| self.hated_addresses.contains(one));
        held.extend(taken);
        remove.iter().for_each(|address| _ = held.remove(address));
        let errno = if self.short { NO_MEMORY } else { INVALID };
        let refused = |address| dummy::Refused::new(address, true, INTERFACE, Some(errno), "hated".to_owned());
        Ok(Changed { refused: hated.into_iter().map(refused).collect(), ..Changed::default() })
    }

    async fn delete_interface(&mut self) -> Result<(), dummy::Error> {
        self.addresses = None;
        Ok(())
    }
}

fn destination_state((destination, active): &(Destination, u32)) -> DestinationState {
    let connections = Connections { active: *active, ..Connections::default() };
    DestinationState { destination: *destination, connections }
}
