//! `localnet-brain check` names exactly the Services that would behave differently.

use std::process::Command;

use localnet_e2e::program;
use localnet_lab::topology::NODE;
use serde_json::json;

use super::{HTTP, NAMESPACE, PODS, World, ip};

#[tokio::test(flavor = "multi_thread")]
async fn check_lists_the_services_that_would_behave_differently() -> anyhow::Result<()> {
    let world = World::build().await?;
    let objects = world.plane.objects(NAMESPACE);
    let port = json!([{ "name": "http", "port": 80, "targetPort": HTTP }]);
    let sticky = json!({
        "selector": { "app": "all" }, "ports": port, "sessionAffinity": "ClientIP", "externalIPs": ["198.51.100.1"],
    });
    objects.ensure_service("sticky", sticky).await?;
    let nobody = json!({ "selector": { "app": "none" }, "ports": port, "externalIPs": ["198.51.100.2"] });
    objects.ensure_service("nobody", nobody).await?;
    let local = json!({
        "type": "NodePort", "selector": { "app": "all" }, "ports": port, "externalTrafficPolicy": "Local",
    });
    objects.ensure_service("local", local).await?;
    // An older Service owns one address, and the other one is the node's own.
    let taken =
        json!({ "selector": { "app": "none" }, "ports": port, "externalIPs": ["198.51.100.1", NODE[0].to_string()] });
    objects.ensure_service("taken", taken).await?;
    for service in ["sticky", "local"] {
        objects.await_ready_addresses(service, &PODS.map(ip)).await?;
    }

    // Entries of docs/differences.md, by Service.
    for (mode, expected) in [
        ("nftables", vec![("taken", 3)]),
        // The empty mode of kube-proxy.
        ("\"\"", vec![("nobody", 8), ("taken", 3), ("taken", 8)]),
        ("ipvs", vec![("local", 11), ("taken", 3)]),
    ] {
        let config =
            world.write_config("checked.yaml", &format!("mode: {mode}\nnodePortAddresses: [192.168.0.0/24]"))?;
        let source = format!("kube:{}", world.plane.kube_proxy_kubeconfig().display());
        let mut check = Command::new(program("localnet-brain")?);
        check.args(["check", "--config", &config, "--source", &source]);
        let output = world.network.node().run(|| Ok(check.output()?))?;
        let report = String::from_utf8(output.stdout)?;
        assert_eq!(output.status.code(), Some(1), "{mode}: {report}{}", String::from_utf8_lossy(&output.stderr));
        let mut named: Vec<(&str, u8)> = Vec::new();
        for line in report.lines().filter(|line| line.starts_with("Service ")) {
            let (service, text) = line.trim_start_matches("Service ").split_once(": ").expect("a Service and a text");
            let name = service.trim_start_matches("shop/");
            let entry = text.rsplit_once("(docs/differences.md, ").map(|(_, entry)| entry.trim_end_matches(')'));
            named.push((name, entry.and_then(|entry| entry.parse().ok()).expect("an entry")));
        }
        assert_eq!(named, expected, "{mode}: {report}");
        let count = report.lines().count() - 1;
        let all = format!("; {count} {}\n", if count == 1 { "difference" } else { "differences" });
        assert!(report.ends_with(&all), "{report}");
    }
    Ok(())
}
