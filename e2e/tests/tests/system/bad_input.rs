//! Mistakes of an operator. Each causes one clear line (problem, place, remedy) and the right exit code, and nothing is lost.

use std::{
    fs,
    path::Path,
    process::{Command, Output, Stdio},
};

use localnet_e2e::{PATIENCE, Programs, await_condition, program};
use localnet_lab::{Namespace, Network, Probe, Protocol, Servers, Topology};

const SERVICE: &str = "\
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  clusterIP: 172.30.0.10
  ports:
  - {name: http, port: 80}
";

const SLICE: &str = "\
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 80}]
endpoints: [{addresses: [10.180.0.1], nodeName: node-a}]
";

/// Runs a program to its end in a namespace. `timeout` ends a program that should have exited.
fn run(namespace: &Namespace, name: &str, arguments: &[&str], wrapper: &[&str]) -> anyhow::Result<Output> {
    let mut command = Command::new("timeout");
    command.arg(PATIENCE.as_secs().to_string()).args(wrapper).arg(program(name)?).args(arguments);
    command.env_remove("RUST_LOG").stdin(Stdio::null());
    namespace.run(|| Ok(command.output()?))
}

/// Verifies that the program exits with `code` and prints one error line with each of `words`.
#[track_caller]
fn refused(output: &Output, code: i32, words: &[&str]) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    let errors: Vec<_> = stderr.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "one line of error: {stderr}");
    for word in words {
        assert!(errors[0].contains(word), "{word:?} is missing in: {stderr}");
    }
    assert!(!stderr.contains("panicked"), "{stderr}");
}

#[test]
fn an_invalid_file_is_refused_at_the_start_with_line_object_and_field() -> anyhow::Result<()> {
    let network = Network::build(Topology::default())?;
    let programs = Programs::new()?;
    let path = programs.path().join("services.yaml");
    let rows: &[(&str, &str, &[&str])] = &[
        ("  - {name: http, port: 80}", "  - {name: http, port: 80", &["services.yaml:"]),
        (
            "  - {name: http, port: 80}",
            "  - {name: http, port: 80}\n  - {name: http, port: 81}",
            &["services.yaml:8", "Service shop/web", "spec.ports[1].name", "used twice"],
        ),
        ("clusterIP: 172.30.0.10\n", "clusterIP: 172.30.0.300\n", &["services.yaml:5", "shop/web", "spec.clusterIP"]),
        ("port: 80}", "port: eighty}", &["services.yaml:7", "shop/web", "spec.ports[0].port"]),
        ("port: 80}", "port: 99999}", &["services.yaml:7", "shop/web", "spec.ports[0].port"]),
        ("name: web, ", "", &["services.yaml:3", "metadata.name"]),
    ];
    for (before, after, words) in rows {
        fs::write(&path, SERVICE.replacen(before, after, 1))?;
        let source = format!("file:{}", path.display());
        let arguments = ["--source", &source, "--node-name", "node-a", "--listen", &programs.api()];
        refused(&run(network.node(), "localnet-brain", &arguments, &[])?, 1, words);
        assert!(!programs.path().join("brain.sock").exists(), "a socket is left behind");
        let check = ["check", "--source", &source, "--node-name", "node-a"];
        // Exit code 1 would mean that some Services behave differently.
        refused(&run(network.node(), "localnet-brain", &check, &[])?, 2, words);
    }
    Ok(())
}

#[test]
fn errors_about_unusable_arguments_name_a_remedy() -> anyhow::Result<()> {
    let network = Network::build(Topology::default())?;
    let node = network.node();
    let programs = Programs::new()?;
    fs::write(programs.path().join("kubeconfig"), "garbage")?;
    fs::write(programs.path().join("services.yaml"), SERVICE)?;
    let at = |name: &str| programs.path().join(name).display().to_string();
    let brain = |source: &str, listen: &str| {
        run(node, "localnet-brain", &["--source", source, "--node-name", "node-a", "--listen", listen], &[])
    };
    let good = format!("file:{}", at("services.yaml"));
    refused(&brain(&format!("file:{}", at("absent")), &programs.api())?, 1, &["absent", "No such file"]);
    refused(&brain(&format!("kube:{}", at("absent")), &programs.api())?, 1, &["absent", "kubeconfig"]);
    refused(&brain(&format!("kube:{}", at("kubeconfig")), &programs.api())?, 1, &["kubeconfig", "YAML"]);
    refused(&brain(&good, "unix:///proc/nowhere/brain.sock")?, 1, &["/proc/nowhere", "--listen"]);
    refused(&brain(&good, "tcp://0.0.0.0:0")?, 1, &["0.0.0.0", "--tls-cert", "--insecure-tcp"]);
    refused(&brain("nothing", &programs.api())?, 2, &["--source", "file:PATH"]);

    let dead = format!("unix://{}", at("dead.sock"));
    let nft = |arguments: &[&str], wrapper: &[&str]| run(node, "localnet-nft", arguments, wrapper);
    refused(&nft(&["--once", "--api", &dead], &[])?, 1, &["dead.sock", "check that localnet-brain runs"]);
    refused(&nft(&["--once", "--api", "brain.sock"], &[])?, 2, &["brain.sock", "unix:///absolute/path"]);
    let without = ["setpriv", "--bounding-set=-net_admin"];
    refused(&nft(&["--once", "--api", &dead], &without)?, 1, &["CAP_NET_ADMIN"]);
    refused(&nft(&["cleanup"], &without)?, 1, &["CAP_NET_ADMIN"]);
    Ok(())
}

#[test]
fn a_file_that_becomes_invalid_changes_nothing_until_it_is_corrected() -> anyhow::Result<()> {
    let pods = ["10.180.0.1", "10.180.0.2"];
    let network = Network::build(Topology::with_pods(pods)?)?;
    let endpoint = |pod: &str| localnet_lab::Endpoint {
        protocol: Protocol::Tcp,
        address: format!("{pod}:80").parse().expect("an address of this test"),
    };
    let _servers = Servers::start(&network, pods.iter().map(|pod| endpoint(pod)))?;
    let programs = Programs::new()?;
    let folder = programs.path().join("services");
    fs::create_dir(&folder)?;
    let write = |text: &str| replace(&folder.join("web.yaml"), text);
    let good = format!("{SERVICE}{SLICE}");
    write(&good)?;
    let _brain = programs.start_brain(network.node(), &format!("file:{}", folder.display()))?;
    let _backend = programs.start_nft(network.node())?;
    let probe = Probe::new(Protocol::Tcp, "172.30.0.10:80".parse()?);
    let asks = |pod: &str| programs.await_answers(network.client(), probe, &[endpoint(pod).address]);
    asks(pods[0])?;
    // One family may answer while the other is still being programmed.
    await_condition("the state is applied", || programs.states_applied("localnet-nft") > 0)?;

    let list = || network.node().output(Command::new("nft").args(["-a", "list", "ruleset"]));
    let before = list()?;
    write(&good.replace("addresses: [10.180.0.1]", "addresses: [10.180.0.1.5]"))?;
    await_condition("the brain reports the bad file", || {
        let log = programs.log("localnet-brain");
        log.lines().any(|line| line.contains("web.yaml:14") && line.contains("EndpointSlice shop/web-1"))
    })?;
    asks(pods[0])?;
    write("not: {kubernetes")?;
    await_condition("the brain reports the file that is not YAML", || {
        programs.log("localnet-brain").contains("web.yaml:1")
    })?;
    assert_eq!(list()?, before, "a bad file changed the kernel");

    write(&good.replace("addresses: [10.180.0.1]", "addresses: [10.180.0.2]"))?;
    asks(pods[1])?;
    Ok(())
}

#[test]
fn an_unwritable_log_ends_no_program() -> anyhow::Result<()> {
    let network = Network::build(Topology::default())?;
    let programs = Programs::new()?;
    let path = programs.path().join("services.yaml");
    fs::write(&path, SERVICE)?;
    let full = || std::fs::File::options().write(true).open("/dev/full");
    let (source, log) = (format!("file:{}", path.display()), full()?);
    let mut brain = network.node().spawn(program("localnet-brain")?, |brain| {
        let brain = brain.args(["--source", &source, "--node-name", "node-a", "--listen", &programs.api()]);
        brain.env_remove("RUST_LOG").stderr(log)
    })?;
    let socket = programs.path().join("brain.sock");
    await_condition("the brain serves", || socket.exists())?;
    let log = full()?;
    let mut nft = network
        .node()
        .spawn(program("localnet-nft")?, |nft| nft.args(["--once", "--api", &programs.api()]).stderr(log))?;
    assert_eq!(nft.wait()?.code(), Some(0), "the backend");
    assert!(brain.try_wait()?.is_none(), "the brain has ended");
    Ok(())
}

/// Replaces the file by a new one, as editors do.
fn replace(path: &Path, text: &str) -> anyhow::Result<()> {
    let beside = path.with_extension("new");
    fs::write(&beside, text)?;
    Ok(fs::rename(beside, path)?)
}
