//! Every command on a live node: formats, exit codes, a saved state, the plugin's name.

use std::{os::unix::fs::symlink, process::Command};

use localnet_e2e::{await_condition, program};
use localnet_lab::topology::CLUSTER_CIDRS;

use crate::scenario::{Scenario, named};

fn well() -> (Scenario, String) {
    let steps = ["backend".to_owned()];
    (Scenario::build(&named("service-misspelt"), &steps).unwrap(), CLUSTER_CIDRS.join(","))
}

#[test]
fn a_node_that_is_well_is_told_so_by_every_command() {
    let (node, cluster) = well();
    let run = |arguments: &[&str], code: i32| {
        let said = node.localnet(arguments).unwrap();
        assert_eq!(said.code, code, "{arguments:?}: {said:?}");
        said.out
    };
    assert!(run(&["get", "services"], 0).contains("shop       web   ClusterIP  172.30.0.41  80/TCP  2"));
    assert_eq!(run(&["get", "services", "-o", "name"], 0), "shop/web\n");
    assert_eq!(run(&["get", "endpoints", "-o", "name"], 0), "10.180.0.1:8080\n10.180.1.1:8080\n");
    assert!(run(&["get", "node", "-o", "wide"], 0).contains("zone-a"));
    assert!(run(&["get", "revision"], 0).contains("nft IPv4"));
    run(&["get", "services", "nothing"], 4);
    run(&["get", "pods"], 2);
    run(&["get", "services", "--api", "unix:///nowhere.sock"], 3);
    assert!(run(&["watch", "--count", "1", "-o", "json"], 0).contains("\"type\":\"ADDED\""));

    let text = run(&["explain", "--from", "pod:10.180.0.2", "--to", "shop/web:http", "--cluster-cidr", &cluster], 0);
    for word in ["10.180.0.1:8080 10.180.1.1:8080", "nat-prerouting", "held  services", "held  endpoints", "goto lb-2"]
    {
        assert!(text.contains(word), "{word:?} is missing:\n{text}");
    }
    assert!(!text.contains("MISSING") && !text.contains("DIFFERS"), "{text}");
    run(&["explain", "--from", "pod", "--to", "172.30.0.41:81", "--cluster-cidr", &cluster], 1);
    run(&["explain", "--from", "pod", "--to", "shop/none:81", "--cluster-cidr", &cluster], 4);
    let why_not = ["explain", "--why-not", "shop/web:http", "--cluster-cidr", &cluster];
    assert!(run(&why_not, 0).starts_with("nothing is wrong with it here"));
    assert!(run(&["diff", "--cluster-cidr", &cluster], 0).contains("the kernel holds what is planned"));
    let other = run(&["diff"], 1);
    assert!(other.contains("table ip localnet services"), "the pods' CIDR is not told: {other}");
    assert!(run(&["doctor", "--cluster-cidr", &cluster], 0).contains("table ip localnet has its chains"));
    assert!(run(&["top", "-o", "json"], 0).contains("\"rows\""));
}

/// It has applied all that there is, and nobody will apply what comes.
#[test]
fn a_backend_that_is_gone_is_not_well() {
    let steps = ["backend", "kill backend"].map(str::to_owned);
    let node = Scenario::build(&named("no-slices"), &steps).unwrap();
    let is_said = || {
        let said = node.localnet(&["doctor"]).unwrap();
        said.code == 1 && said.out.contains("no backend waits for what is new")
    };
    await_condition("doctor", is_said).unwrap();
}

#[test]
fn a_saved_state_is_asked_in_place_of_a_brain() {
    let (node, cluster) = well();
    let file = node.programs.path().join("state.yaml");
    std::fs::write(&file, node.localnet(&["get", "state", "-o", "yaml"]).unwrap().out).unwrap();
    let file = file.to_str().unwrap();
    let run = |arguments: &[&str]| node.localnet(&[&["--state", file], arguments].concat()).unwrap();
    assert_eq!(run(&["get", "services", "-o", "name"]).out, "shop/web\n");
    let explained =
        run(&["explain", "--from", "10.180.0.2", "--to", "shop/web:80", "--cluster-cidr", &cluster, "-o", "json"]);
    let explained: serde_json::Value = serde_json::from_str(&explained.out).unwrap();
    assert_eq!(explained["outcome"], "endpoints");
    assert_eq!(explained["path"][0]["held"], "unknown", "the kernel may be another node's");
    assert_eq!(run(&["watch"]).code, 2);
}

#[test]
fn kubectl_finds_it_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let plugin = folder.path().join("kubectl-localnet");
    symlink(program("localnet").unwrap(), &plugin).unwrap();
    let said = Command::new(&plugin).args(["get", "--help"]).output().unwrap();
    let text = String::from_utf8(said.stdout).unwrap();
    assert!(said.status.success() && text.contains("Usage: kubectl localnet get"), "{text}");
    for shell in ["bash", "zsh", "fish"] {
        let script = Command::new(&plugin).args(["completion", shell]).output().unwrap();
        assert!(String::from_utf8(script.stdout).unwrap().contains("localnet"), "{shell}");
    }
}
