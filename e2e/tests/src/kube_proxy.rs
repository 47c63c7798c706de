//! Runs kube-proxy v1.37.2, together with our programs or in place of them. With `PEER=previous`, runs v1.36.3 instead.

use std::{
    env,
    ffi::OsString,
    fs,
    fs::File,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::Context as _;
use localnet_controlplane::binary;
use localnet_lab::{Namespace, Running};

use crate::Programs;

/// The name of kube-proxy's log.
pub const KUBE_PROXY: &str = "kube-proxy";

/// A mode of kube-proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// nftables, with the tool `nft`.
    Nftables,
    /// iptables, with the tools of this flavour: `legacy` or `nft`.
    Iptables(&'static str),
    /// IPVS, with ipsets and the iptables tools that this machine prefers.
    Ipvs,
}

impl Mode {
    /// The name of the mode in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nftables => "nftables",
            Self::Iptables(_) => "iptables",
            Self::Ipvs => "ipvs",
        }
    }
}

/// Starts kube-proxy for the node of this name, with further lines of configuration.
///
/// # Errors
/// Returns an error if kube-proxy is not built or cannot be started.
pub fn start(
    namespace: &Namespace,
    programs: &Programs,
    mode: Mode,
    (kubeconfig, node_name): (&Path, &str),
    lines: &str,
) -> anyhow::Result<Running> {
    let path = programs.path().join("kube-proxy.yaml");
    let config = format!(
        "\
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: {}
hostnameOverride: {node_name}
{lines}clientConnection: {{kubeconfig: {}, qps: 100, burst: 200}}
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
conntrack: {{maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}}
oomScoreAdj: 0
",
        mode.name(),
        kubeconfig.display(),
    );
    fs::write(&path, config).with_context(|| format!("writing {}", path.display()))?;
    let log = programs.path().join(format!("{KUBE_PROXY}.log"));
    let log = File::create(&log).with_context(|| format!("creating {}", log.display()))?;
    let output = log.try_clone()?;
    let tools = match mode {
        Mode::Nftables | Mode::Ipvs => None,
        Mode::Iptables(flavour) => Some(tools(programs.path(), flavour)?),
    };
    namespace.spawn(program()?, |command| {
        command.arg("--config").arg(path).stdin(Stdio::null()).stdout(output).stderr(log);
        if let Some(tools) = tools {
            command.env("PATH", tools);
        }
        command
    })
}

/// Removes what kube-proxy has left in a namespace, in any mode. In mode ipvs, this includes all virtual servers.
///
/// # Errors
/// Returns an error if kube-proxy is not built or fails.
pub fn clean_up(namespace: &Namespace) -> anyhow::Result<()> {
    namespace.output(Command::new(program()?).arg("--cleanup")).map(drop)
}

fn program() -> anyhow::Result<PathBuf> {
    match env::var_os("PEER") {
        None => binary(KUBE_PROXY),
        Some(peer) if peer.is_empty() => binary(KUBE_PROXY),
        Some(peer) if peer == "previous" => binary("kube-proxy-previous"),
        Some(peer) => anyhow::bail!("PEER is {}, not empty or previous", peer.display()),
    }
}

/// A `PATH` in which `iptables` and related tools have this flavour.
fn tools(folder: &Path, flavour: &str) -> anyhow::Result<OsString> {
    let folder = folder.join(format!("tools-{flavour}"));
    if !folder.exists() {
        fs::create_dir(&folder).with_context(|| format!("creating {}", folder.display()))?;
        for name in ["iptables", "ip6tables"] {
            for suffix in ["", "-save", "-restore"] {
                let tool = Path::new("/usr/sbin").join(format!("{name}-{flavour}{suffix}"));
                symlink(&tool, folder.join(format!("{name}{suffix}"))).context("linking the tools of iptables")?;
            }
        }
    }
    let rest = env::var_os("PATH").unwrap_or_default();
    env::join_paths([folder].into_iter().chain(env::split_paths(&rest))).context("joining PATH")
}
