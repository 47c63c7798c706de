//! kube-proxy, localnet next to it, localnet alone, kube-proxy next to it, kube-proxy alone: all under continuous new connections
//! and long-lived flows. No connection fails, and no flow changes its endpoint.

use std::{collections::BTreeSet, net::SocketAddr, process::Command, thread::scope, time::Duration};

use anyhow::Context as _;
use localnet_e2e::{
    await_condition,
    load::{Connections, Load},
    program,
};
use localnet_lab::{
    Probe, Protocol, Running,
    topology::{CLIENT, NODE},
};

use super::{HTTP, NODE_PORT, PODS, WEB, World, ip};

const RATE: u32 = 100;
const UDP_FLOWS: usize = 20;
const SEND_EVERY: Duration = Duration::from_millis(50);

fn end(program: &mut Running) -> anyhow::Result<()> {
    // The kubelet also ends a program by SIGTERM.
    let ended = Command::new("kill").args(["-TERM", &program.id().to_string()]).status()?;
    anyhow::ensure!(ended.success(), "kill failed");
    program.wait()?;
    Ok(())
}

fn ours(world: &World, name: &str, arguments: &[&str]) -> anyhow::Result<String> {
    world.network.node().output(Command::new(program(name)?).args(arguments))
}

fn take_over_and_give_back(world: &World, mode: &str) -> anyhow::Result<()> {
    // The programs use different ports for their servers, so that they can run at the same time.
    let of_kube_proxy = world.write_config("kube-proxy.yaml", &format!("mode: {mode}"))?;
    let of_ours = world.write_config(
        "ours.yaml",
        "mode: nftables\nhealthzBindAddress: 127.0.0.1:10356\nmetricsBindAddress: 127.0.0.1:10349",
    )?;
    let node = world.network.node();
    let ruleset = || -> anyhow::Result<String> { node.output(Command::new("nft").args(["list", "ruleset"])) };
    // Only kube-proxy writes these. In mode iptables, localnet has a separate table in addition to its chains.
    let marks: &[&str] = match mode {
        "nftables" => &["table ip kube-proxy", "table ip6 kube-proxy"],
        _ => {
            &["chain KUBE-SERVICES", "chain KUBE-NODEPORTS", "chain KUBE-SVC-", "chain KUBE-SEP-", "chain KUBE-FORWARD"]
        }
    };
    let synced = |what: &str| {
        let count = "kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}";
        let counted = |line: &str| line.starts_with(count) && !line.ends_with(" 0");
        await_condition(what, || {
            world.get("127.0.0.1:10249", "/metrics").is_ok_and(|page| page.body.lines().any(counted))
        })
        .with_context(|| world.logs())
    };
    let (web, dns): (SocketAddr, SocketAddr) = ((ip(WEB), 80).into(), (ip("172.30.0.53"), 53).into());
    let node_port: SocketAddr = (NODE[0], NODE_PORT).into();
    let pods: BTreeSet<SocketAddr> = PODS.iter().map(|pod| (ip(pod), HTTP).into()).collect();
    let client = world.network.client();

    let mut kube_proxy = world.start_kube_proxy(&of_kube_proxy)?;
    synced("kube-proxy syncs")?;
    world.programs.await_answers(client, Probe::new(Protocol::Tcp, web), &pods.iter().copied().collect::<Vec<_>>())?;
    let (connections, datagrams) = scope(|scope| {
        let (udp, used) = Load::flows(scope, client, dns, UDP_FLOWS, SEND_EVERY)?;
        anyhow::ensure!(used.len() == 2, "flows to both endpoints of dns were expected: {used:?}");
        let to = vec![web, node_port];
        let tcp = Load::connections(
            scope,
            client,
            Connections { source: Some(CLIENT[0]), to, endpoints: pods.clone(), rate: RATE },
        );
        let mut steps = || -> anyhow::Result<()> {
            let mut taken = world.programs.start(node, "localnet-node", &["--config", &of_ours])?;
            await_condition("ours applies a state", || world.programs.states_applied("localnet-node") > 0)
                .with_context(|| world.logs())?;
            end(&mut kube_proxy)?;
            if mode == "nftables" {
                ours(world, "localnet-nft", &["cleanup", "--kube-proxy"])?;
            } else {
                let Err(error) = ours(world, "localnet-nft", &["cleanup", "--kube-proxy"]) else {
                    anyhow::bail!("chains of iptables were not noticed");
                };
                anyhow::ensure!(error.to_string().contains("localnet-iptables cleanup"), "{error}");
                ours(world, "localnet-iptables", &["cleanup"])?;
            }
            let rules = ruleset()?;
            let left: Vec<_> = marks.iter().filter(|mark| rules.contains(**mark)).collect();
            anyhow::ensure!(left.is_empty(), "kube-proxy's {left:?} are left:\n{rules}");
            for ours in ["table ip localnet", "table ip6 localnet"] {
                anyhow::ensure!(rules.contains(ours), "{ours} is missing:\n{rules}");
            }
            answered_anew(world, web, &pods)?;
            kube_proxy = world.start_kube_proxy(&of_kube_proxy)?;
            synced("kube-proxy syncs again")?;
            end(&mut taken)?;
            ours(world, "localnet-nft", &["cleanup"])?;
            let rules = ruleset()?;
            anyhow::ensure!(!rules.contains("localnet"), "ours are left:\n{rules}");
            answered_anew(world, web, &pods)
        };
        let stepped = steps();
        let tcp = tcp.finish().context("TCP");
        let udp = udp.finish().context("UDP");
        stepped?;
        anyhow::Ok((tcp?, udp?))
    })?;
    println!("{mode}: connections: {connections}; datagrams: {datagrams}; all were answered");
    anyhow::ensure!(connections.count > 0 && datagrams.count > 0);
    Ok(())
}

/// Verifies that both endpoints answer new connections.
fn answered_anew(world: &World, web: SocketAddr, pods: &BTreeSet<SocketAddr>) -> anyhow::Result<()> {
    let pods: Vec<_> = pods.iter().copied().collect();
    world
        .programs
        .await_answers(world.network.client(), Probe::new(Protocol::Tcp, web), &pods)
        .with_context(|| world.logs())
}

#[tokio::test(flavor = "multi_thread")]
async fn from_mode_nftables_and_back() -> anyhow::Result<()> {
    take_over_and_give_back(&World::build().await?, "nftables")
}

#[tokio::test(flavor = "multi_thread")]
async fn from_mode_iptables_and_back() -> anyhow::Result<()> {
    take_over_and_give_back(&World::build().await?, "iptables")
}
