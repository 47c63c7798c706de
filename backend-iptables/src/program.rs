//! `localnet-iptables` as a [`BackendProgram`]: its flags, its help and its commands.

use std::convert::Infallible;

use clap::Args;
use ipnet::IpNet;
use localnet_client::{
    Mode,
    program::BackendProgram,
    served::Served,
    vips::{self, flags::ConfigArgs},
};
use localnet_config::{Config, NodePortAddresses};
use localnet_linux::{
    addresses::NodeAddresses,
    setup::{self, Setup},
    sysctl::{Set, Settings},
};
use tracing::{info, warn};

use crate::{Flavour, IptablesBackend, LiveBackend, Tools, desired::Desired, live, served};

/// `localnet-iptables`.
#[derive(Args)]
pub struct Iptables {
    /// Variant of iptables [default: the variant that already has rules on this host]
    #[arg(long, value_enum)]
    iptables_flavour: Option<Flavour>,
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
        info!(?flavour, chosen, "selected the variant of iptables");
        let tools = Tools::find(flavour)?;
        let localhost = wants_localhost(config) && route_localhost(&Settings::default());
        // As in kube-proxy, the kernel's value is read only once.
        let liberal = is_liberal(config, &Settings::default());
        if liberal {
            info!(
                "net.netfilter.nf_conntrack_tcp_be_liberal is set; the node forwards packets that connection tracking calls invalid"
            );
        }
        let desired = desired(flags.config(config), localhost, liberal);
        let backend = live::open(IptablesBackend::new(desired, tools)).await?;
        if flags.kube_proxy.configures_node() {
            setup::start(&config.linux);
        }
        Ok(backend)
    }

    async fn planner(&self, flags: &ConfigArgs, config: &Config) -> anyhow::Result<Desired> {
        let liberal = is_liberal(config, &Settings::default());
        let mut desired = desired(flags.config(config), wants_localhost(config), liberal);
        desired.vips.set_local_addresses(NodeAddresses::default().list().await?);
        Ok(desired)
    }

    async fn dump(&self) -> anyhow::Result<Served> {
        served::read(&mut Tools::find(self.iptables_flavour.unwrap_or_else(Flavour::of_host))?)
    }

    /// Removes the chains of the chosen variant, or of both variants if none is chosen.
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

    fn init(config: &Config) -> anyhow::Result<()> {
        init_in(config, &Settings::default())
    }

    fn command(command: Infallible) -> anyhow::Result<()> {
        match command {}
    }
}

/// The empty desired state. `localhost`: whether NodePorts also answer on 127.0.0.1. `liberal`: whether packets that connection
/// tracking calls invalid are forwarded.
fn desired(config: vips::Config, localhost: bool, liberal: bool) -> Desired {
    let mut desired = Desired::new(config);
    if localhost {
        desired.vips.answer_on_localhost();
    }
    if liberal {
        desired.forward_invalid();
    }
    desired
}

/// Whether connection tracking accepts TCP packets outside of their window. If so, most packets that it still calls invalid
/// belong to connections of which this node sees only one direction. These packets have to be forwarded.
fn is_liberal(config: &Config, settings: &Settings) -> bool {
    config.linux.conntrack.tcp_be_liberal || settings.get(TCP_BE_LIBERAL).is_ok_and(|value| value != 0)
}

const TCP_BE_LIBERAL: &str = "proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal";

/// Whether NodePorts answer on 127.0.0.1. As in kube-proxy, this requires that they answer on all addresses, or that a configured
/// network contains loopback addresses.
fn wants_localhost(config: &Config) -> bool {
    let named = |cidr: &IpNet| matches!(cidr, IpNet::V4(cidr) if cidr.prefix_len() == 0 || cidr.addr().is_loopback());
    config.iptables.localhost_node_ports
        && match &config.node_port_addresses {
            NodePortAddresses::All => true,
            NodePortAddresses::Primary => false,
            NodePortAddresses::Cidrs(cidrs) => cidrs.iter().any(named),
        }
}

/// Sets `route_localnet`, so that packets to a loopback address can be translated and leave the node. Returns whether it is set.
fn route_localhost(settings: &Settings) -> bool {
    match settings.ensure(ROUTE_LOCALNET, 1) {
        Ok(Set::Already) => true,
        Ok(Set::From(_)) => {
            info!(
                "set net.ipv4.conf.all.route_localnet, so that NodePorts answer on 127.0.0.1; to avoid this, configure iptables.localhostNodePorts: false"
            );
            true
        }
        Err(error) => {
            warn!(
                "{error}; NodePorts do not answer on 127.0.0.1: set the sysctl yourself, or configure iptables.localhostNodePorts: false"
            );
            false
        }
    }
}

const ROUTE_LOCALNET: &str = "proc/sys/net/ipv4/conf/all/route_localnet";

/// Applies the settings under a root folder. A setting that fails does not stop the others.
fn init_in(config: &Config, settings: &Settings) -> anyhow::Result<()> {
    let localhost = if wants_localhost(config) { settings.ensure(ROUTE_LOCALNET, 1).map(drop) } else { Ok(()) };
    let limits = Setup::from_config(&config.linux).init(settings);
    localhost?;
    limits
}

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

    #[test]
    fn a_setting_that_fails_does_not_stop_the_others() {
        const UDP_TIMEOUT: &str = "proc/sys/net/netfilter/nf_conntrack_udp_timeout";
        for (localhost, has_route, has_timeout, expected) in [
            (true, true, true, None),
            (false, true, true, None),
            (true, false, true, Some("net.ipv4.conf.all.route_localnet")),
            (true, true, false, Some("net.netfilter.nf_conntrack_udp_timeout")),
        ] {
            let about = format!("{localhost} {has_route} {has_timeout}");
            let root = tempfile::tempdir().unwrap();
            for (name, value) in [(has_route, (ROUTE_LOCALNET, "0")), (has_timeout, (UDP_TIMEOUT, "30"))]
                .into_iter()
                .filter_map(|(has, setting)| has.then_some(setting))
            {
                let path = root.path().join(name);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, value).unwrap();
            }
            let text = format!(
                "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\niptables: {{localhostNodePorts: {localhost}}}\n\
                 conntrack: {{maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s, udpTimeout: 17s}}\n"
            );
            let reader = Reader { platform: Platform::Linux, empty_mode: Mode::Iptables };
            let config = reader.read(&text).unwrap().config;
            let done = init_in(&config, &Settings::at(root.path()));
            let value = |name: &str| std::fs::read_to_string(root.path().join(name)).ok();
            let route = has_route.then(|| if localhost { "1" } else { "0" }.to_owned());
            assert_eq!(value(ROUTE_LOCALNET), route, "{about}");
            assert_eq!(value(UDP_TIMEOUT), has_timeout.then(|| "17".to_owned()), "{about}");
            match (done, expected) {
                (Ok(()), None) => {}
                (Err(error), Some(setting)) => assert!(error.to_string().contains(setting), "{about}: {error}"),
                (done, _) => panic!("{about}: {done:?}"),
            }
        }
    }

    #[test]
    fn loopback_addresses_answer_if_the_configuration_allows_it() {
        for (version, lines, expected) in [
            // The default of v1alpha1 is that of kube-proxy; v1alpha2 has another one.
            ("v1alpha1", "", true),
            ("v1alpha2", "", false),
            ("v1alpha2", "iptables: {localhostNodePorts: true}\nnodePortAddresses: [primary]", false),
            ("v1alpha2", "iptables: {localhostNodePorts: true}\nnodePortAddresses: [127.0.0.0/8]", true),
            ("v1alpha2", "iptables: {localhostNodePorts: true}\nnodePortAddresses: [0.0.0.0/0]", true),
            ("v1alpha2", "iptables: {localhostNodePorts: true}\nnodePortAddresses: [\"::1/128\", 10.0.0.0/8]", false),
            ("v1alpha1", "iptables: {localhostNodePorts: false}", false),
        ] {
            let text =
                format!("apiVersion: kubeproxy.config.k8s.io/{version}\nkind: KubeProxyConfiguration\n{lines}\n");
            let reader = Reader { platform: Platform::Linux, empty_mode: Mode::Iptables };
            let config = reader.read(&text).unwrap().config;
            assert_eq!(wants_localhost(&config), expected, "{version} {lines}");
        }
    }
}
