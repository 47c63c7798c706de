//! The kernel of the tests. It implements as much of `iptables-restore --noflush` and `iptables-save` as the backend uses.

#[cfg(test)]
mod contract;

use std::{collections::BTreeMap, io};

use localnet_proto::{ByFamily, Family};

use crate::{kernel::Kernel, plan::names, ruleset::Lines, tool::Error};

/// The chains by table and name. The kernel's own chains always exist.
pub type Tables = BTreeMap<String, BTreeMap<String, Vec<String>>>;

/// The kernel's own chains of each table.
const BUILT_IN: [(&str, &[&str]); 2] =
    [("filter", &["INPUT", "FORWARD", "OUTPUT"]), ("nat", &["PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"])];

/// The tables of both families.
#[derive(Clone, Debug)]
pub struct Fake {
    /// The tables of each family.
    pub tables: ByFamily<Tables>,
    /// The inputs of all restores, and whether each was accepted.
    pub inputs: Vec<(Family, String, bool)>,
    /// Rules that contain this text are refused; `true` refuses at the end of the table instead of at their line.
    pub refuses: Option<(String, bool)>,
    /// Whether refusals report a shortage of memory, which the rule did not cause.
    pub short: bool,
    /// Another program's change, made once after the tables have been read.
    pub after_save: Option<fn(&mut ByFamily<Tables>)>,
    /// How many times the tables were read.
    pub saves: usize,
    /// The longest section, as in [`Kernel::section_lines`].
    pub section_lines: usize,
    /// The packet counters; `None` for a kernel without them.
    pub counters: Option<BTreeMap<String, u64>>,
    /// The tables after each commit.
    pub committed: Vec<(Family, Tables)>,
}

impl Default for Fake {
    fn default() -> Self {
        let empty = |chains: &[&str]| chains.iter().map(|chain| ((*chain).to_owned(), Vec::new())).collect();
        let tables = || BUILT_IN.iter().map(|(table, chains)| ((*table).to_owned(), empty(chains))).collect();
        Self {
            tables: ByFamily::from_fn(|_| tables()),
            inputs: Vec::new(),
            refuses: None,
            short: false,
            after_save: None,
            saves: 0,
            section_lines: usize::MAX,
            counters: Some(BTreeMap::new()),
            committed: Vec::new(),
        }
    }
}

impl Fake {
    /// The lines that `iptables-save` prints.
    pub fn lines(&self, family: Family) -> Vec<String> {
        let mut lines = Vec::new();
        for (table, chains) in &self.tables[family] {
            lines.push(format!("*{table}"));
            lines.extend(chains.keys().map(|chain| format!(":{chain} - [0:0]")));
            let rules =
                chains.iter().flat_map(|(chain, rules)| rules.iter().map(move |rule| format!("-A {chain} {rule}")));
            lines.extend(rules);
            lines.push("COMMIT".to_owned());
        }
        lines
    }

    fn why(&self) -> &'static str {
        if self.short { "Cannot allocate memory" } else { "refused" }
    }

    fn run(
        &self,
        family: Family,
        text: &str,
        step: &mut dyn FnMut(&Tables),
    ) -> Result<Tables, (usize, String, Tables)> {
        let mut committed = self.tables[family].clone();
        let mut open: Option<(String, BTreeMap<String, Vec<String>>)> = None;
        let mut doomed = false;
        for (number, line) in (1..).zip(text.lines()) {
            let refuse = |why: &str| (number, format!("{why}: {line}"), committed.clone());
            if let Some(table) = line.strip_prefix('*') {
                open = Some((table.to_owned(), committed.get(table).cloned().ok_or_else(|| refuse("no table"))?));
                continue;
            }
            let (table, mut chains) = open.take().ok_or_else(|| refuse("outside of a table"))?;
            if line == "COMMIT" {
                if doomed {
                    return Err(refuse(self.why()));
                }
                committed.insert(table, chains);
                step(&committed);
                continue;
            }
            if let Some(declared) = line.strip_prefix(':') {
                let name = declared.split(' ').next().unwrap_or_default();
                // The kernel's own chains keep their rules.
                if !BUILT_IN.iter().any(|(_, chains)| chains.contains(&name)) {
                    chains.insert(name.to_owned(), Vec::new());
                }
            } else {
                let mut words = line.splitn(3, ' ');
                let (command, chain) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
                let rule = words.next().unwrap_or_default().to_owned();
                if let Some((text, at_the_end)) = &self.refuses
                    && ["-A", "-I"].contains(&command)
                    && rule.contains(text.as_str())
                {
                    if !at_the_end {
                        return Err(refuse(self.why()));
                    }
                    doomed = true;
                }
                let counter = rule.split_once("--nfacct-name ").and_then(|(_, rest)| rest.split(' ').next());
                let has = |counter| self.counters.as_ref().is_some_and(|counters| counters.contains_key(counter));
                if !counter.is_none_or(has) {
                    return Err(refuse("no such counter"));
                }
                let target = rule.rsplit_once("-j ").and_then(|(_, to)| to.split(' ').next());
                if target.is_some_and(|target| target.starts_with("KUBE-") && !chains.contains_key(target)) {
                    return Err(refuse("no such target"));
                }
                let named = chains.get_mut(chain).ok_or_else(|| refuse("no chain"))?;
                match command {
                    "-A" => named.push(rule),
                    "-I" => named.insert(0, rule),
                    "-C" | "-D" => {
                        let at = named.iter().position(|one| *one == rule).ok_or_else(|| refuse("no such rule"))?;
                        if command == "-D" {
                            named.remove(at);
                        }
                    }
                    "-X" => {
                        if !named.is_empty() {
                            return Err(refuse("chain is not empty"));
                        }
                        let leads = format!("-j {chain}");
                        if chains.values().flatten().any(|rule| rule.ends_with(&leads)) {
                            return Err(refuse("too many links"));
                        }
                        chains.remove(chain);
                    }
                    _ => return Err(refuse("unknown command")),
                }
            }
            open = Some((table, chains));
        }
        match open {
            None => Ok(committed),
            Some(_) => Err((text.lines().count() + 1, "COMMIT expected".to_owned(), committed)),
        }
    }
}

impl Kernel for Fake {
    fn save(&mut self, family: Family, line: &mut dyn FnMut(&str)) -> Result<(), Error> {
        self.saves += 1;
        self.lines(family).iter().for_each(|one| line(one));
        if let Some(change) = self.after_save.take() {
            change(&mut self.tables);
        }
        Ok(())
    }

    fn save_mangle(&mut self, _family: Family, _line: &mut dyn FnMut(&str)) -> Result<(), Error> {
        Ok(())
    }

    fn section_lines(&self) -> usize {
        self.section_lines
    }

    fn restore(&mut self, family: Family, input: &dyn Lines) -> Result<(), Error> {
        let mut text = String::new();
        input.each(&mut |line| text.extend([line, "\n"]));
        let mut steps = Vec::new();
        let result = self.run(family, &text, &mut |tables| steps.push((family, tables.clone())));
        self.committed.extend(steps);
        self.inputs.push((family, text, result.is_ok()));
        match result {
            Ok(tables) => {
                self.tables[family] = tables;
                Ok(())
            }
            Err((line, message, tables)) => {
                self.tables[family] = tables;
                Err(Error::Refused { line, message })
            }
        }
    }

    fn test(&mut self, family: Family, text: &str) -> Result<(), Error> {
        self.run(family, text, &mut |_| {}).map(drop).map_err(|(line, message, _)| Error::Refused { line, message })
    }

    fn ensure_counters(&mut self) -> io::Result<()> {
        // A kernel without counters answers EINVAL.
        let counters = self.counters.as_mut().ok_or(io::ErrorKind::InvalidInput)?;
        for name in [names::INVALID_DROPPED, names::LOCALHOST_ACCEPTED] {
            counters.entry(name.to_owned()).or_default();
        }
        Ok(())
    }

    fn packets(&self, counter: &str) -> io::Result<u64> {
        let counters = self.counters.as_ref().ok_or(io::ErrorKind::InvalidInput)?;
        counters.get(counter).copied().ok_or(io::ErrorKind::NotFound.into())
    }

    fn has_family(&self, _family: Family) -> bool {
        true
    }
}
