//! nf_tables in memory, for the tests of backends. It refuses what nf_tables refuses, and records the transactions.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use localnet_core::Family;

use super::{
    Chain, ChainKind, ChainMatch, Change, Element, ElementData, ElementKey, Error, Kernel, LiveTable, Name, Rule, Set,
    SetData, Statement, Table, Transaction, TransactionSize, Verdict,
};

/// The contents of the fake kernel, and the record of what it was sent.
#[derive(Clone, Debug, Default)]
pub struct FakeKernel {
    /// The tables.
    pub tables: BTreeMap<Table, FakeTable>,
    /// The transactions that were applied.
    pub log: Vec<Transaction>,
    /// How many times a table was read.
    pub reads: usize,
    /// How many times a set was read.
    pub dumps: usize,
    /// The number of sets in which an element expires right after they are read.
    pub expiring: usize,
    /// Whether reading sets fails.
    pub blind: bool,
    /// Elements that the fake kernel refuses, for any reason that a kernel may have.
    pub hated: BTreeSet<ElementKey>,
    /// Whether the fake kernel refuses these elements for lack of memory, so that the elements are not at fault.
    pub short: bool,
    /// Whether the errors of elements name only their set.
    pub vague: bool,
    /// The ruleset's generation; `None` if it is not counted.
    pub generation: Option<u32>,
    /// A family without address translation, as if a module were missing.
    pub lacks_nat: Option<Family>,
    /// The table that another program deletes immediately before the next transaction.
    pub deleted_next: Option<Table>,
    /// Whether another program commits before each transaction.
    pub is_busy: bool,
    /// Whether everything fails, as if without privileges.
    pub denied: bool,
    /// After how many more transactions `denied` becomes true.
    pub denied_after: Option<usize>,
    /// After how many more transactions the answer to one is lost.
    pub unanswered_after: Option<usize>,
}

/// A table of the fake kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FakeTable {
    /// The chains by name.
    pub chains: BTreeMap<Name, Chain>,
    /// The sets and maps by name, with their elements.
    pub sets: BTreeMap<Name, (Arc<Set>, BTreeMap<ElementKey, Element>)>,
}

impl Kernel for FakeKernel {
    fn apply(&mut self, transaction: &Transaction) -> Result<TransactionSize, Error> {
        if self.denied || self.denied_after == Some(0) {
            return Err(Error::NotPermitted);
        }
        self.denied_after = self.denied_after.map(|transactions| transactions - 1);
        let deleted = self.deleted_next.take();
        if deleted.is_some() || self.is_busy {
            self.generation = self.generation.map(|generation| generation + 1);
        }
        deleted.iter().for_each(|table| _ = self.tables.remove(table));
        let mut next = self.clone();
        for (change, what) in transaction.changes().iter().enumerate() {
            next.change(&self.tables, what).map_err(|(element, errno)| Error::Refused {
                change,
                element,
                what: format!("{what:?}"),
                errno,
                message: None,
            })?;
        }
        next.log.push(transaction.clone());
        next.generation = next.generation.map(|generation| generation + 1);
        let is_lost = next.unanswered_after == Some(0);
        next.unanswered_after = next.unanswered_after.and_then(|transactions| transactions.checked_sub(1));
        *self = next;
        if is_lost { Err(Error::Unanswered) } else { Ok(TransactionSize::default()) }
    }

    fn read(&mut self, table: &Table, wanted: &dyn Fn(&str) -> Option<Arc<Chain>>) -> Result<Option<LiveTable>, Error> {
        if self.denied {
            return Err(Error::NotPermitted);
        }
        self.reads += 1;
        let Some(found) = self.tables.get(table) else { return Ok(None) };
        let sets = found.sets.values().map(|(set, elements)| Some((set.clone(), elements.values().cloned().collect())));
        let chains = found.chains.values().map(|found| {
            let comparison = match wanted(&found.name) {
                Some(chain) if (chain.hook, &chain.rules) == (found.hook, &found.rules) => ChainMatch::Exact,
                Some(chain) if chain.hook == found.hook => ChainMatch::RulesDiffer,
                Some(_) => ChainMatch::DeclarationDiffers,
                None => ChainMatch::NotDesired,
            };
            (found.name.clone(), comparison)
        });
        Ok(Some(LiveTable { sets: sets.collect(), chains: chains.collect() }))
    }

    fn elements(&mut self, table: &Table, set: &Set) -> Result<Option<Vec<Element>>, Error> {
        self.dumps += 1;
        if self.blind {
            return Err(Error::Changing);
        }
        let found = self.tables.get_mut(table).and_then(|table| table.sets.get_mut(&set.name));
        let Some((_, elements)) = found else { return Ok(None) };
        let read = elements.values().cloned().collect();
        if self.expiring > 0 {
            self.expiring -= 1;
            elements.pop_first();
        }
        Ok(Some(read))
    }

    fn has_family(&self, _family: Family) -> bool {
        true
    }

    fn generation(&mut self) -> Option<u32> {
        self.generation
    }
}

/// The index of the refused element in its change, if known, and the error number.
type Refused = (Option<usize>, i32);

const MISSING: Refused = (None, 2);
const NO_MEMORY: i32 = 12;
const BUSY: Refused = (None, 16);
const EXISTS: Refused = (None, 17);
const INVALID: Refused = (None, 22);
const FULL: Refused = (None, 23);

impl FakeKernel {
    /// What was sent after the first `from` transactions: elements added, elements deleted, and all other changes.
    pub fn sent_since(&self, from: usize) -> (usize, usize, usize) {
        let mut sent = (0, 0, 0);
        for change in self.log[from..].iter().flat_map(Transaction::changes) {
            match change {
                Change::AddElements(_, _, elements) => sent.0 += elements.len(),
                Change::DeleteElements(_, _, elements) => sent.1 += elements.len(),
                _ => sent.2 += 1,
            }
        }
        sent
    }

    fn change(&mut self, before: &BTreeMap<Table, FakeTable>, change: &Change) -> Result<(), Refused> {
        match change {
            Change::AddTable(table) => _ = self.tables.entry(table.clone()).or_default(),
            Change::DeleteTable(table) => _ = self.tables.remove(table).ok_or(MISSING)?,
            Change::AddChain(table, chain) => {
                assert!(chain.rules.is_empty(), "rules are added by AddRule");
                let is_nat = chain.hook.is_some_and(|hook| hook.kind == ChainKind::Nat);
                if is_nat && self.lacks_nat == Some(table.family) {
                    return Err(MISSING);
                }
                let chains = &mut self.table(table)?.chains;
                let found = chains.entry(chain.name.clone()).or_insert_with(|| Chain::clone(chain));
                if found.hook != chain.hook {
                    return Err(EXISTS);
                }
            }
            Change::FlushChain(table, name) => self.chain(table, name)?.rules.clear(),
            Change::DeleteChain(table, name) => {
                // Older kernels count references until the transaction that drops them has ended.
                let was_used = before.get(table).is_some_and(|table| table.uses_chain(name));
                let table = self.table(table)?;
                if table.uses_chain(name) || was_used {
                    return Err(BUSY);
                }
                table.chains.remove(name).ok_or(MISSING)?;
            }
            Change::AddRule(table, name, rule) => {
                self.table(table)?.check_rule(rule)?;
                self.chain(table, name)?.rules.push(rule.clone());
            }
            Change::AddSet(table, set) => {
                let sets = &mut self.table(table)?.sets;
                let (found, _) = sets.entry(set.name.clone()).or_insert_with(|| (set.clone(), BTreeMap::new()));
                if found != set {
                    return Err(EXISTS);
                }
            }
            Change::FlushSet(table, set) => self.table(table)?.sets.get_mut(&set.name).ok_or(MISSING)?.1.clear(),
            Change::DeleteSet(table, name) => {
                let table = self.table(table)?;
                if table.chains.values().flat_map(|chain| &chain.rules).any(|rule| sets_of(rule).any(|set| set == name))
                {
                    return Err(BUSY);
                }
                table.sets.remove(name).ok_or(MISSING)?;
            }
            Change::AddElements(table, set, elements) => {
                for (index, element) in elements.iter().enumerate() {
                    let named = (!self.vague).then_some(index);
                    if self.hated.contains(&element.key) {
                        return Err((named, if self.short { NO_MEMORY } else { INVALID.1 }));
                    }
                    self.table(table)?.add_element(set, element).map_err(|(_, reason)| (named, reason))?;
                }
            }
            Change::DeleteElements(table, set, elements) => {
                let (_, held) = self.table(table)?.sets.get_mut(&set.name).ok_or(MISSING)?;
                for (index, element) in elements.iter().enumerate() {
                    held.remove(&element.key).ok_or((Some(index), MISSING.1))?;
                }
            }
        }
        Ok(())
    }

    fn table(&mut self, table: &Table) -> Result<&mut FakeTable, Refused> {
        self.tables.get_mut(table).ok_or(MISSING)
    }

    fn chain(&mut self, table: &Table, name: &Name) -> Result<&mut Chain, Refused> {
        self.table(table)?.chains.get_mut(name).ok_or(MISSING)
    }
}

impl FakeTable {
    fn add_element(&mut self, set: &Set, element: &Element) -> Result<(), Refused> {
        if let ElementData::Verdict(verdict) = &element.data
            && target(verdict).is_some_and(|chain| !self.chains.contains_key(chain))
        {
            return Err(MISSING);
        }
        let (declared, held) = self.sets.get_mut(&set.name).ok_or(MISSING)?;
        let data_fits = match (&declared.data, &element.data) {
            (SetData::None, ElementData::None) | (SetData::Verdict, ElementData::Verdict(_)) => true,
            (SetData::None, ElementData::Expires(expiry)) => declared.flags.dynamic && expiry.left <= expiry.timeout,
            (SetData::Values(types), ElementData::Value(value)) => {
                value.as_bytes().len() == types.iter().map(|field| field.padded_len()).sum::<usize>()
            }
            _ => false,
        };
        let key = &element.key;
        let range_fits = key.end().is_none() || declared.flags.interval;
        let key_len: usize = declared.key.iter().map(|field| field.padded_len()).sum();
        if !data_fits || !range_fits || key.start().as_bytes().len() != key_len {
            return Err(INVALID);
        }
        if let Some(found) = held.get(key) {
            return if found.data == element.data { Ok(()) } else { Err(EXISTS) };
        }
        if declared.flags.interval && held.keys().any(|other| overlap(declared, other, key)) {
            return Err(EXISTS);
        }
        if declared.size.is_some_and(|size| held.len() >= size as usize) {
            return Err(FULL);
        }
        held.insert(key.clone(), element.clone());
        Ok(())
    }

    fn check_rule(&self, rule: &Rule) -> Result<(), Refused> {
        let chains = rule.statements.iter().filter_map(|statement| match statement {
            Statement::Verdict(verdict) => target(verdict),
            _ => None,
        });
        let all_there = chains.into_iter().all(|chain| self.chains.contains_key(chain))
            && sets_of(rule).all(|set| self.sets.contains_key(set));
        if all_there { Ok(()) } else { Err(MISSING) }
    }

    /// Whether a rule or an element leads to the chain.
    pub fn uses_chain(&self, name: &Name) -> bool {
        let in_rules = self
            .chains
            .values()
            .flat_map(|chain| &chain.rules)
            .flat_map(|rule| &rule.statements)
            .any(|statement| matches!(statement, Statement::Verdict(verdict) if target(verdict) == Some(name)));
        let mut elements = self.sets.values().flat_map(|(_, elements)| elements.values());
        in_rules || elements.any(|element| matches!(&element.data, ElementData::Verdict(v) if target(v) == Some(name)))
    }
}

fn target(verdict: &Verdict) -> Option<&Name> {
    match verdict {
        Verdict::Jump(name) | Verdict::Goto(name) => Some(name),
        Verdict::Accept | Verdict::Drop | Verdict::Return => None,
    }
}

fn sets_of(rule: &Rule) -> impl Iterator<Item = &Name> {
    rule.statements.iter().filter_map(Statement::set)
}

/// Whether two elements overlap in every field.
fn overlap(set: &Set, one: &ElementKey, other: &ElementKey) -> bool {
    let end = |key: &ElementKey| key.end().unwrap_or(key.start()).clone();
    let (one_end, other_end) = (end(one), end(other));
    let mut at = 0;
    set.key.iter().all(|field| {
        let range = at..at + field.padded_len();
        at = range.end;
        one.start().as_bytes()[range.clone()] <= other_end.as_bytes()[range.clone()]
            && other.start().as_bytes()[range.clone()] <= one_end.as_bytes()[range]
    })
}
