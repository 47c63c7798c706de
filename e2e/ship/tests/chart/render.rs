//! Tests the manifests that the chart renders.

use std::{collections::BTreeSet, fs, process::Command};

use anyhow::Context as _;
use localnet_config::{Mode, Platform, Reader};
use localnet_e2e::program;
use serde_json::{Value, json};

use crate::{VALUES, chart, documents, expect, find, helm, output, read, root, template, template_of};

const VERSION: &str = env!("CARGO_PKG_VERSION");

#[test]
fn helm_lint_finds_no_problem() -> anyhow::Result<()> {
    let folder = chart("");
    for values in VALUES {
        let values = chart(&format!("tests/values/{values}.yaml"));
        let output = helm(&["lint", "--strict", folder.to_str().unwrap(), "--values", values.to_str().unwrap()])?;
        assert!(output.contains("1 chart(s) linted, 0 chart(s) failed"), "{output}");
    }
    Ok(())
}

#[test]
fn values_give_the_golden_manifests() -> anyhow::Result<()> {
    for values in VALUES {
        expect(&chart(&format!("tests/golden/{values}.yaml")), &template(values, &[])?)?;
    }
    Ok(())
}

/// docs/migrating.md names the oldest version of Kubernetes that localnet supports.
#[test]
fn the_chart_supports_the_versions_of_kubernetes_that_localnet_does() -> anyhow::Result<()> {
    let page = read(&root().join("docs/migrating.md"))?;
    let versions =
        page.split_once("supports API servers of Kubernetes 1.").and_then(|(_, rest)| rest.split_once(" to "));
    let oldest: u32 = versions.context("the page names the versions")?.0.parse()?;
    for values in VALUES {
        let rendered = template(values, &["--kube-version", &format!("1.{oldest}.0")])?;
        assert_eq!(rendered, read(&chart(&format!("tests/golden/{values}.yaml")))?, "{values}");
    }
    let older = template("nft", &["--kube-version", &format!("1.{}.15", oldest - 1)]).expect_err("an older version");
    assert!(older.to_string().contains("chart requires kubeVersion"), "{older}");
    Ok(())
}

#[test]
fn rights_are_those_of_deploy() -> anyhow::Result<()> {
    let mut rendered = documents(&template("nft", &[])?)?;
    rendered.retain(|document| {
        ["ServiceAccount", "ClusterRole", "ClusterRoleBinding"].contains(&document["kind"].as_str().unwrap_or_default())
    });
    for document in &mut rendered {
        document["metadata"].as_object_mut().context("an object has metadata")?.remove("labels");
    }
    assert_eq!(rendered, documents(&read(&root().join("deploy/rbac.yaml"))?)?);
    Ok(())
}

#[test]
fn the_programs_accept_the_configuration() -> anyhow::Result<()> {
    for (values, mode) in [
        ("nft", Mode::Nftables),
        ("iptables", Mode::Iptables),
        ("ipvs", Mode::Ipvs),
        ("ebpf", Mode::Nftables),
        ("shadow", Mode::Nftables),
        ("everything", Mode::Nftables),
    ] {
        let rendered = documents(&template(values, &[])?)?;
        let data = &find(&rendered, "ConfigMap", "localnet")?["data"];
        let file = data["config.yaml"].as_str().context("a text")?;
        let reading = Reader::kube_proxy(Platform::Linux)
            .read(file)
            .map_err(|problems| anyhow::anyhow!("{values}: {problems}"))?;
        assert_eq!(reading.config.mode, mode, "{values}");
        assert_eq!(reading.config.linux.oom_score_adj, -997, "{values}");
        if values == "everything" {
            let file = data["windows.yaml"].as_str().context("a text")?;
            let reading = Reader::kube_proxy(Platform::Windows).read(file);
            let reading = reading.map_err(|problems| anyhow::anyhow!("{values}: {problems}"))?;
            assert_eq!(reading.config.mode, Mode::Kernelspace);
        }
    }
    Ok(())
}

/// `packaging/release/chart.sh` adds the digests of a release.
#[test]
fn a_released_chart_pins_its_images_by_digest_unless_a_tag_is_set() -> anyhow::Result<()> {
    let copy = tempfile::tempdir()?;
    output(Command::new("cp").arg("-r").arg(chart("")).arg(copy.path().join("localnet")))?;
    let [released, chosen] = ["0a", "1b"].map(|byte| format!("sha256:{}", byte.repeat(32)));
    let digests = format!("localnet-brain: {released}\nlocalnet-nft: {released}\n");
    fs::write(copy.path().join("localnet/files/digests.yaml"), digests)?;
    let by_hand = format!("image.digests.localnet-nft={chosen}");
    for (set, tag, brain, nft) in [
        ("image.registry=mirror.example/a", VERSION, format!("@{released}"), format!("@{released}")),
        ("image.tag=v1", "v1", String::new(), String::new()),
        (&by_hand, VERSION, format!("@{released}"), format!("@{chosen}")),
        (&format!("image.tag=v1,{by_hand}"), "v1", String::new(), format!("@{chosen}")),
    ] {
        let set = format!("image.registry=mirror.example/a,{set}");
        let rendered = template_of(&copy.path().join("localnet"), "nft", &["--set", &set])?;
        let images = containers(&documents(&rendered)?)?;
        let images: BTreeSet<_> = images.iter().filter_map(|container| container["image"].as_str()).collect();
        let [brain, nft] = [("brain", brain), ("nft", nft)]
            .map(|(name, digest)| format!("mirror.example/a/localnet-{name}:{tag}{digest}"));
        assert_eq!(images, BTreeSet::from([brain.as_str(), nft.as_str()]), "{set}");
    }
    Ok(())
}

#[test]
fn names_can_be_overridden() -> anyhow::Result<()> {
    for (set, name) in [
        ("nameOverride=localnet", "localnet"),
        ("nameOverride=proxy", "localnet-proxy"),
        ("fullnameOverride=services", "services"),
    ] {
        for document in documents(&template("everything", &["--set", set])?)? {
            let found = document["metadata"]["name"].as_str().unwrap_or_default();
            let of_this_kind = [name.to_owned(), format!("{name}-windows"), format!("{name}-dashboard")];
            let given = found == "service-proxy" && document["kind"] == "ServiceAccount";
            assert!(given || of_this_kind.contains(&found.to_owned()), "{set}: {} {found}", document["kind"]);
        }
    }
    Ok(())
}

/// The containers of Linux pods, including the init containers.
fn containers(rendered: &[Value]) -> anyhow::Result<Vec<Value>> {
    let pod = &find(rendered, "DaemonSet", "localnet")?["spec"]["template"]["spec"];
    let all = ["initContainers", "containers"].map(|kind| pod[kind].as_array().cloned().unwrap_or_default());
    Ok(all.concat())
}

/// Verifies that the program's own `--help` contains each flag of the command line.
fn check_command(container: &Value) -> anyhow::Result<()> {
    let words: Vec<_> = container["command"]
        .as_array()
        .context("a command")?
        .iter()
        .map(|word| word.as_str().unwrap_or_default())
        .collect();
    let (path, arguments) = words.split_first().context("a program")?;
    let name = path.strip_prefix("/usr/bin/").with_context(|| format!("{path} is where packages put it"))?;
    let mut help = Command::new(program(name)?);
    help.args(arguments.iter().filter(|word| !word.starts_with("--"))).arg("--help");
    let help = String::from_utf8(help.output()?.stdout)?;
    let flags: BTreeSet<_> = help.split([' ', ',', '[', '\n']).filter(|word| word.starts_with("--")).collect();
    for flag in arguments.iter().filter(|word| word.starts_with("--")) {
        let flag = flag.split('=').next().unwrap_or_default();
        anyhow::ensure!(flags.contains(flag), "{name} has no {flag}: {flags:?}");
    }
    Ok(())
}

/// A shadow runs beside kube-proxy.
#[test]
fn a_shadow_neither_removes_rules_nor_takes_a_port_of_kube_proxy() {
    for (set, expected) in [
        ("cleanup={iptables}", "unset cleanup"),
        ("config.metricsBindAddress=127.0.0.1:10249", "kube-proxy uses port 10249"),
    ] {
        let error = template("shadow", &["--set", set]).unwrap_err().to_string();
        assert!(error.contains(expected), "{set}: {error}");
    }
}

#[test]
fn the_programs_accept_their_command_lines() -> anyhow::Result<()> {
    for values in VALUES {
        for container in containers(&documents(&template(values, &[])?)?)? {
            check_command(&container).with_context(|| format!("{values}: {}", container["name"]))?;
        }
    }
    let wrong = json!({ "command": ["/usr/bin/localnet-nft", "cleanup", "--kube-proxies"] });
    assert!(check_command(&wrong).is_err());
    Ok(())
}

/// See "Privileges" in docs/operations.md.
#[test]
fn containers_have_only_the_privileges_that_they_need() -> anyhow::Result<()> {
    for values in VALUES {
        for container in containers(&documents(&template(values, &[])?)?)? {
            let (name, may) = (container["name"].as_str().unwrap_or_default(), &container["securityContext"]);
            assert_eq!(may["readOnlyRootFilesystem"], true, "{values}: {name}");
            let privileged = ["init", "ipvs", "cleanup-ipvs"].contains(&name);
            assert_eq!(may["privileged"] == true, privileged, "{values}: {name}");
            if !privileged {
                let added = match name {
                    "brain" => Value::Null,
                    "iptables" | "cleanup-iptables" | "shadow" => json!(["NET_ADMIN", "NET_RAW"]),
                    "ebpf" | "cleanup-ebpf" => json!(["NET_ADMIN", "BPF", "SYS_ADMIN"]),
                    _ => json!(["NET_ADMIN"]),
                };
                assert_eq!(may["capabilities"]["drop"], json!(["ALL"]), "{values}: {name}");
                assert_eq!(may["capabilities"]["add"], added, "{values}: {name}");
                assert_eq!(may["allowPrivilegeEscalation"], false, "{values}: {name}");
                assert_eq!(may["seccompProfile"]["type"], "RuntimeDefault", "{values}: {name}");
            }
            let mounts = container["volumeMounts"].as_array().into_iter().flatten();
            let token = mounts.filter(|mount| mount["name"] == "token").count();
            assert_eq!(token, usize::from(name == "brain"), "{values}: {name}");
        }
    }
    Ok(())
}
