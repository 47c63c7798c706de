//! With the unmodified kube-proxy configurations of kubeadm, k3s and EKS, NodePorts answer on the same addresses as with
//! kube-proxy: on all addresses of the node, as in its iptables mode, whichever backend programs them.

use std::fs;

use anyhow::Context as _;
use localnet_e2e::await_condition;
use localnet_lab::{Running, topology::NODE};

use super::{
    NODE_PORT,
    effects::{Alone, PROGRAM, SECOND},
    ip,
};

const KUBEADM: &str = include_str!("../../../../../config/tests/golden/kubeadm.yaml");
const EKS: &str = include_str!("../../../../../config/tests/golden/eks.yaml");
const K3S: &str = include_str!("../../../../../config/tests/golden/k3s.args");

/// The arguments of kube-proxy with a file from a ConfigMap. `change` may edit its text.
fn with_file(
    alone: &Alone,
    config_map: &str,
    key: &str,
    change: impl Fn(&str) -> String,
) -> anyhow::Result<Vec<String>> {
    let config_map: serde_json::Value = serde_saphyr::from_str(config_map)?;
    let text = config_map["data"][key].as_str().context("the ConfigMap has a configuration")?;
    let path = alone.programs.path().join("kube-proxy.conf");
    fs::write(&path, change(text))?;
    Ok(vec![format!("--config={}", path.display()), "--hostname-override=node-a".to_owned()])
}

fn start(alone: &Alone, backend: Option<&str>, arguments: &[String]) -> anyhow::Result<Running> {
    let source = alone.source();
    let mut all = vec!["--source", &source];
    all.extend(backend.iter().flat_map(|backend| ["--backend", backend]));
    all.extend(arguments.iter().map(String::as_str));
    alone.programs.start(alone.network.node(), PROGRAM, &all)
}

#[test]
fn node_ports_answer_on_the_addresses_of_kube_proxy() -> anyhow::Result<()> {
    let alone = Alone::build()?;
    let addresses = [NODE[0], ip(SECOND[0]), NODE[1], ip(SECOND[1])];
    let kubeadm = |change: fn(&str) -> String| with_file(&alone, KUBEADM, "config.conf", change);
    let k3s: Vec<_> = K3S.lines().map(str::to_owned).collect();
    let eks = || with_file(&alone, EKS, "config", str::to_owned);
    // To localnet, an empty mode means nft; to kube-proxy, iptables. Only an explicit nftables mode is `primary`.
    type Arguments<'a> = &'a dyn Fn() -> anyhow::Result<Vec<String>>;
    let rows: [(&str, Option<&str>, Arguments<'_>, bool); 6] = [
        ("kubeadm", None, &|| kubeadm(str::to_owned), true),
        ("kubeadm in mode nftables", None, &|| kubeadm(|text| text.replace("mode: \"\"", "mode: nftables")), false),
        ("EKS", Some("nft"), &eks, true),
        ("EKS", None, &eks, true),
        ("k3s", Some("nft"), &|| Ok(k3s.clone()), true),
        ("k3s", None, &|| Ok(k3s.clone()), true),
    ];
    for (source, backend, arguments, second) in rows {
        let mut running = start(&alone, backend, &arguments()?)?;
        let mut answered = [false; 4];
        await_condition(source, || {
            answered = addresses.map(|at| alone.seen(alone.network.client(), (at, NODE_PORT)).is_some());
            answered == [true, second, true, second]
        })
        .with_context(|| format!("{source} {backend:?}: {answered:?}\n{}", alone.log()))?;
        running.kill()?;
        running.wait()?;
        // The rules of a killed backend would answer in place of the next one.
        let cleanup = start(&alone, backend, &[arguments()?, vec!["--cleanup".to_owned()]].concat())?.wait()?;
        anyhow::ensure!(cleanup.success(), "{source} {backend:?}: {}", alone.log());
    }
    Ok(())
}
