//! A node with three pods, a brain that reads a file, and the nft backend, which counts traffic.

use std::{fs, net::SocketAddr, path::PathBuf};

use anyhow::Context as _;
use localnet_e2e::{Programs, program};
use localnet_lab::{Endpoint, Network, Probe, Protocol, Running, Servers, Topology, topology::CLUSTER_CIDRS};

/// The objects. `default/web` has three endpoints, `default/nothing` has none.
const OBJECTS: &str = "apiVersion: v1
kind: Node
metadata: {name: node-a}
status: {addresses: [{type: InternalIP, address: 192.168.0.2}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default, annotations: {localnet.dev/zone-weights: \"a=1,b=1,c=1\"}}
spec:
  type: NodePort
  clusterIP: 172.30.0.10
  clusterIPs: [172.30.0.10]
  ports: [{name: http, port: 80, targetPort: 8080, nodePort: 30080}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, protocol: TCP, port: 8080}]
endpoints:
- {addresses: [10.180.0.1], nodeName: node-a, zone: a, conditions: {ready: true}}
- {addresses: [10.180.0.2], nodeName: node-a, zone: b, conditions: {ready: true}}
- {addresses: [10.180.0.3], nodeName: node-a, zone: c, conditions: {ready: true}}
---
apiVersion: v1
kind: Service
metadata: {name: nothing, namespace: default}
spec: {clusterIP: 172.30.0.99, clusterIPs: [172.30.0.99], ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: a-service-whose-name-is-as-long-as-names-of-services-may-become, namespace: default}
spec: {clusterIP: 172.30.0.98, clusterIPs: [172.30.0.98], ports: [{name: http, port: 80}, {name: metrics, port: 9090}, {name: dns, port: 53, protocol: UDP}]}
";
/// The pods of `default/web`.
pub(crate) const PODS: [&str; 3] = ["10.180.0.1", "10.180.0.2", "10.180.0.3"];
/// The ClusterIP of `default/web`.
const WEB: &str = "172.30.0.10:80";
/// The ClusterIP of `default/nothing`.
const NOTHING: &str = "172.30.0.99:80";

/// A node with traffic.
pub(crate) struct Node {
    pub(crate) network: Network,
    pub(crate) programs: Programs,
    file: PathBuf,
    _running: [Running; 2],
    _servers: Servers,
}

impl Node {
    /// Builds the node, and waits until the Service answers.
    pub(crate) fn build() -> anyhow::Result<Self> {
        let network = Network::build(Topology::with_pods(PODS)?)?;
        let at = |pod: &str| anyhow::Ok(SocketAddr::new(pod.parse()?, 8080));
        let endpoint = |pod| anyhow::Ok(Endpoint { protocol: Protocol::Tcp, address: at(pod)? });
        let servers = Servers::start(&network, PODS.into_iter().map(endpoint).collect::<Result<Vec<_>, _>>()?)?;
        let programs = Programs::new()?;
        let file = programs.path().join("cluster.yaml");
        fs::write(&file, OBJECTS).context("writing the objects")?;
        let brain = programs.start_brain(network.node(), &format!("file:{}", file.display()))?;
        let (api, cidrs) = (programs.api(), CLUSTER_CIDRS.join(","));
        let arguments = ["--api", &api, "--cluster-cidr", &cidrs, "--traffic", "64"];
        let backend = programs.start(network.node(), "localnet-nft", &arguments)?;
        let node = Self { network, programs, file, _running: [brain, backend], _servers: servers };
        let all = PODS.into_iter().map(at).collect::<Result<Vec<_>, _>>()?;
        node.programs.await_answers(
            node.network.pod(PODS[0].parse()?)?,
            Probe::new(Protocol::Tcp, WEB.parse()?),
            &all,
        )?;
        Ok(node)
    }

    /// Opens connections to `default/web`, and tries half as many to `default/nothing`, which refuses them.
    pub(crate) fn connect(&self, count: usize) -> anyhow::Result<()> {
        for (to, count) in [(WEB, count), (NOTHING, count / 2)] {
            let probe = Probe::new(Protocol::Tcp, to.parse()?);
            self.network.pod(PODS[0].parse()?)?.probe_until(probe, count, |_| false)?;
        }
        Ok(())
    }

    /// Replaces the weights of the zones a, b and c, as a user edits the YAML.
    pub(crate) fn set_weights(&self, weights: &str) -> anyhow::Result<()> {
        let beside = self.file.with_extension("tmp");
        fs::write(&beside, OBJECTS.replace("a=1,b=1,c=1", weights)).context("writing the objects")?;
        fs::rename(beside, &self.file).context("replacing the objects")
    }

    /// The command `localnet` with the address of the brain.
    pub(crate) fn localnet(&self, arguments: &[&str]) -> anyhow::Result<std::process::Command> {
        let mut command = std::process::Command::new(program("localnet")?);
        command
            .args(arguments)
            .env("LOCALNET_API", self.programs.api())
            .env_remove("NO_COLOR")
            .env("TERM", "xterm-256color");
        Ok(command)
    }
}
