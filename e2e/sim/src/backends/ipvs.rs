//! The ipvs backend, on the fake kernel of its unit tests.

use std::{collections::BTreeSet, fmt, io, net::IpAddr, slice, sync::Arc, time::Duration};

use futures::FutureExt as _;
use localnet_client::{
    Changes, Counts,
    served::Served,
    vips::{Config, VipKey},
};
use localnet_ipvs::{
    IpvsBackend, Options,
    kernel::Kernel as Host,
    plan::sets::SetId,
    served,
    testing::{FakeKernel, FakeServer},
};
use localnet_linux::{
    dummy::{self, Changed},
    ipvs::{self, Applied, Change, DestinationState, Frontend, Refused, ServerState, VirtualServer},
    nft::{self, Chain, Element, LiveTable, Set, Table, Transaction, TransactionSize},
};
use localnet_linux_backend::{
    elements::tuple,
    live::{Live, Watch},
    sets::Sets as _,
};
use localnet_proto::{Family, Snapshot};
use rand::{Rng as _, rngs::StdRng, seq::IndexedRandom as _};
use tokio::{
    sync::{mpsc, watch},
    time::{self, Instant},
};

use super::{
    Program,
    nft::{damage, dump, error},
};
use crate::{
    flows::Node,
    kernel::{Failure, Kernel},
    subsystem::{Edit, Subsystem},
};

/// Virtual servers, the interface with their addresses, and nf_tables.
#[derive(Clone, Debug, Default)]
pub struct Ipvs {
    fake: FakeKernel,
    /// The virtual servers that nothing marked as the backend's when it first read them.
    unmarked: BTreeSet<Frontend>,
    /// Whether the running backend has not changed anything yet.
    starts: bool,
}

/// Notices changes by other programs, and deletes destinations that have drained.
#[derive(Debug)]
pub struct Servers {
    /// Commits of other programs to our tables.
    commits: mpsc::UnboundedReceiver<()>,
    list_at: Instant,
    drain_at: Instant,
    began: Instant,
}

/// The delays of the backend's checks.
const LIST: Duration = Duration::from_secs(2);
const DRAIN: Duration = Duration::from_secs(1);

impl Watch<IpvsBackend<Kernel<Ipvs>>> for Servers {
    const OBJECTS: &'static str = "virtual servers, kube-ipvs0 or the tables";

    async fn changed(&mut self, backend: &mut IpvsBackend<Kernel<Ipvs>>) {
        loop {
            let drains = backend.is_draining();
            tokio::select! {
                Some(()) = self.commits.recv() => return,
                () = time::sleep_until(self.drain_at), if drains => {
                    self.drain_at = Instant::now() + DRAIN;
                    // An error leaves it for the next time.
                    _ = backend.drain(self.began.elapsed()).await;
                }
                () = time::sleep_until(self.list_at) => {
                    self.list_at = Instant::now() + LIST;
                    if matches!(backend.is_undisturbed().await, Ok(false)) {
                        return;
                    }
                }
            }
        }
    }
}

impl Program for Ipvs {
    type Backend = Live<IpvsBackend<Kernel<Self>>, Servers, Node>;

    async fn open(kernel: Kernel<Self>, node: Node) -> anyhow::Result<Self::Backend> {
        let (commits, now) = (kernel.subscribe(), Instant::now());
        kernel.ask(Ipvs::starts);
        let mut backend = IpvsBackend::new(Config::default(), Options::default(), kernel);
        // The check of the real `open` would add a virtual server if there is none.
        backend.kernel().heads()?;
        let servers = Servers { commits, list_at: now + LIST, drain_at: now, began: now };
        Ok(Live::on(node, backend, servers, watch::Sender::<Counts>::default()).await)
    }
}

impl Subsystem for Ipvs {
    const NAME: &'static str = "ipvs";
    const IS_ATOMIC: bool = false;
    type Notice = ();

    fn new(_: &mut StdRng) -> Self {
        Self::default()
    }

    fn after(self, state: &Snapshot) -> Self {
        let mut backend = IpvsBackend::new(Config::default(), Options::default(), self.fake);
        // The fake kernel never waits.
        _ = backend.apply(state, &Changes::everything()).now_or_never();
        Self { fake: backend.kernel().clone(), ..Self::default() }
    }

    fn served(&self) -> Served {
        let servers: Vec<_> = self.known().map(FakeServer::state).collect();
        let tables: Vec<_> = self.fake.nft.tables.values().map(dump).collect();
        let local = own_addresses().chain(self.fake.addresses.iter().flatten().copied()).collect();
        served::of(&servers, &tables, &local)
    }

    fn objects(&self, _: &Snapshot) -> Vec<String> {
        let servers = self.known().flat_map(|fake| {
            let destinations = fake.destinations.values();
            let destinations = destinations.map(|(one, _)| format!("{} {one:?}", fake.server.frontend));
            destinations.chain([format!("{:?}", fake.server)]).collect::<Vec<_>>()
        });
        let addresses = self.fake.addresses.iter().flatten().map(ToString::to_string);
        let tables = self.fake.nft.tables.iter().flat_map(|(table, content)| {
            let sets = content.sets.iter().map(|(name, (_, elements))| format!("{table:?} {name}: {elements:?}"));
            sets.chain(content.chains.values().map(|chain| format!("{table:?} {chain:?}"))).collect::<Vec<_>>()
        });
        servers.chain(addresses).chain(tables).collect()
    }

    /// A new backend takes a virtual server for its own if its address is on the interface.
    fn has_strays(&self) -> bool {
        self.unmarked.iter().any(|one| self.fake.servers.contains_key(one) && self.marks(one) && !self.lists(one))
    }

    fn unsettled(&self) -> Option<String> {
        let mut all = self.known().flat_map(|server| server.destinations.values());
        all.find(|(one, _)| one.weight == 0).map(|(one, _)| format!("{} drains", one.address))
    }

    /// An address that the interface lacks matters as soon as its VIP has endpoints again, and a missing mark as soon as the backend
    /// restarts. A virtual server that no backend can know matters if a Service gets its VIP.
    fn is_whole(&self, family: Family) -> bool {
        let mut of_family = self.fake.servers.keys().filter(|one| Family::of(one.address.ip()) == family);
        of_family.all(|one| {
            let is_bound = self.fake.addresses.iter().flatten().any(|bound| *bound == one.address.ip());
            let is_own = own_addresses().any(|own| own == one.address.ip());
            (is_bound && !self.unmarked.contains(one)) || (is_bound || is_own) && self.lists(one)
        })
    }

    fn hate(&mut self, rng: &mut StdRng) {
        let destinations: Vec<_> =
            self.fake.servers.values().flat_map(|fake| fake.destinations.keys().copied()).collect();
        let addresses: Vec<_> = self.fake.addresses.iter().flatten().copied().collect();
        match rng.random() {
            true => self.fake.hated.extend(destinations.choose(rng)),
            false => self.fake.hated_addresses.extend(addresses.choose(rng)),
        }
        self.fake.short = rng.random();
    }

    /// Also ends all connections, so that destinations have drained, and deletes the virtual servers that no backend can know.
    fn heal(&mut self) {
        let unknown: Vec<_> = self.unmarked.iter().filter(|one| !self.lists(one)).copied().collect();
        unknown.into_iter().for_each(|one| self.make(Change::DeleteServer(one)));
        self.fake.hated.clear();
        self.fake.hated_addresses.clear();
        self.fake.short = false;
        let destinations = self.fake.servers.values_mut().flat_map(|fake| fake.destinations.values_mut());
        destinations.for_each(|(_, active)| *active = 0);
        self.fake.trash.clear();
    }

    fn edit(&mut self, rng: &mut StdRng, elsewhere: bool, silent: bool) -> Edit<()> {
        if elsewhere {
            // nf_tables reports no commit to our tables, or that reports were lost.
            let notice = silent.then_some(());
            return Edit { what: "changes its own table".to_owned(), damages: BTreeSet::new(), notice };
        }
        let frontends: Vec<_> = self.fake.servers.keys().copied().collect();
        let addresses: Vec<_> = self.fake.addresses.iter().flatten().copied().collect();
        let tables: Vec<_> = self.fake.nft.tables.keys().cloned().collect();
        match (rng.random_range(0..6_u8), frontends.choose(rng), addresses.choose(rng), tables.choose(rng)) {
            (0, Some(frontend), ..) => {
                self.make(Change::DeleteServer(*frontend));
                let damages = [Family::of(frontend.address.ip())].into();
                Edit { what: format!("deletes the virtual server {frontend}"), damages, notice: None }
            }
            (1 | 2, Some(frontend), ..) => {
                let fake = self.fake.servers.get(frontend);
                let address = fake.and_then(|fake| fake.destinations.keys().next().copied());
                address.into_iter().for_each(|address| self.make(Change::DeleteDestination(*frontend, address)));
                let damages = [Family::of(frontend.address.ip())].into();
                Edit { what: format!("deletes the destination {address:?} of {frontend}"), damages, notice: None }
            }
            (3, _, Some(address), _) => {
                self.fake.addresses.iter_mut().for_each(|addresses| _ = addresses.remove(address));
                let damages = [Family::of(*address)].into();
                Edit { what: format!("deletes the address {address}"), damages, notice: None }
            }
            (4, _, Some(_), _) => {
                self.fake.addresses = None;
                Edit { what: "deletes the interface".to_owned(), damages: Family::BOTH.into(), notice: None }
            }
            (.., Some(table)) => {
                let what = damage(&mut self.fake.nft, table, rng);
                Edit { what, damages: [table.family].into(), notice: Some(()) }
            }
            _ => Edit { what: "finds nothing".to_owned(), damages: BTreeSet::new(), notice: None },
        }
    }
}

/// The addresses that the simulated node may have.
fn own_addresses() -> impl Iterator<Item = IpAddr> {
    let own = [[192, 168, 0, 2], [192, 168, 0, 3], [192, 168, 0, 9]].map(IpAddr::from).into_iter();
    own.chain([IpAddr::from([0xfd00, 0x192, 0, 0, 0, 0, 0, 2])])
}

impl Ipvs {
    /// Another program changes a virtual server.
    fn make(&mut self, change: Change) {
        _ = self.fake.change(&[change]);
        self.fake.log.clear();
    }

    /// Whether anything marks a virtual server as the backend's: its VIP in the tables, or its address on the interface.
    fn marks(&self, frontend: &Frontend) -> bool {
        self.fake.addresses.iter().flatten().any(|bound| *bound == frontend.address.ip()) || self.lists(frontend)
    }

    /// Whether the tables list the VIP of a virtual server.
    fn lists(&self, frontend: &Frontend) -> bool {
        let (address, protocol) = (frontend.address.ip(), frontend.protocol);
        let vip = tuple(&VipKey { address, protocol, port: frontend.address.port() });
        self.fake.nft.tables.values().any(|content| {
            content.sets.get(SetId::Vips.name()).is_some_and(|(_, elements)| elements.contains_key(&vip.clone().into()))
        })
    }

    fn starts(&mut self) {
        // The address of another VIP may mark one later. The backend that then starts deletes it, one by one.
        let is_unmarked = |one: &&Frontend| !self.marks(one) || self.unmarked.contains(*one) && !self.lists(one);
        self.unmarked = self.fake.servers.keys().filter(is_unmarked).copied().collect();
        self.starts = true;
    }

    /// The virtual servers without those that another program has left without any mark before the backend first read them. No backend can
    /// know that they are its own.
    fn known(&self) -> impl Iterator<Item = &FakeServer> {
        self.fake
            .servers
            .iter()
            .filter(|(one, _)| !self.unmarked.contains(one) || self.lists(one))
            .map(|(_, fake)| fake)
    }
}

/// Why a change is not made.
enum Stop {
    Refused(i32),
    Failed(ipvs::Error),
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(errno) => write!(f, "error {errno}"),
            Self::Failed(error) => error.fmt(f),
        }
    }
}

fn stop(failure: Failure) -> Stop {
    match failure {
        Failure::Short => Stop::Refused(12),
        failure => Stop::Failed(ipvs_error(failure)),
    }
}

fn ipvs_error(failure: Failure) -> ipvs::Error {
    match failure {
        Failure::Denied => ipvs::Error::NotPermitted,
        Failure::Short | Failure::Unanswered => ipvs::Error::Unanswered,
        Failure::Unreadable => ipvs::Error::Changing,
    }
}

fn dummy_error(failure: Failure) -> dummy::Error {
    let errno = match failure {
        Failure::Denied => return dummy::Error::NotPermitted { action: "change addresses".to_owned() },
        Failure::Short => 12,
        Failure::Unanswered => 104,
        Failure::Unreadable => 4,
    };
    dummy::Error::Io(io::Error::from_raw_os_error(errno))
}

/// The answer of the fake kernel, which never waits.
fn at_once<T>(answer: impl Future<Output = Result<T, dummy::Error>>) -> Result<T, dummy::Error> {
    answer.now_or_never().unwrap_or_else(|| Err(dummy_error(Failure::Unanswered)))
}

impl Host for Kernel<Ipvs> {
    fn nft(&mut self) -> &mut impl nft::Kernel {
        self
    }

    fn servers(&mut self) -> Result<Vec<ServerState>, ipvs::Error> {
        self.ask(|ipvs| {
            if ipvs.starts {
                ipvs.starts();
            }
        });
        Kernel::read(self, &Family::BOTH, ipvs_error, |ipvs| ipvs.fake.servers())
    }

    fn heads(&mut self) -> Result<Vec<VirtualServer>, ipvs::Error> {
        Kernel::read(self, &[], ipvs_error, |ipvs| ipvs.fake.heads())
    }

    fn destinations(&mut self, frontend: &Frontend) -> Result<Vec<DestinationState>, ipvs::Error> {
        Kernel::read(self, &[], ipvs_error, |ipvs| ipvs.fake.destinations(frontend))
    }

    /// The kernel applies each change for itself.
    fn change(&mut self, changes: &[Change]) -> Result<Applied, ipvs::Error> {
        let mut refused = Vec::new();
        for (index, change) in changes.iter().enumerate() {
            let made = self.commit(change, stop, |ipvs| {
                ipvs.starts = false;
                let applied = ipvs.fake.change(slice::from_ref(change)).map_err(Stop::Failed)?;
                ipvs.fake.log.clear();
                if let Change::AddDestination(frontend, one) = change {
                    // Some of the endpoints have connections until the next time that the faults end.
                    let fake = ipvs.fake.servers.get_mut(frontend);
                    let added = fake.and_then(|fake| fake.destinations.get_mut(&one.address));
                    added
                        .into_iter()
                        .for_each(|(one, active)| *active = (*active).max(u32::from(one.address.port() % 2)));
                }
                applied.refused.first().map_or(Ok(()), |refused| Err(Stop::Refused(refused.errno)))
            });
            match made {
                Ok(()) => {}
                Err(Stop::Refused(errno)) => refused.push(Refused::new(index, change, errno)),
                Err(Stop::Failed(error)) => return Err(error),
            }
        }
        Ok(Applied { changes: changes.len(), batches: 1, refused })
    }

    async fn addresses(&mut self) -> Result<Option<BTreeSet<IpAddr>>, dummy::Error> {
        Kernel::read(self, &[], dummy_error, |ipvs| at_once(ipvs.fake.addresses()))
    }

    async fn bind(&mut self, add: Vec<IpAddr>, remove: Vec<IpAddr>) -> Result<Changed, dummy::Error> {
        let what = format!("addresses +{add:?} -{remove:?}");
        self.commit(what, dummy_error, |ipvs| {
            ipvs.starts = false;
            let bound = at_once(ipvs.fake.bind(add, remove));
            ipvs.fake.log.clear();
            bound
        })
    }

    async fn delete_interface(&mut self) -> Result<(), dummy::Error> {
        self.ask(|ipvs| at_once(ipvs.fake.delete_interface()))
    }
}

impl nft::Kernel for Kernel<Ipvs> {
    fn apply(&mut self, transaction: &Transaction) -> Result<TransactionSize, nft::Error> {
        let what = format!("{} changes of rules", transaction.changes().len());
        self.commit(what, error, |ipvs| {
            ipvs.starts = false;
            let result = nft::Kernel::apply(&mut ipvs.fake, transaction);
            ipvs.fake.log.clear();
            ipvs.fake.nft.log.clear();
            result
        })
    }

    fn read(
        &mut self,
        table: &Table,
        wanted: &dyn Fn(&str) -> Option<Arc<Chain>>,
    ) -> Result<Option<LiveTable>, nft::Error> {
        Kernel::read(self, &[], error, |ipvs| ipvs.fake.nft.read(table, wanted))
    }

    fn elements(&mut self, table: &Table, set: &Set) -> Result<Option<Vec<Element>>, nft::Error> {
        Kernel::read(self, &[], error, |ipvs| ipvs.fake.nft.elements(table, set))
    }

    fn has_family(&self, _: Family) -> bool {
        true
    }
}
