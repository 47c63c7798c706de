//! The Service `shop/web` of tests with an API server: dual-stack, over TCP and UDP, with NodePorts.

use std::net::{IpAddr, SocketAddr};

use localnet_controlplane::{ControlPlane, NewNode, NewPod, Options, Port};
use localnet_lab::{
    Endpoint, Network, Pod, Protocol,
    topology::{NODE, POD_CIDRS, SERVICE_CIDRS},
};
use serde_json::json;

/// The port of the pods for TCP.
pub const HTTP: u16 = 8080;
/// The port of the pods for UDP.
pub const DNS: u16 = 5353;
/// The NodePort for TCP.
pub const HTTP_NODE_PORT: u16 = 30_080;
/// The NodePort for UDP.
pub const DNS_NODE_PORT: u16 = 30_053;

/// Starts a control plane in the network's node, with the Node `node-a`.
///
/// # Errors
/// Returns an error if a program does not start, or the API server refuses the Node.
pub async fn plane(network: &Network) -> anyhow::Result<ControlPlane> {
    let plane = ControlPlane::start(Options {
        netns: Some(network.node().path()),
        service_cidrs: SERVICE_CIDRS.map(str::to_owned).to_vec(),
        ..Options::default()
    })
    .await?;
    let node = NewNode { name: "node-a", addresses: &NODE, labels: &[], pod_cidrs: &POD_CIDRS };
    plane.objects("default").ensure_node(node).await?;
    Ok(plane)
}

/// Both addresses of a pod of the lab, which one of them identifies.
///
/// # Panics
/// If the lab has no such pod.
pub fn addresses(pod: &str) -> [IpAddr; 2] {
    let ip = pod.parse().expect("an address of this test");
    Pod::at(ip).expect("a pod of the lab").addresses()
}

/// The endpoints of these pods.
pub fn endpoints(pods: &[&str]) -> Vec<Endpoint> {
    let at = |ip| {
        let endpoint = |protocol, port| Endpoint { protocol, address: SocketAddr::new(ip, port) };
        [endpoint(Protocol::Tcp, HTTP), endpoint(Protocol::Udp, DNS)]
    };
    pods.iter().flat_map(|pod| addresses(pod)).flat_map(at).collect()
}

/// The endpoints of these pods at a port that may answer packets to `to`, because they have its family.
pub fn answering(pods: &[&str], to: SocketAddr, port: u16) -> Vec<SocketAddr> {
    let all = pods.iter().flat_map(|pod| addresses(pod));
    all.filter(|ip| ip.is_ipv4() == to.is_ipv4()).map(|ip| SocketAddr::new(ip, port)).collect()
}

/// Creates the Service and its pods, each on a node, and waits until all of them are ready endpoints. Returns the ClusterIPs.
///
/// # Errors
/// Returns an error if the API server refuses an object, or an endpoint does not get ready.
pub async fn create(plane: &ControlPlane, pods: &[(&str, &str)]) -> anyhow::Result<Vec<IpAddr>> {
    let shop = plane.objects("shop");
    shop.ensure_namespace().await?;
    let spec = json!({
        "type": "NodePort", "ipFamilyPolicy": "RequireDualStack", "selector": {"app": "web"},
        "ports": [
            {"name": "http", "port": 80, "targetPort": HTTP, "nodePort": HTTP_NODE_PORT},
            {"name": "dns", "protocol": "UDP", "port": 53, "targetPort": DNS, "nodePort": DNS_NODE_PORT},
        ],
    });
    let service = shop.ensure_service("web", spec).await?;
    let ports =
        [Port { name: "http", protocol: "TCP", number: HTTP }, Port { name: "dns", protocol: "UDP", number: DNS }];
    let mut expected = Vec::new();
    for (pod, node) in pods {
        let (name, ips, labels) = (format!("web-{}", pod.replace('.', "-")), addresses(pod), [("app", "web")]);
        shop.ensure_pod(NewPod { name: &name, node, labels: &labels, ips: &ips, ports: &ports, ready: true }).await?;
        expected.extend(ips);
    }
    shop.await_ready_addresses("web", &expected).await?;
    let cluster_ips = service.spec.and_then(|spec| spec.cluster_ips).unwrap_or_default();
    Ok(cluster_ips.iter().map(|text| text.parse()).collect::<Result<_, _>>()?)
}
