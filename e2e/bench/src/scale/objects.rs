//! The Deployments and their Services, as the bodies of requests. Pure.

use std::net::Ipv4Addr;

use serde_json::{Value, json};

use crate::cluster::{NAMESPACE, OTHER_NODE, PORT, Size, TELLING_PORT};

/// The label that selects the pods of a Service.
pub(super) const LABEL: &str = "app";
/// The addresses of the pods that exist before a contestant starts, and of those that replace them.
pub(super) const FIRST_PODS: Ipv4Addr = Ipv4Addr::new(10, 64, 0, 0);
pub(super) const NEW_PODS: Ipv4Addr = Ipv4Addr::new(10, 80, 0, 0);

/// The number of namespaces. For each Service, the EndpointSlice controller reads all pods of the namespace.
pub(super) const NAMESPACES: u32 = 50;

/// The namespace of the Service and the Deployment with this number.
pub(super) fn namespace(number: u32) -> String {
    format!("{NAMESPACE}-{}", number % NAMESPACES)
}

/// The Deployments, each with as many replicas as a Service has endpoints. No scheduler is needed, because the template names the
/// node.
pub(super) fn deployments(size: Size) -> impl Iterator<Item = Value> {
    (0..size.services).map(move |number| {
        let name = size.name(number);
        let labels = json!({ LABEL: name });
        let container = json!({ "name": "main", "image": "localnet.invalid/none" });
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": { "name": name, "namespace": namespace(number) },
            "spec": {
                "replicas": size.endpoints,
                "selector": { "matchLabels": labels },
                "template": {
                    "metadata": { "labels": labels },
                    "spec": { "nodeName": OTHER_NODE, "containers": [container] },
                },
            },
        })
    })
}

/// The Services, with the addresses of [`Size::vip`].
pub(super) fn services(size: Size) -> impl Iterator<Item = Value> {
    (0..size.services).map(move |number| {
        let name = size.name(number);
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": { "name": name, "namespace": namespace(number) },
            "spec": {
                "clusterIP": size.vip(number).ip(),
                "selector": { LABEL: name },
                "ports": [{ "name": "http", "port": PORT, "targetPort": TELLING_PORT }],
            },
        })
    })
}

/// The change that `kubectl rollout restart` makes: a new template, so that new pods replace all pods.
pub(super) fn restart(number: u32) -> Value {
    let annotations = json!({ "kubectl.kubernetes.io/restartedAt": number.to_string() });
    json!({ "spec": { "template": { "metadata": { "annotations": annotations } } } })
}

/// The address number `number` from `first` on.
pub(super) fn address(first: Ipv4Addr, number: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(first) + number)
}
