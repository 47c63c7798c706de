//! A real control plane for tests: etcd, kube-apiserver and the endpointslice controller, as child processes.
//!
//! ```text
//! Options ─▶ ControlPlane::start ─▶ etcd ◀─ kube-apiserver ◀─ kube-controller-manager (endpointslice, namespace)
//!                                              ▲
//!              client(), objects(namespace) ───┘    kubeconfigs for whatever else is under test
//! ```
//!
//! It owns the processes, their folder and the few calls that make Nodes, Pods and Services. It starts no brain, no backend and
//! no kube-proxy, makes no network namespace, and knows nothing of localnet. There is no kubelet and no scheduler: a test says on
//! which node a Pod is and whether it is ready.

mod binaries;
mod client;
mod credentials;
mod netns;
mod objects;
mod process;

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

/// How long a start may take. It takes some seconds; a machine that builds at the same time is slow.
const READY_WITHIN: Duration = Duration::from_secs(120);
/// Where etcd keeps what it holds, in the folder of the control plane.
const ETCD_DATA: &str = "etcd";
/// The pause between two questions whether the API server is ready.
const READY_POLL: Duration = Duration::from_millis(50);

/// What a test may choose.
#[derive(Debug, Clone)]
pub struct Options {
    /// The network namespace in which everything runs, as a path (`/run/netns/NAME`, `/proc/PID/ns/net`); its `lo` must be up.
    /// None: the namespace of the caller.
    pub netns: Option<PathBuf>,
    /// Where the API server listens; etcd is always on 127.0.0.1. Not an unspecified address: the kubeconfigs name it.
    pub bind_address: IpAddr,
    /// One CIDR or two, of different families; the first is the default family of Services.
    pub service_cidrs: Vec<String>,
    /// More arguments for kube-apiserver. They come last and win over ours.
    pub apiserver_arguments: Vec<String>,
    /// Whether there is somebody who makes EndpointSlices of Services and Pods, and empties Kubernetes namespaces.
    pub controllers: bool,
    /// `GOGC` of all processes, in percent: how much garbage there may be before it is collected.
    pub gogc: u32,
    /// What etcd begins with: a folder that [`ControlPlane::save`] wrote, with the same `service_cidrs`. It is copied.
    pub data: Option<PathBuf>,
}

impl Default for Options {
    /// In the caller's namespace, on 127.0.0.1, dual stack with IPv4 first, empty, with controllers.
    fn default() -> Options {
        Options {
            netns: None,
            bind_address: Ipv4Addr::LOCALHOST.into(),
            service_cidrs: vec!["10.96.0.0/16".to_owned(), "fd00:96::/112".to_owned()],
            apiserver_arguments: Vec::new(),
            controllers: true,
            // There is more memory than time.
            gogc: 400,
            data: None,
        }
    }
}

/// A further API server over the same etcd, as a cluster has several of them. No kubeconfig and no controller knows it. Dropping it
/// ends it.
pub struct ApiServer {
    server: SocketAddr,
    client: Client,
    process: Process,
}

/// A running control plane. Dropping it ends the processes and removes their folder.
pub struct ControlPlane {
    options: Options,
    server: SocketAddr,
    etcd_url: String,
    credentials: Credentials,
    client: Client,
    controllers: Option<Process>,
    apiserver: Option<Process>,
    etcd: Process,
    // Last, so that it goes when nobody writes to it any more.
    folder: TempDir,
}

impl ControlPlane {
    /// Starts all and returns when the API server is ready and Services can be made.
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

    /// Ends all and leaves what etcd holds in the folder `to`, which must not exist. For [`Options::data`].
    pub fn save(mut self, to: &Path) -> anyhow::Result<()> {
        for process in [self.controllers.take(), self.apiserver.take()].into_iter().flatten() {
            process.kill()?;
        }
        self.etcd.end()?;
        copy_folder(&self.folder.path().join(ETCD_DATA), to)
    }

    /// The processes, for whoever wants to know what they cost.
    pub fn processes(&self) -> impl Iterator<Item = u32> {
        let others = [&self.controllers, &self.apiserver].into_iter().flatten();
        others.chain([&self.etcd]).map(Process::id)
    }

    /// The kubeconfig of a user who may do everything.
    pub fn kubeconfig(&self) -> &Path {
        &self.credentials.admin
    }

    /// The kubeconfig of `system:kube-proxy`: RBAC's `system:node-proxier`, the rights a service proxy has in a real cluster.
    pub fn kube_proxy_kubeconfig(&self) -> &Path {
        &self.credentials.kube_proxy
    }

    /// `https://ADDRESS:PORT`, as seen from inside the namespace.
    pub fn apiserver_url(&self) -> String {
        format!("https://{}", self.server)
    }

    /// The same as an address.
    pub fn apiserver_address(&self) -> SocketAddr {
        self.server
    }

    /// A client with all rights. It works from outside the namespace, too, and outlives restarts of the API server.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// What a test makes and awaits in one Kubernetes namespace.
    pub fn objects(&self, namespace: &str) -> Objects {
        Objects::new(self.client(), namespace)
    }

    /// Where etcd answers, as an URL.
    pub fn etcd(&self) -> &str {
        &self.etcd_url
    }

    /// Kills the API server; etcd keeps what it holds. Nothing happens if it is not running.
    pub fn stop_apiserver(&mut self) -> anyhow::Result<()> {
        self.apiserver.take().map_or(Ok(()), Process::kill)
    }

    /// Starts the API server, on the port it always had, and returns when it is ready. Nothing happens if it is running.
    pub async fn start_apiserver(&mut self) -> anyhow::Result<()> {
        let apiserver = match self.apiserver.take() {
            Some(running) => running,
            None => self.spawn_apiserver(self.server, "kube-apiserver.log")?,
        };
        let apiserver = self.apiserver.insert(apiserver);
        await_ready(&self.client, self.server, &mut [&mut self.etcd, apiserver]).await
    }

    /// Stops API server and etcd, copies what etcd holds to the folder `to`, which must not exist, and starts both again: a
    /// backup for [`Self::restore`].
    ///
    /// # Errors
    /// A process does not end or start, or the folder cannot be written.
    pub async fn back_up(&mut self, to: &Path) -> anyhow::Result<()> {
        self.stop_apiserver()?;
        self.etcd.end()?;
        copy_folder(&self.folder.path().join(ETCD_DATA), to)?;
        self.restart().await
    }

    /// Stops API server and etcd, and starts both with what [`Self::back_up`] wrote.
    ///
    /// # Errors
    /// A process does not end or start, or the folder cannot be read.
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

    /// Starts a further API server, on a port of its own, and returns when it is ready.
    pub async fn start_another_apiserver(&mut self) -> anyhow::Result<ApiServer> {
        let netns = self.options.netns.as_deref();
        let server = SocketAddr::new(self.server.ip(), netns::free_port(netns, self.server.ip())?);
        let client = client::connect(&self.credentials.admin, server, self.options.netns.clone()).await?;
        let mut process = self.spawn_apiserver(server, &format!("kube-apiserver-{}.log", server.port()))?;
        await_ready(&client, server, &mut [&mut self.etcd, &mut process]).await?;
        Ok(ApiServer { server, client, process })
    }

    /// Until the API server has put its own CIDRs into the API it refuses to make Services.
    async fn await_service_addresses(&self) -> anyhow::Result<()> {
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
            // Otherwise it looks for a default route, which a namespace need not have.
            format!("--advertise-address={}", server.ip()),
            // The Service default/kubernetes stays without endpoints: a loopback address would not be valid there.
            "--endpoint-reconciler-type=none".to_owned(),
            format!("--cert-dir={}", self.folder.path().display()),
            format!("--tls-cert-file={}", credentials.serving_certificate.display()),
            format!("--tls-private-key-file={}", credentials.serving_key.display()),
            format!("--token-auth-file={}", credentials.tokens.display()),
            "--authorization-mode=RBAC".to_owned(),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-key-file={}", credentials.service_account_public_key.display()),
            format!("--service-account-signing-key-file={}", credentials.service_account_key.display()),
            // Pods need no account here; nobody would make one.
            "--disable-admission-plugins=ServiceAccount".to_owned(),
            format!("--service-cluster-ip-range={}", self.options.service_cidrs.join(",")),
            "--allow-privileged=true".to_owned(),
        ];
        arguments.extend(self.options.apiserver_arguments.iter().cloned());
        self.spawn("kube-apiserver", &arguments, log)
    }

    fn spawn_controllers(&self) -> anyhow::Result<Process> {
        let arguments = [
            format!("--kubeconfig={}", self.credentials.admin.display()),
            "--controllers=endpointslice-controller,namespace-controller".to_owned(),
            "--leader-elect=false".to_owned(),
            "--secure-port=0".to_owned(),
            // Tests of churn want the controller to be quicker than its default of 20 requests a second.
            "--kube-api-qps=2000".to_owned(),
            "--kube-api-burst=4000".to_owned(),
        ];
        self.spawn("kube-controller-manager", &arguments, "kube-controller-manager.log")
    }

    fn spawn(&self, name: &str, arguments: &[String], log: &str) -> anyhow::Result<Process> {
        Process::spawn(&binary(name)?, arguments, &self.options, &self.folder.path().join(log))
    }
}

impl ApiServer {
    /// Where it listens, as seen from inside the namespace.
    pub fn address(&self) -> SocketAddr {
        self.server
    }

    /// A client with all rights; it also works from outside the namespace.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// What a test makes and awaits in one Kubernetes namespace.
    pub fn objects(&self, namespace: &str) -> Objects {
        Objects::new(self.client(), namespace)
    }

    /// Kills it; etcd keeps what it holds.
    pub fn stop(self) -> anyhow::Result<()> {
        self.process.kill()
    }
}

/// Waits until the API server at `server` is ready, as long as all of `processes` run; it is the last of them.
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

/// The process and the URL of its clients.
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
        // What it holds need not survive the machine.
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
