//! The crate's only access to the kernel: the tools of iptables, run as child processes, and the packet counters.

use std::{cell::RefCell, io, path::Path};

use localnet_linux::nfacct;
use localnet_proto::Family;

use crate::{
    flavour::Flavour,
    plan::{Table, names},
    ruleset::Lines,
    tool::{Error, find, restore, run},
};

/// The operations on the kernel that the backend needs. [`Tools`] implements them, and so does a fake for tests.
pub trait Kernel: Send {
    /// Calls `line` for each line that `iptables-save` prints for the tables filter and nat. If this returns an error,
    /// it may already have called `line` for some lines.
    fn save(&mut self, family: Family, line: &mut dyn FnMut(&str)) -> Result<(), Error>;
    /// As [`Self::save`], for the table mangle, in which a kube-proxy may have left a chain. Does not call `line` if
    /// the table is unused.
    fn save_mangle(&mut self, family: Family, line: &mut dyn FnMut(&str)) -> Result<(), Error>;
    /// The value for [`Desired::limit_sections`](crate::desired::Desired::limit_sections).
    fn section_lines(&self) -> usize;
    /// Applies the input as `iptables-restore --noflush` does. Each section, from a table's name to `COMMIT`, is applied atomically.
    fn restore(&mut self, family: Family, input: &dyn Lines) -> Result<(), Error>;
    /// Returns an error if `restore` would refuse the text. Changes nothing.
    fn test(&mut self, family: Family, text: &str) -> Result<(), Error>;
    /// Creates the packet counters unless they exist. Returns an error if rules cannot count packets on this kernel.
    fn ensure_counters(&mut self) -> io::Result<()>;
    /// The number of packets in a counter.
    fn packets(&self, counter: &str) -> io::Result<u64>;
    /// Whether the host has this address family.
    fn has_family(&self, family: Family) -> bool;
}

/// How long the tools wait for the lock, in seconds.
const LOCK_WAIT: &str = "30";

/// The tools of one flavour, run in the current network namespace.
#[derive(Clone, Debug)]
pub struct Tools {
    flavour: Flavour,
    has_ipv6: bool,
    commits: u32,
    locks: u32,
}

impl Tools {
    /// The tools of a flavour.
    ///
    /// # Errors
    /// Returns [`Error::Failed`] if a tool is not installed.
    pub fn find(flavour: Flavour) -> Result<Self, Error> {
        let tools = Self { flavour, has_ipv6: Path::new("/proc/self/net/if_inet6").exists(), commits: 0, locks: 0 };
        for family in Family::BOTH.into_iter().filter(|family| tools.has_family(*family)) {
            for tool in ["restore", "save"] {
                let name = flavour.program(family, tool);
                if find(&name).is_none() {
                    let message =
                        "is not installed: install the package iptables, or choose --iptables-flavour".to_owned();
                    return Err(Error::Failed { program: name, message });
                }
            }
        }
        Ok(tools)
    }

    /// The flavour of the tools.
    pub fn flavour(&self) -> Flavour {
        self.flavour
    }

    /// How many sections these tools have applied.
    pub fn commits(&self) -> u32 {
        self.commits
    }

    /// How many times the tools took the lock of ip_tables: once for each section that they reached.
    pub fn locks(&self) -> u32 {
        self.locks
    }

    /// Runs the tool `restore`. Returns the number of sections in the input.
    fn run_restore(&mut self, family: Family, input: &dyn Lines, flags: &[&str]) -> Result<u32, Error> {
        let program = self.flavour.program(family, "restore");
        let tables = Tables { input, begin: RefCell::default() };
        let result = restore(&program, flags, &tables, self.flavour.process_lines());
        let last = match &result {
            Err(Error::Refused { line, .. }) => *line,
            _ => usize::MAX,
        };
        let count = |tables: usize| u32::try_from(tables).unwrap_or(u32::MAX);
        let begin = tables.begin.into_inner();
        self.locks = self.locks.wrapping_add(count(begin.iter().filter(|line| **line <= last).count()));
        result.map(|()| count(begin.len()))
    }
}

/// Wraps the lines of an input, and remembers at which lines sections begin.
struct Tables<'a> {
    input: &'a dyn Lines,
    begin: RefCell<Vec<usize>>,
}

impl Lines for Tables<'_> {
    fn each(&self, line: &mut dyn FnMut(&str)) {
        let (mut number, mut begin) = (0, Vec::new());
        self.input.each(&mut |text| {
            number += 1;
            if text.starts_with('*') {
                begin.push(number);
            }
            line(text);
        });
        *self.begin.borrow_mut() = begin;
    }
}

impl Kernel for Tools {
    fn save(&mut self, family: Family, line: &mut dyn FnMut(&str)) -> Result<(), Error> {
        let program = self.flavour.program(family, "save");
        for table in Table::ALL {
            run(&program, &["-t", table.as_str()], line)?;
        }
        Ok(())
    }

    fn save_mangle(&mut self, family: Family, line: &mut dyn FnMut(&str)) -> Result<(), Error> {
        // A tool that reads an ip_tables table makes the kernel load the table, so unused tables are not read.
        if self.flavour.has_table(family, "mangle") {
            run(&self.flavour.program(family, "save"), &["-t", "mangle"], line)
        } else {
            Ok(())
        }
    }

    fn section_lines(&self) -> usize {
        self.flavour.section_lines()
    }

    fn restore(&mut self, family: Family, input: &dyn Lines) -> Result<(), Error> {
        let tables = self.run_restore(family, input, &["--noflush", "-w", LOCK_WAIT])?;
        self.commits = self.commits.wrapping_add(tables);
        Ok(())
    }

    fn test(&mut self, family: Family, text: &str) -> Result<(), Error> {
        self.run_restore(family, &text, &["--noflush", "--test", "-w", LOCK_WAIT]).map(drop)
    }

    fn ensure_counters(&mut self) -> io::Result<()> {
        nfacct::check()?;
        [names::INVALID_DROPPED, names::LOCALHOST_ACCEPTED].into_iter().try_for_each(nfacct::ensure)
    }

    fn packets(&self, counter: &str) -> io::Result<u64> {
        nfacct::packets(counter)
    }

    fn has_family(&self, family: Family) -> bool {
        family == Family::V4 || self.has_ipv6
    }
}
