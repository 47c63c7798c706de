//! Runs `iptables-save` or `iptables-restore` as a child process.

use std::{
    io::{self, BufRead as _, BufReader, BufWriter, Read, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
};

use crate::ruleset::Lines;

/// Why the tables could not be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The tool refused a line. Earlier tables of the input may have been written.
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

/// Runs a program to its end. Writes `input` to its standard input and calls `line` for each line of its output.
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
    let (read, message) = thread::scope(|scope| {
        // A thread reads stderr, because the program blocks when a pipe is full.
        let message = scope.spawn(move || {
            let mut message = Vec::new();
            let read = stderr.map_or(Ok(0), |mut stderr| stderr.read_to_end(&mut message));
            read.map(|_| message)
        });
        if let Some((input, stdin)) = input.zip(stdin) {
            // The program may exit before it has read everything. Its exit status and message then give the reason.
            _ = write(input, stdin);
        }
        let read = stdout.map_or(Ok(()), |stdout| read_lines(stdout, line));
        (read, message.join().unwrap_or_else(|_| Ok(Vec::new())))
    });
    let status = child.wait().map_err(|error| failed(error.to_string()))?;
    let message = read.and(message).map_err(|error| failed(error.to_string()))?;
    if status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&message).trim().to_owned();
    Err(match line_number(&message) {
        Some(line) if input.is_some() => Error::Refused { line, message: one_line(&message) },
        _ if message.is_empty() => failed(format!("ended with {status}")),
        _ => failed(one_line(&message)),
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
