//! `localnet-iptables` as a [`BackendProgram`]: its flags, its help and its commands.

use std::convert::Infallible;

use clap::Args;
use localnet_client::{
    Mode,
    program::BackendProgram,
    served::Served,
    vips::{self, flags::ConfigArgs},
};
use localnet_config::Config;
use localnet_linux::{addresses::NodeAddresses, nfacct, setup, sysctl::Settings};
use localnet_linux_backend::traffic;
use tracing::info;

use crate::{Flavour, IptablesBackend, LiveBackend, Tools, desired::Desired, live, served};

/// `localnet-iptables`.
#[derive(Args)]
pub struct Iptables {
    /// Flavour of iptables [default: the flavour in which the kubelet has left its hint, or else the one with more rules, or else nft]
    #[arg(long, value_enum)]
    iptables_flavour: Option<Flavour>,
    /// Count the connections, packets and bytes of at most N Service ports, and those of all other ports together; 0 counts nothing.
    /// The backend then sets the sysctl net.netfilter.nf_conntrack_acct
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=traffic::MAX_PORTS))]
    traffic: u16,
}

impl BackendProgram for Iptables {
    const NAME: &'static str = "iptables";
    const PROGRAM: &'static str = "localnet-iptables";
    const MODE: Mode = Mode::Iptables;
    const ABOUT: &'static str = "Program Services into iptables";
    const DRY_RUN: &'static str = "Print the rules for the current state in the format of iptables-restore and change nothing; needs no privileges";
    const CLEANUP: &'static str =
        "Remove the chains of this program and of kube-proxy's mode iptables; keep those of the kubelet";

    type Cleanup = ();
    type Command = Infallible;
    type Backend = LiveBackend;
    type Planner = Desired;

    async fn open(&self, flags: &ConfigArgs, config: &Config) -> anyhow::Result<LiveBackend> {
        let chosen = self.iptables_flavour.is_some();
        let flavour = self.iptables_flavour.unwrap_or_else(Flavour::of_host);
        info!(?flavour, chosen, "using this flavour of iptables");
        let tools = Tools::find(flavour)?;
        // As in kube-proxy, the kernel's setting is read only at the start.
        let liberal = is_liberal(config, &Settings::default());
        if liberal {
            info!(
                "net.netfilter.nf_conntrack_tcp_be_liberal is set; the node forwards packets that connection tracking calls invalid"
            );
        }
        let mut vips = flags.config(config);
        vips.node_port_addresses.localhost = setup::route_localhost(config, Self::MODE, NOT_ON_LOCALHOST);
        let desired = desired(vips, liberal);
        let backend = live::open(IptablesBackend::new(desired, tools), self.traffic.into()).await?;
        if flags.kube_proxy.configures_node() {
            setup::start(&config.linux);
        }
        Ok(backend)
    }

    async fn planner(&self, flags: &ConfigArgs, config: &Config) -> anyhow::Result<Desired> {
        let liberal = is_liberal(config, &Settings::default());
        let mut vips = flags.config(config);
        vips.node_port_addresses.localhost = config.node_ports_on_localhost(Self::MODE);
        let mut desired = desired(vips, liberal);
        if nfacct::check().is_ok() {
            desired.count_packets();
        }
        desired.vips.set_local_addresses(NodeAddresses::default().list().await?);
        Ok(desired)
    }

    async fn dump(&self) -> anyhow::Result<Served> {
        served::read(&mut Tools::find(self.iptables_flavour.unwrap_or_else(Flavour::of_host))?)
    }

    /// Removes the chains of the chosen flavour, or of both flavours if none is chosen.
    async fn cleanup(&self, _: &ConfigArgs, _: &Config, (): ()) -> anyhow::Result<()> {
        let both = vec![Flavour::Nft, Flavour::Legacy];
        for flavour in self.iptables_flavour.map_or(both, |flavour| vec![flavour]) {
            if flavour.is_in_use() {
                // The configuration does not influence what a cleanup removes.
                IptablesBackend::new(Desired::new(vips::Config::default()), Tools::find(flavour)?).remove_all()?;
            }
        }
        Ok(())
    }

    fn init(&self, config: &Config) -> anyhow::Result<()> {
        let settings = setup::init(config, Self::MODE);
        traffic::init(self.traffic.into(), &Settings::default())?;
        settings
    }

    fn command(command: Infallible) -> anyhow::Result<()> {
        match command {}
    }
}

/// The empty desired state. `liberal`: whether packets that connection tracking calls invalid are forwarded.
pub(crate) fn desired(config: vips::Config, liberal: bool) -> Desired {
    let mut desired = Desired::new(config);
    if liberal {
        desired.forward_invalid();
    }
    desired
}

/// Whether connection tracking accepts TCP packets outside of their window. If so, most packets that it still calls invalid
/// belong to connections of which this node sees only one direction. These packets have to be forwarded.
fn is_liberal(config: &Config, settings: &Settings) -> bool {
    config.linux.conntrack.tcp_be_liberal || kernel_is_liberal(settings)
}

/// Whether the kernel's setting has this effect.
pub(crate) fn kernel_is_liberal(settings: &Settings) -> bool {
    settings.get(TCP_BE_LIBERAL).is_ok_and(|value| value != 0)
}

const TCP_BE_LIBERAL: &str = "proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal";

/// How to switch off NodePorts on 127.0.0.1.
const NOT_ON_LOCALHOST: &str = "configure iptables.localhostNodePorts: false";

#[cfg(test)]
mod tests {
    use localnet_config::{Platform, Reader};

    use super::*;

    #[test]
    fn invalid_packets_are_forwarded_if_tcp_windows_are_ignored() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join(TCP_BE_LIBERAL);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        for (value, lines, expected) in [
            (None, "", false),
            (None, "conntrack: {tcpBeLiberal: true}", true),
            (Some("0"), "", false),
            (Some("1"), "", true),
        ] {
            value.into_iter().for_each(|value| std::fs::write(&path, value).unwrap());
            let text = format!("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n{lines}\n");
            let reader = Reader { platform: Platform::Linux, empty_mode: Mode::Iptables };
            let config = reader.read(&text).unwrap().config;
            assert_eq!(is_liberal(&config, &Settings::at(root.path())), expected, "{value:?} {lines}");
        }
    }
}
