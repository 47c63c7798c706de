//! An incremental backend for localnet in Rust: it receives each change as a call and writes the applied state to a file.
//!
//! ```text
//! incremental --api unix:///run/localnet/brain.sock --dump FILE
//! ```
//!
//! It needs neither of the library's features: `cargo add localnet-client --no-default-features`.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs, io,
    mem::take,
    path::PathBuf,
};

use anyhow::{Context as _, bail};
use localnet_client::{
    DEFAULT_ADDRESS, Node, Options, Revision, Scopes, Service, ServiceKey, Synced,
    grpc::Brain,
    incremental::{Adapter, Listener, PortEndpoint},
    run,
};

/// The lines of each Service and of its endpoints. Each commit writes them to the file. A real backend would program a
/// kernel instead.
struct Lines {
    path: PathBuf,
    node: String,
    services: BTreeMap<ServiceKey, Vec<String>>,
    endpoints: BTreeSet<(ServiceKey, String)>,
    /// The line of each endpoint, by Service, port and address.
    endpoint_lines: BTreeMap<(ServiceKey, String), String>,
}

impl Lines {
    fn of(path: PathBuf) -> Self {
        let (services, endpoints, endpoint_lines) = Default::default();
        Self { path, node: String::new(), services, endpoints, endpoint_lines }
    }
}

fn named(name: &str) -> &str {
    if name.is_empty() { "-" } else { name }
}

fn words(scopes: Scopes) -> String {
    let all = [
        (scopes.internal, "internal"),
        (scopes.external, "external"),
        (scopes.short_circuit, "shortcircuit"),
        (scopes.established, "established"),
    ];
    let words: Vec<_> = all.into_iter().filter(|(on, _)| *on).map(|(_, word)| word).collect();
    if words.is_empty() { "-".to_owned() } else { words.join("+") }
}

impl Listener for Lines {
    fn name(&self) -> &'static str {
        "incremental"
    }

    fn set_node(&mut self, node: &Node) {
        self.node = format!("node {}", node.name);
    }

    fn set_service(&mut self, service: &Service) {
        let key = &service.key;
        let mut lines = Vec::new();
        let vips = [
            ("cluster", &service.cluster_ips),
            ("external", &service.external_ips),
            ("balancer", &service.load_balancer_ips),
        ];
        for (kind, addresses) in vips {
            lines.extend(addresses.iter().map(|address| format!("vip {key} {kind} {address}")));
        }
        for port in &service.ports {
            let node_port = port.node_port.unwrap_or_default();
            lines.push(format!("port {key} {} {} {} {node_port}", named(&port.name), port.protocol, port.port));
        }
        lines.extend(service.client_ip_affinity.map(|affinity| format!("affinity {key} {}", affinity.seconds)));
        self.services.insert(key.clone(), lines);
    }

    fn delete_service(&mut self, key: &ServiceKey) {
        self.services.remove(key);
    }

    fn set_endpoint(&mut self, service: &ServiceKey, endpoint: &PortEndpoint) {
        let (port, address) = (named(&endpoint.port_name), endpoint.address);
        let scopes = words(endpoint.scopes);
        let line = format!("endpoint {service} {port} {} {} {scopes}", address.ip(), address.port());
        let id = (service.clone(), format!("{port} {address}"));
        if let Some(before) = self.endpoint_lines.insert(id, line.clone()) {
            self.endpoints.remove(&(service.clone(), before));
        }
        self.endpoints.insert((service.clone(), line));
    }

    fn delete_endpoint(&mut self, service: &ServiceKey, endpoint: &PortEndpoint) {
        let id = (service.clone(), format!("{} {}", named(&endpoint.port_name), endpoint.address));
        if let Some(line) = self.endpoint_lines.remove(&id) {
            self.endpoints.remove(&(service.clone(), line));
        }
    }

    fn reset(&mut self) {
        *self = Self::of(take(&mut self.path));
    }

    async fn commit(&mut self, revision: Revision) -> anyhow::Result<Synced> {
        let mut text = format!("rev {} {}\n{}\n", revision.instance, revision.rev, self.node);
        for line in self.services.values().flatten().chain(self.endpoints.iter().map(|(_, line)| line)) {
            text += line;
            text.push('\n');
        }
        let new = self.path.with_extension("new");
        fs::write(&new, text).with_context(|| format!("writing {}", new.display()))?;
        fs::rename(&new, &self.path).with_context(|| format!("writing {}", self.path.display()))?;
        Ok(Synced::default())
    }

    async fn cleanup(&mut self) -> anyhow::Result<()> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }
}

/// Resolves when the program should end: on SIGTERM, SIGINT or SIGHUP (its terminal was closed).
#[cfg(unix)]
fn stopped() -> io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};

    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hangup.recv() => {}
        }
    })
}

/// Resolves when the program should end: on Ctrl-C.
#[cfg(windows)]
fn stopped() -> io::Result<impl Future<Output = ()>> {
    let mut pressed = tokio::signal::windows::ctrl_c()?;
    Ok(async move { _ = pressed.recv().await })
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_writer(io::stderr).init();
    let (mut api, mut dump) = (DEFAULT_ADDRESS.parse()?, None);
    let mut arguments = env::args().skip(1);
    while let Some(flag) = arguments.next() {
        let value = arguments.next().with_context(|| format!("{flag} needs a value"))?;
        match &*flag {
            "--api" => api = value.parse()?,
            "--dump" => dump = Some(PathBuf::from(value)),
            _ => bail!("unknown flag {flag}"),
        }
    }
    let file = Adapter::new(Lines::of(dump.context("--dump FILE is missing")?));
    let options = Options { report: false, ..Options::default() };
    run(file, Brain::new(api, None)?, options, stopped()?).await
}
