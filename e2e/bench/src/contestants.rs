//! The contestants. A further contestant is a further row of [`ALL`].

use std::{
    env, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use localnet_controlplane::binary;
use localnet_lab::topology::CLUSTER_CIDRS;

use crate::{
    cluster::{NODE, Size},
    machine::iptables_tool,
};

/// One or more programs that program Services into a node.
#[derive(Debug)]
pub(crate) struct Contestant {
    /// The name in tables.
    pub(crate) name: &'static str,
    /// Its role in comparisons.
    pub(crate) role: Role,
    /// The minimum time between two of its syncs. Changes that are further apart get a sync each.
    pub(crate) rest: Duration,
    /// The programs, which are started at the same time in the namespace of the node.
    pub(crate) programs: fn(&Place<'_>) -> anyhow::Result<Vec<Program>>,
}

impl Contestant {
    /// The command that changes the rules of a contestant that writes iptables rules.
    pub(crate) fn iptables(&self) -> Option<&'static str> {
        let command = if self.name.ends_with(NF_TABLES) { "iptables-nft" } else { "iptables-legacy" };
        self.name.contains("iptables").then_some(command)
    }
}

/// The role of a contestant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The contestant that has goals and that the others are compared with.
    Ours,
    /// Another contestant of ours, with separate goals.
    AlsoOurs,
    /// A contestant that the goals are compared with.
    Peer,
}

/// The environment of the programs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    pub(crate) kubeconfig: &'a Path,
    /// For sockets and configuration. Initially empty.
    pub(crate) folder: &'a Path,
}

/// A program to start.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) name: &'static str,
    pub(crate) command: Command,
}

/// The minimum time between two syncs in kube-proxy's defaults for all modes, with a margin.
const KUBE_PROXY_REST: Duration = Duration::from_millis(1_100);

/// In the order of measuring.
pub(crate) const ALL: &[Contestant] = &[
    Contestant {
        name: NFT,
        role: Role::Ours,
        rest: Duration::from_millis(20),
        programs: |place| ours(place, NFT, &[]),
    },
    Contestant {
        name: "kube-proxy nftables",
        role: Role::Peer,
        rest: KUBE_PROXY_REST,
        programs: |place| kube_proxy(place, "nftables", None),
    },
    Contestant {
        name: IPTABLES,
        role: Role::AlsoOurs,
        rest: Duration::from_millis(200),
        programs: |place| ours(place, IPTABLES, &["--iptables-flavour", "legacy"]),
    },
    Contestant {
        name: "kube-proxy iptables",
        role: Role::Peer,
        rest: KUBE_PROXY_REST,
        programs: |place| kube_proxy(place, "iptables", Some(&iptables_tools(place, "legacy")?)),
    },
    Contestant {
        name: IPTABLES_NF_TABLES[0],
        role: Role::AlsoOurs,
        rest: Duration::from_millis(200),
        programs: |place| ours(place, IPTABLES, &["--iptables-flavour", "nft"]),
    },
    Contestant {
        name: IPTABLES_NF_TABLES[1],
        role: Role::Peer,
        rest: KUBE_PROXY_REST,
        programs: |place| kube_proxy(place, "iptables", Some(&iptables_tools(place, "nft")?)),
    },
    Contestant { name: EBPF, role: Role::AlsoOurs, rest: Duration::from_millis(20), programs: ebpf },
];

/// Whether the benchmark measures this contestant at this size. kube-proxy with the nf_tables flavour is slow, and the usual sizes suffice to
/// compare the flavours.
pub(crate) fn is_measured(contestant: &str, size: Size) -> bool {
    size.is_usual() || !IPTABLES_NF_TABLES.contains(&contestant)
}

/// The contestants that need IPVS, see [`crate::ipvs`]. The first one is ours.
pub(crate) const WITH_IPVS: [Contestant; 2] = [
    Contestant {
        name: IPVS,
        role: Role::AlsoOurs,
        rest: Duration::from_millis(200),
        programs: |place| ours(place, IPVS, &[]),
    },
    Contestant {
        name: "kube-proxy ipvs",
        role: Role::Peer,
        rest: KUBE_PROXY_REST,
        programs: |place| kube_proxy(place, "ipvs", None),
    },
];

/// The brain without a backend, see [`crate::measure::alone`].
pub(crate) const ALONE: Contestant =
    Contestant { name: BRAIN, role: Role::AlsoOurs, rest: Duration::ZERO, programs: |place| Ok(vec![brain(place)?]) };

/// The names that identify the memory of the brain and of the backend.
pub(crate) const BRAIN: &str = "localnet-brain";
pub(crate) const NFT: &str = "localnet-nft";
/// The contestant whose programs run in a [`localnet_lab::Sandbox`], and its backend.
pub(crate) const EBPF: &str = "localnet-ebpf";
pub(crate) const IPTABLES: &str = "localnet-iptables";
/// The contestants that use the nf_tables flavour of the iptables tools: ours and its peer.
pub(crate) const IPTABLES_NF_TABLES: [&str; 2] = ["localnet-iptables nf_tables", "kube-proxy iptables nf_tables"];
const NF_TABLES: &str = "nf_tables";
const IPVS: &str = "localnet-ipvs";

/// The brain and a backend.
fn ours(place: &Place<'_>, name: &'static str, flags: &[&str]) -> anyhow::Result<Vec<Program>> {
    let api = api(place);
    let mut backend = Command::new(program(name)?);
    backend.args(["--api", &api, "--cluster-cidr", &CLUSTER_CIDRS.join(",")]).args(flags);
    Ok(vec![brain(place)?, Program { name, command: backend }])
}

/// The brain, the nft backend, and the ebpf backend beside it.
fn ebpf(place: &Place<'_>) -> anyhow::Result<Vec<Program>> {
    let mut programs = ours(place, NFT, &[])?;
    programs.extend(ours(place, EBPF, &[])?.into_iter().filter(|program| program.name == EBPF));
    Ok(programs)
}

fn brain(place: &Place<'_>) -> anyhow::Result<Program> {
    let mut command = Command::new(program(BRAIN)?);
    let source = format!("kube:{}", place.kubeconfig.display());
    command.args(["--source", &source, "--node-name", NODE, "--listen", &api(place)]);
    Ok(Program { name: BRAIN, command })
}

/// The address of the brain's listener, in Docker's syntax.
pub(crate) fn api(place: &Place<'_>) -> String {
    format!("unix://{}", place.folder.join("brain.sock").display())
}

/// The path of a program of the workspace, which is built next to this one.
fn program(name: &str) -> anyhow::Result<PathBuf> {
    let path = env::current_exe().context("finding this program")?.with_file_name(name);
    ensure!(path.is_file(), "{} is not built: run `make bench`", path.display());
    Ok(path)
}

/// kube-proxy with its defaults, except for settings that a namespace does not allow.
fn kube_proxy(place: &Place<'_>, mode: &str, path: Option<&Path>) -> anyhow::Result<Vec<Program>> {
    let config = place.folder.join("kube-proxy.yaml");
    let text = format!(
        "\
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: {mode}
hostnameOverride: {NODE}
clusterCIDR: {}
clientConnection: {{kubeconfig: {}}}
conntrack: {{maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}}
",
        CLUSTER_CIDRS.join(","),
        place.kubeconfig.display(),
    );
    fs::write(&config, text).with_context(|| format!("writing {}", config.display()))?;
    let mut command = Command::new(binary("kube-proxy")?);
    command.arg("--config").arg(config);
    if let Some(first) = path {
        let rest = env::var_os("PATH").unwrap_or_default();
        let all = [first.to_owned()].into_iter().chain(env::split_paths(&rest));
        command.env("PATH", env::join_paths(all).context("joining PATH")?);
    }
    Ok(vec![Program { name: "kube-proxy", command }])
}

/// A folder in which `iptables` and related tools have a flavour.
fn iptables_tools(place: &Place<'_>, flavour: &str) -> anyhow::Result<PathBuf> {
    let folder = place.folder.join(flavour);
    if folder.is_dir() {
        return Ok(folder);
    }
    fs::create_dir(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let tool = iptables_tool(flavour)?;
    for name in ["iptables", "ip6tables"] {
        for suffix in ["", "-save", "-restore"] {
            symlink(&tool, folder.join(format!("{name}{suffix}"))).context("linking the iptables tools")?;
        }
    }
    Ok(folder)
}
