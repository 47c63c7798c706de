//! The command line of `localnet-iptables`, and the program that runs it.

use clap::{Parser, Subcommand};
use ipnet::IpNet;
use localnet_client::{
    Options,
    args::{self, ClientArgs, terminated},
    incremental::Adapter,
    program,
    served::print,
    telemetry::{self, LogFormat},
    vips::{self, flags::ConfigArgs},
};
use localnet_config::{Config, Mode, NodePortAddresses};
use localnet_linux::{
    addresses::NodeAddresses,
    setup::Setup,
    sysctl::{Set, Settings},
};
use tracing::{info, warn};

use crate::{Flavour, IptablesBackend, LiveBackend, Tools, dry_run::DryRun, served};

/// The command line of `localnet-iptables`.
#[derive(Debug, Parser)]
#[command(name = "localnet-iptables", version, about = "Program Services into iptables")]
pub struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    flags: ConfigArgs,
    /// Variant of iptables [default: the variant that already has rules on this host]
    #[arg(long, value_enum, global = true)]
    iptables_flavour: Option<Flavour>,
    /// Print the rules for the current state in the format of iptables-restore and change nothing; needs no privileges
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Remove the chains of this program and of kube-proxy's mode iptables; keep those of the kubelet
    Cleanup,
    /// Print the VIPs in the kernel's rules, one line for each address and port
    Dump,
    /// Apply the configured limits of connection tracking to the kernel and exit
    Init(ConfigArgs),
}

/// Runs the program.
///
/// # Errors
/// A flag or the configuration is invalid, or iptables cannot be programmed at all. With `--once`, any other failure is an error,
/// too.
pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let Arguments { command, client, flags, iptables_flavour, dry_run } = arguments;
    let (flags, only_init) = match command {
        Some(Command::Cleanup) => {
            telemetry::init(LogFormat::Text, "info")?;
            return cleanup(iptables_flavour);
        }
        Some(Command::Init(init)) => {
            init.only("init")?;
            (init, true)
        }
        Some(Command::Dump) => {
            let flavour = iptables_flavour.unwrap_or_else(Flavour::of_host);
            return print(&served::read(&mut Tools::find(flavour)?)?);
        }
        None => (flags, false),
    };
    let to_do = flags.to_do(dry_run)?;
    if to_do.cleanup {
        telemetry::init(LogFormat::Text, "info")?;
        return cleanup(iptables_flavour);
    }
    let only_init = only_init || to_do.init_only;
    let Some(running) = flags.begin(Mode::Iptables)? else { return Ok(()) };
    client.start_log(running.config())?;
    running.log_warnings();
    if only_init {
        return init(running.config());
    }
    flags.warn_of_brain_flags();
    ConfigArgs::warn_of_other_mode(running.config(), Mode::Iptables);
    let source = client.source()?;
    if dry_run {
        let localhost = wants_localhost(running.config());
        let config = flags.config(running.config());
        let options = Options { once: true, dry_run: true, ..client.options() };
        let dry_run = DryRun::new(config).with_addresses(NodeAddresses::default().list().await?);
        let dry_run = if localhost { dry_run.with_localhost_node_ports() } else { dry_run };
        let liberal = is_liberal(running.config(), &Settings::default());
        let dry_run = if liberal { dry_run.forwarding_invalid() } else { dry_run };
        return args::run(Adapter::new(dry_run), source, options).await;
    }
    let open =
        async |config: &Config| Ok((open(&flags, config, iptables_flavour).await?, client.configured_options(config)));
    let concerns =
        |config: &Config| (flags.concerns(config), wants_localhost(config), config.linux.conntrack.tcp_be_liberal);
    program::follow(*running, concerns, open, source, terminated()).await
}

/// Opens the backend of this node for a configuration, and applies the configured node settings. If `flavour` is `None`, the
/// host's rules decide which tools it uses. Must be called in a tokio runtime.
///
/// # Errors
/// iptables cannot be programmed at all.
pub async fn open(
    args: &ConfigArgs,
    config: &Config,
    flavour: Option<Flavour>,
) -> anyhow::Result<Adapter<LiveBackend>> {
    let chosen = flavour.is_some();
    let flavour = flavour.unwrap_or_else(Flavour::of_host);
    info!(?flavour, chosen, "selected the variant of iptables");
    let localhost = wants_localhost(config) && route_localhost(&Settings::default());
    let backend = LiveBackend::open(args.config(config), localhost, Tools::find(flavour)?).await?;
    if args.kube_proxy.configures_node() {
        Setup::from_config(&config.linux).at_start(&Settings::default());
    }
    // Read only once, after the configured value is set. kube-proxy does the same.
    let liberal = is_liberal(config, &Settings::default());
    if liberal {
        info!(
            "net.netfilter.nf_conntrack_tcp_be_liberal is set; the node forwards packets that connection tracking calls invalid"
        );
    }
    Ok(Adapter::new(if liberal { backend.forwarding_invalid() } else { backend }))
}

/// Whether connection tracking accepts TCP packets outside of their window. The packets that it then still calls invalid mostly
/// belong to connections of which this node sees only one direction, and have to be forwarded.
fn is_liberal(config: &Config, settings: &Settings) -> bool {
    config.linux.conntrack.tcp_be_liberal || settings.get(TCP_BE_LIBERAL).is_ok_and(|value| value != 0)
}

const TCP_BE_LIBERAL: &str = "proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal";

/// Whether NodePorts answer on 127.0.0.1. As in kube-proxy, this requires that they answer on all addresses, or that a configured
/// network contains loopback addresses.
pub fn wants_localhost(config: &Config) -> bool {
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
                "{error}; NodePorts do not answer on 127.0.0.1; set it, or configure iptables.localhostNodePorts: false"
            );
            false
        }
    }
}

const ROUTE_LOCALNET: &str = "proc/sys/net/ipv4/conf/all/route_localnet";

/// Removes the chains of this program and of kube-proxy's iptables mode. If `flavour` is `None`, it removes those of both
/// flavours.
///
/// # Errors
/// The tools are missing, or fail.
pub fn cleanup(flavour: Option<Flavour>) -> anyhow::Result<()> {
    for flavour in flavour.map_or(vec![Flavour::Nft, Flavour::Legacy], |flavour| vec![flavour]) {
        if flavour.is_in_use() {
            // The configuration does not influence what a cleanup removes.
            IptablesBackend::new(vips::Config::default(), Tools::find(flavour)?).remove_all()?;
        }
    }
    Ok(())
}

/// Applies the settings that need more privileges, in a process of its own: the command `init`, or kube-proxy's `--init-only`.
///
/// # Errors
/// A setting could not be applied.
pub fn init(config: &Config) -> anyhow::Result<()> {
    init_in(config, &Settings::default())
}

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
