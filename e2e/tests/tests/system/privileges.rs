//! Least privilege: what docs/operations.md says that each program needs is enough, and is all that it has.

use std::{
    fs::{self, File, Permissions},
    net::SocketAddr,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::Context as _;
use localnet_e2e::{Programs, await_condition, program};
use localnet_lab::{Endpoint, Namespace, Network, Probe, Protocol, Running, Servers, Topology};

/// Bits of capabilities, as `/proc/PID/status` has them.
const NET_ADMIN: u64 = 1 << 12;
const NOBODY: u32 = 65_534;

/// Starts a program of ours as a user, with those capabilities and no way to more.
fn start(
    programs: &Programs,
    node: &Namespace,
    name: &str,
    capabilities: &[&str],
    arguments: &[&str],
) -> anyhow::Result<Running> {
    let log = File::options().create(true).append(true).open(programs.path().join(format!("{name}.log")))?;
    let (output, program) = (log.try_clone()?, within_reach(programs, name)?);
    let with = |sign: &str| capabilities.iter().map(|name| format!("{sign}{name}")).collect::<Vec<_>>().join(",");
    let (bounding, kept) = match capabilities {
        [] => ("-all".to_owned(), "-all".to_owned()),
        _ => (format!("-all,{}", with("+")), format!("-all,{}", with("+"))),
    };
    node.spawn("setpriv", |command| {
        let user = NOBODY.to_string();
        command.args(["--reuid", &user, "--regid", &user, "--clear-groups", "--no-new-privs"]);
        // What the lab asks for ends with the change of user.
        command.args([
            "--pdeathsig",
            "KILL",
            "--bounding-set",
            &bounding,
            "--inh-caps",
            &kept,
            "--ambient-caps",
            &kept,
        ]);
        command.arg(program).args(arguments).env("RUST_LOG", "info");
        command.stdin(Stdio::null()).stdout(output).stderr(log)
    })
}

/// The program where every user can start it, wherever it was built.
fn within_reach(programs: &Programs, name: &str) -> anyhow::Result<PathBuf> {
    let copy = programs.path().join(format!("bin-{name}"));
    if !copy.exists() {
        let built = program(name)?;
        fs::hard_link(&built, &copy).or_else(|_| fs::copy(&built, &copy).map(drop))?;
    }
    Ok(copy)
}

/// A line of `/proc/PID/status`.
fn status(process: &Running, name: &str) -> anyhow::Result<String> {
    let path = format!("/proc/{}/status", process.id());
    let status = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    Ok(line.with_context(|| format!("{path} has no {name}"))?.trim().to_owned())
}

fn has_only(process: &Running, capabilities: u64) -> anyhow::Result<()> {
    for set in ["CapEff", "CapPrm", "CapBnd"] {
        let has = u64::from_str_radix(&status(process, set)?, 16)?;
        anyhow::ensure!(has == capabilities, "{set} is {has:x}, not {capabilities:x}");
    }
    let uids = status(process, "Uid")?;
    anyhow::ensure!(uids.split_whitespace().all(|uid| uid == NOBODY.to_string()), "it runs as {uids}");
    Ok(())
}

#[test]
fn neither_brain_nor_backend_needs_root() -> anyhow::Result<()> {
    const PODS: [&str; 3] = ["10.180.0.1", "10.180.0.2", "10.180.0.3"];
    let network = Network::build(Topology::with_pods(PODS)?)?;
    let endpoints: Vec<SocketAddr> = PODS.iter().map(|pod| format!("{pod}:8080").parse()).collect::<Result<_, _>>()?;
    let at = |address: &SocketAddr| Endpoint { protocol: Protocol::Tcp, address: *address };
    let _servers = Servers::start(&network, endpoints.iter().map(at))?;
    let (programs, node) = (Programs::new()?, network.node());
    // The socket's folder belongs to whoever serves.
    fs::set_permissions(programs.path(), Permissions::from_mode(0o755))?;
    std::os::unix::fs::chown(programs.path(), Some(NOBODY), Some(NOBODY))?;
    let examples = programs.path().join("examples");
    copy(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples")), &examples)?;
    let source = format!("file:{}", examples.display());
    let api = programs.api();

    let arguments = ["--source", &source, "--node-name", "node-a", "--listen", &api];
    let brain = start(&programs, node, "localnet-brain", &[], &arguments)?;
    let cluster = localnet_lab::topology::CLUSTER_CIDRS.join(",");
    let arguments = ["--api", &api, "--cluster-cidr", &cluster];
    let backend = start(&programs, node, "localnet-nft", &["net_admin"], &arguments)?;
    let web = Probe::new(Protocol::Tcp, "172.30.0.10:80".parse()?);
    programs.await_answers(network.client(), web, &endpoints)?;
    has_only(&brain, 0)?;
    has_only(&backend, NET_ADMIN)?;

    // Without it nothing is programmed, and the message says what is missing.
    let mut without = start(&programs, node, "localnet-nft", &[], &["--api", &api, "--once"])?;
    anyhow::ensure!(!without.wait()?.success(), "rules were programmed without any privilege");
    await_condition("it says what is missing", || programs.log("localnet-nft").contains("CAP_NET_ADMIN"))
        .with_context(|| programs.log("localnet-nft"))
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}

#[test]
fn what_sets_the_kernel_up_is_a_program_run_of_its_own() -> anyhow::Result<()> {
    let network = Network::build(Topology::with_pods(["10.180.0.1"])?)?;
    let (programs, node) = (Programs::new()?, network.node());
    let config = programs.path().join("config.yaml");
    fs::write(
        &config,
        "apiVersion: kubeproxy.config.k8s.io/v1alpha2\nkind: KubeProxyConfiguration\nlinux: {conntrack: {maxPerCore: 0, udpTimeout: 41s, tcpBeLiberal: true}}\n",
    )?;
    let init = |arguments: &[&str]| {
        node.output(Command::new(program("localnet-nft")?).args(arguments).arg("--config").arg(&config))
    };
    let read =
        |name: &str| node.run(|| Ok(fs::read_to_string(format!("/proc/sys/net/netfilter/{name}"))?.trim().to_owned()));
    init(&["init"])?;
    assert_eq!(
        (read("nf_conntrack_udp_timeout")?, read("nf_conntrack_tcp_be_liberal")?),
        ("41".to_owned(), "1".to_owned())
    );
    node.sysctl(&[("net/netfilter/nf_conntrack_udp_timeout", "30")])?;
    init(&["--init-only"])?;
    assert_eq!(read("nf_conntrack_udp_timeout")?, "41");
    // It programs nothing.
    let tables = node.output(Command::new("nft").args(["list", "tables"]))?;
    anyhow::ensure!(!tables.contains("localnet"), "{tables}");
    Ok(())
}
