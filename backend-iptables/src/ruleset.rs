//! [`Ruleset`]: the desired and the applied state of one family's tables. Its diff is the input of `iptables-restore --noflush`.

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

pub use input::{Chains, Input, Lines, Visit};

/// The desired and applied state of one family's tables.
#[derive(Debug)]
pub struct Ruleset {
    family: Family,
    /// The digests of the chains that are written as a whole.
    chains: DiffStore<ChainId, Digest>,
    lines: DiffStore<Line, ()>,
    /// The number of desired rules in each table, without tails and jumps.
    counts: [usize; 2],
    /// The fixed rules at the end of the dispatch chains.
    tails: BTreeMap<Dispatch, Vec<String>>,
    /// The dispatch chains that are written as a whole, because they are missing, or because a diff cannot be based on their live
    /// rules.
    broken: BTreeSet<Dispatch>,
    /// The kernel's own chains whose jumps to our chains are wrong, each with the jumps that it has now.
    entries: BTreeMap<(Table, &'static str), Vec<String>>,
    /// Whether the applied state is known.
    known: bool,
    /// Chains that cannot be removed because rules of other programs refer to them. They are emptied and stay.
    kept: BTreeSet<ChainId>,
}

/// The origin of a line of input.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// A rule of a chain.
    Chain(ChainId),
    /// A line of a dispatch chain.
    Line(Line),
    /// The removal of a chain.
    Removal(ChainId),
    /// A line that does not depend on Services.
    Fixed,
    /// The end of a table, where the kernel accepts or refuses the lines before it.
    Commit,
}

impl Ruleset {
    /// An empty desired state and an unknown applied state.
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

    /// The family of the tables.
    pub fn family(&self) -> Family {
        self.family
    }

    /// Sets the digest of a desired chain.
    pub fn set_chain(&mut self, chain: ChainId, rules: Digest) {
        self.uncount_chain(&chain);
        self.counts[index(chain.table)] += rules.rules();
        self.chains.set(chain, rules);
    }

    /// Removes a chain from the desired state.
    pub fn remove_chain(&mut self, chain: &ChainId) {
        self.uncount_chain(chain);
        self.chains.remove(chain);
    }

    fn uncount_chain(&mut self, chain: &ChainId) {
        self.counts[index(chain.table)] -= self.chains.desired(chain).map_or(0, |digest| digest.rules());
    }

    /// Adds a line to the desired state.
    pub fn set_line(&mut self, line: Line) {
        self.uncount_line(&line);
        self.counts[index(line.chain.table)] += 1;
        self.lines.set(line, ());
    }

    /// Removes a line from the desired state.
    pub fn remove_line(&mut self, line: &Line) {
        self.uncount_line(line);
        self.lines.remove(line);
    }

    fn uncount_line(&mut self, line: &Line) {
        self.counts[index(line.chain.table)] -= usize::from(self.lines.desired(line).is_some());
    }

    /// Replaces all desired chains and lines.
    pub fn replace(&mut self, chains: Vec<(ChainId, Digest)>, lines: Vec<Line>) {
        self.chains.replace(chains);
        self.lines.replace(lines.into_iter().map(|line| (line, ())));
        self.count();
    }

    /// Sets the fixed rules at the end of a dispatch chain.
    pub fn set_tail(&mut self, chain: Dispatch, rules: Vec<String>) {
        if self.tails.get(&chain) != Some(&rules) {
            self.tails.insert(chain, rules);
            self.broken.insert(chain);
        }
    }

    /// The fixed rules at the end of a dispatch chain.
    pub fn tail(&self, chain: Dispatch) -> &[String] {
        self.tails.get(&chain).map(Vec::as_slice).unwrap_or_default()
    }

    /// Whether the applied state is known.
    pub fn is_known(&self) -> bool {
        self.known
    }

    /// Forgets the applied state.
    pub fn forget(&mut self) {
        self.known = false;
        self.chains.forget();
        self.lines.forget();
    }

    /// Sets the applied state to what was read from the kernel.
    pub fn adopt(&mut self, found: Found) {
        let Found { chains, mut dispatch, mut jumps, vips: _ } = found;
        self.chains.adopt(chains);
        self.broken.clear();
        let mut lines = BTreeSet::new();
        for chain in Dispatch::ALL {
            let tail = self.tails.get(&chain).map(Vec::as_slice).unwrap_or_default();
            // A diff cannot be based on a chain with a duplicate rule or a wrong tail.
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

    /// Records that the kernel applied the whole input.
    pub fn commit(&mut self) {
        self.chains.commit();
        self.lines.commit();
        self.broken.clear();
        self.entries.clear();
    }

    /// Empties a chain that is to be removed, but keeps it, because a rule of another program refers to it.
    pub fn keep(&mut self, chain: ChainId) {
        self.kept.insert(chain);
    }

    /// The number of rules that the desired state has in a table.
    pub fn rules(&self, table: Table) -> usize {
        let tails = self.tails.iter().filter(|(chain, _)| chain.table == table).map(|(_, rules)| rules.len());
        let jumps = fixed::jumps().iter().filter(|jump| jump.table == table).count();
        self.counts[index(table)] + tails.sum::<usize>() + jumps
    }

    /// Counts the desired rules from scratch.
    fn count(&mut self) {
        self.counts = Table::ALL.map(|table| {
            let chains = self.chains.iter_desired().filter(|(id, _)| id.table == table);
            let lines = self.lines.iter_desired().filter(|(line, ())| line.chain.table == table);
            chains.map(|(_, digest)| digest.rules()).sum::<usize>() + lines.count()
        });
    }

    /// The desired state as `iptables-restore` reads it. `all` provides the rules of all chains.
    pub fn listing(&self, all: &Chains<'_>) -> String {
        let mut text = String::new();
        let mut known = BTreeMap::new();
        all(&mut |chains| {
            let wanted = chains.iter().filter(|(chain, rules)| self.chains.desired(chain) == Some(&Digest::of(rules)));
            known.extend(wanted.cloned());
        });
        for table in Table::ALL {
            _ = writeln!(text, "*{table}");
            let dispatch: Vec<_> = Dispatch::ALL.iter().filter(|chain| chain.table == table).collect();
            let chains = || known.iter().filter(|(id, _)| id.table == table);
            dispatch.iter().for_each(|chain| _ = writeln!(text, ":{} - [0:0]", chain.name));
            chains().for_each(|(id, _)| _ = writeln!(text, ":{} - [0:0]", &*id.name));
            // Each jump is inserted at the top of its chain, so the jumps are written in reverse order.
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
