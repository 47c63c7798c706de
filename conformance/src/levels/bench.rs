//! A brain and the backend on it, in a network of their own if there can be one.

use std::time::Instant;

use anyhow::Context as _;
use localnet_client::served::{Expected, Served};
use localnet_lab::{Namespace, Network, Topology};
use localnet_proto::{Revision, Snapshot};
use tempfile::TempDir;

use super::Options;
use crate::{
    backend::{Backend, Line},
    brain::{Brain, free_port},
    outcome::Verdict,
};

/// What a check works at.
pub(super) struct Bench<'a> {
    pub(super) options: &'a Options,
    pub(super) brain: Brain,
    pub(super) line: Line,
    /// Killed before its network goes.
    pub(super) backend: Option<Backend>,
    /// Somebody has shown what the backend holds: its dump, the kernel read back, or packets.
    pub(super) shown: bool,
    node: Node<'a>,
    _folder: TempDir,
}

/// Where the backend runs.
pub(super) enum Node<'a> {
    /// In this namespace.
    Lent(&'a Namespace),
    /// In a network that is there for it alone.
    Own(Box<Network>),
    /// On this machine: whoever is not root can write nothing there.
    Here,
}

impl Node<'_> {
    /// A node of its own, where that is possible.
    pub(super) fn own() -> anyhow::Result<Self> {
        if !rustix::process::geteuid().is_root() {
            return Ok(Self::Here);
        }
        Ok(Self::Own(Box::new(Network::build(Topology::default()).context("making a network for the backend")?)))
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
    /// Nothing runs yet.
    pub(super) fn new(options: &'a Options, node: Node<'a>) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir().context("creating a temporary folder")?;
        let by_tcp = options.backend.contains("{tcp}");
        let port = by_tcp.then(|| free_port(node.namespace())).transpose()?;
        let line = Line::new(&options.backend, folder.path(), port);
        Ok(Self { options, brain: Brain::new(line.api()), line, backend: None, shown: false, node, _folder: folder })
    }

    /// Brain and backend run, on a node of their own.
    pub(super) fn started(options: &'a Options) -> anyhow::Result<Self> {
        let mut bench = Self::new(options, Node::own()?)?;
        bench.start_brain()?;
        bench.start_backend()?;
        Ok(bench)
    }

    pub(super) fn start_brain(&mut self) -> anyhow::Result<()> {
        self.brain.start(self.node.namespace())
    }

    /// Closes the connections of the backend as they come.
    pub(super) fn turn_away(&mut self) -> anyhow::Result<()> {
        self.brain.turn_away(self.node.namespace())
    }

    pub(super) fn start_backend(&mut self) -> anyhow::Result<()> {
        self.start_backend_with(&[])
    }

    pub(super) fn start_backend_with(&mut self, flags: &[String]) -> anyhow::Result<()> {
        self.backend = None;
        self.backend = Some(self.line.start(self.node.namespace(), flags)?);
        Ok(())
    }

    pub(super) fn namespace(&self) -> Option<&Namespace> {
        self.node.namespace()
    }

    /// The end of what the backend has said.
    pub(super) fn log_tail(&self) -> String {
        self.backend.as_ref().map(Backend::log_tail).unwrap_or_default()
    }

    pub(super) fn backend(&mut self) -> anyhow::Result<&mut Backend> {
        self.backend.as_mut().context("the backend does not run")
    }

    /// Makes this the state, and waits until the backend holds it.
    pub(super) fn apply(&mut self, state: &Snapshot) -> anyhow::Result<Revision> {
        let revision = self.brain.publish(state);
        self.holds(revision, state)?;
        Ok(revision)
    }

    /// Waits until the backend holds it.
    pub(super) fn holds(&mut self, revision: Revision, state: &Snapshot) -> anyhow::Result<()> {
        let backend = self.backend.as_mut().context("the backend does not run")?;
        backend.holds(&self.brain, revision, state, self.options.patience)?;
        self.shown |= backend.dumps();
        self.reads_back(state)
    }

    /// Whether the kernel serves this state, if a command reads it back. What is reported may be in force a moment later.
    pub(super) fn reads_back(&mut self, state: &Snapshot) -> anyhow::Result<()> {
        let Some(command) = &self.options.read_back else { return Ok(()) };
        let expected = Expected::of(state);
        let read = self.line.other(command);
        let deadline = Instant::now() + self.options.patience;
        loop {
            let lines = read.lines(self.node.namespace()).context("--read-back")?;
            let differences =
                expected.differences(&Served::parse(lines.iter().map(String::as_str)).context("--read-back")?);
            if differences.is_empty() {
                self.shown = true;
                return Ok(());
            }
            anyhow::ensure!(Instant::now() < deadline, "what the kernel serves is something else:{differences}");
        }
    }

    /// Passed, if anybody has shown what the backend holds. Its word that it has applied a state shows nothing.
    pub(super) fn verdict(&self) -> Verdict {
        let unseen = "nobody has shown what it holds: give it {dump}, claim packets (as root), or give --read-back";
        if self.shown { Verdict::Passed } else { Verdict::NotClaimed(unseen.to_owned()) }
    }

    /// Fails if the backend says that it has this revision, or holds it.
    pub(super) fn has_not(&mut self, revision: Revision) -> anyhow::Result<()> {
        let backend = self.backend.as_mut().context("the backend does not run")?;
        backend.is_alive()?;
        if let Some(dump) = backend.dump() {
            anyhow::ensure!(dump.revision != revision, "it holds {revision}, which it cannot have");
        }
        let applied = self.brain.wait(std::time::Duration::from_millis(1), "", |log| {
            let of = |report: &&localnet_proto::wire::BackendReport| {
                report.instance_id == revision.instance
                    && report.families.iter().any(|family| family.applied_rev == revision.rev)
            };
            log.reports.iter().find(of).map(drop)
        });
        anyhow::ensure!(applied.is_err(), "it reports {revision} as applied, which it cannot have");
        Ok(())
    }
}
