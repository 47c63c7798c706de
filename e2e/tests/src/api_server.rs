//! The API server of a test. A test in a guest uses one that runs on the host, whose processors are not emulated.

use std::{
    env,
    ffi::OsString,
    net::{IpAddr, Ipv4Addr},
    path::{Path, PathBuf},
    time::Duration,
};

use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use localnet_controlplane::{ControlPlane, Objects, Options};
use localnet_lab::{Namespace, Network, Topology, topology::SERVICE_CIDRS};
use localnet_vm::{HostSide, nic};
use tokio::runtime::Runtime;

/// The address of the API server in the namespace that belongs to a guest.
const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(100, 64, 0, 1));
/// Environment variables with the kubeconfigs of the host's API server, for an administrator and for kube-proxy.
const ADMIN: &str = "LOCALNET_TEST_ADMIN";
const KUBE_PROXY: &str = "LOCALNET_TEST_KUBE_PROXY";

/// What runs on the host while a test runs in a guest. Dropping it ends it.
pub struct Kept {
    _plane: ControlPlane,
    _network: Network,
    _runtime: Runtime,
}

/// Starts an API server for a test in a guest. This number of the guest's nodes can reach the API server. `limit` is the time
/// limit of the test.
///
/// # Errors
/// Returns an error if the API server does not start.
pub fn host_side(nodes: usize, controllers: bool, limit: Duration) -> anyhow::Result<(HostSide, Kept)> {
    let runtime = Runtime::new()?;
    let network = Network::build(Topology::default())?;
    network.node().ip([format!("address add {ADDRESS}/32 dev lo")])?;
    let plane = runtime.block_on(start(network.node().path(), ADDRESS, controllers))?;
    let variable = |name, path: &Path| (name, OsString::from(path));
    let host_side = HostSide {
        // One interface is for the test itself.
        network: localnet_vm::Network { namespace: network.node().path(), nics: 1 + nodes },
        variables: vec![variable(ADMIN, plane.kubeconfig()), variable(KUBE_PROXY, plane.kube_proxy_kubeconfig())],
        limit,
    };
    Ok((host_side, Kept { _plane: plane, _network: network, _runtime: runtime }))
}

/// Access to the API server from the place where the test runs.
pub struct Api {
    /// An administrator's client.
    pub client: Client,
    /// The kubeconfig of kube-proxy, for programs on the nodes.
    pub kube_proxy: PathBuf,
    /// `None` in a guest.
    _plane: Option<ControlPlane>,
}

impl Api {
    /// Finds the API server that [`host_side`] started, and connects this process and the nodes to it. Returns `None` outside of a
    /// guest.
    ///
    /// # Errors
    /// Returns an error if a node has no interface for it, or if the kubeconfig is invalid.
    pub async fn of_host(nodes: &[&Namespace]) -> anyhow::Result<Option<Self>> {
        let (Some(admin), Some(kube_proxy)) = (env::var_os(ADMIN), env::var_os(KUBE_PROXY)) else { return Ok(None) };
        nic::connect(0, None, &[ADDRESS])?;
        for (number, node) in nodes.iter().enumerate() {
            nic::connect(1 + number, Some(node.name()), &[ADDRESS])?;
        }
        let file = Kubeconfig::read_from(admin)?;
        let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
        Ok(Some(Self { client: Client::try_from(config)?, kube_proxy: kube_proxy.into(), _plane: None }))
    }

    /// Starts an API server at an address of a network namespace.
    ///
    /// # Errors
    /// Returns an error if it does not start.
    pub async fn start(netns: PathBuf, address: IpAddr, controllers: bool) -> anyhow::Result<Self> {
        let plane = start(netns, address, controllers).await?;
        let kube_proxy = plane.kube_proxy_kubeconfig().to_owned();
        Ok(Self { client: plane.client(), kube_proxy, _plane: Some(plane) })
    }

    /// Access to the objects of a Kubernetes namespace.
    pub fn objects(&self, namespace: &str) -> Objects {
        Objects::new(self.client.clone(), namespace)
    }
}

async fn start(netns: PathBuf, address: IpAddr, controllers: bool) -> anyhow::Result<ControlPlane> {
    ControlPlane::start(Options {
        netns: Some(netns),
        bind_address: address,
        service_cidrs: SERVICE_CIDRS.map(str::to_owned).to_vec(),
        controllers,
        ..Options::default()
    })
    .await
}
