//! Creates the objects that tests need, by server-side apply, so that a repeated call changes nothing.
//!
//! This module creates no EndpointSlices: the real controller derives them from Services, Pods and Nodes, and a test waits for them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::net::IpAddr;
use std::pin::pin;
use std::time::Duration;

use anyhow::{Context as _, bail};
use futures::StreamExt as _;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::timeout;

/// The time limit for the slices of a Service to become what a test expects.
const SLICES_WITHIN: Duration = Duration::from_secs(60);

/// The Nodes of the cluster, and the Pods and Services of one Kubernetes namespace.
#[derive(Clone)]
pub struct Objects {
    client: Client,
    namespace: String,
}

/// A Node to create. It is ready.
#[derive(Debug, Clone, Copy, Default)]
pub struct NewNode<'a> {
    /// The name, also the host name.
    pub name: &'a str,
    /// The internal addresses, the primary one first.
    pub addresses: &'a [IpAddr],
    /// Labels, such as `topology.kubernetes.io/zone`.
    pub labels: &'a [(&'a str, &'a str)],
    /// The pod CIDRs, one for each family.
    pub pod_cidrs: &'a [&'a str],
}

/// A Pod to create. It is running.
#[derive(Debug, Clone, Copy, Default)]
pub struct NewPod<'a> {
    /// The name.
    pub name: &'a str,
    /// The Node that the Pod runs on. It must exist, because the controller creates no endpoint on an unknown Node.
    pub node: &'a str,
    /// Labels for the selectors of Services.
    pub labels: &'a [(&'a str, &'a str)],
    /// The addresses, the primary one first, at most one of each family.
    pub ips: &'a [IpAddr],
    /// The named ports of the container, for Services whose `targetPort` is a name.
    pub ports: &'a [Port<'a>],
    /// Whether the condition `Ready` is true.
    pub ready: bool,
}

/// A named container port.
#[derive(Debug, Clone, Copy)]
pub struct Port<'a> {
    /// The name, at most 15 characters.
    pub name: &'a str,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: &'a str,
    /// The port number.
    pub number: u16,
}

impl Objects {
    /// Access to the objects of this Kubernetes namespace.
    pub fn new(client: Client, namespace: &str) -> Objects {
        Objects { client, namespace: namespace.to_owned() }
    }

    /// Creates the Kubernetes namespace.
    ///
    /// # Errors
    /// Returns an error if the API server refuses the request.
    pub async fn ensure_namespace(&self) -> anyhow::Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        apply(&namespaces, &self.namespace, json!({})).await?;
        Ok(())
    }

    /// Creates or changes a Node.
    ///
    /// # Errors
    /// Returns an error if the API server refuses the request.
    pub async fn ensure_node(&self, node: NewNode<'_>) -> anyhow::Result<()> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let spec = json!({ "podCIDR": node.pod_cidrs.first(), "podCIDRs": node.pod_cidrs });
        apply(&nodes, node.name, json!({ "metadata": { "labels": labels(node.labels) }, "spec": spec })).await?;
        let internal = node.addresses.iter().map(|ip| json!({ "type": "InternalIP", "address": ip }));
        let host_name = json!({ "type": "Hostname", "address": node.name });
        let addresses: Vec<Value> = internal.chain([host_name]).collect();
        set_status(&nodes, node.name, json!({ "addresses": addresses, "conditions": [ready_condition(true)] })).await
    }

    /// Creates or changes a Service; `spec` is the value of `spec:` in a manifest. The result contains its addresses and NodePorts.
    ///
    /// # Errors
    /// Returns an error if the API server refuses the request.
    pub async fn ensure_service(&self, name: &str, spec: Value) -> anyhow::Result<Service> {
        apply(&self.api(), name, json!({ "spec": spec })).await
    }

    /// Sets the addresses of a Service of type `LoadBalancer`, as a cloud would.
    ///
    /// # Errors
    /// Returns an error if the API server refuses the request.
    pub async fn set_load_balancer(&self, service: &str, ips: &[IpAddr]) -> anyhow::Result<()> {
        let ingress: Vec<Value> = ips.iter().map(|ip| json!({ "ip": ip, "ipMode": "VIP" })).collect();
        set_status(&self.api::<Service>(), service, json!({ "loadBalancer": { "ingress": ingress } })).await
    }

    /// Deletes a Service.
    ///
    /// # Errors
    /// Returns an error if the API server refuses the request.
    pub async fn remove_service(&self, name: &str) -> anyhow::Result<()> {
        remove(&self.api::<Service>(), name, &DeleteParams::default()).await
    }

    /// Creates a Pod, or changes its labels, addresses and readiness.
    ///
    /// # Errors
    /// Returns an error if the API server refuses the request.
    pub async fn ensure_pod(&self, pod: NewPod<'_>) -> anyhow::Result<()> {
        let port =
            |port: &Port<'_>| json!({ "name": port.name, "protocol": port.protocol, "containerPort": port.number });
        let ports: Vec<Value> = pod.ports.iter().map(port).collect();
        let container = json!({ "name": "main", "image": "localnet.invalid/none", "ports": ports });
        let spec = json!({ "nodeName": pod.node, "containers": [container] });
        apply(&self.api::<Pod>(), pod.name, json!({ "metadata": { "labels": labels(pod.labels) }, "spec": spec }))
            .await?;
        let status = json!({
            "phase": "Running",
            "podIP": pod.ips.first(),
            "podIPs": pod.ips.iter().map(|ip| json!({ "ip": ip })).collect::<Vec<_>>(),
            "conditions": [ready_condition(pod.ready)],
        });
        set_status(&self.api::<Pod>(), pod.name, status).await
    }

    /// Sets a Pod's condition `Ready`.
    ///
    /// # Errors
    /// Returns an error if the API server refuses the request.
    pub async fn set_pod_ready(&self, name: &str, ready: bool) -> anyhow::Result<()> {
        set_status(&self.api::<Pod>(), name, json!({ "conditions": [ready_condition(ready)] })).await
    }

    /// Deletes a Pod gracefully. Without a kubelet it stays terminating until [`Objects::remove_pod`].
    ///
    /// # Errors
    /// Returns an error if the API server refuses the request.
    pub async fn terminate_pod(&self, name: &str) -> anyhow::Result<()> {
        remove(&self.api::<Pod>(), name, &DeleteParams::default().grace_period(3600)).await
    }

    /// Deletes a Pod at once.
    ///
    /// # Errors
    /// Returns an error if the API server refuses the request.
    pub async fn remove_pod(&self, name: &str) -> anyhow::Result<()> {
        remove(&self.api::<Pod>(), name, &DeleteParams::default().grace_period(0)).await
    }

    /// Waits until the ready addresses in the Service's slices, both families together, are exactly these.
    ///
    /// # Errors
    /// Returns an error if the addresses still differ after a minute.
    pub async fn await_ready_addresses(&self, service: &str, expected: &[IpAddr]) -> anyhow::Result<()> {
        let expected: BTreeSet<IpAddr> = expected.iter().copied().collect();
        let what = format!("the ready addresses {expected:?}");
        self.await_slices(service, &what, |slices| ready_addresses(slices) == expected).await?;
        Ok(())
    }

    /// Waits until the Service's slices, both families together, have this number of ready addresses, and returns these.
    ///
    /// # Errors
    /// Returns an error if the number still differs after a minute.
    pub async fn await_ready_count(&self, service: &str, count: usize) -> anyhow::Result<BTreeSet<IpAddr>> {
        let what = format!("{count} ready addresses");
        let slices = self.await_slices(service, &what, |slices| ready_addresses(slices).len() == count).await?;
        Ok(ready_addresses(&slices))
    }

    /// Watches the slices of a Service until `condition` is true for all of them together, and returns them. `what` describes the
    /// condition in the error.
    ///
    /// # Errors
    /// Returns an error if the condition is not true within a minute.
    pub async fn await_slices(
        &self,
        service: &str,
        what: &str,
        mut condition: impl FnMut(&[EndpointSlice]) -> bool,
    ) -> anyhow::Result<Vec<EndpointSlice>> {
        let of_service = watcher::Config::default().labels(&format!("kubernetes.io/service-name={service}"));
        let mut events = pin!(watcher(self.api::<EndpointSlice>(), of_service).default_backoff());
        let mut slices_by_name: BTreeMap<String, EndpointSlice> = BTreeMap::new();
        let mut listed = BTreeMap::new();
        let mut failure = None;
        let watched = timeout(SLICES_WITHIN, async {
            while let Some(event) = events.next().await {
                match event {
                    Ok(watcher::Event::Init) => listed.clear(),
                    Ok(watcher::Event::InitApply(slice)) => {
                        listed.insert(name_of(&slice), slice);
                        continue;
                    }
                    Ok(watcher::Event::InitDone) => slices_by_name = std::mem::take(&mut listed),
                    Ok(watcher::Event::Apply(slice)) => {
                        slices_by_name.insert(name_of(&slice), slice);
                    }
                    Ok(watcher::Event::Delete(slice)) => {
                        slices_by_name.remove(&name_of(&slice));
                    }
                    Err(error) => failure = Some(error),
                }
                let slices: Vec<EndpointSlice> = slices_by_name.values().cloned().collect();
                if condition(&slices) {
                    return Some(slices);
                }
            }
            None
        });
        if let Ok(Some(slices)) = watched.await {
            return Ok(slices);
        }
        let seen = ready_addresses(slices_by_name.values());
        let failure = failure.map(|error| format!("; the watch failed last with: {error}")).unwrap_or_default();
        bail!("{}/{service} did not get {what} within {SLICES_WITHIN:?}: ready are {seen:?}{failure}", self.namespace)
    }

    fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }
}

/// The addresses of all ready endpoints in the slices.
pub fn ready_addresses<'a>(slices: impl IntoIterator<Item = &'a EndpointSlice>) -> BTreeSet<IpAddr> {
    let endpoints = slices.into_iter().flat_map(|slice| slice.endpoints.iter().flatten());
    let ready = endpoints.filter(|endpoint| endpoint.conditions.as_ref().is_some_and(|is| is.ready == Some(true)));
    ready.flat_map(|endpoint| &endpoint.addresses).filter_map(|address| address.parse().ok()).collect()
}

async fn apply<K>(api: &Api<K>, name: &str, mut object: Value) -> anyhow::Result<K>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug,
{
    object["apiVersion"] = K::api_version(&()).into();
    object["kind"] = K::kind(&()).into();
    object["metadata"]["name"] = name.into();
    let ours = PatchParams::apply("localnet-e2e").force();
    api.patch(name, &ours, &Patch::Apply(object)).await.with_context(|| format!("applying {} {name}", K::kind(&())))
}

async fn set_status<K>(api: &Api<K>, name: &str, status: Value) -> anyhow::Result<()>
where
    K: Resource<DynamicType = ()> + DeserializeOwned,
{
    let change = Patch::Merge(json!({ "status": status }));
    let changed = api.patch_status(name, &PatchParams::default(), &change).await;
    changed.map(drop).with_context(|| format!("setting the status of {} {name}", K::kind(&())))
}

async fn remove<K>(api: &Api<K>, name: &str, how: &DeleteParams) -> anyhow::Result<()>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug,
{
    api.delete(name, how).await.map(drop).with_context(|| format!("deleting {} {name}", K::kind(&())))
}

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn ready_condition(ready: bool) -> Value {
    json!({ "type": "Ready", "status": if ready { "True" } else { "False" } })
}

fn name_of(slice: &EndpointSlice) -> String {
    slice.metadata.name.clone().unwrap_or_default()
}
