//! A brain with the backend under test, in a network of their own if the kit can create one.

use std::time::Instant;

use anyhow::Context as _;
use localnet_client::served::{Expected, Served};
use localnet_lab::{Namespace, Network, Topology};
use localnet_proto::{Revision, Snapshot};
use tempfile::TempDir;

use super::Options;
use crate::{
    backend::{Backend, BackendCommand},
    brain::{Brain, free_port},
    outcome::Verdict,
};

/// The setup of a check.
pub(super) struct Bench<'a> {
    pub(super) options: &'a Options,
    pub(super) brain: Brain,
    pub(super) command: BackendCommand,
    /// The backend, which is dropped before the network in `node`.
    pub(super) backend: Option<Backend>,
    /// Whether anything has shown the backend's state: its dump, the kernel's state, or packets.
    pub(super) shown: bool,
    node: Node<'a>,
    _folder: TempDir,
}

/// Where the backend runs.
pub(super) enum Node<'a> {
    /// In a namespace that the check has created.
    Lent(&'a Namespace),
    /// In a network of its own.
    Own(Box<Network>),
    /// On this machine, whose rules the backend cannot change, because the kit does not run as root.
    Here,
}

impl Node<'_> {
    /// Creates a network for the backend, or uses this machine if the kit does not run as root.
    pub(super) fn own() -> anyhow::Result<Self> {
        if !rustix::process::geteuid().is_root() {
            return Ok(Self::Here);
        }
        Ok(Self::Own(Box::new(Network::build(Topology::default()).context("failed to create the backend's network")?)))
    }

    pub(super) fn namespace(&self) -> Option<&Namespace> {
        match self {
            Self::Lent(namespace) => Some(namespace),
            Self::Own(network) => Some(network.node()),
            Self::Here => None,
        }
    }
}

impl<'a> Bench<'a> {
    /// A setup in which nothing runs yet.
    pub(super) fn new(options: &'a Options, node: Node<'a>) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir().context("failed to create a temporary folder")?;
        let by_tcp = options.backend.contains("{tcp}");
        let port = by_tcp.then(|| free_port(node.namespace())).transpose()?;
        let command = BackendCommand::new(&options.backend, folder.path(), port);
        Ok(Self {
            options,
            brain: Brain::new(command.api()),
            command,
            backend: None,
            shown: false,
            node,
            _folder: folder,
        })
    }

    /// A setup with a running brain and backend, on a node of their own.
    pub(super) fn started(options: &'a Options) -> anyhow::Result<Self> {
        let mut bench = Self::new(options, Node::own()?)?;
        bench.start_brain()?;
        bench.start_backend()?;
        Ok(bench)
    }

    pub(super) fn start_brain(&mut self) -> anyhow::Result<()> {
        self.brain.start(self.node.namespace())
    }

    pub(super) fn refuse_connections(&mut self) -> anyhow::Result<()> {
        self.brain.refuse_connections(self.node.namespace())
    }

    pub(super) fn start_backend(&mut self) -> anyhow::Result<()> {
        self.start_backend_with(&[])
    }

    pub(super) fn start_backend_with(&mut self, flags: &[String]) -> anyhow::Result<()> {
        self.backend = None;
        self.backend = Some(self.command.start(self.node.namespace(), flags)?);
        Ok(())
    }

    pub(super) fn namespace(&self) -> Option<&Namespace> {
        self.node.namespace()
    }

    pub(super) fn log_tail(&self) -> String {
        self.backend.as_ref().map(Backend::log_tail).unwrap_or_default()
    }

    pub(super) fn backend(&mut self) -> anyhow::Result<&mut Backend> {
        self.backend.as_mut().context("the backend is not running")
    }

    /// Publishes a state, and waits until the backend holds it.
    pub(super) fn apply(&mut self, state: &Snapshot) -> anyhow::Result<Revision> {
        let revision = self.brain.publish(state);
        self.await_state(revision, state)?;
        Ok(revision)
    }

    /// Waits until the backend holds a state.
    pub(super) fn await_state(&mut self, revision: Revision, state: &Snapshot) -> anyhow::Result<()> {
        let backend = self.backend.as_mut().context("the backend is not running")?;
        backend.await_state(&self.brain, revision, state, self.options.patience)?;
        self.shown |= backend.dumps();
        self.await_kernel_state(state)
    }

    /// If `--read-back` is given, waits until the kernel serves a state.
    pub(super) fn await_kernel_state(&mut self, state: &Snapshot) -> anyhow::Result<()> {
        let Some(read_back) = &self.options.read_back else { return Ok(()) };
        let expected = Expected::without(state, &self.options.cannot_hold);
        let read = self.command.with_text(read_back);
        let deadline = Instant::now() + self.options.patience;
        loop {
            let lines = read.output_lines(self.node.namespace()).context("--read-back")?;
            let differences =
                expected.differences(&Served::parse(lines.iter().map(String::as_str)).context("--read-back")?);
            if differences.is_empty() {
                self.shown = true;
                return Ok(());
            }
            anyhow::ensure!(Instant::now() < deadline, "the kernel serves a different state:{differences}");
        }
    }

    /// [`Verdict::Passed`] if the backend's state was observed, otherwise [`Verdict::NotClaimed`]. A report of the backend
    /// does not count as an observation.
    pub(super) fn verdict(&self) -> Verdict {
        let unseen = "nothing shows the backend's state: use {dump}, claim packets (as root), or pass --read-back";
        if self.shown { Verdict::Passed } else { Verdict::NotClaimed(unseen.to_owned()) }
    }

    /// Fails if the backend holds `revision`, or reports it as applied, although the backend has not received a complete
    /// answer with that revision.
    pub(super) fn ensure_not_applied(&mut self, revision: Revision) -> anyhow::Result<()> {
        let backend = self.backend.as_mut().context("the backend is not running")?;
        backend.is_alive()?;
        if let Some(dump) = backend.dump() {
            anyhow::ensure!(
                dump.revision != revision,
                "the backend's dump contains {revision}, which no complete answer contained"
            );
        }
        let applied = self.brain.wait(std::time::Duration::from_millis(1), "", |log| {
            let of = |report: &&localnet_proto::wire::BackendReport| {
                report.instance_id == revision.instance
                    && report.families.iter().any(|family| family.applied_rev == revision.rev)
            };
            log.reports.iter().find(of).map(drop)
        });
        anyhow::ensure!(
            applied.is_err(),
            "the backend reports that it applied {revision}, which no complete answer contained"
        );
        Ok(())
    }
}
