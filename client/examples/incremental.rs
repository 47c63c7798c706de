//! An incremental backend for localnet in Rust: it receives each change as a call and writes the applied state to a file.
//!
//! ```text
//! incremental --api unix:///run/localnet/brain.sock --dump FILE
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    mem::take,
    path::PathBuf,
    process::ExitCode,
};

use anyhow::Context as _;
use clap::Parser;
use localnet_client::{
    Node, Options, Revision, Scopes, Service, ServiceKey, Synced, args,
    args::ClientArgs,
    incremental::{Adapter, Listener, PortEndpoint},
    telemetry,
};

#[derive(Parser)]
#[command(about = "Keep a file with the state of the node")]
struct Arguments {
    #[command(flatten)]
    client: ClientArgs,
    /// The file
    #[arg(long, value_name = "FILE")]
    dump: PathBuf,
}

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

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let Arguments { client, dump } = Arguments::parse();
    if let Err(error) = telemetry::init(client.log_format.unwrap_or_default(), "info", None) {
        return args::exit(Err(error));
    }
    let file = Adapter::new(Lines::of(dump));
    let result = match client.source() {
        Ok(source) => args::run(file, source, Options { report: false, ..client.options() }).await,
        Err(error) => Err(error),
    };
    args::exit(result)
}
