//! The kernel of the tests: an IPVS that refuses what the real one refuses, an interface, and nf_tables in memory.

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
        self, Chain, Change as Rules, Element, Error, LiveTable, Set, Table, Transaction, TransactionSize,
        testing::FakeKernel as FakeNft,
    },
};
use localnet_proto::Family;

use crate::{kernel::Kernel, plan::INTERFACE};

/// The live state, and a log of the requests.
#[derive(Clone, Debug, Default)]
pub struct FakeKernel {
    /// The virtual servers.
    pub servers: BTreeMap<Frontend, FakeServer>,
    /// The addresses of the interface; `None` if it does not exist.
    pub addresses: Option<BTreeSet<IpAddr>>,
    /// nf_tables.
    pub nft: FakeNft,
    /// The schedulers that the kernel lacks.
    pub lacks: BTreeSet<String>,
    /// The destinations that the kernel refuses.
    pub hated: BTreeSet<SocketAddr>,
    /// The addresses that the kernel refuses to add to the interface.
    pub hated_addresses: BTreeSet<IpAddr>,
    /// Whether refusals report a shortage of memory, which the refused object did not cause.
    pub short: bool,
    /// Whether the kernel lacks the memory to delete virtual servers and destinations.
    pub keeps: bool,
    /// The family whose rules the kernel refuses.
    pub no_rules: Option<Family>,
    /// After how many more transactions the answer to one is lost.
    pub unanswered_after: Option<usize>,
    /// The requests as text, one line for each.
    pub log: Vec<String>,
}

/// A virtual server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FakeServer {
    /// The virtual server itself.
    pub server: VirtualServer,
    /// Its destinations, each with the number of its active connections.
    pub destinations: BTreeMap<SocketAddr, (Destination, u32)>,
}

impl FakeServer {
    /// The virtual server with its destinations.
    pub fn state(&self) -> ServerState {
        let destinations = self.destinations.values().map(destination_state).collect();
        ServerState { server: self.server.clone(), destinations }
    }
}

const MISSING: i32 = 2;
const NO_SERVER: i32 = 3;
const EXISTS: i32 = 17;
const INVALID: i32 = 22;
const NO_MEMORY: i32 = 12;

impl FakeKernel {
    /// The virtual servers with their destinations.
    pub fn states(&self) -> Vec<ServerState> {
        self.servers.values().map(FakeServer::state).collect()
    }

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
            Change::DeleteServer(_) | Change::DeleteDestination(..) if self.keeps => return Err(NO_MEMORY),
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
}

impl nft::Kernel for FakeKernel {
    fn apply(&mut self, transaction: &Transaction) -> Result<TransactionSize, Error> {
        let of_family =
            |change: &Rules| matches!(change, Rules::AddTable(table) if Some(table.family) == self.no_rules);
        if transaction.changes().iter().any(of_family) {
            return Err(Error::TransactionRefused { errno: NO_MEMORY, message: None });
        }
        self.log.push("rules".to_owned());
        let is_lost = self.unanswered_after == Some(0);
        self.unanswered_after = self.unanswered_after.and_then(|transactions| transactions.checked_sub(1));
        let size = self.nft.apply(transaction)?;
        if is_lost { Err(Error::Unanswered) } else { Ok(size) }
    }

    fn read(&mut self, table: &Table, wanted: &dyn Fn(&str) -> Option<Arc<Chain>>) -> Result<Option<LiveTable>, Error> {
        self.nft.read(table, wanted)
    }

    fn elements(&mut self, table: &Table, set: &Set) -> Result<Option<Vec<Element>>, Error> {
        self.nft.elements(table, set)
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
        Ok(self.states())
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
