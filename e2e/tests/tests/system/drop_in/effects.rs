//! Packets show the effect of the configuration: `nodeIPOverride`, `ipFamilyPolicy`, `detectLocal` and sync periods. A file
//! contains the Node and its Service.

use std::{fs, net::IpAddr, process::Command};

use anyhow::Context as _;
use k8s_openapi::jiff::Timestamp;
use localnet_e2e::{Programs, await_condition};
use localnet_lab::{
    Endpoint, Namespace, Network, Outcome, Probe, Protocol, Running, Servers, Topology,
    topology::{CLIENT, LOOPBACK, NODE, NODE_TO_PODS},
};

use super::{HTTP, NODE_PORT, PODS, WEB, get, ip};

const WEB_V6: &str = "fd00:172:30::10";
/// The pod that is the endpoint. The other pod is a client.
const SERVING: [&str; 2] = [PODS[1], "fd00:10:180::2"];
/// Further addresses of the node.
pub(super) const SECOND: [&str; 2] = ["192.168.1.2", "2001:db8:1::2"];
pub(super) const PROGRAM: &str = "localnet-node";

/// A node without an API server.
pub(super) struct Alone {
    pub(super) programs: Programs,
    _servers: Servers,
    pub(super) network: Network,
}

impl Alone {
    pub(super) fn build() -> anyhow::Result<Self> {
        let topology = Topology { node_addresses: SECOND.map(ip).to_vec(), ..Topology::with_pods(PODS)? };
        let network = Network::build(topology)?;
        let endpoint = |address| Endpoint { protocol: Protocol::Tcp, address: (ip(address), HTTP).into() };
        let servers = Servers::start(&network, SERVING.map(endpoint))?;
        let alone = Self { programs: Programs::new()?, _servers: servers, network };
        fs::create_dir(alone.programs.path().join("cluster"))?;
        alone.write_node(&[NODE[0], ip(SECOND[0]), NODE[1], ip(SECOND[1])])?;
        alone.write_web(80)?;
        Ok(alone)
    }

    fn write(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let (folder, new) = (self.programs.path().join("cluster"), self.programs.path().join(name));
        fs::write(&new, text)?;
        Ok(fs::rename(new, folder.join(name))?)
    }

    fn write_node(&self, addresses: &[IpAddr]) -> anyhow::Result<()> {
        let addresses: Vec<_> =
            addresses.iter().map(|address| format!("{{type: InternalIP, address: \"{address}\"}}")).collect();
        self.write(
            "node.yaml",
            &format!(
                "apiVersion: v1\nkind: Node\nmetadata: {{name: node-a}}\n\
                 spec: {{podCIDRs: [10.180.0.0/24, \"fd00:10:180::/64\"]}}\nstatus: {{addresses: [{}]}}\n",
                addresses.join(", ")
            ),
        )
    }

    /// Writes a dual-stack Service with this port.
    fn write_web(&self, port: u16) -> anyhow::Result<()> {
        let slice = |family: &str, address: &str| {
            format!(
                "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
                 metadata: {{name: web-{}, namespace: shop, labels: {{kubernetes.io/service-name: web}}}}\n\
                 addressType: {family}\nports: [{{name: http, port: {HTTP}, protocol: TCP}}]\n\
                 endpoints: [{{addresses: [\"{address}\"], conditions: {{ready: true}}}}]\n",
                family.to_lowercase()
            )
        };
        let service = format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: web, namespace: shop}}\n\
             spec: {{type: NodePort, clusterIP: {WEB}, clusterIPs: [{WEB}, \"{WEB_V6}\"], \
             ports: [{{name: http, port: {port}, nodePort: {NODE_PORT}, protocol: TCP}}]}}\n"
        );
        self.write("web.yaml", &[service, slice("IPv4", SERVING[0]), slice("IPv6", SERVING[1])].concat())
    }

    /// Writes a configuration with these lines, which changes no settings of the machine.
    fn write_config(&self, lines: &str) -> anyhow::Result<String> {
        let path = self.programs.path().join("config.yaml");
        let limits = "{maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}";
        fs::write(
            &path,
            format!(
                "apiVersion: kubeproxy.config.k8s.io/v1alpha2\nkind: KubeProxyConfiguration\n\
                 linux: {{conntrack: {limits}, oomScoreAdj: 0}}\n{lines}\n"
            ),
        )?;
        Ok(path.display().to_string())
    }

    pub(super) fn source(&self) -> String {
        format!("file:{}", self.programs.path().join("cluster").display())
    }

    fn start(&self, lines: &str) -> anyhow::Result<Running> {
        let (source, config) = (self.source(), self.write_config(lines)?);
        let arguments = ["--source", &source, "--node-name", "node-a", "--config", &config];
        self.programs.start(self.network.node(), PROGRAM, &arguments)
    }

    /// The source address that the endpoint sees. `None` if the endpoint does not answer.
    pub(super) fn seen(&self, from: &Namespace, to: (IpAddr, u16)) -> Option<IpAddr> {
        match from.probe(Probe::new(Protocol::Tcp, to.into())) {
            Ok(Outcome::Answer { seen_source, .. }) => Some(seen_source),
            _ => None,
        }
    }

    pub(super) fn log(&self) -> String {
        self.programs.log(PROGRAM)
    }
}

#[test]
fn the_configured_node_addresses_are_used() -> anyhow::Result<()> {
    let alone = Alone::build()?;
    let addresses = [NODE[0], ip(SECOND[0]), NODE[1], ip(SECOND[1])];
    // NodePorts answer at the primary addresses. In a family without a primary address, they answer at all addresses.
    for (lines, expected) in [
        ("", [true, false, true, false]),
        ("nodeIPOverride: [192.168.1.2]", [false, true, true, false]),
        ("nodeIPOverride: [192.168.1.2, \"2001:db8:1::2\"]", [false, true, false, true]),
        ("ipFamilyPolicy: SingleStack", [true, false, true, true]),
        ("ipFamilyPolicy: SingleStack\nnodeIPOverride: [\"2001:db8:1::2\"]", [true, true, false, true]),
        ("ipFamilyPolicy: RequireDualStack", [true, false, true, false]),
    ] {
        let mut running = alone.start(&format!("nodePortAddresses: [primary]\n{lines}"))?;
        let mut answered = [false; 4];
        await_condition(lines, || {
            answered = addresses.map(|at| alone.seen(alone.network.client(), (at, NODE_PORT)).is_some());
            answered == expected
        })
        .with_context(|| format!("{answered:?}, not {expected:?}\n{}", alone.log()))?;
        running.kill()?;
        running.wait()?;
    }
    // A node that lacks a required family is not programmed at all.
    alone.write_node(&[NODE[0]])?;
    let mut running = alone.start("ipFamilyPolicy: RequireDualStack")?;
    anyhow::ensure!(!running.wait()?.success(), "a node of one family is none of two: {}", alone.log());
    anyhow::ensure!(alone.log().contains("the configuration does not fit this node"), "{}", alone.log());
    Ok(())
}

#[test]
fn pods_are_recognized_as_configured() -> anyhow::Result<()> {
    let alone = Alone::build()?;
    let (pod, client) = (alone.network.pod(ip(PODS[0]))?, alone.network.client());
    // The source address that the endpoint sees is the pod's or the client's.
    for (lines, expected) in [
        ("", [true, true]),
        ("detectLocalMode: ClusterCIDR\ndetectLocal: {clusterCIDRs: [10.180.0.0/16]}", [true, false]),
        ("detectLocalMode: ClusterCIDR\ndetectLocal: {clusterCIDRs: [10.181.0.0/16]}", [false, false]),
        ("detectLocalMode: NodeCIDR", [true, false]),
        ("detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: pod1}", [true, false]),
        ("detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: pod2}", [false, false]),
        ("detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: pod}", [true, false]),
        ("detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: upl}", [false, true]),
    ] {
        let mut running = alone.start(lines)?;
        let mut seen = [None, None];
        await_condition(lines, || {
            seen = [(pod, PODS[0]), (client, "203.0.113.2")]
                .map(|(from, own)| alone.seen(from, (ip(WEB), 80)).map(|source| source == ip(own)));
            seen == expected.map(Some)
        })
        .with_context(|| format!("{seen:?}, not {expected:?}\n{}", alone.log()))?;
        running.kill()?;
        running.wait()?;
    }
    assert_eq!(CLIENT[0], ip("203.0.113.2"));
    Ok(())
}

#[test]
fn node_ports_answer_on_localhost_if_configured() -> anyhow::Result<()> {
    let alone = Alone::build()?;
    let node = alone.network.node();
    // CIDRs of both families, because the node is dual-stack.
    let (all, loopback) = ("0.0.0.0/0, \"::/0\"", "127.0.0.0/8, \"::1/128\"");
    let iptables = |answers: bool, addresses: &str| {
        format!("mode: iptables\niptables: {{localhostNodePorts: {answers}}}\nnodePortAddresses: [{addresses}]")
    };
    let nft = |answers: bool| {
        format!(
            "mode: nftables\nfeatureGates: {{KubeProxyNFTablesLocalhostNodePorts: {answers}}}\nnodePortAddresses: [primary, localhost]"
        )
    };
    let lines =
        |answers| [iptables(answers, all), iptables(answers, loopback), iptables(answers, "localhost"), nft(answers)];
    for (on, off) in lines(true).into_iter().zip(lines(false)) {
        for (answers, lines) in [(true, on), (false, off)] {
            let applied = alone.programs.states_applied(PROGRAM);
            let mut running = alone.start(&lines)?;
            await_condition(&lines, || {
                // Not the loopback address, which the pod has, too.
                let seen = alone.seen(node, (LOOPBACK[0], NODE_PORT));
                // An `ip6tables-restore` that is about to start would keep the ports of the ended program open for a moment.
                seen.map(|source| NODE_TO_PODS.contains(&source)) == answers.then_some(true)
                    && alone.programs.states_applied(PROGRAM) > applied
            })
            .with_context(|| alone.log())?;
            let rules = node.output(Command::new("nft").args(["list", "ruleset"]))?;
            assert_eq!(rules.contains("ip daddr 127.0.0.0/8"), answers, "{lines}: {rules}");
            running.kill()?;
            running.wait()?;
        }
    }
    Ok(())
}

/// The times at which states were applied, from the log.
fn applied(log: &str) -> Vec<Timestamp> {
    let lines = log.lines().filter(|line| line.contains(" applied revision="));
    lines.filter_map(|line| line.split_whitespace().next()?.parse().ok()).collect()
}

#[test]
fn the_minimum_time_between_syncs_is_kept() -> anyhow::Result<()> {
    let alone = Alone::build()?;
    let _running = alone.start("minSyncPeriod: 2s")?;
    let await_applied = |port: u16| {
        await_condition("the Service has moved", || alone.seen(alone.network.client(), (ip(WEB), port)).is_some())
            .with_context(|| alone.log())
    };
    await_applied(80)?;
    for port in [81, 82, 83] {
        alone.write_web(port)?;
        await_applied(port)?;
    }
    // The log line follows the first packets.
    await_condition("each sync is logged", || applied(&alone.log()).len() >= 4).with_context(|| alone.log())?;
    for pair in applied(&alone.log()).windows(2) {
        let between = pair[1].duration_since(pair[0]);
        assert!(between.as_millis() >= 2000, "{between:?} between two syncs: {}", alone.log());
    }
    Ok(())
}

#[test]
fn health_answers_wait_for_two_sync_periods() -> anyhow::Result<()> {
    let alone = Alone::build()?;
    let node = alone.network.node();
    let config = alone.write_config("syncPeriod: 1s\nminSyncPeriod: 0s\nhealthzBindAddress: 127.0.0.1:10256")?;
    let (source, api) = (alone.source(), alone.programs.api());
    let arguments = ["--source", &source, "--node-name", "node-a", "--listen", &api, "--config", &config];
    let _brain = alone.programs.start(node, "localnet-brain", &arguments)?;
    let backend = alone.programs.start(node, "localnet-nft", &["--api", &api, "--config", &config])?;
    let logs = || ["localnet-brain", "localnet-nft"].map(|name| alone.programs.log(name)).concat();
    // Until a backend has reported, the health answer contains no families and waits for nothing.
    let is = |status: u16| {
        move || {
            get(node, "127.0.0.1:10256", "/healthz")
                .is_ok_and(|page| page.status == status && page.body.contains("IPv4"))
        }
    };
    let signal = |name: &str| -> anyhow::Result<()> {
        let sent = Command::new("kill").args([name, &backend.id().to_string()]).status()?;
        anyhow::ensure!(sent.success(), "kill failed");
        Ok(())
    };
    await_condition("the node is well", is(200)).with_context(logs)?;
    signal("-STOP")?;
    alone.write_web(81)?;
    // Without the configuration, this would take a minute, which exceeds the timeout of this test.
    await_condition("a state waits for too long", is(503)).with_context(logs)?;
    signal("-CONT")?;
    await_condition("the node is well again", is(200)).with_context(logs)?;
    Ok(())
}
