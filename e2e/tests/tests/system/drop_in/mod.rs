//! Runs localnet in place of kube-proxy: with its configuration, next to it, before and after it, and with the same requests.
//!
//! | file | what it verifies |
//! |---|---|
//! | `check` | `check` names in advance the Services that would behave differently |
//! | `distributions` | NodePorts answer where they did, with the configurations of kubeadm, k3s and EKS |
//! | `effects` | packets show the effect of the configuration |
//! | `kubeadm` | localnet starts with kubeadm's ConfigMap, and follows its changes |
//! | `pages` | each page of kube-proxy's two servers, requested from both |
//! | `takeover` | kube-proxy, localnet, kube-proxy: no connection fails |

mod check;
mod distributions;
mod effects;
mod kubeadm;
mod pages;
mod takeover;

use std::{
    fs::{self, File},
    io::{Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpStream},
    path::Path,
    process::Stdio,
    time::Duration,
};

use anyhow::Context as _;
use localnet_controlplane::{ControlPlane, NewNode, NewPod, Options, Port, binary};
use localnet_e2e::{PATIENCE, Programs};
use localnet_lab::{
    Endpoint, Namespace, Network, Protocol, Running, Servers, Topology,
    topology::{NODE, POD_CIDRS, SERVICE_CIDRS},
};
use serde_json::json;

const PODS: [&str; 2] = ["10.180.0.1", "10.180.0.2"];
const NAMESPACE: &str = "shop";
const HTTP: u16 = 8080;
const DNS: u16 = 5353;
const NODE_PORT: u16 = 30_080;
const WEB: &str = "172.30.0.10";

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address of this test")
}

/// A node, with a control plane on its loopback.
struct World {
    // Fields are dropped in this order: first the programs that run in the network.
    plane: ControlPlane,
    programs: Programs,
    _servers: Servers,
    network: Network,
}

impl World {
    /// Creates a Service `web` with a NodePort and a Service `dns`, each with two pods on this node.
    async fn build() -> anyhow::Result<Self> {
        let network = Network::build(Topology::with_pods(PODS)?)?;
        let at = |protocol, pod: &str, port| Endpoint { protocol, address: SocketAddr::new(ip(pod), port) };
        let endpoints = PODS.iter().flat_map(|pod| [at(Protocol::Tcp, pod, HTTP), at(Protocol::Udp, pod, DNS)]);
        let servers = Servers::start(&network, endpoints)?;
        let plane = ControlPlane::start(Options {
            netns: Some(network.node().path()),
            service_cidrs: SERVICE_CIDRS.map(str::to_owned).to_vec(),
            ..Options::default()
        })
        .await?;
        let objects = plane.objects(NAMESPACE);
        objects.ensure_namespace().await?;
        objects.ensure_node(NewNode { name: "node-a", addresses: &NODE, labels: &[], pod_cidrs: &POD_CIDRS }).await?;
        let selector = json!({ "app": "all" });
        let web = json!({
            "type": "NodePort", "clusterIP": WEB, "selector": selector,
            "ports": [{ "name": "http", "port": 80, "targetPort": HTTP, "nodePort": NODE_PORT }],
        });
        let dns = json!({
            "clusterIP": "172.30.0.53", "selector": selector,
            "ports": [{ "name": "dns", "port": 53, "targetPort": DNS, "protocol": "UDP" }],
        });
        objects.ensure_service("web", web).await?;
        objects.ensure_service("dns", dns).await?;
        let world = Self { plane, programs: Programs::new()?, _servers: servers, network };
        for (name, pod) in [("one", PODS[0]), ("two", PODS[1])] {
            world.add_pod(name, pod).await?;
        }
        for service in ["web", "dns"] {
            objects.await_ready_addresses(service, &PODS.map(ip)).await?;
        }
        Ok(world)
    }

    async fn add_pod(&self, name: &str, address: &str) -> anyhow::Result<()> {
        let ports = [Port { name: "http", protocol: "TCP", number: HTTP }];
        let (labels, ips) = ([("app", "all")], [ip(address)]);
        let pod = NewPod { name, node: "node-a", labels: &labels, ips: &ips, ports: &ports, ready: true };
        self.plane.objects(NAMESPACE).ensure_pod(pod).await
    }

    /// Writes a v1alpha1 configuration of this node that both proxies read, and that changes no settings of the machine.
    fn write_config(&self, name: &str, lines: &str) -> anyhow::Result<String> {
        let path = self.programs.path().join(name);
        let text = format!(
            "\
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
hostnameOverride: node-a
clusterCIDR: 10.180.0.0/16
clientConnection: {{kubeconfig: {}, qps: 100, burst: 200}}
conntrack: {{maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}}
oomScoreAdj: 0
{lines}
",
            self.plane.kube_proxy_kubeconfig().display()
        );
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        Ok(path.display().to_string())
    }

    fn start_kube_proxy(&self, config: &str) -> anyhow::Result<Running> {
        self.start(&binary("kube-proxy")?, &["--config", config])
    }

    /// Starts any program, with a log of its name.
    fn start(&self, program: &Path, arguments: &[&str]) -> anyhow::Result<Running> {
        let name = program.file_name().context("a program has a name")?.to_string_lossy().into_owned();
        let log = self.programs.path().join(format!("{name}.log"));
        let log = File::options().create(true).append(true).open(&log).context("opening a log")?;
        let output = log.try_clone()?;
        self.network
            .node()
            .spawn(program, |command| command.args(arguments).stdin(Stdio::null()).stdout(output).stderr(log))
    }

    fn logs(&self) -> String {
        let log = |name| format!("{name}:\n{}\n", self.programs.log(name));
        ["localnet-node", "unshare", "kube-proxy"].map(log).concat()
    }

    /// Requests a page from a server on this node.
    fn get(&self, at: &str, path: &str) -> anyhow::Result<Page> {
        get(self.network.node(), at, path)
    }
}

/// Requests a page from a server on a node.
fn get(node: &Namespace, at: &str, path: &str) -> anyhow::Result<Page> {
    let at: SocketAddr = at.parse()?;
    node.run(|| {
        let mut stream = TcpStream::connect_timeout(&at, PATIENCE)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n")?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Page::read(&answer)
    })
}

/// An answer of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Page {
    status: u16,
    /// The content type, and whether browsers may guess another one.
    kind: String,
    sniff: Option<String>,
    body: String,
}

impl Page {
    fn read(answer: &[u8]) -> anyhow::Result<Self> {
        // For a binary answer, the head is enough.
        let answer = String::from_utf8_lossy(answer);
        let (head, body) = answer.split_once("\r\n\r\n").with_context(|| format!("no answer: {answer:?}"))?;
        let header = |name: &str| {
            let mut fields = head.lines().skip(1).filter_map(|line| line.split_once(": "));
            fields.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned())
        };
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).context("an answer has a status")?;
        let chunked = header("Transfer-Encoding").is_some_and(|coding| coding == "chunked");
        Ok(Self {
            status,
            kind: header("Content-Type").unwrap_or_default(),
            sniff: header("X-Content-Type-Options"),
            body: if chunked { joined(body)? } else { body.to_owned() },
        })
    }
}

/// Joins the chunks of a body.
fn joined(mut chunks: &str) -> anyhow::Result<String> {
    let mut body = String::new();
    loop {
        let (length, rest) = chunks.split_once("\r\n").context("a chunk has a length")?;
        let length = usize::from_str_radix(length, 16)?;
        if length == 0 {
            return Ok(body);
        }
        body.push_str(rest.get(..length).context("a chunk is cut")?);
        chunks = rest.get(length + 2..).context("a chunk is cut")?;
    }
}
