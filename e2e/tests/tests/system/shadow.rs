//! `localnet shadow` beside a running kube-proxy: it finds no difference, then each planted one, and changes nothing.

use std::{cell::RefCell, fs, net::IpAddr, process::Command};

use anyhow::{Context as _, ensure};
use localnet_controlplane::{ControlPlane, NewNode};
use localnet_e2e::{Programs, await_condition, kube_proxy::Mode, program, web};
use localnet_lab::{
    Network, Topology,
    topology::{CLUSTER_CIDRS, NODE},
};
use serde_json::{Value, json};

use crate::kube_proxy::{self, KUBE_PROXY};

const PODS: [&str; 2] = ["10.180.0.1", "10.180.0.2"];
const BALANCER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 10));

struct World {
    programs: Programs,
    plane: ControlPlane,
    network: Network,
}

impl World {
    /// Services of each kind: NodePorts of both families, a load balancer with policy Local and source ranges, session affinity, and no
    /// endpoints.
    async fn build() -> anyhow::Result<Self> {
        let network = Network::build(Topology::with_pods(PODS)?)?;
        let plane = web::plane(&network).await?;
        let other = NewNode { name: "node-b", addresses: &["192.168.0.3".parse()?], labels: &[], pod_cidrs: &[] };
        plane.objects("default").ensure_node(other).await?;
        web::create(&plane, &[(PODS[0], "node-a"), (PODS[1], "node-b")]).await?;
        let shop = plane.objects("shop");
        let port = |port: u16| json!([{ "name": "http", "port": port, "targetPort": web::HTTP }]);
        let of_web = json!({ "app": "web" });
        let balancer = json!({
            "type": "LoadBalancer", "selector": of_web, "ports": port(443), "externalTrafficPolicy": "Local",
            "loadBalancerSourceRanges": ["203.0.113.0/25", "10.180.0.0/16"], "externalIPs": ["192.0.2.20"],
        });
        shop.ensure_service("balancer", balancer).await?;
        shop.set_load_balancer("balancer", &[BALANCER]).await?;
        let sticky = json!({ "selector": of_web, "ports": port(81), "sessionAffinity": "ClientIP" });
        shop.ensure_service("sticky", sticky).await?;
        shop.ensure_service(
            "empty",
            json!({
                "type": "NodePort", "selector": { "app": "none" }, "ports": port(82), "externalIPs": ["192.0.2.30", NODE[0]],
            }),
        )
        .await?;
        for service in ["balancer", "sticky"] {
            shop.await_ready_count(service, PODS.len()).await?;
        }
        Ok(Self { programs: Programs::new()?, plane, network })
    }

    /// Runs the command. Returns whether it found a difference, and its answer.
    fn shadow(&self, flags: &[&str]) -> anyhow::Result<(bool, Value)> {
        let mut command = Command::new(program("localnet")?);
        command.args(["shadow", "-o", "json", "--settle", "0", "--api", &self.programs.api()]);
        command.args(["--cluster-cidr", &CLUSTER_CIDRS.join(",")]).args(flags);
        let output = self.network.node().run(|| command.output().context("running localnet"))?;
        let error = String::from_utf8_lossy(&output.stderr);
        let found = match output.status.code() {
            Some(0) => false,
            Some(1) => true,
            code => anyhow::bail!("exit code {code:?}: {error}"),
        };
        Ok((found, serde_json::from_slice(&output.stdout).with_context(|| error.into_owned())?))
    }

    fn sh(&self, script: &str) -> anyhow::Result<String> {
        self.network.node().output(Command::new("sh").args(["-ec", script]))
    }

    /// Waits until the command finds no difference from kube-proxy's rules, then plants each difference in turn, as rules without one
    /// of their lines. Returns how many were planted, and those that were not found.
    fn missed(&self, mode: Mode, tool: &Tool) -> anyhow::Result<(usize, Vec<String>)> {
        let node = self.network.node();
        let source = format!("kube:{}", self.plane.kubeconfig().display());
        // It starts before kube-proxy, and must not take a port that kube-proxy needs.
        let arguments = ["--source", &source, "--node-name", "node-a", "--listen", &self.programs.api(), "--shadow"];
        let _brain = self.programs.start(node, "localnet-brain", &arguments)?;
        let (api, cidrs) = (self.node_api(), CLUSTER_CIDRS.join(","));
        let arguments = ["--source", &source, "--node-name", "node-a", "--listen", &api, "--cluster-cidr", &cidrs];
        let flags = ["--shadow", "--shadow-every", "1s"];
        let _node = self.programs.start(node, "localnet-node", &[&arguments[..], &flags[..], tool.flags].concat())?;
        let lines = format!("clusterCIDR: {}\n", CLUSTER_CIDRS.join(","));
        let of = (self.plane.kube_proxy_kubeconfig(), "node-a");
        let mut kube_proxy = kube_proxy::start(node, &self.programs, mode, of, &lines)?;
        let last = RefCell::new(String::new());
        let agrees = || match self.shadow(tool.flags) {
            Ok((found, answer)) => {
                last.replace(answer.to_string());
                !found && answer["equal"].as_u64() > Some(40)
            }
            Err(error) => {
                last.replace(format!("{error:#}"));
                false
            }
        };
        await_condition("no difference", agrees).with_context(|| last.take())?;
        let log = self.programs.log(KUBE_PROXY);
        ensure!(!log.contains("address already in use"), "{log}");
        // From now on, no program repairs the rules.
        kube_proxy.kill()?;
        kube_proxy.wait()?;
        let rules = self.sh(&tool.save)?;
        let lines: Vec<&str> = rules.lines().collect();
        let file = self.programs.path().join("rules");
        let restore = tool.restore.replace("FILE", &file.display().to_string());
        let load = |text: String| -> anyhow::Result<()> {
            fs::write(&file, text)?;
            self.sh(&restore).map(drop)
        };
        let (mut planted, mut missed) = (0, Vec::new());
        for (number, line) in lines.iter().enumerate().filter(|(_, line)| (tool.is_rule)(line)) {
            load(
                lines.iter().enumerate().filter(|(of, _)| *of != number).map(|(_, line)| format!("{line}\n")).collect(),
            )
            .with_context(|| (*line).to_owned())?;
            planted += 1;
            if !self.shadow(tool.flags)?.0 {
                missed.push(line.trim().to_owned());
            }
        }
        load(rules.clone())?;
        ensure!(!self.shadow(tool.flags)?.0, "a difference is found in the restored rules");
        let translates = |line: &&&str| (tool.is_rule)(line) && line.to_lowercase().contains(" dnat ");
        let without = lines.iter().filter(|line| !translates(line)).map(|line| format!("{line}\n"));
        self.reports(tool, || load(without.collect()))?;
        Ok((planted, missed))
    }

    /// The address of `localnet-node`.
    fn node_api(&self) -> String {
        format!("unix://{}", self.programs.path().join("node.sock").display())
    }

    /// With `--every`, the command reports to the brain as a backend does, and so does `localnet-node --shadow`. `plant` changes
    /// kube-proxy's rules.
    fn reports(&self, tool: &Tool, plant: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
        let (api, cidrs) = (self.programs.api(), CLUSTER_CIDRS.join(","));
        let arguments = ["shadow", "--every", "100ms", "--settle", "0", "--api", &api, "--cluster-cidr", &cidrs];
        let _shadow = self.programs.start(self.network.node(), "localnet", &[&arguments[..], tool.flags].concat())?;
        let skipped = |api: &str| -> Option<u64> {
            let status =
                Command::new(program("localnet").ok()?).args(["status", "-o", "json", "--api", api]).output().ok()?;
            let status: Value = serde_json::from_slice(&status.stdout).ok()?;
            let backend = status["backends"].as_array()?.iter().find(|backend| backend["name"] == "shadow")?.clone();
            has_codes(&backend).then(|| backend["skippedCount"].as_u64())?
        };
        let apis = [api.clone(), self.node_api()];
        for api in &apis {
            await_condition("no difference is reported", || skipped(api) == Some(0)).with_context(|| api.clone())?;
        }
        plant()?;
        for api in &apis {
            await_condition("the differences are reported", || skipped(api) > Some(0)).with_context(|| api.clone())?;
        }
        Ok(())
    }
}

/// Whether every skipped part has the code of a difference.
fn has_codes(backend: &Value) -> bool {
    backend["skipped"].as_array().is_some_and(|skipped| skipped.iter().all(|part| part["code"] == "shadow-differs"))
}

/// How to read and to replace the IPv4 rules of kube-proxy.
struct Tool {
    /// The flags for the defaults of kube-proxy's mode.
    flags: &'static [&'static str],
    save: String,
    restore: String,
    is_rule: fn(&str) -> bool,
}

impl Tool {
    fn nft() -> Self {
        let is_rule = |line: &str| {
            let line = line.trim_start_matches('\t');
            ![
                "type ",
                "table ",
                "chain ",
                "set ",
                "map ",
                "}",
                "comment ",
                "elements ",
                "flags ",
                "timeout ",
                "size ",
                " ",
            ]
            .iter()
            .any(|start| line.starts_with(start))
                && !line.is_empty()
        };
        let table = "ip kube-proxy";
        Self {
            flags: &["--nodeport-addresses", "primary"],
            save: format!("nft list table {table}"),
            restore: format!("nft delete table {table}; nft -f FILE"),
            is_rule,
        }
    }

    fn iptables(flavour: &str) -> Self {
        Self {
            flags: &[],
            save: format!("iptables-{flavour}-save -t nat; iptables-{flavour}-save -t filter"),
            restore: format!("iptables-{flavour}-restore FILE"),
            is_rule: |line| line.starts_with("-A KUBE-"),
        }
    }
}

/// What the first packet of a new client does not show: remembered clients, open and invalid connections, packets to the node itself,
/// counters, and a mark after its last use. The drop of unallocated addresses is a deliberate difference (entry 7).
const WITHOUT_EFFECT: [&str; 10] = [
    "Drop traffic to unallocated ClusterIPs",
    "@affinity-",
    "--rcheck",
    "RELATED,ESTABLISHED",
    "INVALID",
    "--mark 0x4000/0x4000 -j ACCEPT",
    "health check node port",
    "localhost_nps_accepted_pkts",
    "--set-xmark 0x4000/0x0",
    "will be dropped by KUBE-PROXY-FIREWALL",
];

async fn all_are_found(mode: Mode, tool: Tool) -> anyhow::Result<()> {
    let world = World::build().await?;
    let (planted, mut missed) = tokio::task::block_in_place(|| world.missed(mode, &tool))?;
    missed.retain(|line| !WITHOUT_EFFECT.iter().any(|part| line.contains(part)));
    ensure!(planted >= 40 && missed.is_empty(), "{planted} planted, not found: {missed:#?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn planted_differences_are_found_in_mode_nftables() -> anyhow::Result<()> {
    all_are_found(Mode::Nftables, Tool::nft()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn planted_differences_are_found_in_mode_iptables() -> anyhow::Result<()> {
    all_are_found(Mode::Iptables("legacy"), Tool::iptables("legacy")).await
}
