//! Writes Cases to an API server: it replaces the objects of one Case's `cluster.yaml` by those of the next.

use std::{collections::BTreeSet, net::SocketAddr};

use anyhow::Context as _;
use http::Request;
use kube::Client;
use localnet_controlplane::NewNode;
use localnet_lab::{
    Case, Endpoint, Network, Protocol,
    topology::{CLIENT, NODE, POD_CIDRS},
};
use serde_json::{Value, json};

use crate::api_server::Api;

/// The only node.
pub const NODE_NAME: &str = "node-a";

/// Reaches the API server of the host. Outside of a guest, starts one that the node of the network can reach.
///
/// # Errors
/// Returns an error if the API server does not start, or refuses the Node.
pub async fn reach(network: &Network) -> anyhow::Result<Api> {
    let api = match Api::of_host(&[network.node()]).await? {
        Some(api) => api,
        None => Api::start(network.client().path(), CLIENT[0], false).await?,
    };
    let objects = api.objects(SENTINEL);
    objects.ensure_namespace().await?;
    objects.ensure_node(NewNode { name: NODE_NAME, addresses: &NODE, labels: &[], pod_cidrs: &POD_CIDRS }).await?;
    Ok(api)
}

/// The Service, slices and namespace that show the progress of a proxy.
const SENTINEL: &str = "sentinel";
const SENTINEL_IPS: [&str; 2] = ["172.30.255.250", "fd00:172:30::fffa"];
const SENTINEL_PORT: u16 = 8999;
/// A pod of the node for each of two rounds.
const SENTINEL_PODS: [[&str; 2]; 2] = [["10.180.0.3", "fd00:10:180::3"], ["10.180.0.4", "fd00:10:180::4"]];

/// All endpoints that a sentinel may have.
pub fn sentinel_endpoints() -> impl Iterator<Item = Endpoint> {
    let pods = SENTINEL_PODS.into_iter().flatten();
    pods.map(|pod| Endpoint { protocol: Protocol::Tcp, address: at(pod, SENTINEL_PORT) })
}

fn at(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse().expect("an address of this file"), port)
}

/// The addresses of a sentinel and the endpoints that answer, in each family. It is written last, so a proxy that has it has
/// everything that was written earlier.
#[derive(Clone, Copy, Debug)]
pub struct Sentinel {
    /// The address of each family, and the endpoint that answers there.
    pub paths: [(SocketAddr, SocketAddr); 2],
}

/// Writes to the API server.
pub struct Writer {
    client: Client,
    namespaces: BTreeSet<String>,
    round: u16,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("round", &self.round).finish_non_exhaustive()
    }
}

impl Writer {
    /// A writer that has not written anything yet.
    pub fn new(client: Client) -> Self {
        Self { client, namespaces: BTreeSet::new(), round: 0 }
    }

    /// Writes a Case's Services and slices, and removes all others.
    ///
    /// # Errors
    /// Returns an error if the API server refuses an object.
    pub async fn write(&mut self, case: &Case) -> anyhow::Result<()> {
        let text = std::fs::read_to_string(case.cluster())?;
        let objects: Vec<Value> = serde_saphyr::from_multiple(&text)?;
        for namespace in &self.namespaces {
            for kind in ["Service", "EndpointSlice"] {
                self.send("DELETE", &path(kind, namespace), Value::Null).await?;
            }
        }
        // Write the Services before their endpoints.
        for wanted in ["Service", "EndpointSlice"] {
            for object in objects.iter().filter(|object| object["kind"] == wanted) {
                self.create(wanted, object).await.with_context(|| format!("making {}", object["metadata"]))?;
            }
        }
        Ok(())
    }

    async fn create(&mut self, kind: &str, object: &Value) -> anyhow::Result<()> {
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
        if namespace != "default" && self.namespaces.insert(namespace.to_owned()) {
            let body = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } });
            self.send("POST", "/api/v1/namespaces", body).await?;
        }
        let path = path(kind, namespace);
        let mut sent = object.clone();
        // The files omit the policy, and the API server defaults to one family.
        if kind == "Service" && object["spec"]["clusterIPs"].as_array().is_some_and(|all| all.len() > 1) {
            sent["spec"]["ipFamilyPolicy"] = "RequireDualStack".into();
        }
        self.send("POST", &path, sent).await?;
        if kind == "Service" && !object["status"].is_null() {
            let name = object["metadata"]["name"].as_str().context("a Service without a name")?;
            self.send("PATCH", &format!("{path}/{name}/status"), json!({ "status": object["status"] })).await?;
        }
        Ok(())
    }

    /// Writes another sentinel.
    ///
    /// # Errors
    /// Returns an error if the API server refuses an object.
    pub async fn write_sentinel(&mut self) -> anyhow::Result<Sentinel> {
        self.round += 1;
        let pods = SENTINEL_PODS[usize::from(self.round % 2)];
        let port = 10_000 + self.round;
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": SENTINEL },
            "spec": {
                "clusterIP": SENTINEL_IPS[0], "clusterIPs": SENTINEL_IPS, "ipFamilies": ["IPv4", "IPv6"],
                "ipFamilyPolicy": "RequireDualStack", "ports": [{ "name": "p", "port": port }],
            },
        });
        self.apply("Service", SENTINEL, service).await?;
        for (pod, family) in pods.into_iter().zip(["IPv4", "IPv6"]) {
            let name = format!("{SENTINEL}-{}", family.to_lowercase());
            let slice = json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": { "name": name, "labels": { "kubernetes.io/service-name": SENTINEL } },
                "addressType": family, "ports": [{ "name": "p", "port": SENTINEL_PORT }],
                "endpoints": [{ "addresses": [pod], "nodeName": NODE_NAME, "conditions": { "ready": true } }],
            });
            self.apply("EndpointSlice", &name, slice).await?;
        }
        let path = |family: usize| (at(SENTINEL_IPS[family], port), at(pods[family], SENTINEL_PORT));
        Ok(Sentinel { paths: [path(0), path(1)] })
    }

    async fn apply(&self, kind: &str, name: &str, object: Value) -> anyhow::Result<()> {
        let path = format!("{}/{name}?fieldManager=localnet-e2e&force=true", path(kind, SENTINEL));
        self.send("PATCH", &path, object).await
    }

    async fn send(&self, method: &str, path: &str, body: Value) -> anyhow::Result<()> {
        let content = match method {
            "PATCH" if path.ends_with("/status") => "application/merge-patch+json",
            "PATCH" => "application/apply-patch+yaml",
            _ => "application/json",
        };
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request = Request::builder().method(method).uri(path).header("Content-Type", content).body(body)?;
        self.client.request_text(request).await.with_context(|| format!("{method} {path}"))?;
        Ok(())
    }
}

fn path(kind: &str, namespace: &str) -> String {
    match kind {
        "Service" => format!("/api/v1/namespaces/{namespace}/services"),
        _ => format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"),
    }
}
