//! The machine and the versions of the programs.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, ensure};
use localnet_controlplane::binary;
use serde::{Deserialize, Serialize};

/// Facts that affect the results.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) date: String,
    pub(crate) revision: String,
    pub(crate) processors: usize,
    pub(crate) processor: String,
    pub(crate) memory_gib: f64,
    pub(crate) kernel: String,
    /// Program → version.
    pub(crate) versions: Vec<(String, String)>,
}

impl Machine {
    pub(crate) fn of_this() -> anyhow::Result<Self> {
        let cpus = fs::read_to_string("/proc/cpuinfo").context("reading /proc/cpuinfo")?;
        let memory = fs::read_to_string("/proc/meminfo").context("reading /proc/meminfo")?;
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name));
            line.and_then(|line| Some(line.split_once(':')?.1.trim().to_owned())).unwrap_or_default()
        };
        let kibibytes: f64 = field(&memory, "MemTotal").trim_end_matches("kB").trim().parse().unwrap_or_default();
        let mut versions = Vec::new();
        for name in ["kube-proxy", "kube-apiserver", "etcd"] {
            versions.push((name.to_owned(), version(&binary(name)?)?));
        }
        versions.push(("nft".to_owned(), version(Path::new("nft"))?));
        versions.push((
            "iptables".to_owned(),
            run(Command::new(iptables_tool("legacy")?).args(["iptables", "--version"]))?,
        ));
        Ok(Self {
            date: run(Command::new("date").args(["-u", "+%Y-%m-%d %H:%M UTC"]))?,
            revision: revision(),
            processors: std::thread::available_parallelism().context("counting processors")?.get(),
            processor: field(&cpus, "model name"),
            memory_gib: kibibytes / f64::from(1 << 20),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            versions,
        })
    }
}

/// The commit, with `-dirty` if there are uncommitted changes.
fn revision() -> String {
    let mut git = Command::new("git");
    git.args(["describe", "--always", "--dirty", "--abbrev=12"]).current_dir(env!("CARGO_MANIFEST_DIR"));
    // Sources from an archive have no commit.
    run(&mut git).unwrap_or_else(|_| "unknown".to_owned())
}

/// The version that a program prints, in one line.
pub(crate) fn version(program: &Path) -> anyhow::Result<String> {
    run(Command::new(program).arg("--version"))
}

fn run(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().with_context(|| format!("running {command:?}"))?;
    ensure!(output.status.success(), "{command:?} ended with {}", output.status);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text.lines().next().unwrap_or_default().trim().to_owned())
}

/// The program that contains all iptables tools of a flavour, `legacy` or `nft`; its first argument selects one.
pub(crate) fn iptables_tool(flavour: &str) -> anyhow::Result<PathBuf> {
    let folders = ["/usr/sbin", "/sbin"].map(Path::new);
    let name = format!("xtables-{flavour}-multi");
    let found = folders.iter().map(|folder| folder.join(&name)).find(|path| path.is_file());
    found.with_context(|| format!("{name} is not installed: run e2e/deps.sh"))
}
