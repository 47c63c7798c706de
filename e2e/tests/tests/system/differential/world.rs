//! Two networks with the same addresses, one control plane for both: in one our programs, in the other kube-proxy.
//!
//! ```text
//!   network A                                  network B
//!   node-a: brain, nft backend, API server ──── node-a: kube-proxy (nftables mode)
//!           100.64.0.1            a link of their own           100.64.0.2
//! ```

use std::{
    fs::File,
    net::{IpAddr, Ipv4Addr},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use localnet_client::{Snapshot, Source as _, grpc::Brain};
use localnet_controlplane::{ControlPlane, NewNode, Options, binary};
use localnet_e2e::{PATIENCE, Programs};
use localnet_lab::{
    Namespace, Network, Outcome, Probe, Protocol, Running, Servers,
    topology::{CLUSTER_CIDRS, NODE, POD_CIDRS, SERVICE_CIDRS},
};
use localnet_proto::{Revision, ServiceKey, Update};
use tokio::{runtime::Runtime, time::timeout};

use super::{
    pools,
    write::{NAMESPACE, SENTINEL, Sentinel, Writer},
};

const LINK: [&str; 2] = ["100.64.0.1", "100.64.0.2"];
const KUBE_PROXY: &str = "kube-proxy";

/// Everything that runs.
pub(crate) struct World {
    // Fields are dropped in this order: first what runs in a network.
    _running: Vec<Running>,
    plane: ControlPlane,
    brain: Brain,
    programs: Programs,
    _servers: Vec<Servers>,
    sides: [Network; 2],
    runtime: Runtime,
}

/// Who programs the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Side {
    Ours,
    KubeProxy,
}

impl Side {
    pub(crate) const BOTH: [Self; 2] = [Self::Ours, Self::KubeProxy];
}

impl World {
    pub(crate) fn build() -> anyhow::Result<Self> {
        let runtime = Runtime::new()?;
        let sides = [Network::build(pools::topology())?, Network::build(pools::topology())?];
        link(&sides)?;
        for network in &sides {
            // Thousands of short connections need not be remembered for minutes.
            network.node().sysctl(&[("net/netfilter/nf_conntrack_tcp_timeout_time_wait", "2")])?;
        }
        let servers =
            sides.iter().map(|network| Servers::start(network, pools::servers())).collect::<Result<_, _>>()?;
        let programs = Programs::new()?;
        let options = Options {
            netns: Some(sides[0].node().path()),
            bind_address: LINK[0].parse::<Ipv4Addr>()?.into(),
            service_cidrs: SERVICE_CIDRS.map(str::to_owned).to_vec(),
            ..Options::default()
        };
        let plane = runtime.block_on(async {
            let plane = ControlPlane::start(options).await?;
            fill(&plane).await?;
            anyhow::Ok(plane)
        })?;
        let source = format!("kube:{}", plane.kube_proxy_kubeconfig().display());
        let running = vec![
            programs.start_brain(sides[0].node(), &source)?,
            programs.start_nft(sides[0].node())?,
            start_kube_proxy(sides[1].node(), &programs, &plane)?,
        ];
        let brain = {
            let _inside = runtime.enter();
            Brain::new(programs.api().parse()?, None)?
        };
        Ok(Self { _running: running, plane, brain, programs, _servers: servers, sides, runtime })
    }

    pub(crate) fn network(&self, side: Side) -> &Network {
        match side {
            Side::Ours => &self.sides[0],
            Side::KubeProxy => &self.sides[1],
        }
    }

    pub(crate) fn writer(&self) -> Writer {
        Writer::new(&self.plane.client())
    }

    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// Waits until brain, backend and kube-proxy have come as far as the sentinel; the brain's state.
    pub(crate) fn settle(&mut self, sentinel: Sentinel) -> anyhow::Result<Snapshot> {
        let state = self.runtime.block_on(read(&mut self.brain, sentinel)).with_context(|| {
            format!("the brain has not come to {sentinel:?}\n{}", tail(&self.programs.log("localnet-brain")))
        })?;
        for side in Side::BOTH {
            for (to, endpoint) in sentinel.paths() {
                let probe = Probe::new(Protocol::Tcp, to).timeout(Duration::from_millis(200));
                let arrived = |outcome| matches!(outcome, Outcome::Answer { by, .. } if by == endpoint);
                let deadline = Instant::now() + PATIENCE;
                while !arrived(self.network(side).client().probe(probe)?) {
                    let log = || match side {
                        Side::Ours => self.programs.log("localnet-nft"),
                        Side::KubeProxy => self.programs.log(KUBE_PROXY),
                    };
                    anyhow::ensure!(
                        Instant::now() < deadline,
                        "{side:?} has not come to {sentinel:?}: {to} is not answered by {endpoint}\n{}",
                        tail(&log())
                    );
                    // Refusals come at once: leave the processors to those who are waited for.
                    std::thread::park_timeout(Duration::from_millis(5));
                }
            }
        }
        Ok(state)
    }
}

/// The newest state of the brain that has the sentinel's port and endpoints.
async fn read(brain: &mut Brain, sentinel: Sentinel) -> anyhow::Result<Snapshot> {
    let key = ServiceKey::new(NAMESPACE, SENTINEL);
    let has_come = |state: &Snapshot| {
        state.services.get(&key).is_some_and(|service| {
            let endpoints: Vec<IpAddr> = service.endpoints.iter().map(|endpoint| endpoint.address).collect();
            service.ports.iter().any(|port| port.port == sentinel.port())
                && sentinel.paths().iter().all(|(_, endpoint)| endpoints.contains(&endpoint.ip()))
        })
    };
    timeout(PATIENCE, async {
        let mut have = Revision::default();
        loop {
            let Update::Full(state) = brain.next(have, false).await? else { continue };
            if has_come(&state) {
                return Ok(state);
            }
            have = state.revision;
        }
    })
    .await?
}

fn link([ours, theirs]: &[Network; 2]) -> anyhow::Result<()> {
    let (ours, theirs) = (ours.node(), theirs.node());
    let peer = theirs.name();
    ours.ip([format!("link add link-b index 900 type veth peer name link-a index 901 netns {peer}")])?;
    for (node, name, address) in [(ours, "link-b", LINK[0]), (theirs, "link-a", LINK[1])] {
        node.ip([format!("addr add {address}/30 dev {name}"), format!("link set {name} up")])?;
    }
    Ok(())
}

async fn fill(plane: &ControlPlane) -> anyhow::Result<()> {
    let objects = plane.objects(NAMESPACE);
    objects.ensure_namespace().await?;
    let labels = [("topology.kubernetes.io/zone", "zone-a")];
    let node = NewNode { name: "node-a", addresses: &NODE, labels: &labels, pod_cidrs: &POD_CIDRS };
    objects.ensure_node(node).await
}

fn start_kube_proxy(node: &Namespace, programs: &Programs, plane: &ControlPlane) -> anyhow::Result<Running> {
    let path = programs.path().join("kube-proxy.yaml");
    let config = format!(
        "\
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
hostnameOverride: node-a
clusterCIDR: {}
clientConnection: {{kubeconfig: {}, qps: 100, burst: 200}}
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
nftables: {{minSyncPeriod: 50ms, syncPeriod: 30s}}
conntrack: {{maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}}
oomScoreAdj: 0
",
        CLUSTER_CIDRS.join(","),
        plane.kube_proxy_kubeconfig().display(),
    );
    std::fs::write(&path, config).with_context(|| format!("writing {}", path.display()))?;
    let log = programs.path().join(format!("{KUBE_PROXY}.log"));
    let log = File::create(&log).with_context(|| format!("creating {}", log.display()))?;
    let output = log.try_clone()?;
    node.spawn(binary(KUBE_PROXY)?, |command| {
        command.arg("--config").arg(path).stdin(Stdio::null()).stdout(output).stderr(log)
    })
}

fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}
