//! The one seam to the kernel: the tools of iptables, run as children. Everything else in this crate is pure.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use localnet_proto::Family;

use crate::{flavour::Flavour, plan::Table};

/// What the backend needs of iptables. The second implementor is the tests' fake.
pub trait Kernel: Send {
    /// The tables filter and nat, as `iptables-save` prints them.
    fn save(&mut self, family: Family) -> Result<String, Error>;
    /// Another table, mangle, in which a kube-proxy may have left a chain; nothing if nobody uses that table.
    fn save_mangle(&mut self, family: Family) -> Result<String, Error>;
    /// Makes all changes that the text says, as `iptables-restore --noflush` does: each table's at once.
    fn restore(&mut self, family: Family, text: &str) -> Result<(), Error>;
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

    fn run_restore(&mut self, family: Family, text: &str, flags: &[&str]) -> Result<(), Error> {
        let program = self.flavour.program(family, "restore");
        let result = run(&program, flags, text).map(drop);
        let last = match &result {
            Err(Error::Refused { line, .. }) => *line,
            _ => usize::MAX,
        };
        let tables = text.lines().take(last).filter(|line| line.starts_with('*')).count();
        self.locks = self.locks.wrapping_add(u32::try_from(tables).unwrap_or(u32::MAX));
        result
    }
}

impl Kernel for Tools {
    fn save(&mut self, family: Family) -> Result<String, Error> {
        let program = self.flavour.program(family, "save");
        let mut text = String::new();
        for table in Table::ALL {
            text += &run(&program, &["-t", table.as_str()], "")?;
        }
        Ok(text)
    }

    fn save_mangle(&mut self, family: Family) -> Result<String, Error> {
        // To ask for a table of ip_tables would load it into the kernel.
        if self.flavour.has_table(family, "mangle") {
            run(&self.flavour.program(family, "save"), &["-t", "mangle"], "")
        } else {
            Ok(String::new())
        }
    }

    fn restore(&mut self, family: Family, text: &str) -> Result<(), Error> {
        let result = self.run_restore(family, text, &["--noflush", "-w", LOCK_WAIT]);
        if result.is_ok() {
            let tables = text.lines().filter(|line| *line == "COMMIT").count();
            self.commits = self.commits.wrapping_add(u32::try_from(tables).unwrap_or(u32::MAX));
        }
        result
    }

    fn test(&mut self, family: Family, text: &str) -> Result<(), Error> {
        self.run_restore(family, text, &["--noflush", "--test", "-w", LOCK_WAIT])
    }

    fn has_family(&self, family: Family) -> bool {
        family == Family::V4 || self.has_ipv6
    }
}

/// Runs a program with an input to its end; gives what it prints.
pub(crate) fn run(program: &str, flags: &[&str], input: &str) -> Result<String, Error> {
    let failed = |message: String| Error::Failed { program: program.to_owned(), message };
    let path = find(program).ok_or_else(|| failed("is not installed: install the package iptables".to_owned()))?;
    let mut command = Command::new(path);
    command.args(flags).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
    if let Some(mut stdin) = child.stdin.take() {
        // It may end before it has read all: then its status says why.
        _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(match line_number(&said) {
        Some(line) if !input.is_empty() => Error::Refused { line, message: one_line(&said) },
        _ if said.is_empty() => failed(format!("ended with {}", output.status)),
        _ => failed(one_line(&said)),
    })
}

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
