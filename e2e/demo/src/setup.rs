//! The setup of the demo: namespaces, the programs in them, and the pods' servers.

use std::{
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use localnet_lab::{Endpoint, Network, Probe, Protocol, Running, Servers, Topology};
use localnet_proto::Snapshot;
use tempfile::TempDir;

use crate::targets;

/// Ports on which every pod answers, over TCP and UDP: those of the examples, and a few for experiments.
const POD_PORTS: [u16; 4] = [8080, 8081, 5353, 9090];
const PODS: [&str; 3] = ["10.180.0.1", "10.180.0.2", "10.180.0.3"];

/// Everything that runs. Dropping it stops the programs and removes the namespaces.
#[derive(Debug)]
pub(crate) struct Setup {
    _brain: Running,
    _backend: Running,
    _servers: Servers,
    pub(crate) network: Network,
    folder: TempDir,
}

impl Setup {
    /// Builds the network, and starts the pods, the brain with `services` as its source, and the nft backend.
    pub(crate) fn build(services: &Path) -> anyhow::Result<Self> {
        let network = Network::build(Topology::with_pods(PODS)?)?;
        let servers = Servers::start(&network, endpoints()?)?;
        let folder = tempfile::tempdir().context("creating a temporary folder")?;
        let address = format!("unix://{}", folder.path().join("brain.sock").display());
        let log = std::fs::File::create(folder.path().join("log")).context("creating the log")?;
        let start = |name: &str, arguments: &[&str]| -> anyhow::Result<Running> {
            let (output, errors) = (log.try_clone()?, log.try_clone()?);
            network.node().spawn(beside_this(name)?, |program| {
                let program = program.args(arguments).env_remove("RUST_LOG");
                program.stdin(Stdio::null()).stdout(output).stderr(errors)
            })
        };
        let source = format!("file:{}", services.display());
        let brain = start("localnet-brain", &["--source", &source, "--node-name", "demo-node", "--listen", &address])?;
        let pods = localnet_lab::topology::CLUSTER_CIDRS.join(",");
        let backend = start("localnet-nft", &["--api", &address, "--cluster-cidr", &pods])?;
        Ok(Self { _brain: brain, _backend: backend, _servers: servers, network, folder })
    }

    /// The path of the brain's socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("brain.sock")
    }

    /// Waits until every Service with endpoints answers.
    ///
    /// # Errors
    /// Returns an error if a Service does not answer within `patience`. The error contains the programs' log.
    pub(crate) fn await_programmed(&self, state: &Snapshot, patience: Duration) -> anyhow::Result<()> {
        let deadline = Instant::now() + patience;
        for target in targets::of(state).into_iter().filter(|target| !target.endpoints.is_empty()) {
            let probe = Probe::new(target.protocol, target.to).timeout(Duration::from_millis(100));
            while !matches!(target.from(&self.network)?.probe(probe)?, localnet_lab::Outcome::Answer { .. }) {
                anyhow::ensure!(
                    Instant::now() < deadline,
                    "{} at {} does not answer; the log of the programs:\n{}",
                    target.service,
                    target.to,
                    std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default(),
                );
            }
        }
        Ok(())
    }
}

/// The endpoints at which the pods answer.
fn endpoints() -> anyhow::Result<Vec<Endpoint>> {
    let mut endpoints = Vec::new();
    for pod in Topology::with_pods(PODS)?.pods {
        for (address, port) in pod.addresses().into_iter().flat_map(|ip: IpAddr| POD_PORTS.map(|port| (ip, port))) {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                endpoints.push(Endpoint { protocol, address: SocketAddr::new(address, port) });
            }
        }
    }
    Ok(endpoints)
}

/// The path of a program that was built beside this one.
fn beside_this(name: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::current_exe().context("finding this program")?.with_file_name(name);
    anyhow::ensure!(path.exists(), "{} is not built: run `make demo`", path.display());
    Ok(path)
}
