//! Reads what the kernel holds while the state arrives and is planned, since both take about equally long.

use std::{
    collections::{BTreeMap, HashMap},
    panic::resume_unwind,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, Receiver, Sender},
    },
    thread::{self, JoinHandle},
};

use localnet_linux::nft::{self, ChainDump, Element, ElementData, ElementKey, Name, Set, TableDump};
use localnet_nft::{
    plan::sets::SetId,
    whole::{History, is_history},
};

use super::{FAMILIES, PlanChange};
use crate::kernel::{self, Kernel};

/// The contents of our tables in the kernel.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) tables: [Option<HeldTable>; 2],
    pub(super) generation: u32,
    /// Whether the history that was planned with equals the one of the final read.
    pub(super) is_current: bool,
}

#[derive(Debug)]
pub(super) struct HeldTable {
    pub(super) chains: Vec<ChainDump>,
    pub(super) sets: Vec<HeldSet>,
    /// The index in `sets` of each set of ours.
    places: [Option<usize>; SetId::ALL.len()],
}

#[derive(Debug)]
pub(super) struct HeldSet {
    pub(super) name: Name,
    pub(super) elements: Elements,
    /// The number of planned elements among them.
    pub(super) planned: usize,
    /// The elements that differ from the plan: the kind of difference, and the planned element.
    pub(super) off: Off,
    /// The number of compared elements.
    pub(super) compared: usize,
}

type Off = BTreeMap<ElementKey, (&'static str, Element)>;

/// The elements of a set by key: the data, whether the plan contains it, and the comment.
type Elements = HashMap<ElementKey, (ElementData, bool, Option<Name>)>;

/// How often a read is repeated because the ruleset changed in between.
const ATTEMPTS: usize = 50;
/// The sets that take longest to read.
const BIG: [SetId; 3] = [SetId::Endpoints, SetId::Services, SetId::ClusterIps];

/// A read of the kernel that runs in a thread.
#[derive(Debug)]
pub struct Reading {
    history: Receiver<History>,
    held: JoinHandle<Result<Held, nft::Error>>,
}

impl Reading {
    /// Starts to read the nf_tables of this thread's network namespace.
    pub fn start() -> Self {
        Self::by(|to| Held::read(&mut Kernel::open()?, &to))
    }

    fn by(read: impl FnOnce(Sender<History>) -> Result<Held, nft::Error> + Send + 'static) -> Self {
        let (to, history) = mpsc::channel();
        Self { history, held: thread::spawn(move || read(to)) }
    }

    /// Returns the history that planning needs: only the kernel knows which endpoint has which slot of session affinity. It is
    /// read first. The history is empty if the kernel cannot be read.
    pub(super) fn history(&self) -> History {
        self.history.recv().unwrap_or_default()
    }

    /// Waits for the read to finish.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses a request.
    pub(super) fn finish(self) -> Result<Held, nft::Error> {
        self.held.join().unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Builds a reading from tables that are already read.
    #[cfg(test)]
    pub(super) fn of(generation: u32, dumps: [Option<TableDump>; 2]) -> Self {
        Self::by(move |to| {
            let (mut held, sets) = Held::of(generation, dumps.clone());
            let mut history = History::default();
            for (family, id, set) in sets {
                let dump =
                    dumps[family as usize].iter().flat_map(|dump| &dump.sets).find(|found| found.name == set.name);
                let elements = dump.map(|found| found.elements.clone()).unwrap_or_default();
                if is_history(id) {
                    history[family as usize].push((set, elements.clone()));
                }
                held.fill(family, id, elements);
            }
            _ = to.send(history);
            Ok(held)
        })
    }
}

impl Held {
    /// Reads both tables, and sends the history as soon as it is read.
    fn read(kernel: &mut Kernel, to: &Sender<History>) -> Result<Self, nft::Error> {
        let mut sent = None;
        for _ in 0..ATTEMPTS {
            let generation = kernel.generation()?;
            let [v4, v6] = FAMILIES.map(|family| kernel.outline(family));
            let (mut held, sets) = Self::of(generation, [v4?, v6?]);
            let (first, others): (Vec<_>, Vec<_>) = sets.into_iter().partition(|(_, id, _)| is_history(*id));
            let mut history = History::default();
            for ((family, id, set), mut elements) in elements(&first)? {
                elements.sort_unstable_by(|one, other| one.key.cmp(&other.key));
                history[family as usize].push((set, elements.clone()));
                held.fill(family, id, elements);
            }
            history.iter_mut().for_each(|sets| sets.sort_unstable_by(|(one, _), (other, _)| one.name.cmp(&other.name)));
            let sent = sent.get_or_insert_with(|| {
                // If planning failed, there is no receiver any more.
                _ = to.send(history.clone());
                history.clone()
            });
            for ((family, id, _), elements) in elements(&others)? {
                held.fill(family, id, elements);
            }
            if kernel.generation()? == generation {
                held.is_current = *sent == history;
                return Ok(held);
            }
        }
        Err(nft::Error::Changing)
    }

    /// Returns the contents without elements, and the sets to compare, those that take longest first.
    fn of(generation: u32, dumps: [Option<TableDump>; 2]) -> (Self, Vec<Place>) {
        let mut sets = Vec::new();
        for (family, dump) in FAMILIES.into_iter().zip(&dumps) {
            let declared = dump.iter().flat_map(|dump| &dump.sets).filter_map(|found| found.set.clone());
            sets.extend(declared.filter_map(|set| Some((family, SetId::of_name(&set.name)?, set))));
        }
        sets.sort_by_key(|(_, id, _)| BIG.iter().position(|big| big == id).unwrap_or(BIG.len()));
        (Self { tables: dumps.map(|dump| dump.map(HeldTable::of)), generation, is_current: true }, sets)
    }

    fn fill(&mut self, family: nft::Family, id: SetId, elements: Vec<Element>) {
        if let Some(set) = self.set(family, id) {
            set.elements =
                elements.into_iter().map(|element| (element.key, (element.data, false, element.comment))).collect();
        }
    }

    pub(super) fn set(&mut self, family: nft::Family, set: SetId) -> Option<&mut HeldSet> {
        let table = self.tables[family as usize].as_mut()?;
        table.sets.get_mut(table.places[set as usize]?)
    }
}

/// A set of ours in a table.
type Place = (nft::Family, SetId, Arc<Set>);

/// Reads the elements of each of these sets.
fn elements(sets: &[Place]) -> Result<Vec<(Place, Vec<Element>)>, nft::Error> {
    let read = Mutex::new(Vec::with_capacity(sets.len()));
    let order = sets.iter().map(|(family, _, set)| (*family, set.clone()));
    kernel::elements(order, |family, set, elements| {
        read.lock().unwrap_or_else(PoisonError::into_inner).push((family, set.name.clone(), elements));
    })?;
    let read = read.into_inner().unwrap_or_else(PoisonError::into_inner);
    let place = |family: nft::Family, name: &Name| {
        sets.iter().find(|(of, _, set)| *of == family && set.name == *name).map(|(_, id, set)| (*id, set.clone()))
    };
    let placed = read.into_iter().filter_map(|(family, name, elements)| {
        let (id, set) = place(family, &name)?;
        Some(((family, id, set), elements))
    });
    Ok(placed.collect())
}

impl HeldTable {
    fn of(dump: TableDump) -> Self {
        let mut places = [None; SetId::ALL.len()];
        let mut sets = Vec::with_capacity(dump.sets.len());
        for (at, found) in dump.sets.into_iter().enumerate() {
            // Packets, not the plan, write the sets with the clients of session affinity.
            if let Some(id) = SetId::of_name(&found.name) {
                places[id as usize] = Some(at);
            }
            sets.push(HeldSet {
                name: found.name,
                elements: Elements::new(),
                planned: 0,
                off: Off::new(),
                compared: 0,
            });
        }
        Self { chains: dump.chains, sets, places }
    }
}

impl HeldSet {
    /// Compares what the kernel holds with a change of the plan.
    pub(super) fn compare(&mut self, change: &PlanChange) {
        match change {
            PlanChange::Set(element) => {
                let what = match self.elements.get_mut(&element.key) {
                    Some((data, planned, _)) => {
                        let is_new = usize::from(!std::mem::replace(planned, true));
                        self.planned += is_new;
                        self.compared += is_new;
                        (*data != element.data).then_some("differs")
                    }
                    None => Some("missing"),
                };
                if let Some(what) = what {
                    let is_new = self.off.insert(element.key.clone(), (what, element.clone())).is_none();
                    self.compared += usize::from(is_new && what == "missing");
                } else if !self.off.is_empty() {
                    self.off.remove(&element.key);
                }
            }
            PlanChange::Removed(key) => {
                let was_off = self.off.remove(key).is_some();
                let was = match self.elements.get_mut(key) {
                    Some((_, planned, _)) => {
                        let was = usize::from(std::mem::replace(planned, false));
                        self.planned -= was;
                        was
                    }
                    None => usize::from(was_off),
                };
                self.compared -= was;
            }
        }
    }
}
