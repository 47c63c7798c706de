//! The fake kernel of the nft backend, with faults. The backend may crash; the kernel stays.

use std::{
    collections::BTreeSet,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use localnet_linux::nft::{Chain, Element, Error, Kernel as Nft, LiveTable, Set, Table, Transaction, TransactionSize};
use localnet_nft::{plan, testing::FakeKernel};
use localnet_proto::Family;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};
use tokio::sync::mpsc;

use crate::{flows::Flows, invariants::Ledger, trace::Trace};

/// What happens to the next commits of the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitFault {
    /// The kernel refuses the transaction for lack of memory or space (`ENOMEM`, `ENOBUFS`).
    Short,
    /// The transaction is lost, and so is the answer.
    Unanswered,
    /// The kernel commits the transaction, but the answer is lost.
    AnswerLost,
    /// The backend crashes before the commit.
    CrashBefore,
    /// The backend crashes after the commit.
    CrashAfter,
    /// Another program changes the tables immediately before the commit.
    EditBefore,
    /// Another program changes the tables immediately after the commit.
    EditAfter,
}

/// A notification about the commit of another program.
#[derive(Clone, Debug)]
pub enum Notice {
    /// The tables that the commit changed, and its generation.
    Committed(BTreeSet<Table>, u32),
    /// Notifications were dropped.
    Lost,
}

/// The kernel. Clones share it.
#[derive(Clone)]
pub struct Kernel(Arc<Mutex<State>>);

struct State {
    flows: Flows,
    /// How long the backend waits before it requests a state, as on an overloaded node.
    pause: Duration,
    fake: FakeKernel,
    faults: Vec<CommitFault>,
    rng: StdRng,
    commits: usize,
    subscriber: Option<mpsc::UnboundedSender<Notice>>,
    ledger: Ledger,
    trace: Trace,
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Kernel")
    }
}

impl Kernel {
    /// An empty kernel whose faults follow from `seed`. It reports its commits to `ledger`.
    pub fn new(seed: u64, ledger: Ledger, trace: Trace) -> Self {
        let fake = FakeKernel { generation: Some(1), ..FakeKernel::default() };
        let mut rng = StdRng::seed_from_u64(seed);
        let flows = Flows::new(rng.random(), ledger.clone(), trace.clone());
        let (faults, commits, subscriber, pause) = (Vec::new(), 0, None, Duration::ZERO);
        Self(Arc::new(Mutex::new(State { flows, pause, fake, faults, rng, commits, subscriber, ledger, trace })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the switches of the fake kernel.
    pub fn set(&self, change: impl FnOnce(&mut FakeKernel)) {
        change(&mut self.lock().fake);
    }

    /// The tracked flows.
    pub fn flows(&self) -> Flows {
        self.lock().flows.clone()
    }

    /// How long the backend waits before it requests a state.
    pub fn pause(&self) -> Duration {
        self.lock().pause
    }

    /// Sets how long the backend waits before it requests a state.
    pub fn set_pause(&self, pause: Duration) {
        self.lock().pause = pause;
    }

    /// A copy of the contents.
    pub fn contents(&self) -> FakeKernel {
        self.lock().fake.clone()
    }

    /// The number of commits of the backend so far.
    pub fn commits(&self) -> usize {
        self.lock().commits
    }

    /// Lets the next commits fail.
    pub fn fail_next(&self, faults: Vec<CommitFault>) {
        self.lock().faults = faults;
    }

    /// Ends all faults.
    pub fn heal(&self) {
        let State { flows, pause, fake, faults, ledger, .. } = &mut *self.lock();
        *pause = Duration::ZERO;
        flows.set_failing(false);
        flows.set_late(0);
        ledger.hates(false);
        faults.clear();
        (fake.denied, fake.blind, fake.short, fake.vague) = (false, false, false, false);
        fake.hated.clear();
    }

    /// Lets the kernel refuse some of its elements if they are added again.
    pub fn hate(&self, short: bool, vague: bool) {
        let State { fake, rng, ledger, .. } = &mut *self.lock();
        ledger.hates(true);
        let keys: Vec<_> = fake
            .tables
            .values()
            .flat_map(|table| table.sets.values().flat_map(|(_, elements)| elements.keys().cloned()))
            .collect();
        fake.hated.extend(keys.choose(rng).cloned());
        (fake.short, fake.vague) = (short, vague);
    }

    /// Another program changes a table of the backend, or, if `elsewhere` is set, a table of its own. If `silent` is set,
    /// the kernel drops the notification.
    pub fn edit(&self, elsewhere: bool, silent: bool) {
        self.lock().edit(elsewhere, silent);
    }

    /// The notifications from now on.
    pub fn subscribe(&self) -> mpsc::UnboundedReceiver<Notice> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.lock().subscriber = Some(sender);
        receiver
    }
}

impl State {
    fn edit(&mut self, elsewhere: bool, silent: bool) {
        let Self { fake, rng, .. } = self;
        let mut tables = BTreeSet::new();
        let names: Vec<_> = fake.tables.keys().cloned().collect();
        let mut what = "another program changes its own table".to_owned();
        if elsewhere {
            tables.insert(Table::new(Family::V4, "foreign"));
        } else if let Some(table) = names.choose(rng) {
            tables.insert(table.clone());
            let content = fake.tables.get_mut(table);
            let sets = content.into_iter().flat_map(|content| content.sets.values_mut());
            let mut sets: Vec<_> = sets.map(|(set, elements)| (set.name.clone(), elements)).collect();
            let filled: Vec<_> = (0..sets.len()).filter(|index| !sets[*index].1.is_empty()).collect();
            match (rng.random_range(0..3_u8), filled.choose(rng)) {
                (0, Some(index)) => {
                    sets[*index].1.clear();
                    what = format!("another program flushes {} of {:?}", sets[*index].0, table.family);
                }
                (1, Some(index)) => {
                    let place = rng.random_range(0..sets[*index].1.len());
                    if let Some(key) = sets[*index].1.keys().nth(place).cloned() {
                        sets[*index].1.remove(&key);
                    }
                    what = format!("another program deletes an element of {} of {:?}", sets[*index].0, table.family);
                }
                _ => {
                    fake.tables.remove(table);
                    what = format!("another program deletes the table of {:?}", table.family);
                }
            }
            self.ledger.damaged(table.family, fake);
            self.flows.send();
        }
        self.fake.generation = self.fake.generation.map(|generation| generation + 1);
        self.trace.add(&what);
        let generation = self.fake.generation.unwrap_or_default();
        let notice = if silent { Notice::Lost } else { Notice::Committed(tables, generation) };
        if let Some(subscriber) = &self.subscriber {
            // This fails while the backend does not run.
            _ = subscriber.send(notice);
        }
    }

    fn commit(&mut self, transaction: &Transaction) -> Result<TransactionSize, Error> {
        let result = self.fake.apply(transaction);
        self.fake.log.clear();
        match &result {
            Ok(_) => {
                self.commits += 1;
                self.trace.add(format_args!("commit of {} changes", transaction.changes().len()));
                self.ledger.committed(&self.fake);
            }
            Err(error) => self.trace.add(format_args!("the kernel refuses a commit: {error}")),
        }
        result
    }
}

/// What a simulated crash unwinds with. It differs from a panic in that no hook reports it.
#[derive(Debug)]
pub struct Crash;

impl Nft for Kernel {
    fn apply(&mut self, transaction: &Transaction) -> Result<TransactionSize, Error> {
        let mut state = self.lock();
        let fault = state.faults.pop();
        if let Some(fault) = fault {
            state.trace.add(format_args!("fault in a commit: {fault:?}"));
        }
        let result = match fault {
            None => return state.commit(transaction),
            Some(CommitFault::Short) => {
                let errno = if state.rng.random() { 12 } else { 105 };
                return Err(Error::TransactionRefused { errno, message: None });
            }
            Some(CommitFault::Unanswered) => return Err(Error::Unanswered),
            Some(CommitFault::EditBefore) => {
                state.edit(false, false);
                return state.commit(transaction);
            }
            Some(CommitFault::EditAfter) => {
                let result = state.commit(transaction);
                state.edit(false, false);
                return result;
            }
            Some(CommitFault::AnswerLost) => return state.commit(transaction).and(Err(Error::Unanswered)),
            Some(CommitFault::CrashBefore) => None,
            Some(CommitFault::CrashAfter) => Some(state.commit(transaction)),
        };
        drop((state, result));
        std::panic::resume_unwind(Box::new(Crash))
    }

    fn read(&mut self, table: &Table, wanted: &dyn Fn(&str) -> Option<Arc<Chain>>) -> Result<Option<LiveTable>, Error> {
        let mut state = self.lock();
        if state.fake.blind {
            return Err(Error::Changing);
        }
        let live = state.fake.read(table, wanted)?;
        if *table == plan::table(table.family) {
            state.ledger.read(table.family);
        }
        Ok(live)
    }

    fn elements(&mut self, table: &Table, set: &Set) -> Result<Option<Vec<Element>>, Error> {
        self.lock().fake.elements(table, set)
    }

    fn has_family(&self, _: Family) -> bool {
        true
    }

    fn generation(&mut self) -> Option<u32> {
        self.lock().fake.generation()
    }
}
