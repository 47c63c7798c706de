//! The one seam to the kernel: the tools of iptables, run as children. Everything else in this crate is pure.

use std::{
    cell::RefCell,
    io::{self, BufRead as _, BufReader, BufWriter, Read, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
};

use localnet_proto::Family;

use crate::{flavour::Flavour, plan::Table, ruleset::Lines};

/// What the backend needs of iptables. The second implementor is the tests' fake.
pub trait Kernel: Send {
    /// The tables filter and nat, line by line as `iptables-save` prints them. After an error some lines may have been told.
    fn save(&mut self, family: Family, line: &mut dyn FnMut(&str)) -> Result<(), Error>;
    /// Another table, mangle, in which a kube-proxy may have left a chain; nothing if nobody uses that table.
    fn save_mangle(&mut self, family: Family, line: &mut dyn FnMut(&str)) -> Result<(), Error>;
    /// Makes all changes that the lines say, as `iptables-restore --noflush` does: each table's at once.
    fn restore(&mut self, family: Family, input: &dyn Lines) -> Result<(), Error>;
    /// Whether `restore` would take the text. Changes nothing.
    fn test(&mut self, family: Family, text: &str) -> Result<(), Error>;
    /// Whether the host has this address family at all.
    fn has_family(&self, family: Family) -> bool;
}

/// Why the tables could not be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A line is refused. Tables before its own may have been written.
    #[error("line {line} is refused: {message}")]
    Refused {
        /// Its number, from 1.
        line: usize,
        /// What the tool says.
        message: String,
    },
    /// Something else failed.
    #[error("{program}: {message}")]
    Failed {
        /// The program.
        program: String,
        /// What it says, or why it cannot be run.
        message: String,
    },
}

/// Seconds to wait for others who hold the lock.
const LOCK_WAIT: &str = "30";

/// The tools of one flavour.
#[derive(Clone, Debug)]
pub struct Tools {
    flavour: Flavour,
    has_ipv6: bool,
    commits: u32,
    locks: u32,
}

impl Tools {
    /// Those of a flavour.
    ///
    /// # Errors
    /// They are not installed.
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

    /// Which they are.
    pub fn flavour(&self) -> Flavour {
        self.flavour
    }

    /// How many tables were written.
    pub fn commits(&self) -> u32 {
        self.commits
    }

    /// How often the lock of ip_tables was taken: once for each table, as far as a tool came.
    pub fn locks(&self) -> u32 {
        self.locks
    }

    /// Says how many tables the input is about.
    fn run_restore(&mut self, family: Family, input: &dyn Lines, flags: &[&str]) -> Result<u32, Error> {
        let program = self.flavour.program(family, "restore");
        let tables = Tables { input, begin: RefCell::default() };
        let result = run(&program, flags, Some(&tables), &mut |_| {});
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

/// Remembers at which lines tables begin.
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
            run(&program, &["-t", table.as_str()], None, line)?;
        }
        Ok(())
    }

    fn save_mangle(&mut self, family: Family, line: &mut dyn FnMut(&str)) -> Result<(), Error> {
        // To ask for a table of ip_tables would load it into the kernel.
        if self.flavour.has_table(family, "mangle") {
            run(&self.flavour.program(family, "save"), &["-t", "mangle"], None, line)
        } else {
            Ok(())
        }
    }

    fn restore(&mut self, family: Family, input: &dyn Lines) -> Result<(), Error> {
        let tables = self.run_restore(family, input, &["--noflush", "-w", LOCK_WAIT])?;
        self.commits = self.commits.wrapping_add(tables);
        Ok(())
    }

    fn test(&mut self, family: Family, text: &str) -> Result<(), Error> {
        self.run_restore(family, &text, &["--noflush", "--test", "-w", LOCK_WAIT]).map(drop)
    }

    fn has_family(&self, family: Family) -> bool {
        family == Family::V4 || self.has_ipv6
    }
}

/// Runs a program to its end; it reads the input if there is one, and each line that it prints is told.
pub(crate) fn run(
    program: &str,
    flags: &[&str],
    input: Option<&dyn Lines>,
    line: &mut dyn FnMut(&str),
) -> Result<(), Error> {
    let failed = |message: String| Error::Failed { program: program.to_owned(), message };
    let path = find(program).ok_or_else(|| failed("is not installed: install the package iptables".to_owned()))?;
    let stdin = if input.is_some() { Stdio::piped() } else { Stdio::null() };
    let mut command = Command::new(path);
    command.args(flags).stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (read, said) = thread::scope(|scope| {
        // Beside the rest: a program that nobody listens to stops.
        let said = scope.spawn(move || {
            let mut said = Vec::new();
            let read = stderr.map_or(Ok(0), |mut stderr| stderr.read_to_end(&mut said));
            read.map(|_| said)
        });
        if let Some((input, stdin)) = input.zip(stdin) {
            // It may end before it has read all: then its status says why.
            _ = write(input, stdin);
        }
        let read = stdout.map_or(Ok(()), |stdout| read_lines(stdout, line));
        (read, said.join().unwrap_or_else(|_| Ok(Vec::new())))
    });
    let status = child.wait().map_err(|error| failed(error.to_string()))?;
    let said = read.and(said).map_err(|error| failed(error.to_string()))?;
    if status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&said).trim().to_owned();
    Err(match line_number(&said) {
        Some(line) if input.is_some() => Error::Refused { line, message: one_line(&said) },
        _ if said.is_empty() => failed(format!("ended with {status}")),
        _ => failed(one_line(&said)),
    })
}

fn write(input: &dyn Lines, to: impl Write) -> io::Result<()> {
    let mut to = BufWriter::with_capacity(ROOM, to);
    let mut written = Ok(());
    input.each(&mut |line| {
        if written.is_ok() {
            written = to.write_all(line.as_bytes()).and_then(|()| to.write_all(b"\n"));
        }
    });
    written.and_then(|()| to.flush())
}

fn read_lines(from: impl Read, line: &mut dyn FnMut(&str)) -> io::Result<()> {
    let (mut from, mut bytes) = (BufReader::with_capacity(ROOM, from), Vec::new());
    while from.read_until(b'\n', &mut bytes)? > 0 {
        line(String::from_utf8_lossy(&bytes).trim_end_matches('\n'));
        bytes.clear();
    }
    Ok(())
}

/// A pipe takes as much at once.
const ROOM: usize = 64 << 10;

/// Programs are found where systems put them, whatever the environment says.
fn find(program: &str) -> Option<PathBuf> {
    const FOLDERS: [&str; 6] = ["/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/bin", "/bin", "/usr/local/bin"];
    FOLDERS.iter().map(|folder| Path::new(folder).join(program)).find(|path| path.exists())
}

/// The number of the line that a restore complains of: `line 7 failed`, `Error occurred at line: 7`, `line 7: RULE_APPEND failed`.
fn line_number(said: &str) -> Option<usize> {
    said.match_indices("line").find_map(|(at, word)| {
        let rest = said[at + word.len()..].trim_start_matches([':', ' ']);
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        rest[..digits].parse().ok()
    })
}

fn one_line(said: &str) -> String {
    let lines = said.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("Try `"));
    lines.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_that_is_refused_is_known() {
        for (said, expected) in [
            ("iptables-restore: line 7 failed", Some(7)),
            (
                "iptables-restore v1.8.9 (legacy): unknown option \"--x\"\nError occurred at line: 12\nTry `iptables-restore -h'",
                Some(12),
            ),
            (
                "iptables-nft-restore v1.8.9 (nf_tables): \nline 5: RULE_APPEND failed (No such file or directory): rule in chain X",
                Some(5),
            ),
            ("Fatal: can't open lock file /run/xtables.lock: Permission denied", None),
            ("in line with expectations", None),
        ] {
            assert_eq!(line_number(said), expected, "{said}");
        }
    }
}
