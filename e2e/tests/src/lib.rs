//! Tests of the programs as shipped, and of the repository itself: see the `tests` folder of this crate.
//!
//! This library contains the code that the tests share: it starts the programs, or [`kube_proxy`], on a node of the lab, and waits for
//! the outcome of packets. It also has [`api_server`], [`differential`], [`dns`], [`faults`], [`load`], [`privileges`], [`scenario`], [`web`]
//! and [`writer`].

pub mod api_server;
mod backend;
pub mod differential;
pub mod dns;
pub mod faults;
pub mod kube_proxy;
pub mod load;
pub mod privileges;
pub mod scenario;
pub mod web;
pub mod writer;

use std::{
    collections::BTreeSet,
    fs::{self, File},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use localnet_lab::{Namespace, Outcome, Probe, Running};
use tempfile::TempDir;

pub use backend::Backend;

/// Maximum time for anything that must happen, even on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The patience on this machine: longer in a guest, because its processor is emulated.
fn patience() -> Duration {
    if std::env::var_os(localnet_vm::MARKER).is_some() { PATIENCE * 6 } else { PATIENCE }
}

/// The path of a program of the workspace, which is built next to the tests.
///
/// # Errors
/// Returns an error if the program is not built. `make test` builds all programs first.
pub fn program(name: &str) -> anyhow::Result<PathBuf> {
    let test = std::env::current_exe().context("finding this test")?;
    // target/PROFILE/deps/TEST-HASH
    let folder = test.ancestors().nth(2).context("finding the folder of programs")?;
    let path = [folder.join(name), folder.join("examples").join(name)].into_iter().find(|path| path.is_file());
    path.with_context(|| format!("{} is not built: run `make test`", folder.join(name).display()))
}

/// The path of a Python interpreter with grpcio.
///
/// # Errors
/// Returns an error if it is missing. `make python` creates it.
pub fn python() -> anyhow::Result<PathBuf> {
    let cache = std::env::var_os("LOCALNET_CACHE").map(PathBuf::from);
    let cache = cache.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache"));
    let path = cache.join("python/venv/bin/python");
    anyhow::ensure!(path.exists(), "{} is not there: run `make python`", path.display());
    Ok(path)
}

/// The programs of one node, with their sockets and logs in a temporary folder.
#[derive(Debug)]
pub struct Programs {
    folder: TempDir,
}

impl Programs {
    /// Creates the folder. No program runs yet.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be created.
    pub fn new() -> anyhow::Result<Self> {
        Ok(Self { folder: tempfile::tempdir().context("creating a temporary folder")? })
    }

    /// The temporary folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The address of the brain's listener, in Docker's syntax.
    pub fn api(&self) -> String {
        format!("unix://{}", self.folder.path().join("brain.sock").display())
    }

    /// Starts a program in a namespace. Its output is appended to the log with its name.
    ///
    /// # Errors
    /// Returns an error if the program is not built or cannot be started.
    pub fn start(&self, namespace: &Namespace, name: &str, arguments: &[&str]) -> anyhow::Result<Running> {
        let log = File::options().create(true).append(true).open(self.log_path(name)).context("opening a log")?;
        let output = log.try_clone()?;
        namespace.spawn(program(name)?, |command| {
            let command = command.args(arguments).env("RUST_LOG", "info,localnet=debug");
            command.stdin(Stdio::null()).stdout(output).stderr(log)
        })
    }

    /// Starts the brain with a source, for the node `node-a`.
    ///
    /// # Errors
    /// See [`Self::start`].
    pub fn start_brain(&self, namespace: &Namespace, source: &str) -> anyhow::Result<Running> {
        self.start_brain_of(namespace, source, "node-a")
    }

    /// Starts the brain with a source, for a node.
    ///
    /// # Errors
    /// See [`Self::start`].
    pub fn start_brain_of(&self, namespace: &Namespace, source: &str, node: &str) -> anyhow::Result<Running> {
        let api = self.api();
        self.start(namespace, "localnet-brain", &["--source", source, "--node-name", node, "--listen", &api])
    }

    /// Starts a backend for the lab's pods.
    ///
    /// # Errors
    /// See [`Self::start`].
    pub fn start_backend(&self, namespace: &Namespace, backend: Backend) -> anyhow::Result<Running> {
        self.start_backend_with(namespace, backend, &[])
    }

    /// Starts a backend for the lab's pods, with further flags.
    ///
    /// # Errors
    /// See [`Self::start`].
    pub fn start_backend_with(
        &self,
        namespace: &Namespace,
        backend: Backend,
        flags: &[&str],
    ) -> anyhow::Result<Running> {
        let (api, cluster) = (self.api(), localnet_lab::topology::CLUSTER_CIDRS.join(","));
        let mut arguments = vec!["--api", &api, "--cluster-cidr", &cluster];
        arguments.extend(backend.flags());
        arguments.extend(flags);
        self.start(namespace, backend.program(), &arguments)
    }

    /// Starts the nft backend for the lab's pods.
    ///
    /// # Errors
    /// See [`Self::start`].
    pub fn start_nft(&self, namespace: &Namespace) -> anyhow::Result<Running> {
        self.start_backend(namespace, Backend::Nft)
    }

    /// The output of a program so far.
    pub fn log(&self, name: &str) -> String {
        fs::read_to_string(self.log_path(name)).unwrap_or_default()
    }

    /// How many times the log of a backend, or of `localnet-node`, reports a completely applied state. Reports about single
    /// transactions or families do not count.
    pub fn states_applied(&self, name: &str) -> usize {
        self.log(name).matches(" applied revision=").count()
    }

    fn log_path(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.log"))
    }

    /// Waits until exactly these endpoints answer a probe, in some tens of probes.
    ///
    /// # Errors
    /// Returns an error if this takes longer than [`PATIENCE`]. The error contains the actual answers and the programs' output.
    pub fn await_answers(&self, from: &Namespace, probe: Probe, endpoints: &[SocketAddr]) -> anyhow::Result<()> {
        let expected: BTreeSet<_> = endpoints.iter().copied().collect();
        self.await_outcomes(from, probe, endpoints.len() * 12, |outcomes| {
            let by = |outcome: &Outcome| match outcome {
                Outcome::Answer { by, .. } => Some(*by),
                Outcome::Rejected | Outcome::Dropped | Outcome::NoRoute => None,
            };
            outcomes.iter().map(by).collect::<Option<BTreeSet<_>>>().as_ref() == Some(&expected)
        })
    }

    /// Waits until `count` probes in a row have the right outcomes.
    ///
    /// # Errors
    /// Returns an error if this takes longer than [`PATIENCE`].
    pub fn await_outcomes(
        &self,
        from: &Namespace,
        probe: Probe,
        count: usize,
        right: impl Fn(&BTreeSet<Outcome>) -> bool,
    ) -> anyhow::Result<()> {
        let deadline = Instant::now() + patience();
        loop {
            let mut outcomes = BTreeSet::new();
            from.probe_until(probe.timeout(Duration::from_millis(500)), count, |outcome| {
                outcomes.insert(outcome);
                false
            })?;
            if right(&outcomes) {
                return Ok(());
            }
            let programs = ["localnet-brain", "localnet-nft", "localnet-iptables", "localnet-ipvs"]
                .map(|name| format!("{name}:\n{}", self.log(name)));
            anyhow::ensure!(Instant::now() < deadline, "{probe:?} came to {outcomes:?}; {}", programs.concat());
        }
    }
}

/// Waits until a condition is true, by polling it.
///
/// # Errors
/// Returns an error if this takes longer than [`PATIENCE`].
pub fn await_condition(what: &str, mut condition: impl FnMut() -> bool) -> anyhow::Result<()> {
    let deadline = Instant::now() + patience();
    while !condition() {
        anyhow::ensure!(Instant::now() < deadline, "waited {:?} for: {what}", patience());
        std::thread::park_timeout(Duration::from_millis(5));
    }
    Ok(())
}
