//! Beside kube-proxy, localnet serves the Services with a label. Labelling a Service and removing the label fails no connection.

use std::{
    net::SocketAddr,
    process::Command,
    thread::{self, scope},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::Service;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use localnet_e2e::{
    Programs, await_condition,
    kube_proxy::Mode,
    load::{Connections, Load},
    web::{self, DNS_NODE_PORT, HTTP, HTTP_NODE_PORT},
};
use localnet_lab::{
    Network, Probe, Protocol, Servers, Topology,
    topology::{CLUSTER_CIDRS, NODE},
};
use serde_json::json;
use tokio::runtime::Handle;

use crate::kube_proxy;

const PODS: [&str; 2] = ["10.180.0.1", "10.180.0.2"];
const ASKING: &str = "10.180.0.3";
const CONNECTIONS: u32 = 50;
const FLOWS: usize = 10;
const SEND_EVERY: Duration = Duration::from_millis(50);
/// How often the Service changes its proxy, there and back.
const TIMES: usize = 5;
/// How long the Service stays with a proxy.
const STAY: Duration = Duration::from_millis(400);

#[tokio::test(flavor = "multi_thread")]
async fn a_service_moves_between_the_proxies_without_a_failed_connection() -> anyhow::Result<()> {
    for (mode, remove) in [
        (Mode::Nftables, "nft delete table ip kube-proxy"),
        (Mode::Iptables("legacy"), "iptables-legacy -t nat -F PREROUTING; iptables-legacy -t nat -F OUTPUT"),
    ] {
        there_and_back(mode, remove).await.with_context(|| format!("{mode:?}"))?;
    }
    Ok(())
}

async fn there_and_back(mode: Mode, remove: &str) -> anyhow::Result<()> {
    let network = Network::build(Topology::with_pods(PODS.into_iter().chain([ASKING]))?)?;
    let _servers = Servers::start(&network, web::endpoints(&PODS))?;
    let plane = web::plane(&network).await?;
    let cluster_ips = web::create(&plane, &PODS.map(|pod| (pod, "node-a"))).await?;
    // A Service that stays with kube-proxy.
    let ports = json!([{ "name": "http", "port": 81, "targetPort": HTTP }]);
    let other =
        plane.objects("shop").ensure_service("other", json!({ "selector": { "app": "web" }, "ports": ports })).await?;
    let other = other.spec.and_then(|spec| spec.cluster_ip).context("no ClusterIP")?.parse()?;
    let services: Api<Service> = Api::namespaced(plane.client(), "shop");
    let label = async |value: Option<&str>| {
        let patch = Patch::Merge(json!({ "metadata": { "labels": { "proxy": value } } }));
        services.patch("web", &PatchParams::default(), &patch).await
    };

    let programs = Programs::new()?;
    let (node, client, pod) = (network.node(), network.client(), network.pod(ASKING.parse()?)?);
    let cluster = CLUSTER_CIDRS.join(",");
    let lines = format!("clusterCIDR: {cluster}\nnodePortAddresses: [primary]\n");
    let lines = if mode == Mode::Nftables { lines } else { format!("clusterCIDR: {cluster}\n") };
    let mut kube_proxy = kube_proxy::start(node, &programs, mode, (plane.kube_proxy_kubeconfig(), "node-a"), &lines)?;
    let targets: Vec<_> = (cluster_ips.iter().map(|ip| (pod, SocketAddr::new(*ip, 80))))
        .chain([(pod, SocketAddr::new(other, 81))])
        .chain(NODE.map(|ip| (client, SocketAddr::new(ip, HTTP_NODE_PORT))))
        .collect();
    for (from, to) in &targets {
        programs.await_answers(from, Probe::new(Protocol::Tcp, *to), &web::answering(&PODS, *to, HTTP))?;
    }
    let (source, api) = (format!("kube:{}", plane.kubeconfig().display()), programs.api());
    let flags = ["--source", &source, "--node-name", "node-a", "--listen", &api, "--canary", "proxy=localnet"];
    let _brain = programs.start(node, "localnet-brain", &flags)?;
    let _backend = programs.start(node, "localnet-nft", &["--api", &api, "--cluster-cidr", &cluster, "--canary"])?;
    let vip = format!("{} . tcp . 80 ", cluster_ips[0]);
    let has_vip = |has: bool| {
        let listed = || node.output(Command::new("nft").args(["list", "map", "ip", "localnet", "services"]));
        await_condition("the canary's VIP", || listed().is_ok_and(|listed| listed.contains(&vip) == has))
            .with_context(|| programs.log("localnet-nft"))
    };

    let answered = tokio::task::block_in_place(|| {
        scope(|scope| {
            let mut loads: Vec<_> = targets
                .iter()
                .map(|(from, to)| {
                    let endpoints = web::answering(&PODS, *to, HTTP).into_iter().collect();
                    Load::connections(
                        scope,
                        from,
                        Connections { source: None, to: vec![*to], endpoints, rate: CONNECTIONS },
                    )
                })
                .collect();
            for ip in NODE {
                let to = SocketAddr::new(ip, DNS_NODE_PORT);
                loads.push(Load::flows(scope, client, to, FLOWS, SEND_EVERY)?.0);
            }
            let move_to = |proxy: Option<&str>| {
                Handle::current().block_on(label(proxy))?;
                has_vip(proxy.is_some())?;
                thread::sleep(STAY);
                anyhow::Ok(())
            };
            let moved = (|| {
                for _ in 0..TIMES {
                    move_to(Some("localnet"))?;
                    move_to(None)?;
                }
                move_to(Some("localnet"))
            })();
            let answered: Vec<_> = loads.into_iter().map(Load::finish).collect();
            moved?;
            answered.into_iter().collect::<Result<Vec<_>, _>>()
        })
    })?;
    for answered in &answered {
        println!("{mode:?}: {answered}");
    }
    ensure!(answered.iter().all(|load| load.count > 0), "no request was sent: {answered:?}");

    // Without kube-proxy's rules, only localnet's Service answers.
    kube_proxy.kill()?;
    kube_proxy.wait()?;
    node.output(Command::new("sh").args(["-ec", remove]))?;
    let v4 = |to: &&(_, SocketAddr)| to.1.is_ipv4();
    for (from, to) in targets.iter().filter(v4) {
        let is_canary = to.ip() != other;
        let outcome = from.probe(Probe::new(Protocol::Tcp, *to))?;
        ensure!(matches!(outcome, localnet_lab::Outcome::Answer { .. }) == is_canary, "{to}: {outcome}");
    }
    Ok(())
}
