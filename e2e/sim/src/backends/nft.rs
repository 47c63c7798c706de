//! The nft backend, on the fake kernel of its unit tests.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use localnet_client::{Changes, Counts, served::Served, vips::Config};
use localnet_linux::nft::{
    Chain, Change, Element, Error, LiveTable, Name, Rule, Set, SetDump, Table, TableDump, Transaction, TransactionSize,
    spread,
};
use localnet_linux_backend::{
    live::{Live, Watch},
    portions::Limits,
};
use localnet_nft::{
    NftBackend,
    plan::{substitute, table},
    served,
    testing::{FakeKernel, FakeTable},
};
use localnet_proto::{ByFamily, Family, Snapshot};
use rand::{Rng as _, rngs::StdRng, seq::IndexedRandom as _};
use tokio::sync::{mpsc, watch};

use super::Program;
use crate::{
    flows::Node,
    kernel::{Failure, Kernel},
    subsystem::{Edit, Subsystem},
};

/// nf_tables.
#[derive(Clone, Debug)]
pub struct Nft {
    fake: FakeKernel,
    limits: Limits,
    /// Whether the kernel has refused to delete unused chains.
    keeps_unused: bool,
    /// The rules of each chain that picks an endpoint. They follow from its name.
    picking: BTreeMap<(Family, Name), Vec<Rule>>,
}

/// A notification of nf_tables.
#[derive(Clone, Debug)]
pub enum Notice {
    /// The tables that another program's commit changed, and its generation.
    Committed(BTreeSet<Table>, u32),
    /// Notifications were dropped.
    Lost,
}

/// The notifications of nf_tables.
#[derive(Debug)]
pub struct Notices(mpsc::UnboundedReceiver<Notice>);

impl Watch<NftBackend<Kernel<Nft>>> for Notices {
    const OBJECTS: &'static str = "the tables";

    async fn changed(&mut self, backend: &mut NftBackend<Kernel<Nft>>) {
        while let Some(notice) = self.0.recv().await {
            let needs_repair = match notice {
                Notice::Committed(tables, generation) => backend.committed_elsewhere(&tables, generation),
                Notice::Lost => backend.lost_sight(),
            };
            if needs_repair {
                return;
            }
        }
        std::future::pending::<()>().await;
    }
}

impl Program for Nft {
    type Backend = Live<NftBackend<Kernel<Self>>, Notices, Node>;

    async fn open(kernel: Kernel<Self>, node: Node) -> anyhow::Result<Self::Backend> {
        let (notices, limits) = (Notices(kernel.subscribe()), kernel.ask(|nft| nft.limits));
        let mut backend = NftBackend::new(Config::default(), kernel).with_limits(limits);
        backend.check()?;
        Ok(Live::on(node, backend, notices, watch::Sender::<Counts>::default()).await)
    }
}

impl Subsystem for Nft {
    const NAME: &'static str = "nft";
    const NAMES_REPAIRS: bool = true;
    const IS_KNOWN: bool = true;
    const KEEPS_SLOTS: bool = true;
    const REFUSES_WHOLE: bool = true;
    type Notice = Notice;

    fn new(rng: &mut StdRng) -> Self {
        let limit = rng.random_range(4..60);
        let limits = if rng.random() { Limits { entered: limit, filled: limit } } else { Limits::default() };
        let fake = FakeKernel { generation: Some(1), ..FakeKernel::default() };
        Self { fake, limits, keeps_unused: false, picking: BTreeMap::new() }
    }

    fn after(self, state: &Snapshot) -> Self {
        let mut backend = NftBackend::new(Config::default(), self.fake.clone());
        _ = backend.apply(state, &Changes::everything());
        Self { fake: backend.kernel().clone(), ..self }
    }

    fn served(&self) -> Served {
        let mut all = Served::default();
        for content in Family::BOTH.into_iter().flat_map(|family| self.tables(family)) {
            all.0.append(&mut served::of(&dump(content)).0);
        }
        all
    }

    fn entered(&self) -> ByFamily<bool> {
        ByFamily::from_fn(|family| self.tables(family).next().is_some())
    }

    /// Without the sets of clients and slots, and with session affinity without everything, because both depend on the past.
    fn objects(&self, state: &Snapshot) -> Vec<String> {
        if state.services.values().any(|service| service.client_ip_affinity.is_some()) {
            return Vec::new();
        }
        let is_stable = |name: &str| !name.contains("affin") && !name.contains("client");
        let all = self.fake.tables.iter().flat_map(|(table, content)| {
            let sets = content.sets.iter().filter(|(name, _)| is_stable(name));
            let sets = sets.map(|(name, (_, elements))| format!("{table:?} {name}: {elements:?}"));
            let may_stay = |name: &Name| self.keeps_unused && spread::is_picking(name) && !content.uses_chain(name);
            let chains = content.chains.values().filter(|chain| !may_stay(&chain.name));
            sets.chain(chains.map(|chain| format!("{table:?} {chain:?}"))).collect::<Vec<_>>()
        });
        all.collect()
    }

    /// Packets of a family enter one table, and never none after the first load.
    fn check(&self, before: ByFamily<bool>, damaged: ByFamily<bool>) -> Option<(&'static str, String)> {
        Family::BOTH.into_iter().find_map(|family| match self.tables(family).count() {
            1 => None,
            0 if !before[family] || damaged[family] => None,
            entered => Some(("one-table", format!("packets of {family:?} enter {entered} tables"))),
        })
    }

    /// A substitute table, a chain to which nothing leads, or rules that a chain has twice.
    fn waste(&mut self) -> Option<String> {
        Family::BOTH.into_iter().find_map(|family| {
            if self.fake.tables.contains_key(&substitute(family)) {
                return Some(format!("the substitute table of {family:?} remains"));
            }
            let content = self.fake.tables.get(&table(family))?;
            let mut picking = content.chains.values().filter(|chain| spread::is_picking(&chain.name));
            picking.find_map(|Chain { name, rules, .. }| {
                if !content.uses_chain(name) {
                    return Some(format!("nothing leads to chain {name} of {family:?}"));
                }
                let known = self.picking.entry((family, name.clone())).or_insert_with(|| rules.clone());
                let (one, other) = (rules.len(), known.len());
                (known != rules).then(|| format!("chain {name} of {family:?} has {one} rules, and not {other}"))
            })
        })
    }

    fn refuses(&self, state: &Snapshot) -> bool {
        // A lack of memory can hit any element.
        if self.fake.short {
            return false;
        }
        let (hated, vague, generation) = (self.fake.hated.clone(), self.fake.vague, Some(1));
        let fake = FakeKernel { hated, vague, generation, ..FakeKernel::default() };
        let synced = NftBackend::new(Config::default(), fake).apply(state, &Changes::everything());
        synced.map_or(true, |synced| !synced.refused.is_empty() || !synced.failed.is_empty())
    }

    fn hate(&mut self, rng: &mut StdRng) {
        let fake = &mut self.fake;
        let sets = fake.tables.values().flat_map(|table| table.sets.values());
        let keys: Vec<_> = sets.flat_map(|(_, elements)| elements.keys().cloned()).collect();
        let count = rng.random_range(1..6);
        fake.hated.extend(keys.choose_multiple(rng, count).cloned());
        (fake.short, fake.vague) = (rng.random(), rng.random());
    }

    fn heal(&mut self) {
        (self.fake.short, self.fake.vague) = (false, false);
        self.fake.hated.clear();
    }

    fn edit(&mut self, rng: &mut StdRng, elsewhere: bool, silent: bool) -> Edit<Notice> {
        let names = self.fake.tables.keys().filter(|name| **name == table(name.family));
        let names: Vec<_> = names.cloned().collect();
        let mut damages = BTreeSet::new();
        let (table, what) = match names.choose(rng) {
            Some(table) if !elsewhere => {
                damages.insert(table.family);
                let what =
                    if rng.random_bool(0.35) { age(&mut self.fake, table) } else { damage(&mut self.fake, table, rng) };
                (table.clone(), what)
            }
            _ => (Table::new(Family::V4, "foreign"), "changes its own table".to_owned()),
        };
        let generation = self.fake.generation.map_or(1, |generation| generation + 1);
        self.fake.generation = Some(generation);
        let notice = if silent { Notice::Lost } else { Notice::Committed([table].into(), generation) };
        Edit { what, damages, notice: Some(notice) }
    }
}

impl Nft {
    /// The tables of a family that packets enter.
    fn tables(&self, family: Family) -> impl Iterator<Item = &FakeTable> {
        let names = [table(family), substitute(family)];
        let of_family = self.fake.tables.iter().filter(move |(name, _)| names.contains(name));
        of_family
            .map(|(_, content)| content)
            .filter(|content| content.chains.values().any(|chain| chain.hook.is_some()))
    }
}

/// The sets of a table, as a dump shows them.
pub(super) fn dump(table: &FakeTable) -> TableDump {
    let sets = table.sets.values().map(|(set, elements)| SetDump {
        name: set.name.clone(),
        set: Some(Arc::clone(set)),
        elements: elements.values().cloned().collect(),
    });
    TableDump { chains: Vec::new(), sets: sets.collect(), generation: 0 }
}

/// Changes the declarations of base chains, as those of another version. Returns what was done.
fn age(fake: &mut FakeKernel, table: &Table) -> String {
    let chains = fake.tables.get_mut(table).into_iter().flat_map(|content| content.chains.values_mut());
    chains.filter_map(|chain| chain.hook.as_mut()).for_each(|hook| hook.priority += 1);
    format!("makes the table of {:?} one of another version", table.family)
}

/// Deletes an element, all elements of a set, or the table. Returns what was done.
pub(super) fn damage(fake: &mut FakeKernel, table: &Table, rng: &mut StdRng) -> String {
    let family = table.family;
    let content = fake.tables.get_mut(table);
    let sets = content.into_iter().flat_map(|content| content.sets.values_mut());
    let mut filled: Vec<_> = sets.filter(|(_, elements)| !elements.is_empty()).collect();
    let index = rng.random_range(0..filled.len().max(1));
    match (rng.random_range(0..3_u8), filled.get_mut(index)) {
        (0, Some((set, elements))) => {
            elements.clear();
            format!("flushes {} of {family:?}", set.name)
        }
        (1, Some((set, elements))) => {
            let place = rng.random_range(0..elements.len());
            if let Some(key) = elements.keys().nth(place).cloned() {
                elements.remove(&key);
            }
            format!("deletes an element of {} of {family:?}", set.name)
        }
        _ => {
            fake.tables.remove(table);
            format!("deletes the table of {family:?}")
        }
    }
}

/// The error of nf_tables.
pub(super) fn error(failure: Failure) -> Error {
    match failure {
        Failure::Denied => Error::NotPermitted,
        Failure::Short => Error::TransactionRefused { errno: 12, message: None },
        Failure::Unanswered => Error::Unanswered,
        Failure::Unreadable => Error::Changing,
    }
}

impl localnet_linux::nft::Kernel for Kernel<Nft> {
    fn apply(&mut self, transaction: &Transaction) -> Result<TransactionSize, Error> {
        let what = format!("{} changes", transaction.changes().len());
        let result = self.commit(what, error, |nft| {
            let result = nft.fake.apply(transaction);
            nft.fake.log.clear();
            result
        });
        if transaction.changes().iter().any(|change| matches!(change, Change::DeleteChain(..))) {
            // The backend tries again only with the next change, because unused chains are harmless.
            self.ask(|nft| nft.keeps_unused = result.is_err());
        }
        result
    }

    fn read(&mut self, name: &Table, wanted: &dyn Fn(&str) -> Option<Arc<Chain>>) -> Result<Option<LiveTable>, Error> {
        let whole = if *name == table(name.family) { &[name.family][..] } else { &[] };
        Kernel::read(self, whole, error, |nft| nft.fake.read(name, wanted))
    }

    fn elements(&mut self, table: &Table, set: &Set) -> Result<Option<Vec<Element>>, Error> {
        Kernel::read(self, &[], error, |nft| nft.fake.elements(table, set))
    }

    fn has_family(&self, _: Family) -> bool {
        true
    }

    fn generation(&mut self) -> Option<u32> {
        self.ask(|nft| nft.fake.generation())
    }
}
