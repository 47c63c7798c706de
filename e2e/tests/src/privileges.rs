//! Runs programs with few privileges, and reads which privileges they have and which programs they start.

use std::{
    fs::{self, File, Permissions},
    os::unix::fs::{PermissionsExt as _, chown},
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::Context as _;
use localnet_lab::{Namespace, Running};

use crate::{Programs, program};

/// The bit of `CAP_NET_ADMIN` in `/proc/PID/status`.
pub const NET_ADMIN: u64 = 1 << 12;
/// The bit of `CAP_BPF` in `/proc/PID/status`.
pub const BPF: u64 = 1 << 39;
/// The bit of `CAP_NET_RAW` in `/proc/PID/status`.
pub const NET_RAW: u64 = 1 << 13;
/// The ID of a user without privileges.
pub const NOBODY: u32 = 65_534;
/// The ID of the user with all privileges.
pub const ROOT: u32 = 0;

/// Starts a program as a user who has only the given capabilities (such as `net_admin`) and cannot acquire others.
///
/// # Errors
/// Returns an error if the program is not built or cannot be started.
pub fn start(
    programs: &Programs,
    node: &Namespace,
    (name, user): (&str, u32),
    capabilities: &[&str],
    arguments: &[&str],
) -> anyhow::Result<Running> {
    let log = File::options().create(true).append(true).open(programs.path().join(format!("{name}.log")))?;
    let (output, program) = (log.try_clone()?, within_reach(programs, name)?);
    let with = |sign: &str| capabilities.iter().map(|name| format!("{sign}{name}")).collect::<Vec<_>>().join(",");
    let (bounding, kept) = match capabilities {
        [] => ("-all".to_owned(), "-all".to_owned()),
        _ => (format!("-all,{}", with("+")), format!("-all,{}", with("+"))),
    };
    node.spawn("setpriv", |command| {
        let user = user.to_string();
        command.args(["--reuid", &user, "--regid", &user, "--clear-groups", "--no-new-privs"]);
        // Changing the user clears the parent death signal that the lab sets, so set it again.
        command.args([
            "--pdeathsig",
            "KILL",
            "--bounding-set",
            &bounding,
            "--inh-caps",
            &kept,
            "--ambient-caps",
            &kept,
        ]);
        command.arg(program).args(arguments).env("RUST_LOG", "info");
        command.stdin(Stdio::null()).stdout(output).stderr(log)
    })
}

/// A copy of the program that every user can start, wherever it was built.
fn within_reach(programs: &Programs, name: &str) -> anyhow::Result<PathBuf> {
    let (built, copy) = (program(name)?, programs.path().join(format!("bin-{name}")));
    let is_open = |path: &Path| fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 1 == 1);
    if built.ancestors().all(is_open) {
        return Ok(built);
    }
    if !copy.exists() {
        fs::hard_link(&built, &copy).or_else(|_| fs::copy(&built, &copy).map(drop))?;
    }
    Ok(copy)
}

/// A line of `/proc/PID/status`.
fn status(process: &Running, name: &str) -> anyhow::Result<String> {
    let path = format!("/proc/{}/status", process.id());
    let status = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    Ok(line.with_context(|| format!("{path} has no {name}"))?.trim().to_owned())
}

/// Verifies that a process runs as a user, has only these capabilities, and cannot acquire others.
///
/// # Errors
/// Returns an error if the process has other capabilities or has exited.
pub fn has_only(process: &Running, user: u32, capabilities: u64) -> anyhow::Result<()> {
    for set in ["CapEff", "CapPrm", "CapBnd"] {
        let has = u64::from_str_radix(&status(process, set)?, 16)?;
        anyhow::ensure!(has == capabilities, "{set} is {has:x}, not {capabilities:x}");
    }
    let uids = status(process, "Uid")?;
    anyhow::ensure!(uids.split_whitespace().all(|uid| uid == user.to_string()), "it runs as {uids}");
    Ok(())
}

/// The names of all programs that a program starts, including itself. strace sees each `execve` of its threads and children.
#[derive(Debug)]
pub struct Traced {
    log: PathBuf,
    _running: Running,
}

impl Traced {
    /// Starts a program under strace.
    ///
    /// # Errors
    /// Returns an error if the program is not built, or if strace cannot be started.
    pub fn start(programs: &Programs, node: &Namespace, name: &str, arguments: &[&str]) -> anyhow::Result<Self> {
        let trace = programs.path().join(format!("{name}.trace"));
        let log = File::options().create(true).append(true).open(programs.path().join(format!("{name}.log")))?;
        let (output, program) = (log.try_clone()?, program(name)?);
        let running = node.spawn("strace", |command| {
            command.args([
                "--follow-forks",
                "--seccomp-bpf",
                "--quiet=all",
                "--trace=execve,execveat",
                "--signal=none",
            ]);
            // The program exits together with strace.
            command.arg("--output").arg(&trace).args(["setpriv", "--pdeathsig", "KILL"]);
            command.arg(program).args(arguments).env("RUST_LOG", "info");
            command.stdin(Stdio::null()).stdout(output).stderr(log)
        })?;
        Ok(Self { log: trace, _running: running })
    }

    /// The names of the programs that were started so far.
    ///
    /// # Errors
    /// Returns an error if strace's output is unexpected.
    pub fn started(&self) -> anyhow::Result<Vec<String>> {
        let log = fs::read_to_string(&self.log).with_context(|| format!("reading {}", self.log.display()))?;
        // A line is `PID execve("/usr/sbin/iptables-nft-save", …) = 0`, or is unfinished because another thread is traced. The
        // result is -1 for each folder of PATH that lacks the program.
        let started = log.lines().filter(|line| line.contains(" execve") && !line.contains(" = -1 "));
        let name = |line: &str| Some(line.split('"').nth(1)?.rsplit('/').next()?.to_owned());
        let names: Vec<_> = started.filter_map(name).collect();
        anyhow::ensure!(names.first().is_some_and(|first| first == "setpriv"), "strace printed {log}");
        Ok(names[1..].to_vec())
    }
}

/// Copies the manifests of the examples into the programs' folder, makes `nobody` the owner of that folder, and returns the path
/// of the copies.
///
/// # Errors
/// Returns an error if the manifests cannot be read, or if the folder cannot be written.
pub fn copy_examples(programs: &Programs) -> anyhow::Result<PathBuf> {
    let (from, to) = (Path::new(EXAMPLES), programs.path().join("examples"));
    // The program that serves the socket must own the socket's folder.
    fs::set_permissions(programs.path(), Permissions::from_mode(0o755))?;
    chown(programs.path(), Some(NOBODY), Some(NOBODY))?;
    fs::create_dir(&to)?;
    for entry in fs::read_dir(from).with_context(|| format!("reading {EXAMPLES}"))? {
        let entry = entry?;
        // The same folder contains examples of backends, in subfolders.
        if entry.file_type()?.is_file() {
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(to)
}

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
