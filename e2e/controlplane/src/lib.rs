//! A real control plane for tests: etcd, kube-apiserver and the endpointslice controller, as child processes.
//!
//! ```text
//! Options ─▶ ControlPlane::start ─▶ etcd ◀─ kube-apiserver ◀─ kube-controller-manager (endpointslice, namespace)
//!                                              ▲
//!              client(), objects(namespace) ───┘    kubeconfigs for other programs under test
//! ```
//!
//! The crate owns the processes, their folder, and the calls that create Nodes, Pods and Services. It starts no brain, backend or
//! kube-proxy, creates no network namespace, and knows nothing of localnet. There is no kubelet and no scheduler: a test decides
//! on which node a Pod runs and whether it is ready.

mod binaries;
mod client;
mod credentials;
mod netns;
mod objects;
mod process;

use std::env;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::runtime::wait::await_condition;
use kube::{Api, Client};
use tempfile::TempDir;
use tokio::time::{Instant, sleep, timeout};

pub use binaries::binary;
pub use objects::{NewNode, NewPod, Objects, Port, ready_addresses};

use credentials::Credentials;
use process::Process;

/// The time limit of a start. It takes some seconds, and longer while the machine builds something.
const READY_WITHIN: Duration = Duration::from_secs(120);
/// The API server of the oldest Kubernetes that localnet supports.
const OLDEST: &str = "kube-apiserver-oldest";
/// etcd's data folder, below the folder of the control plane.
const ETCD_DATA: &str = "etcd";
/// The interval between two readiness checks of the API server.
const READY_POLL: Duration = Duration::from_millis(50);

/// The configuration of a control plane.
#[derive(Debug, Clone)]
pub struct Options {
    /// The path of the network namespace in which everything runs (`/run/netns/NAME`, `/proc/PID/ns/net`). Its `lo` must be up.
    /// `None`: the caller's namespace.
    pub netns: Option<PathBuf>,
    /// The address of the API server; etcd always uses 127.0.0.1. It must not be unspecified, because the kubeconfigs contain it.
    pub bind_address: IpAddr,
    /// The Service CIDRs: one, or two of different families. The first is the default family of Services.
    pub service_cidrs: Vec<String>,
    /// Further arguments for kube-apiserver, which override ours.
    pub apiserver_arguments: Vec<String>,
    /// Whether controllers run that create EndpointSlices and empty deleted Kubernetes namespaces.
    pub controllers: bool,
    /// Further arguments for kube-controller-manager. Its option `--controllers` adds to ours.
    pub controller_arguments: Vec<String>,
    /// `GOGC` of all processes, in percent: how much the heap may grow between garbage collections.
    pub gogc: u32,
    /// The initial data of etcd: a folder that [`ControlPlane::save`] wrote, with the same `service_cidrs`. The control plane
    /// copies it.
    pub data: Option<PathBuf>,
}

impl Default for Options {
    /// In the caller's namespace, on 127.0.0.1, dual stack with IPv4 first, without data, with controllers.
    fn default() -> Options {
        Options {
            netns: None,
            bind_address: Ipv4Addr::LOCALHOST.into(),
            service_cidrs: vec!["10.96.0.0/16".to_owned(), "fd00:96::/112".to_owned()],
            apiserver_arguments: Vec::new(),
            controllers: true,
            controller_arguments: Vec::new(),
            // Tests have more memory than time.
            gogc: 400,
            data: None,
        }
    }
}

/// A further API server over the same etcd, as in a cluster with several. No kubeconfig and no controller uses it. Dropping it
/// stops it.
pub struct ApiServer {
    server: SocketAddr,
    client: Client,
    process: Process,
}

/// A running control plane. Dropping it stops the processes and removes their folder.
pub struct ControlPlane {
    options: Options,
    server: SocketAddr,
    etcd_url: String,
    credentials: Credentials,
    client: Client,
    controllers: Option<Process>,
    apiserver: Option<Process>,
    etcd: Process,
    // Last, so that it is removed after the processes that write to it.
    folder: TempDir,
}

impl ControlPlane {
    /// Starts all processes, and returns when the API server is ready and accepts Services.
    ///
    /// # Errors
    /// Returns an error if a program is not built, a process ends, or the API server is not ready in time.
    pub async fn start(options: Options) -> anyhow::Result<ControlPlane> {
        let netns = options.netns.as_deref();
        let folder = tempfile::Builder::new().prefix("localnet-controlplane-").tempdir()?;
        let server = SocketAddr::new(options.bind_address, netns::free_port(netns, options.bind_address)?);
        let credentials = Credentials::write(folder.path(), server)?;
        if let Some(data) = &options.data {
            copy_folder(data, &folder.path().join(ETCD_DATA))?;
        }
        let (etcd, etcd_url) = start_etcd(folder.path(), &options)?;
        let client = client::connect(&credentials.admin, server, options.netns.clone()).await?;
        let mut plane = ControlPlane {
            options,
            server,
            etcd_url,
            credentials,
            client,
            controllers: None,
            apiserver: None,
            etcd,
            folder,
        };
        plane.start_apiserver().await?;
        plane.await_service_addresses().await?;
        if plane.options.controllers {
            plane.controllers = Some(plane.spawn_controllers()?);
        }
        Ok(plane)
    }

    /// Stops all processes and copies etcd's data to the folder `to`, which must not exist, for [`Options::data`].
    ///
    /// # Errors
    /// Returns an error if a process does not stop, or the folder cannot be written.
    pub fn save(mut self, to: &Path) -> anyhow::Result<()> {
        for process in [self.controllers.take(), self.apiserver.take()].into_iter().flatten() {
            process.kill()?;
        }
        self.etcd.end()?;
        copy_folder(&self.folder.path().join(ETCD_DATA), to)
    }

    /// The pids of the processes, for measurements.
    pub fn processes(&self) -> impl Iterator<Item = u32> {
        let others = [&self.controllers, &self.apiserver].into_iter().flatten();
        others.chain([&self.etcd]).map(Process::id)
    }

    /// The path of an administrator's kubeconfig.
    pub fn kubeconfig(&self) -> &Path {
        &self.credentials.admin
    }

    /// The path of the kubeconfig of `system:kube-proxy`, which has the rights of a service proxy in a real cluster (RBAC's
    /// `system:node-proxier`).
    pub fn kube_proxy_kubeconfig(&self) -> &Path {
        &self.credentials.kube_proxy
    }

    /// The URL of the API server inside of the namespace: `https://ADDRESS:PORT`.
    pub fn apiserver_url(&self) -> String {
        format!("https://{}", self.server)
    }

    /// The address of the API server inside of the namespace.
    pub fn apiserver_address(&self) -> SocketAddr {
        self.server
    }

    /// An administrator's client. It works from outside of the namespace, too, and survives restarts of the API server.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Access to the objects of a Kubernetes namespace.
    pub fn objects(&self, namespace: &str) -> Objects {
        Objects::new(self.client(), namespace)
    }

    /// etcd's client URL.
    pub fn etcd(&self) -> &str {
        &self.etcd_url
    }

    /// Kills the API server; etcd keeps its data. Does nothing if it is not running.
    ///
    /// # Errors
    /// Returns an error if the process cannot be killed.
    pub fn stop_apiserver(&mut self) -> anyhow::Result<()> {
        self.apiserver.take().map_or(Ok(()), Process::kill)
    }

    /// Starts the API server on its former port, and returns when it is ready. Does nothing if it is running.
    ///
    /// # Errors
    /// Returns an error if a process ends, or the API server is not ready in time.
    pub async fn start_apiserver(&mut self) -> anyhow::Result<()> {
        let apiserver = match self.apiserver.take() {
            Some(running) => running,
            None => self.spawn_apiserver(self.server, "kube-apiserver.log")?,
        };
        let apiserver = self.apiserver.insert(apiserver);
        await_ready(&self.client, self.server, &mut [&mut self.etcd, apiserver]).await
    }

    /// Makes a backup for [`Self::restore`]: stops the API server and etcd, copies etcd's data to the folder `to`, which must not
    /// exist, and starts both again.
    ///
    /// # Errors
    /// Returns an error if a process does not stop or start, or the folder cannot be written.
    pub async fn back_up(&mut self, to: &Path) -> anyhow::Result<()> {
        self.stop_apiserver()?;
        self.etcd.end()?;
        copy_folder(&self.folder.path().join(ETCD_DATA), to)?;
        self.restart().await
    }

    /// Stops the API server and etcd, and starts both with the data that [`Self::back_up`] wrote.
    ///
    /// # Errors
    /// Returns an error if a process does not stop or start, or the folder cannot be read.
    pub async fn restore(&mut self, from: &Path) -> anyhow::Result<()> {
        self.stop_apiserver()?;
        self.etcd.end()?;
        let data = self.folder.path().join(ETCD_DATA);
        fs::remove_dir_all(&data).with_context(|| format!("removing {}", data.display()))?;
        copy_folder(from, &data)?;
        self.restart().await
    }

    async fn restart(&mut self) -> anyhow::Result<()> {
        (self.etcd, self.etcd_url) = start_etcd(self.folder.path(), &self.options)?;
        self.start_apiserver().await
    }

    /// Starts a further API server on a port of its own, and returns when it is ready.
    ///
    /// # Errors
    /// Returns an error if a process ends, or the API server is not ready in time.
    pub async fn start_another_apiserver(&mut self) -> anyhow::Result<ApiServer> {
        let netns = self.options.netns.as_deref();
        let server = SocketAddr::new(self.server.ip(), netns::free_port(netns, self.server.ip())?);
        let client = client::connect(&self.credentials.admin, server, self.options.netns.clone()).await?;
        let mut process = self.spawn_apiserver(server, &format!("kube-apiserver-{}.log", server.port()))?;
        await_ready(&client, server, &mut [&mut self.etcd, &mut process]).await?;
        Ok(ApiServer { server, client, process })
    }

    /// Waits until the API server has created its own ServiceCIDR. Before that, the API server refuses Services.
    async fn await_service_addresses(&self) -> anyhow::Result<()> {
        if !has_service_cidrs() {
            // The only range is that of the flags.
            return Ok(());
        }
        let cidrs: Api<ServiceCIDR> = Api::all(self.client());
        let ready = |cidr: Option<&ServiceCIDR>| {
            let conditions = cidr.and_then(|cidr| cidr.status.as_ref()?.conditions.as_ref());
            conditions.is_some_and(|all| all.iter().any(|one| one.type_ == "Ready" && one.status == "True"))
        };
        let awaited = timeout(READY_WITHIN, await_condition(cidrs, "kubernetes", ready)).await;
        awaited.context("awaiting the ServiceCIDR `kubernetes`")?.context("watching the ServiceCIDR `kubernetes`")?;
        Ok(())
    }

    fn spawn_apiserver(&self, server: SocketAddr, log: &str) -> anyhow::Result<Process> {
        let credentials = &self.credentials;
        let mut arguments = vec![
            format!("--etcd-servers={}", self.etcd_url),
            format!("--bind-address={}", server.ip()),
            format!("--secure-port={}", server.port()),
            // By default, the API server uses the address of the default route, which a namespace need not have.
            format!("--advertise-address={}", server.ip()),
            // Leaves default/kubernetes without endpoints, because a loopback address is not a valid endpoint.
            "--endpoint-reconciler-type=none".to_owned(),
            format!("--cert-dir={}", self.folder.path().display()),
            format!("--tls-cert-file={}", credentials.serving_certificate.display()),
            format!("--tls-private-key-file={}", credentials.serving_key.display()),
            format!("--token-auth-file={}", credentials.tokens.display()),
            "--authorization-mode=RBAC".to_owned(),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-key-file={}", credentials.service_account_public_key.display()),
            format!("--service-account-signing-key-file={}", credentials.service_account_key.display()),
            // Without the plugin, Pods need no service account; no controller here creates one.
            "--disable-admission-plugins=ServiceAccount".to_owned(),
            format!("--service-cluster-ip-range={}", self.options.service_cidrs.join(",")),
            "--allow-privileged=true".to_owned(),
        ];
        arguments.extend(self.options.apiserver_arguments.iter().cloned());
        self.spawn(apiserver(), &arguments, log)
    }

    fn spawn_controllers(&self) -> anyhow::Result<Process> {
        let mut arguments = vec![
            format!("--kubeconfig={}", self.credentials.admin.display()),
            "--controllers=endpointslice-controller,namespace-controller".to_owned(),
            "--leader-elect=false".to_owned(),
            "--secure-port=0".to_owned(),
            // The default of 20 requests per second is too slow for tests of churn.
            "--kube-api-qps=2000".to_owned(),
            "--kube-api-burst=4000".to_owned(),
        ];
        arguments.extend(self.options.controller_arguments.iter().cloned());
        self.spawn("kube-controller-manager", &arguments, "kube-controller-manager.log")
    }

    fn spawn(&self, name: &str, arguments: &[String], log: &str) -> anyhow::Result<Process> {
        Process::spawn(&binary(name)?, arguments, &self.options, &self.folder.path().join(log))
    }
}

impl ApiServer {
    /// The address inside of the namespace.
    pub fn address(&self) -> SocketAddr {
        self.server
    }

    /// An administrator's client. It works from outside of the namespace, too.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Access to the objects of a Kubernetes namespace.
    pub fn objects(&self, namespace: &str) -> Objects {
        Objects::new(self.client(), namespace)
    }

    /// Kills the API server; etcd keeps its data.
    ///
    /// # Errors
    /// Returns an error if the process cannot be killed.
    pub fn stop(self) -> anyhow::Result<()> {
        self.process.kill()
    }
}

/// The program of the API server. The environment variable `APISERVER` selects the oldest supported one (`oldest`).
fn apiserver() -> &'static str {
    if env::var_os("APISERVER").is_some_and(|version| version == "oldest") { OLDEST } else { "kube-apiserver" }
}

/// Whether the API server has the kind ServiceCIDR. The oldest supported one does not.
#[must_use]
pub fn has_service_cidrs() -> bool {
    apiserver() != OLDEST
}

/// Waits until the API server at `server`, the last of `processes`, is ready. Fails if one of them ends.
async fn await_ready(client: &Client, server: SocketAddr, processes: &mut [&mut Process]) -> anyhow::Result<()> {
    let deadline = Instant::now() + READY_WITHIN;
    while !is_ready(client).await {
        for process in &mut *processes {
            process.check_alive()?;
        }
        if Instant::now() > deadline {
            let log = processes.last().map(|process| process.tail()).unwrap_or_default();
            bail!("https://{server} was not ready within {READY_WITHIN:?}; {log}");
        }
        sleep(READY_POLL).await;
    }
    Ok(())
}

async fn is_ready(client: &Client) -> bool {
    let Ok(request) = http::Request::get("/readyz").body(Vec::new()) else { return false };
    client.request_text(request).await.is_ok_and(|answer| answer == "ok")
}

/// Starts etcd; returns the process and its client URL.
fn start_etcd(folder: &Path, options: &Options) -> anyhow::Result<(Process, String)> {
    let netns = options.netns.as_deref();
    let local = IpAddr::from(Ipv4Addr::LOCALHOST);
    let clients = format!("http://{}", SocketAddr::new(local, netns::free_port(netns, local)?));
    let peers = format!("http://{}", SocketAddr::new(local, netns::free_port(netns, local)?));
    let arguments = [
        "--name=e2e".to_owned(),
        format!("--data-dir={}", folder.join(ETCD_DATA).display()),
        format!("--listen-client-urls={clients}"),
        format!("--advertise-client-urls={clients}"),
        format!("--listen-peer-urls={peers}"),
        format!("--initial-advertise-peer-urls={peers}"),
        format!("--initial-cluster=e2e={peers}"),
        // The data need not survive a crash of the machine.
        "--unsafe-no-fsync".to_owned(),
        "--log-level=warn".to_owned(),
    ];
    Ok((Process::spawn(&binary("etcd")?, &arguments, options, &folder.join("etcd.log"))?, clients))
}

fn copy_folder(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir(to).with_context(|| format!("creating {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("reading {}", from.display()))? {
        let source = entry?.path();
        let target = to.join(source.file_name().unwrap_or_default());
        if source.is_dir() {
            copy_folder(&source, &target)?;
        } else {
            fs::copy(&source, &target).with_context(|| format!("copying {}", source.display()))?;
        }
    }
    Ok(())
}
