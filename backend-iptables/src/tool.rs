//! Runs `iptables-save` or `iptables-restore` as a child process.

use std::{
    io::{self, BufRead as _, BufReader, BufWriter, Read, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    thread::{self, JoinHandle},
};

use crate::ruleset::Lines;

/// Why the tables could not be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The tool refused a line. Earlier sections of the input may have been applied.
    #[error("line {line} of the input was refused: {message}")]
    Refused {
        /// The number of the line, from 1.
        line: usize,
        /// The message of the tool.
        message: String,
    },
    /// The tool could not be run, or failed for another reason.
    #[error("{program}: {message}")]
    Failed {
        /// The name of the tool.
        program: String,
        /// The message of the tool, or the reason why it could not be run.
        message: String,
    },
}

/// Runs a program to its end. Calls `line` for each line of its output.
pub(crate) fn run(program: &str, flags: &[&str], line: &mut dyn FnMut(&str)) -> Result<(), Error> {
    let mut running = Running::start(program, flags, Stdio::null(), Stdio::piped())?;
    let read = running.child.stdout.take().map_or(Ok(()), |stdout| read_lines(stdout, line));
    running.end(read)
}

/// Runs a program that reads `input`. If a section begins after more than `lines` lines, the process ends, and a new one reads the
/// rest.
pub(crate) fn restore(program: &str, flags: &[&str], input: &dyn Lines, lines: usize) -> Result<(), Error> {
    let (mut running, mut result) = (None, Ok(()));
    // The number of lines so far, and how many of them earlier processes have read.
    let (mut number, mut before) = (0, 0);
    let end = |running: Option<Running>, before| match running.map_or(Ok(()), |running| running.end(Ok(()))) {
        Err(Error::Failed { program, message }) => Err(match line_number(&message) {
            Some(line) => Error::Refused { line: before + line, message },
            None => Error::Failed { program, message },
        }),
        other => other,
    };
    input.each(&mut |line| {
        if line.starts_with('*') && number - before > lines && result.is_ok() {
            result = end(running.take(), before);
            before = number;
        }
        if running.is_none() && result.is_ok() {
            let started = Running::start(program, flags, Stdio::piped(), Stdio::null());
            result = started.map(|started| running = Some(started));
        }
        number += 1;
        if let Some(running) = &mut running {
            running.write(line);
        }
    });
    result.and_then(|()| end(running, before))
}

/// A program that runs.
struct Running {
    program: String,
    child: Child,
    /// Its standard input.
    input: Option<BufWriter<ChildStdin>>,
    /// A thread reads the standard error, because the program blocks when a pipe is full.
    message: JoinHandle<io::Result<Vec<u8>>>,
}

impl Running {
    fn start(program: &str, flags: &[&str], input: Stdio, output: Stdio) -> Result<Self, Error> {
        let failed = |message: String| Error::Failed { program: program.to_owned(), message };
        let path = find(program).ok_or_else(|| failed("is not installed: install the package iptables".to_owned()))?;
        let mut command = Command::new(path);
        command.args(flags).stdin(input).stdout(output).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
        let input = child.stdin.take().map(|input| BufWriter::with_capacity(ROOM, input));
        let stderr = child.stderr.take();
        let message = thread::spawn(move || {
            let mut message = Vec::new();
            stderr.map_or(Ok(0), |mut stderr| stderr.read_to_end(&mut message)).map(|_| message)
        });
        Ok(Self { program: program.to_owned(), child, input, message })
    }

    /// Writes a line to the standard input. The program may end before it has read everything. Its exit status and message then
    /// give the reason.
    fn write(&mut self, line: &str) {
        self.input.take_if(|input| input.write_all(line.as_bytes()).and_then(|()| input.write_all(b"\n")).is_err());
    }

    /// Waits for the end. `read`: whether the standard output was read.
    fn end(mut self, read: io::Result<()>) -> Result<(), Error> {
        drop(self.input.take());
        let message = self.message.join().unwrap_or_else(|_| Ok(Vec::new()));
        let ended = self.child.wait().and_then(|status| Ok((status, read.and(message)?)));
        let message = match ended {
            Ok((status, _)) if status.success() => return Ok(()),
            Ok((status, message)) if message.is_empty() => format!("ended with {status}"),
            Ok((_, message)) => one_line(&String::from_utf8_lossy(&message)),
            Err(error) => error.to_string(),
        };
        Err(Error::Failed { program: self.program, message })
    }
}

fn read_lines(from: impl Read, line: &mut dyn FnMut(&str)) -> io::Result<()> {
    let (mut from, mut bytes) = (BufReader::with_capacity(ROOM, from), Vec::new());
    while from.read_until(b'\n', &mut bytes)? > 0 {
        line(String::from_utf8_lossy(&bytes).trim_end_matches('\n'));
        bytes.clear();
    }
    Ok(())
}

/// The capacity of a pipe, in bytes.
const ROOM: usize = 64 << 10;

/// The path of a program in the usual system folders. The variable PATH is ignored.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    const FOLDERS: [&str; 6] = ["/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/bin", "/bin", "/usr/local/bin"];
    FOLDERS.iter().map(|folder| Path::new(folder).join(program)).find(|path| path.exists())
}

/// The line number in a message of a restore: `line 7 failed`, `Error occurred at line: 7`, `line 7: RULE_APPEND failed`.
fn line_number(message: &str) -> Option<usize> {
    message.match_indices("line").find_map(|(at, word)| {
        let rest = message[at + word.len()..].trim_start_matches([':', ' ']);
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        rest[..digits].parse().ok()
    })
}

fn one_line(message: &str) -> String {
    let lines = message.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("Try `"));
    lines.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The program `sh` stands in for `iptables-restore`: it refuses lines that contain `bad`.
    #[test]
    fn lines_are_counted_across_processes() {
        const REFUSE: &str =
            r#"at=$(grep -n bad | cut -d: -f1); [ -z "$at" ] || { echo "line $at failed" >&2; exit 1; }"#;
        for lines in [0, 2, 3, usize::MAX] {
            let run = |input: &str| restore("sh", &["-c", REFUSE], &input, lines);
            assert_eq!(run("*a\n:c\nCOMMIT\n*a\n:c\nCOMMIT\n*a\n:c\nCOMMIT"), Ok(()));
            let refused = run("*a\n:c\nCOMMIT\n*a\n:c\n:bad\nCOMMIT\n*a\n:c\nCOMMIT");
            assert!(matches!(refused, Err(Error::Refused { line: 6, .. })), "{lines}: {refused:?}");
        }
    }

    #[test]
    fn the_refused_line_is_found_in_the_message() {
        for (message, expected) in [
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
            assert_eq!(line_number(message), expected, "{message}");
        }
    }
}
