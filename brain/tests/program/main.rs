//! Tests of the running program: its log and its health server.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod draft;
mod draft_client;
mod health;
mod history;
mod log;
mod push;
mod reports;
mod sources;

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU8, Ordering},
};

use serde_json::Value;

/// The program. Dropping it kills it.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Writes a `cluster.yaml` with one Service with these endpoints.
fn write(folder: &Path, endpoints: &[&str]) {
    let endpoints: String = endpoints.iter().map(|address| format!("- {{addresses: [{address}]}}\n")).collect();
    write_cluster(
        folder,
        "metadata: {name: web, namespace: shop}\nspec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}\n",
        &endpoints,
    );
}

/// Writes a `cluster.yaml` with the Service `shop/web` and its endpoints: the fields of the Service and the entries of its EndpointSlice,
/// in YAML.
fn write_cluster(folder: &Path, service: &str, endpoints: &str) {
    let text = format!(
        "{{apiVersion: v1, kind: Node, metadata: {{name: here}}}}\n\
         ---\n\
         apiVersion: v1\nkind: Service\n{service}\
         ---\n\
         apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {{name: web-1, namespace: shop, labels: {{kubernetes.io/service-name: web}}}}\n\
         addressType: IPv4\nports: [{{name: '', port: 8080}}]\nendpoints:\n{endpoints}"
    );
    fs::write(folder.join("new"), text).unwrap();
    fs::rename(folder.join("new"), folder.join("cluster.yaml")).unwrap();
}

/// Starts the brain with the `cluster.yaml` of a folder. Returns the lines of its log as JSON, too.
fn start(folder: &Path, listen: &str) -> (Program, impl Iterator<Item = Value> + Send + use<>) {
    start_with(folder, listen, &[])
}

/// Does the same with further flags.
fn start_with(folder: &Path, listen: &str, more: &[&str]) -> (Program, impl Iterator<Item = Value> + Send + use<>) {
    // Ports are free on an address of 127.0.0.0/8 that only this process uses.
    static NEXT: AtomicU8 = AtomicU8::new(0);
    let [a, b, ..] = std::process::id().to_le_bytes();
    let host = format!("127.{}.{a}.{b}", 78 + NEXT.fetch_add(1, Ordering::Relaxed));
    let mut child = Command::new(env!("CARGO_BIN_EXE_localnet-brain"))
        .arg(format!("--source=file:{}", folder.join("cluster.yaml").display()))
        .args(["--node-name=here", &format!("--healthz-bind-address={host}:10256")])
        .arg(format!("--metrics-bind-address={host}:10249"))
        .args(["--log-format=json", "--log-level=debug", "--listen", listen])
        .args(more)
        .env_remove("RUST_LOG")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let log = BufReader::new(child.stderr.take().unwrap());
    (Program(child), log.lines().map(|line| serde_json::from_str(&line.unwrap()).unwrap()))
}
