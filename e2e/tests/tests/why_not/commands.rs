//! Every command of `localnet` on a live node: formats, exit codes, a saved state, and the name as a plugin.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    process::Command,
};

use localnet_e2e::{
    Backend, await_condition, program,
    scenario::{Scenario, named, steps as steps_of},
};
use localnet_lab::{Namespace, Sandbox, topology::CLUSTER_CIDRS};

fn well() -> Scenario {
    Scenario::build(&named("service-misspelt"), &["backend".to_owned()]).unwrap()
}

#[test]
fn every_command_finds_no_problem_on_a_healthy_node() {
    let node = well();
    let run = |arguments: &[&str], code: i32| {
        let answer = node.localnet(arguments).unwrap();
        assert_eq!(answer.code, code, "{arguments:?}: {answer:?}");
        answer.out
    };
    assert!(run(&["get", "services"], 0).contains("shop       web   ClusterIP  172.30.0.41  -            80/TCP  2"));
    assert_eq!(run(&["get", "services", "-o", "name"], 0), "shop/web\n");
    assert_eq!(run(&["get", "endpoints", "-o", "name"], 0), "10.180.0.1:8080\n10.180.1.1:8080\n");
    assert!(run(&["get", "node", "-o", "wide"], 0).contains("zone-a"));
    assert!(run(&["get", "revision"], 0).contains("nft IPv4"));
    run(&["get", "services", "nothing"], 4);
    run(&["get", "pods"], 2);
    run(&["get", "services", "--api", "unix:///nowhere.sock"], 3);
    assert!(run(&["watch", "--count", "1", "-o", "json"], 0).contains("\"type\":\"ADDED\""));

    let text = run(&["explain", "--from", "pod:10.180.0.2", "--to", "shop/web:http"], 0);
    for word in ["10.180.0.1:8080 10.180.1.1:8080", "nat-prerouting", "held  services", "held  endpoints", "goto lb-2"]
    {
        assert!(text.contains(word), "{word:?} is missing:\n{text}");
    }
    assert!(!text.contains("MISSING") && !text.contains("DIFFERS"), "{text}");
    run(&["explain", "--from", "pod", "--to", "172.30.0.41:81"], 1);
    run(&["explain", "--from", "pod", "--to", "shop/none:81"], 4);
    let why_not = ["explain", "--why-not", "shop/web:http"];
    assert!(run(&why_not, 0).starts_with("no problem found on this node"));
    assert!(run(&["diff"], 0).contains("the kernel matches the plan"));
    let other = run(&["diff", "--cluster-cidr", "10.9.0.0/16"], 1);
    assert!(other.contains("table ip localnet services"), "with another CIDR of pods: {other}");
    assert!(other.contains("configuration: reported by the nft backend, except --cluster-cidr"), "{other}");
    assert!(run(&["doctor"], 0).contains("table ip localnet has all planned chains"));
    assert!(run(&["top", "-o", "json"], 0).contains("\"rows\""));
    assert!(!run(&["get", "services", "-A", "--no-headers"], 0).contains("NAMESPACE"));
    assert!(run(&["status"], 0).contains("nft is configured with pods: ClusterCIDR"));
    let versions = run(&["version"], 0);
    assert!(versions.starts_with("localnet 0.") && versions.contains("\nlocalnet-brain 0."), "{versions}");
}

/// The backend holds what the brain sent, and the history shows when it had applied the first state.
#[test]
fn digests_of_the_brain_and_the_backend_agree_and_the_history_shows_the_progress() {
    let node = well();
    let json = |arguments: &[&str]| -> serde_json::Value {
        let answer = node.localnet(arguments).unwrap();
        assert_eq!(answer.code, 0, "{arguments:?}: {answer:?}");
        serde_json::from_str(&answer.out).unwrap()
    };
    let status = json(&["get", "revision", "-o", "json"]);
    let applied = &status["backends"][0]["families"][0]["digest"];
    assert!(status["digest"].is_string() && status["digest"] == *applied, "{status}");
    let history = json(&["history", "-o", "json"]);
    let newest = history["history"].as_array().unwrap().last().unwrap();
    assert_eq!((&newest["revision"], &newest["digest"]), (&status["revision"], &status["digest"]), "{history}");
    assert!(newest["applied"][0]["millis"].is_u64(), "{history}");
    assert_eq!(node.localnet(&["get", "services", "--at", "99"]).unwrap().code, 4);
}

/// The commands answer from a sysdump as they do on the node. The fault damages the kernel's tables, so that the answers depend on
/// the kernel as well.
#[test]
fn a_sysdump_answers_like_the_node() {
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().join("node-a.tar");
    let archive = archive.to_str().unwrap();
    for (fault, steps) in [("service-misspelt", vec!["backend".to_owned()]), ("ruleset-flushed", vec![])] {
        let path = named(fault);
        let steps = if steps.is_empty() { steps_of(&path).unwrap() } else { steps };
        let node = Scenario::build(&path, &steps).unwrap();
        assert_sysdump_answers(
            &node,
            &[
                &["get", "services"],
                &["get", "endpoints"],
                &["get", "revision", "-o", "name"],
                &["diff"],
                &["history", "--service", "shop/web"],
                &["explain", "--from", "pod:10.180.0.2", "--to", "shop/web:http"],
                &["explain", "--why-not", "shop/web:http"],
            ],
        );
        let written = node.localnet(&["sysdump", "--anonymise", "--output", archive]).unwrap();
        assert_eq!(written.code, 0, "{}", written.error);
        let bytes = fs::read(archive).unwrap();
        for secret in ["shop", "10.180.0.2"] {
            assert!(!bytes.windows(secret.len()).any(|part| part == secret.as_bytes()), "{fault}: {secret}");
        }
    }
}

/// A sysdump of this node gives the same answers on any machine.
fn assert_sysdump_answers(node: &Scenario, questions: &[&[&str]]) {
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().join("node-a.tar");
    let archive = archive.to_str().unwrap();
    let written = node.localnet(&["sysdump", "--output", archive]).unwrap();
    assert_eq!((written.code, written.out), (0, format!("{archive}\n")), "{}", written.error);
    assert_eq!(fs::metadata(archive).unwrap().permissions().mode() & 0o777, 0o600);
    for arguments in questions {
        let there = node.localnet(arguments).unwrap();
        let mut command = Command::new(program("localnet").unwrap());
        let here = command.args(["--state", archive]).args(*arguments).output().unwrap();
        let out = String::from_utf8(here.stdout).unwrap();
        assert_eq!((here.status.code(), out), (Some(there.code), there.out), "{arguments:?}");
    }
}

/// Regression: only the backend has flags, and without its configuration each command failed on a healthy node. Every command
/// uses the configuration that the backend has reported, and names it.
#[test]
fn every_command_uses_the_configuration_of_the_backend() {
    let node = well();
    let as_reported = "configuration: reported by the nft backend\n";
    for (arguments, expected) in [
        // Only the configuration distinguishes a pod of the cluster from other clients.
        (&["explain", "--from", "pod", "--to", "shop/web:http"][..], "source   kept"),
        (&["explain", "--from", "10.180.1.9", "--to", "shop/web:http"], "10.180.1.9 (pod)"),
        (&["explain", "--why-not", "shop/web:http"], "no problem found on this node"),
        (&["diff"], "the kernel matches the plan"),
        (&["top"], "0 flows to Services"),
    ] {
        let answer = node.localnet(arguments).unwrap();
        assert_eq!(answer.code, 0, "{arguments:?}: {answer:?}");
        assert!(answer.out.contains(expected) && answer.out.ends_with(as_reported), "{arguments:?}: {}", answer.out);
    }
    let doctor = node.localnet(&["doctor"]).unwrap();
    assert_eq!(doctor.code, 0, "{doctor:?}");
    let pods =
        format!("reported by the nft backend: pods: ClusterCIDR {}; NodePorts: all addresses", CLUSTER_CIDRS.join(","));
    assert!(doctor.out.contains(&pods), "{}", doctor.out);
}

/// With both flavours of iptables, the commands read the backend's rules, as they read those of nft.
#[test]
fn commands_read_the_rules_of_iptables() {
    for flavour in ["nft", "legacy"] {
        let node = Scenario::build(&named("service-misspelt"), &[]).unwrap();
        let (api, cluster) = (node.programs.api(), CLUSTER_CIDRS.join(","));
        let arguments = ["--api", &api, "--cluster-cidr", &cluster, "--iptables-flavour", flavour];
        let backend = node.programs.start(node.network.node(), "localnet-iptables", &arguments).unwrap();
        await_condition("the backend", || node.localnet(&["diff"]).is_ok_and(|answer| answer.code == 0)).unwrap();
        let run = |arguments: &[&str], code: i32| {
            let answer = node.localnet(arguments).unwrap();
            assert_eq!(answer.code, code, "{flavour}: {arguments:?}: {answer:?}");
            answer.out
        };
        let explain = ["explain", "--from", "pod:10.180.0.2", "--to", "shop/web:http"];
        let why_not = ["explain", "--why-not", "shop/web:http"];
        assert!(run(&["diff"], 0).contains("the kernel matches the plan"));
        assert!(run(&["doctor"], 0).contains("the kernel matches the backend's plan"));
        assert!(run(&why_not, 0).starts_with("no problem found on this node"));
        let path = run(&explain, 0);
        assert!(
            path.contains("held  nat KUBE-SERVICES") && path.contains("DNAT --to-destination 10.180.1.1:8080"),
            "{path}"
        );
        // Without the backend, no program repairs its rules.
        drop(backend);
        let flush = format!("iptables-{flavour} -t nat -F KUBE-SERVICES");
        node.network.node().output(Command::new("bash").args(["-c", &flush])).unwrap();
        assert!(run(&["diff"], 1).contains("\n  + -d 172.30.0.41/32 -p tcp"), "{flavour}");
        assert!(run(&explain, 1).contains("MISSING  nat KUBE-SERVICES"), "{flavour}");
        assert!(run(&["doctor"], 1).contains("first in ip nat KUBE-SERVICES"), "{flavour}");
        assert!(run(&why_not, 1).starts_with("1. elements-missing at 172.30.0.41:80"), "{flavour}");
        assert_sysdump_answers(&node, &[&["diff"], &explain, &why_not]);
    }
}

/// With `localnet-ebpf --nft`, the commands read the maps and the tables. Connections of this node meet the maps only.
#[test]
fn commands_read_the_maps_of_ebpf() {
    let tested = Sandbox::run(|_| {
        let steps = ["backend", "kill backend"].map(str::to_owned);
        let node = Scenario::build_on(Backend::Ebpf, &named("service-misspelt"), &steps)?;
        let run = |arguments: &[&str], code: i32| {
            let answer = node.localnet(arguments).unwrap();
            assert_eq!(answer.code, code, "{arguments:?}: {answer:?}");
            answer.out
        };
        let from_pod = ["explain", "--from", "pod:10.180.0.2", "--to", "shop/web:http"];
        let from_outside = ["explain", "--from", "outside", "--to", "shop/web:http"];
        assert!(run(&["diff"], 0).contains("the kernel matches the plan"));
        let path = run(&from_pod, 0);
        assert!(path.contains("held  bpf vips") && path.contains("internal 1: 10.180.1.1:8080"), "{path}");
        assert!(!path.contains("services"), "{path}");
        assert!(run(&from_outside, 0).contains("held  services"));
        // Without the backend, no program repairs them.
        let damage = "rm /sys/fs/bpf/localnet-ebpf/links-*/connect4 && nft flush map ip localnet services";
        node.network.node().output(Command::new("bash").args(["-c", damage])).unwrap();
        let found = run(&["diff"], 1);
        assert!(
            found.contains("bpf programs\n  + connect4") && found.contains("table ip localnet services"),
            "{found}"
        );
        assert!(run(&from_pod, 1).contains("MISSING  bpf programs"));
        assert!(run(&from_outside, 1).contains("MISSING  services"));
        assert!(run(&["doctor"], 1).contains("the first in bpf programs"));
        let why_not = ["explain", "--why-not", "shop/web:http", "--from", "pod:10.180.0.2"];
        assert!(run(&why_not, 1).contains("elements-missing at 172.30.0.41:80"));
        assert_sysdump_answers(&node, &[&["diff"], &from_pod, &from_outside, &why_not]);
        Ok(())
    });
    tested.unwrap();
}

/// The programs other than `localnet-nft`, each of which connects to a brain in its own way.
#[test]
fn all_programs_report_their_configuration() {
    let configuration = |node: &Scenario| -> Option<serde_json::Value> {
        let answer = node.localnet(&["get", "revision", "-o", "json"]).ok()?;
        let status: serde_json::Value = serde_json::from_str(&answer.out).ok()?;
        Some(status["backends"][0]["configuration"].clone()).filter(|of| !of.is_null())
    };
    for (program, flags) in [("localnet-iptables", &[][..]), ("localnet-node", &["--backend", "nft"])] {
        let mut node = Scenario::build(&named("service-misspelt"), &[]).unwrap();
        let api = node.programs.api();
        let source = format!("file:{}", node.programs.path().join("cluster.yaml").display());
        let mut arguments = vec!["--detect-local-mode", "NodeCIDR", "--nodeport-addresses", "192.168.0.0/16"];
        arguments.extend(flags);
        if program == "localnet-node" {
            node.stop_brain();
            arguments.extend(["--source", &source, "--node-name", "node-a", "--listen", &api]);
        } else {
            arguments.extend(["--api", &api]);
        }
        let _running = node.programs.start(node.network.node(), program, &arguments).unwrap();
        await_condition(program, || configuration(&node).is_some()).unwrap();
        let found = configuration(&node).unwrap();
        assert_eq!(
            (&found["pods"], &found["nodePorts"]),
            (&"NodeCIDR".into(), &"192.168.0.0/16".into()),
            "{program}: {found}"
        );
    }
}

/// Endpoints that are not ready are listed, too, with their conditions in Kubernetes' terms.
#[test]
fn endpoints_that_are_not_ready_are_listed() {
    for (fault, expected) in [
        ("service-misspelt", "10.180.0.1:8080  TCP       yes    Ready  internal"),
        ("endpoints-not-ready", "10.180.0.1:8080  TCP       yes    NotReady  -"),
        ("endpoints-terminated", "10.180.0.1:8080  TCP       yes    Terminating  -"),
    ] {
        let node = Scenario::build(&named(fault), &[]).unwrap();
        let answer = node.localnet(&["get", "endpoints"]).unwrap();
        assert!(answer.out.contains(expected), "{fault}: {answer:?}");
    }
}

/// If the kernel counts bytes, they are shown, and rates from the second update on.
#[test]
fn top_goes_on_and_shows_rates() {
    let node = Scenario::build(&named("stale-udp-flow"), &["backend".to_owned()]).unwrap();
    let run = |namespace: &Namespace, line: &str| namespace.output(Command::new("bash").args(["-c", line])).unwrap();
    run(node.network.node(), "echo 1 > /proc/sys/net/netfilter/nf_conntrack_acct");
    run(node.network.pod("10.180.0.2".parse().unwrap()).unwrap(), "echo ask > /dev/udp/172.30.0.53/53");
    let answer = node.localnet(&["top", "--count", "2"]).unwrap();
    assert_eq!(answer.code, 0, "{answer:?}");
    let headings: Vec<&str> = answer.out.lines().filter(|line| line.starts_with("NAME ")).collect();
    let (first, second) = ("FLOWS  UNANSWERED  STALE  BYTES", "FLOWS  UNANSWERED  STALE  NEW/S  BYTES  BYTES/S");
    assert!(headings.len() == 2 && headings[0].ends_with(first) && headings[1].ends_with(second), "{}", answer.out);
    assert!(answer.out.contains("shop/dns:dns"), "{}", answer.out);
}

/// A backend that has applied everything and exited is unhealthy, because no program would apply the next change.
#[test]
fn a_stopped_backend_fails_the_doctor() {
    let steps = ["backend", "kill backend"].map(str::to_owned);
    let node = Scenario::build(&named("no-slices"), &steps).unwrap();
    let is_reported = || {
        let answer = node.localnet(&["doctor"]).unwrap();
        answer.code == 1 && answer.out.contains("no backend waits for the next state")
    };
    await_condition("doctor", is_reported).unwrap();
}

#[test]
fn a_saved_state_replaces_the_brain() {
    let (node, cluster) = (well(), CLUSTER_CIDRS.join(","));
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
    let answer = Command::new(&plugin).args(["get", "--help"]).output().unwrap();
    let text = String::from_utf8(answer.stdout).unwrap();
    assert!(answer.status.success() && text.contains("Usage: kubectl localnet get"), "{text}");
    for shell in ["bash", "zsh", "fish"] {
        let script = Command::new(&plugin).args(["completion", shell]).output().unwrap();
        assert!(String::from_utf8(script.stdout).unwrap().contains("localnet"), "{shell}");
    }
}
