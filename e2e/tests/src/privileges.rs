//! Programs of ours with few privileges, and what they have and start: for tests of what each needs.

use std::{
    fs::{self, File, Permissions},
    os::unix::fs::{PermissionsExt as _, chown},
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::Context as _;
use localnet_lab::{Namespace, Running};

use crate::{Programs, program};

/// The bit of `CAP_NET_ADMIN`, as `/proc/PID/status` has it.
pub const NET_ADMIN: u64 = 1 << 12;
/// That of `CAP_NET_RAW`.
pub const NET_RAW: u64 = 1 << 13;
/// A user without any rights.
pub const NOBODY: u32 = 65_534;
/// The user with all of them.
pub const ROOT: u32 = 0;

/// Starts a program of ours as a user, with those capabilities, as `net_admin`, and no way to more.
///
/// # Errors
/// It is not built, or cannot be started.
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
        // What the lab asks for ends with the change of user.
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

/// The program where every user can start it, wherever it was built.
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

/// Holds that a process runs as that user and has these capabilities alone, and can get no others.
///
/// # Errors
/// It has others, or has ended.
pub fn has_only(process: &Running, user: u32, capabilities: u64) -> anyhow::Result<()> {
    for set in ["CapEff", "CapPrm", "CapBnd"] {
        let has = u64::from_str_radix(&status(process, set)?, 16)?;
        anyhow::ensure!(has == capabilities, "{set} is {has:x}, not {capabilities:x}");
    }
    let uids = status(process, "Uid")?;
    anyhow::ensure!(uids.split_whitespace().all(|uid| uid == user.to_string()), "it runs as {uids}");
    Ok(())
}

/// The programs that a program of ours has started, by name, itself included: strace sees each `execve` of its threads and children.
#[derive(Debug)]
pub struct Traced {
    log: PathBuf,
    _running: Running,
}

impl Traced {
    /// Starts a program of ours so that it is seen.
    ///
    /// # Errors
    /// It is not built, or strace cannot be started.
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
            // It ends together with what traces it.
            command.arg("--output").arg(&trace).args(["setpriv", "--pdeathsig", "KILL"]);
            command.arg(program).args(arguments).env("RUST_LOG", "info");
            command.stdin(Stdio::null()).stdout(output).stderr(log)
        })?;
        Ok(Self { log: trace, _running: running })
    }

    /// The names of the programs that were started until now.
    ///
    /// # Errors
    /// strace says something else.
    pub fn started(&self) -> anyhow::Result<Vec<String>> {
        let log = fs::read_to_string(&self.log).with_context(|| format!("reading {}", self.log.display()))?;
        // PID execve("/usr/sbin/iptables-nft-save", …) = 0, or unfinished while another thread does something; -1 where a folder of
        // the PATH has no such program.
        let started = log.lines().filter(|line| line.contains(" execve") && !line.contains(" = -1 "));
        let name = |line: &str| Some(line.split('"').nth(1)?.rsplit('/').next()?.to_owned());
        let names: Vec<_> = started.filter_map(name).collect();
        anyhow::ensure!(names.first().is_some_and(|first| first == "setpriv"), "strace says {log}");
        Ok(names[1..].to_vec())
    }
}

/// Copies the manifests of the examples into the folder of the programs, which then belongs to nobody in particular; says where they are.
///
/// # Errors
/// They cannot be read, or the folder cannot be written.
pub fn copy_examples(programs: &Programs) -> anyhow::Result<PathBuf> {
    let (from, to) = (Path::new(EXAMPLES), programs.path().join("examples"));
    // The socket's folder belongs to whoever serves.
    fs::set_permissions(programs.path(), Permissions::from_mode(0o755))?;
    chown(programs.path(), Some(NOBODY), Some(NOBODY))?;
    fs::create_dir(&to)?;
    for entry in fs::read_dir(from).with_context(|| format!("reading {EXAMPLES}"))? {
        let entry = entry?;
        // Beside them are examples of backends, in folders.
        if entry.file_type()?.is_file() {
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(to)
}

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
