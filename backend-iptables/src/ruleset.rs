//! [`Ruleset`]: what one family's tables should hold, against what they are known to hold; the difference as the input of
//! `iptables-restore --noflush`.

mod input;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use localnet_client::DiffStore;
use localnet_proto::Family;

use crate::{
    plan::{ChainId, Digest, Dispatch, Line, Table, fixed},
    save::Found,
};

pub use input::{Chains, Input, Lines};

/// The tables of one family.
#[derive(Debug)]
pub struct Ruleset {
    family: Family,
    /// Chains that are written as a whole, by what their rules come to.
    chains: DiffStore<ChainId, Digest>,
    lines: DiffStore<Line, ()>,
    /// How many rules are desired in each table, but for tails and jumps.
    counts: [usize; 2],
    /// How dispatch chains end.
    tails: BTreeMap<Dispatch, Vec<String>>,
    /// Dispatch chains that are missing, or not what we can add to.
    broken: BTreeSet<Dispatch>,
    /// The kernel's chains whose jumps to ours are not the right ones, and those they have.
    entries: BTreeMap<(Table, &'static str), Vec<String>>,
    /// It is known what the tables hold.
    known: bool,
    /// Chains that somebody else refers to: empty, but they cannot be removed.
    kept: BTreeSet<ChainId>,
}

/// What a line of an input is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// A rule of a chain.
    Chain(ChainId),
    /// A line of a dispatch chain.
    Line(Line),
    /// A chain is removed.
    Removal(ChainId),
    /// What does not depend on services.
    Fixed,
    /// The end of a table: the kernel refuses what was collected.
    Commit,
}

impl Ruleset {
    /// Nothing is desired, nothing known.
    pub fn new(family: Family) -> Self {
        Self {
            family,
            chains: DiffStore::new(),
            lines: DiffStore::new(),
            counts: [0; 2],
            tails: BTreeMap::new(),
            broken: BTreeSet::new(),
            entries: BTreeMap::new(),
            known: false,
            kept: BTreeSet::new(),
        }
    }

    /// Its family.
    pub fn family(&self) -> Family {
        self.family
    }

    /// A chain has rules that come to this.
    pub fn set_chain(&mut self, chain: ChainId, rules: Digest) {
        self.uncount_chain(&chain);
        self.counts[index(chain.table)] += rules.rules();
        self.chains.set(chain, rules);
    }

    /// There is no such chain.
    pub fn remove_chain(&mut self, chain: &ChainId) {
        self.uncount_chain(chain);
        self.chains.remove(chain);
    }

    fn uncount_chain(&mut self, chain: &ChainId) {
        self.counts[index(chain.table)] -= self.chains.desired(chain).map_or(0, |digest| digest.rules());
    }

    /// A dispatch chain has that line.
    pub fn set_line(&mut self, line: Line) {
        self.uncount_line(&line);
        self.counts[index(line.chain.table)] += 1;
        self.lines.set(line, ());
    }

    /// No dispatch chain has that line.
    pub fn remove_line(&mut self, line: &Line) {
        self.uncount_line(line);
        self.lines.remove(line);
    }

    fn uncount_line(&mut self, line: &Line) {
        self.counts[index(line.chain.table)] -= usize::from(self.lines.desired(line).is_some());
    }

    /// These are all chains, with what their rules come to, and lines.
    pub fn replace(&mut self, chains: Vec<(ChainId, Digest)>, lines: Vec<Line>) {
        self.chains.replace(chains);
        self.lines.replace(lines.into_iter().map(|line| (line, ())));
        self.count();
    }

    /// A dispatch chain ends so.
    pub fn set_tail(&mut self, chain: Dispatch, rules: Vec<String>) {
        if self.tails.get(&chain) != Some(&rules) {
            self.tails.insert(chain, rules);
            self.broken.insert(chain);
        }
    }

    /// Whether it is known what the tables hold.
    pub fn is_known(&self) -> bool {
        self.known
    }

    /// It is no longer known what the tables hold.
    pub fn forget(&mut self) {
        self.known = false;
        self.chains.forget();
        self.lines.forget();
    }

    /// This was found in the tables.
    pub fn adopt(&mut self, found: Found) {
        let Found { chains, mut dispatch, mut jumps, vips: _ } = found;
        self.chains.adopt(chains);
        self.broken.clear();
        let mut lines = BTreeSet::new();
        for chain in Dispatch::ALL {
            let tail = self.tails.get(&chain).map(Vec::as_slice).unwrap_or_default();
            // A rule that is there twice, or a tail that is not the right one: nothing that could be added to.
            let right = dispatch.remove(&chain).is_some_and(|mut rules| {
                let own = rules.len().saturating_sub(tail.len());
                let tailed = rules[own..].iter().map(|rule| &**rule).eq(tail.iter().map(String::as_str));
                rules.truncate(own);
                let single = rules.iter().collect::<BTreeSet<_>>().len() == own;
                if tailed && single {
                    lines.extend(rules.into_iter().map(|rule| Line { chain, rule }));
                }
                tailed && single
            });
            if !right {
                self.broken.insert(chain);
            }
        }
        self.lines.adopt(lines.into_iter().map(|line| (line, ())));
        self.entries.clear();
        for entry in fixed::entries() {
            let found = jumps.remove(&entry).unwrap_or_default();
            if !found.iter().eq(wanted_jumps(entry).iter()) {
                self.entries.insert(entry, found);
            }
        }
        self.known = true;
    }

    /// All that was in the last input is in force.
    pub fn commit(&mut self) {
        self.chains.commit();
        self.lines.commit();
        self.broken.clear();
        self.entries.clear();
    }

    /// Somebody refers to a chain that is to go: it stays, empty.
    pub fn keep(&mut self, chain: ChainId) {
        self.kept.insert(chain);
    }

    /// How many rules of ours there should be in a table.
    pub fn rules(&self, table: Table) -> usize {
        let tails = self.tails.iter().filter(|(chain, _)| chain.table == table).map(|(_, rules)| rules.len());
        let jumps = fixed::jumps().iter().filter(|jump| jump.table == table).count();
        self.counts[index(table)] + tails.sum::<usize>() + jumps
    }

    /// All is counted anew.
    fn count(&mut self) {
        self.counts = Table::ALL.map(|table| {
            let chains = self.chains.iter_desired().filter(|(id, _)| id.table == table);
            let lines = self.lines.iter_desired().filter(|(line, ())| line.chain.table == table);
            chains.map(|(_, digest)| digest.rules()).sum::<usize>() + lines.count()
        });
    }

    /// All that is desired, as `iptables-restore` reads it; `all` knows the rules of all chains.
    pub fn listing(&self, all: &Chains<'_>) -> String {
        let mut text = String::new();
        let mut known = BTreeMap::new();
        all(&mut |chain, rules| {
            if self.chains.desired(chain) == Some(&Digest::of(rules)) {
                known.insert(*chain, rules.to_vec());
            }
        });
        for table in Table::ALL {
            _ = writeln!(text, "*{table}");
            let dispatch: Vec<_> = Dispatch::ALL.iter().filter(|chain| chain.table == table).collect();
            let chains = || known.iter().filter(|(id, _)| id.table == table);
            dispatch.iter().for_each(|chain| _ = writeln!(text, ":{} - [0:0]", chain.name));
            chains().for_each(|(id, _)| _ = writeln!(text, ":{} - [0:0]", &*id.name));
            // Each is put first.
            for jump in fixed::jumps().iter().rev().filter(|jump| jump.table == table) {
                _ = writeln!(text, "-I {} {}", jump.from, jump.rule);
            }
            for chain in dispatch {
                let own = self.lines.iter_desired().filter(|(line, ())| line.chain == *chain);
                own.for_each(|(line, ())| _ = writeln!(text, "-A {} {}", chain.name, line.rule));
                let tail = self.tails.get(chain).into_iter().flatten();
                tail.for_each(|rule| _ = writeln!(text, "-A {} {rule}", chain.name));
            }
            for (id, rules) in chains() {
                rules.iter().for_each(|rule| _ = writeln!(text, "-A {} {rule}", &*id.name));
            }
            text.push_str("COMMIT\n");
        }
        text
    }
}

fn index(table: Table) -> usize {
    match table {
        Table::Filter => 0,
        Table::Nat => 1,
    }
}

fn wanted_jumps((table, from): (Table, &'static str)) -> Vec<String> {
    let all = fixed::jumps().into_iter();
    all.filter(|jump| (jump.table, jump.from) == (table, from)).map(|jump| jump.rule).collect()
}
