//! The environment of one contestant: a new network, a new control plane with all objects, and listeners. No program has
//! programmed the node yet.
//!
//! ```text
//!   client 203.0.113.2 ── router ── node ──┬── 10.180.0.1: connects
//!   etcd, kube-apiserver            │      ├── 10.180.0.2: nobody listens
//!                                outside   └── 10.180.0.3: listens
//!                       every other address: listens on 8080 and 8081
//! ```

use std::{
    fs::File,
    net::SocketAddr,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use kube::Client;
use localnet_controlplane::{ControlPlane, Options};
use localnet_lab::{Namespace, Network, Running, Topology, topology::CLIENT};
use tempfile::TempDir;
use tokio::runtime::Handle;

use crate::{
    cluster::{Probe, Size, TARGET_PORT, TELLING_PORT},
    contestants::{Contestant, Place, Program},
    packets::Listener,
    usage,
};

const CONNECTS: &str = "10.180.0.1";

/// Short timeouts for reset and unanswered connections, so that the kernel forgets them soon.
const CONNTRACK: &[(&str, &str)] =
    &[("net/netfilter/nf_conntrack_tcp_timeout_close", "1"), ("net/netfilter/nf_conntrack_tcp_timeout_syn_sent", "5")];

/// A network, a control plane and listeners.
pub(crate) struct Site {
    // Fields are dropped in this order.
    pub(crate) size: Size,
    pub(crate) runtime: Handle,
    plane: ControlPlane,
    _listeners: [Listener; 3],
    network: Network,
    folder: TempDir,
}

impl Site {
    /// Starts a control plane with these options in a new network.
    pub(crate) fn build(runtime: &Handle, size: Size, mut options: Options) -> anyhow::Result<Self> {
        let pods = [Probe::Open, Probe::Closed].map(|probe| probe.address().to_string());
        let network = Network::build(Topology::with_pods([CONNECTS, &pods[0], &pods[1]])?)?;
        network.node().sysctl(CONNTRACK)?;
        let pod = network.pod(Probe::Open.address().into())?;
        let outside = network.outside();
        let listeners = [
            Listener::start(outside, TARGET_PORT, false)?,
            Listener::start(pod, TARGET_PORT, false)?,
            Listener::start(outside, TELLING_PORT, true)?,
        ];
        options.netns = Some(network.client().path());
        options.bind_address = CLIENT[0];
        let plane = runtime.block_on(ControlPlane::start(options))?;
        let folder = tempfile::tempdir().context("creating a temporary folder")?;
        Ok(Self { size, runtime: runtime.clone(), plane, _listeners: listeners, network, folder })
    }

    /// A client of the API server.
    pub(crate) fn client(&self) -> Client {
        self.plane.client()
    }

    /// The processes of the control plane.
    pub(crate) fn control_plane(&self) -> impl Iterator<Item = u32> {
        self.plane.processes()
    }

    /// The pod that connects.
    pub(crate) fn pod(&self) -> anyhow::Result<&Namespace> {
        self.network.pod(CONNECTS.parse().context("reading the address of a pod")?)
    }

    /// The namespace of the pods of other nodes.
    pub(crate) fn outside(&self) -> &Namespace {
        self.network.outside()
    }

    /// Runs a function in the pod that connects.
    pub(crate) fn inside<T: Send>(&self, work: impl FnOnce() -> anyhow::Result<T> + Send) -> anyhow::Result<T> {
        self.pod()?.run(work)
    }

    /// Runs a command on the node.
    pub(crate) fn on_node(&self, command: &mut Command) -> anyhow::Result<()> {
        self.network.node().output(command)?;
        Ok(())
    }

    /// The addresses of all Services, in order.
    pub(crate) fn vips(&self) -> Vec<SocketAddr> {
        (0..self.size.services).map(|number| self.size.vip(number)).collect()
    }

    pub(crate) fn place(&self) -> Place<'_> {
        Place { kubeconfig: self.plane.kube_proxy_kubeconfig(), folder: self.folder.path() }
    }

    /// Starts all programs of a contestant.
    pub(crate) fn start(&self, contestant: &Contestant) -> anyhow::Result<Team> {
        let programs = (contestant.programs)(&self.place())?;
        let started = Instant::now();
        let running = programs.iter().map(|program| anyhow::Ok((program.name, self.spawn(program)?)));
        Ok(Team { started, running: running.collect::<Result<_, _>>()? })
    }

    /// Kills a program of a contestant with SIGKILL, and starts it again. Returns when it started.
    pub(crate) fn restart(&self, contestant: &Contestant, team: &mut Team, name: &str) -> anyhow::Result<Instant> {
        let programs = (contestant.programs)(&self.place())?;
        let program = programs.iter().find(|program| program.name == name).context("no such program")?;
        let (_, running) = team.running.iter_mut().find(|(running, _)| *running == name).context("it does not run")?;
        running.kill().and_then(|()| running.wait()).with_context(|| format!("killing {name}"))?;
        let started = Instant::now();
        *running = self.spawn(program)?;
        Ok(started)
    }

    fn spawn(&self, Program { name, command }: &Program) -> anyhow::Result<Running> {
        let path = self.folder.path().join(format!("{name}.log"));
        let log = File::create(&path).with_context(|| format!("creating {}", path.display()))?;
        let out = log.try_clone()?;
        self.network.node().spawn(command.get_program(), |started| {
            let set = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
            started.args(command.get_args()).envs(set).stdin(Stdio::null()).stdout(out).stderr(log)
        })
    }

    /// The end of a program's output.
    pub(crate) fn log(&self, program: &str) -> String {
        let text = std::fs::read_to_string(self.folder.path().join(format!("{program}.log"))).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

/// The running programs of a contestant. Dropping it ends them.
pub(crate) struct Team {
    /// When the first program was started.
    pub(crate) started: Instant,
    running: Vec<(&'static str, Running)>,
}

impl Team {
    /// The processes, by name.
    pub(crate) fn processes(&self) -> impl Iterator<Item = (&'static str, u32)> {
        self.running.iter().map(|(name, process)| (*name, process.id()))
    }

    /// The total CPU time of the programs so far.
    pub(crate) fn cpu(&self) -> anyhow::Result<Duration> {
        self.processes().map(|(_, process)| usage::cpu(process)).sum()
    }

    /// Fails if a program has exited.
    pub(crate) fn check_alive(&mut self, site: &Site) -> anyhow::Result<()> {
        for (name, process) in &mut self.running {
            let ended = process.try_wait().with_context(|| format!("looking after {name}"))?;
            ensure!(ended.is_none(), "{name} has ended: {ended:?}\n{}", site.log(name));
        }
        Ok(())
    }
}
