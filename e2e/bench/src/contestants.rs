//! Who is measured. One more contestant is one more row of [`ALL`].

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

use crate::site::NODE;

/// Somebody who programs Services into a node.
#[derive(Debug)]
pub(crate) struct Contestant {
    /// Its name in tables.
    pub(crate) name: &'static str,
    /// What is measured against it.
    pub(crate) role: Role,
    /// It lets this time pass between two syncs: a lone change is one that comes later than that.
    pub(crate) rest: Duration,
    /// What is started, all at the same time, in the namespace of the node.
    pub(crate) programs: fn(&Place<'_>) -> anyhow::Result<Vec<Program>>,
}

impl Contestant {
    /// It writes iptables rules.
    pub(crate) fn is_iptables(&self) -> bool {
        self.name.contains("iptables")
    }
}

/// Which side a contestant is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The goals are its, and the others are compared with it.
    Ours,
    /// Ours as well, with goals of its own.
    AlsoOurs,
    /// What the goals are compared with.
    Peer,
}

/// What the programs are told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    pub(crate) kubeconfig: &'a Path,
    /// For sockets and configuration; empty at first.
    pub(crate) folder: &'a Path,
}

/// A program that is started.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) name: &'static str,
    pub(crate) command: Command,
}

/// The time between two syncs that kube-proxy's defaults ask for in all modes, and a little.
const KUBE_PROXY_REST: Duration = Duration::from_millis(1_100);

/// In the order in which they are measured.
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
        programs: |place| kube_proxy(place, "iptables", Some(&legacy_tools(place)?)),
    },
];

/// Those that need IPVS, see [`crate::ipvs`]; ours first.
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

/// The brain's memory and the backends' are looked up by these names.
pub(crate) const BRAIN: &str = "localnet-brain";
pub(crate) const NFT: &str = "localnet-nft";
pub(crate) const IPTABLES: &str = "localnet-iptables";
const IPVS: &str = "localnet-ipvs";

/// The brain and a backend.
fn ours(place: &Place<'_>, name: &'static str, flags: &[&str]) -> anyhow::Result<Vec<Program>> {
    let api = api(place);
    let mut backend = Command::new(program(name)?);
    backend.args(["--api", &api, "--cluster-cidr", &CLUSTER_CIDRS.join(",")]).args(flags);
    Ok(vec![brain(place)?, Program { name, command: backend }])
}

fn brain(place: &Place<'_>) -> anyhow::Result<Program> {
    let mut command = Command::new(program(BRAIN)?);
    let source = format!("kube:{}", place.kubeconfig.display());
    command.args(["--source", &source, "--node-name", NODE, "--listen", &api(place)]);
    Ok(Program { name: BRAIN, command })
}

/// Where the brain listens, in docker's syntax.
pub(crate) fn api(place: &Place<'_>) -> String {
    format!("unix://{}", place.folder.join("brain.sock").display())
}

/// A program of the workspace, as built beside this one.
fn program(name: &str) -> anyhow::Result<PathBuf> {
    let path = env::current_exe().context("finding this program")?.with_file_name(name);
    ensure!(path.is_file(), "{} is not built: run `make bench`", path.display());
    Ok(path)
}

/// With kube-proxy's defaults, except for what a namespace does not let it do.
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

/// A folder in which `iptables` and its like are the legacy tools: the nf_tables flavour does not end in time.
fn legacy_tools(place: &Place<'_>) -> anyhow::Result<PathBuf> {
    let folder = place.folder.join("legacy");
    fs::create_dir(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let tool = legacy_tool()?;
    for name in ["iptables", "ip6tables"] {
        for suffix in ["", "-save", "-restore"] {
            symlink(&tool, folder.join(format!("{name}{suffix}"))).context("linking the legacy iptables tools")?;
        }
    }
    Ok(folder)
}

/// One program that does what the name says by which it is called.
pub(crate) fn legacy_tool() -> anyhow::Result<PathBuf> {
    let folders = ["/usr/sbin", "/sbin"].map(Path::new);
    let found = folders.iter().map(|folder| folder.join("xtables-legacy-multi")).find(|path| path.is_file());
    found.context("the legacy iptables tools are not installed: run e2e/deps.sh")
}
