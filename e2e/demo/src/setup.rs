//! The setup of the demo: namespaces, the programs in them, and the pods' servers.

use std::{
    net::{IpAddr, SocketAddr, TcpListener},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::Stdio,
    thread,
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
    /// The program that serves the page, if it was requested.
    pub(crate) page: Option<Running>,
    pub(crate) network: Network,
    folder: TempDir,
}

impl Setup {
    /// Builds the network, and starts the pods, the brain with `services` as its source, the nft backend, and `localnet ui` if
    /// `with_page` is true.
    pub(crate) fn build(services: &Path, with_page: bool) -> anyhow::Result<Self> {
        let network = Network::build(Topology::with_pods(PODS)?)?;
        let servers = Servers::start(&network, endpoints()?)?;
        let folder = tempfile::tempdir().context("creating a temporary folder")?;
        let address = format!("unix://{}", folder.path().join("brain.sock").display());
        let log = std::fs::File::create(folder.path().join("log")).context("creating the log")?;
        let start_with = |name: &str, arguments: &[&str], input: Stdio, output: Stdio| -> anyhow::Result<Running> {
            let errors = log.try_clone()?;
            network.node().spawn(beside_this(name)?, |program| {
                program.args(arguments).env_remove("RUST_LOG").stdin(input).stdout(output).stderr(errors)
            })
        };
        let start = |name: &str, arguments: &[&str]| -> anyhow::Result<Running> {
            start_with(name, arguments, Stdio::null(), log.try_clone()?.into())
        };
        let source = format!("file:{}", services.display());
        let brain = start("localnet-brain", &["--source", &source, "--node-name", "demo-node", "--listen", &address])?;
        let pods = localnet_lab::topology::CLUSTER_CIDRS.join(",");
        let backend = start("localnet-nft", &["--api", &address, "--cluster-cidr", &pods, "--traffic", "64"])?;
        let page = match with_page {
            true => {
                // The program works in the node's namespace, but browsers of this machine reach the page.
                let listener = TcpListener::bind(("127.0.0.1", 0)).context("opening a port for the page")?;
                let output = std::fs::File::create(folder.path().join("page")).context("creating a file")?;
                let arguments = ["ui", "--api", &address, "--listen", "-"];
                Some(start_with("localnet", &arguments, OwnedFd::from(listener).into(), output.into())?)
            }
            false => None,
        };
        Ok(Self { _brain: brain, _backend: backend, _servers: servers, page, network, folder })
    }

    /// The path of the brain's socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("brain.sock")
    }

    /// Waits for the address of the page.
    ///
    /// # Errors
    /// Returns an error if `localnet ui` does not print it within `patience`. The error contains the programs' log.
    pub(crate) fn await_page(&self, patience: Duration) -> anyhow::Result<String> {
        let deadline = Instant::now() + patience;
        loop {
            let text = std::fs::read_to_string(self.folder.path().join("page")).unwrap_or_default();
            if let Some((address, _)) = text.split_once('\n') {
                return Ok(address.to_owned());
            }
            anyhow::ensure!(Instant::now() < deadline, "localnet ui has printed no address; {}", self.log());
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn log(&self) -> String {
        let text = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        format!("the log of the programs:\n{text}")
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
                    "{} at {} does not answer; {}",
                    target.service,
                    target.to,
                    self.log(),
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
