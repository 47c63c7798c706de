//! Least privilege: each program needs all the privileges in docs/operations.md, and has no others.

use std::{
    fs::{self, Permissions},
    net::SocketAddr,
    os::unix::fs::PermissionsExt as _,
    process::Command,
};

use anyhow::Context as _;
use localnet_e2e::{
    Backend, Programs, await_condition,
    privileges::{BPF, NET_ADMIN, NET_RAW, NOBODY, ROOT, Traced, copy_examples, has_only, start},
    program,
};
use localnet_lab::{Endpoint, Network, Probe, Protocol, Running, Sandbox, Servers, Topology};

/// A node with the pods of the examples, and a folder of the programs whose owner is `nobody`.
struct World {
    programs: Programs,
    _servers: Servers,
    endpoints: Vec<SocketAddr>,
    network: Network,
}

impl World {
    fn build() -> anyhow::Result<Self> {
        const PODS: [&str; 3] = ["10.180.0.1", "10.180.0.2", "10.180.0.3"];
        let network = Network::build(Topology::with_pods(PODS)?)?;
        let endpoints: Vec<SocketAddr> =
            PODS.iter().map(|pod| format!("{pod}:8080").parse()).collect::<Result<_, _>>()?;
        let at = |address: &SocketAddr| Endpoint { protocol: Protocol::Tcp, address: *address };
        let servers = Servers::start(&network, endpoints.iter().map(at))?;
        let programs = Programs::new()?;
        copy_examples(&programs)?;
        Ok(Self { programs, _servers: servers, endpoints, network })
    }

    fn source(&self) -> String {
        format!("file:{}", self.programs.path().join("examples").display())
    }

    fn start(&self, program: (&str, u32), capabilities: &[&str], arguments: &[&str]) -> anyhow::Result<Running> {
        start(&self.programs, self.network.node(), program, capabilities, arguments)
    }

    fn start_brain(&self) -> anyhow::Result<Running> {
        let (source, api) = (self.source(), self.programs.api());
        let arguments = ["--source", &source, "--node-name", "node-a", "--listen", &api];
        self.start(("localnet-brain", NOBODY), &[], &arguments)
    }

    /// Starts a brain whose socket root may use without further capabilities, although it belongs to `nobody`.
    fn start_brain_for_root(&self) -> anyhow::Result<Running> {
        let brain = self.start_brain()?;
        // The log line comes after the brain has set the mode of the socket.
        await_condition("the brain serves", || self.programs.log("localnet-brain").contains(" serving address="))?;
        fs::set_permissions(self.programs.path().join("brain.sock"), Permissions::from_mode(0o666))?;
        Ok(brain)
    }

    fn await_answers(&self) -> anyhow::Result<()> {
        let web = Probe::new(Protocol::Tcp, "172.30.0.10:80".parse()?);
        self.programs.await_answers(self.network.client(), web, &self.endpoints)
    }
}

#[test]
fn neither_brain_nor_nft_backend_needs_root() -> anyhow::Result<()> {
    let world = World::build()?;
    let (brain, api) = (world.start_brain()?, world.programs.api());
    let cluster = localnet_lab::topology::CLUSTER_CIDRS.join(",");
    let arguments = ["--api", &api, "--cluster-cidr", &cluster];
    let backend = world.start(("localnet-nft", NOBODY), &["net_admin"], &arguments)?;
    world.await_answers()?;
    has_only(&brain, NOBODY, 0)?;
    has_only(&backend, NOBODY, NET_ADMIN)?;

    // Without the capability, nothing is programmed, and the message names it.
    let mut without = world.start(("localnet-nft", NOBODY), &[], &["--api", &api, "--once"])?;
    anyhow::ensure!(!without.wait()?.success(), "rules were programmed without any privilege");
    let log = || world.programs.log("localnet-nft");
    await_condition("the log names the missing capability", || log().contains("CAP_NET_ADMIN")).with_context(log)
}

#[test]
fn localnet_node_needs_only_the_privileges_of_the_backend() -> anyhow::Result<()> {
    let world = World::build()?;
    let source = world.source();
    let arguments = ["--source", &source, "--node-name", "node-a"];
    let node = world.start(("localnet-node", NOBODY), &["net_admin"], &arguments)?;
    world.await_answers().with_context(|| world.programs.log("localnet-node"))?;
    has_only(&node, NOBODY, NET_ADMIN)
}

#[test]
fn the_iptables_backend_runs_as_root_with_two_capabilities() -> anyhow::Result<()> {
    for flavour in ["nft", "legacy"] {
        let world = World::build()?;
        let (_brain, api) = (world.start_brain_for_root()?, world.programs.api());
        let arguments = ["--api", &api, "--iptables-flavour", flavour];
        let backend = world.start(("localnet-iptables", ROOT), &["net_admin", "net_raw"], &arguments)?;
        world.await_answers().with_context(|| world.programs.log("localnet-iptables"))?;
        has_only(&backend, ROOT, NET_ADMIN | NET_RAW)?;
    }
    Ok(())
}

#[test]
fn the_ebpf_backend_runs_as_root_with_two_capabilities() -> anyhow::Result<()> {
    Sandbox::run(|_| {
        let world = World::build()?;
        let (_brain, api) = (world.start_brain_for_root()?, world.programs.api());
        for missing in [&["net_admin"][..], &["bpf"]] {
            let mut without = world.start(("localnet-ebpf", ROOT), missing, &["--api", &api, "--once"])?;
            anyhow::ensure!(!without.wait()?.success(), "programs were attached with only {missing:?}");
        }
        let log = || world.programs.log("localnet-ebpf");
        await_condition("the log names the missing capabilities", || {
            log().matches("CAP_BPF, CAP_NET_ADMIN").count() == 2
        })
        .with_context(log)?;
        let backend = world.start(("localnet-ebpf", ROOT), &["bpf", "net_admin"], &["--api", &api])?;
        world.await_answers().with_context(log)?;
        has_only(&backend, ROOT, BPF | NET_ADMIN)
    })
}

/// Runs a brain and a backend through a start, a change and a flush by another program. Returns the programs that each of them
/// started: the brain's in all, and the backend's until the first state was applied and in all.
fn programs_started_by(backend: Backend) -> anyhow::Result<(Vec<String>, [Vec<String>; 2])> {
    const POD: &str = "10.180.0.1";
    let network = Network::build(Topology::with_pods([POD])?)?;
    let endpoint: SocketAddr = format!("{POD}:8080").parse()?;
    let _servers = Servers::start(&network, [Endpoint { protocol: Protocol::Tcp, address: endpoint }])?;
    let (programs, node) = (Programs::new()?, network.node());
    let examples = copy_examples(&programs)?;
    let (source, api) = (format!("file:{}", examples.display()), programs.api());
    let arguments = ["--source", &source, "--node-name", "node-a", "--listen", &api];
    let brain = Traced::start(&programs, node, "localnet-brain", &arguments)?;
    let cluster = localnet_lab::topology::CLUSTER_CIDRS.join(",");
    let mut arguments = vec!["--api", &api, "--cluster-cidr", &cluster];
    arguments.extend(backend.flags());
    let traced = Traced::start(&programs, node, backend.program(), &arguments)?;
    let answers = |port: u16, endpoints: &[SocketAddr]| {
        let web = Probe::new(Protocol::Tcp, ("172.30.0.10".parse::<std::net::IpAddr>()?, port).into());
        programs.await_answers(network.client(), web, endpoints)
    };
    let web = examples.join("web.yaml");
    let one = fs::read_to_string(&web)?.replace("10.180.0.2", POD).replace("10.180.0.3", POD);
    fs::write(&web, &one)?;
    answers(80, &[endpoint])?;
    let at_first = traced.started()?;
    fs::write(&web, one.replace("port: 80,", "port: 81,"))?;
    answers(81, &[endpoint])?;
    backend.flush(node)?;
    answers(81, &[endpoint])?;
    Ok((at_first, [brain.started()?, traced.started()?]))
}

#[test]
fn brain_and_nft_backend_start_no_program() -> anyhow::Result<()> {
    let (_, [by_brain, by_backend]) = programs_started_by(Backend::Nft)?;
    assert_eq!((by_brain, by_backend), (vec!["localnet-brain".to_owned()], vec!["localnet-nft".to_owned()]));
    Ok(())
}

#[test]
fn the_ebpf_backend_starts_no_program() -> anyhow::Result<()> {
    let (_, [_, by_backend]) = Sandbox::run(|_| programs_started_by(Backend::Ebpf))?;
    assert_eq!(by_backend, ["localnet-ebpf"]);
    Ok(())
}

#[test]
fn the_iptables_backend_starts_only_its_tools() -> anyhow::Result<()> {
    for flavour in ["nft", "legacy"] {
        let (at_first, [by_brain, mut later]) = programs_started_by(Backend::Iptables(flavour))?;
        assert_eq!(by_brain, ["localnet-brain"]);
        assert_eq!(at_first[0], "localnet-iptables");
        later.drain(..at_first.len());
        let tools = |tool: &str| [format!("iptables-{flavour}-{tool}"), format!("ip6tables-{flavour}-{tool}")];
        let allowed = [tools("restore"), tools("save")].concat();
        for started in at_first[1..].iter().chain(&later) {
            assert!(allowed.contains(started), "{started} was started");
        }
        assert!(!later.is_empty(), "a change and a flush were put right by {flavour}");
    }
    Ok(())
}

#[test]
fn kernel_settings_are_applied_by_a_separate_run() -> anyhow::Result<()> {
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
    // The program has programmed nothing.
    let tables = node.output(Command::new("nft").args(["list", "tables"]))?;
    anyhow::ensure!(!tables.contains("localnet"), "{tables}");
    Ok(())
}
