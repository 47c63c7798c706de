//! The command line of `localnet-ipvs`, and the program that runs it.

use std::{num::NonZeroU64, time::Duration};

use anyhow::Context as _;
use clap::{Args, Parser, Subcommand};
use ipnet::IpNet;
use localnet_client::{
    args::{self, ClientArgs, terminated},
    program,
    served::print,
    telemetry::{self, LogFormat},
    vips::{self, flags::ConfigArgs},
};
use localnet_config::{Config, Mode};
use localnet_linux::{
    addresses::NodeAddresses,
    ipvs::{Scheduler, Timeouts},
    setup::Setup,
    sysctl::Settings,
};

use crate::{Host, IpvsBackend, LiveBackend, Options, dry_run::DryRun, options::scheduler, plan::INTERFACE, served};

/// The command line of `localnet-ipvs`.
#[derive(Debug, Parser)]
#[command(
    name = "localnet-ipvs",
    version,
    about = "Program Services into IPVS",
    args_conflicts_with_subcommands = true
)]
pub struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    flags: ConfigArgs,
    #[command(flatten)]
    ipvs: IpvsArgs,
    /// Print the virtual servers, addresses and tables for the current state and change nothing; needs no privileges
    #[arg(long)]
    dry_run: bool,
}

/// The flags for virtual servers. They take precedence over the configuration.
#[derive(Args, Clone, Debug, Default)]
pub struct IpvsArgs {
    /// IPVS scheduler for Services that do not name one: rr, wrr, lc, wlc, lblc, lblcr, dh, sh, sed,
    /// nq, fo, ovf, or mh, also called maglev
    #[arg(long, value_name = "NAME", value_parser = scheduler)]
    pub scheduler: Option<Scheduler>,
    /// CIDRs whose virtual servers belong to other programs and stay unchanged
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    pub exclude_cidrs: Option<Vec<IpNet>>,
    /// Answer ARP for an address only on the interface that has it; needed where VIPs are announced by ARP
    #[arg(long)]
    pub strict_arp: bool,
    /// Seconds after which the connections of a removed endpoint are cut [default: they end by themselves]
    #[arg(long, value_name = "SECONDS")]
    pub drain_limit: Option<NonZeroU64>,
    /// Timeout of an idle TCP connection, in seconds
    #[arg(long, value_name = "SECONDS")]
    pub tcp_timeout: Option<u32>,
    /// Timeout of a TCP connection after one side has closed it, in seconds
    #[arg(long, value_name = "SECONDS")]
    pub tcp_fin_timeout: Option<u32>,
    /// Timeout of an idle UDP flow, in seconds
    #[arg(long, value_name = "SECONDS")]
    pub udp_timeout: Option<u32>,
}

impl IpvsArgs {
    /// The options from flags and configuration.
    ///
    /// # Errors
    /// The configured scheduler has an invalid name.
    pub fn options(&self, config: &localnet_config::Ipvs) -> anyhow::Result<Options> {
        let configured = || config.scheduler.as_deref().map(scheduler).transpose().context("ipvs.scheduler");
        let seconds = |flag: Option<u32>, configured: Option<Duration>| {
            // The kernel counts whole seconds, and leaves a timeout of 0 unchanged.
            let configured = || configured.map_or(0, |time| u32::try_from(time.as_secs().max(1)).unwrap_or(u32::MAX));
            flag.unwrap_or_else(configured)
        };
        Ok(Options {
            scheduler: self.scheduler.clone().map_or_else(configured, |flag| Ok(Some(flag)))?.unwrap_or_default(),
            exclude_cidrs: self.exclude_cidrs.clone().unwrap_or_else(|| config.exclude_cidrs.clone()),
            strict_arp: self.strict_arp || config.strict_arp,
            drain_limit: self.drain_limit.map(|seconds| Duration::from_secs(seconds.get())),
            timeouts: Timeouts {
                tcp: seconds(self.tcp_timeout, config.tcp_timeout),
                tcp_fin: seconds(self.tcp_fin_timeout, config.tcp_fin_timeout),
                udp: seconds(self.udp_timeout, config.udp_timeout),
            },
        })
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Remove the virtual servers of VIPs, the interface kube-ipvs0 and the tables localnet-ipvs, if they exist
    Cleanup {
        /// CIDRs whose virtual servers belong to other programs and stay unchanged
        #[arg(long, value_name = "CIDR", value_delimiter = ',')]
        exclude_cidrs: Vec<IpNet>,
    },
    /// Print the VIPs in IPVS and the kernel's tables, one line for each address and port
    Dump,
    /// Apply the configured limits of connection tracking to the kernel and exit
    Init(ConfigArgs),
}

/// Runs the program.
///
/// # Errors
/// A flag or the configuration is invalid, or IPVS cannot be programmed at all. With `--once`, any other failure is an error,
/// too.
pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let Arguments { command, client, flags, ipvs, dry_run } = arguments;
    let (flags, only_init) = match command {
        Some(Command::Cleanup { exclude_cidrs }) => {
            telemetry::init(LogFormat::Text, "info")?;
            return cleanup(exclude_cidrs).await;
        }
        Some(Command::Init(init)) => {
            init.only("init")?;
            (init, true)
        }
        Some(Command::Dump) => return print(&served::read().await?),
        None => (flags, false),
    };
    let to_do = flags.to_do(dry_run)?;
    let only_init = only_init || to_do.init_only;
    let Some(running) = flags.begin(Mode::Ipvs)? else { return Ok(()) };
    let config = running.config();
    if to_do.cleanup {
        telemetry::init(LogFormat::Text, "info")?;
        return cleanup(ipvs.options(&config.ipvs)?.exclude_cidrs).await;
    }
    client.start_log(config)?;
    running.log_warnings();
    if only_init {
        return init(config);
    }
    flags.warn_of_brain_flags();
    ConfigArgs::warn_of_other_mode(config, Mode::Ipvs);
    let source = client.source()?;
    if dry_run {
        let (vips, ipvs) = (flags.config(config), ipvs.options(&config.ipvs)?);
        let options = localnet_client::Options { once: true, dry_run: true, ..client.options() };
        let addresses = NodeAddresses::except(INTERFACE).list().await?;
        return args::run(DryRun::new(vips, ipvs).with_addresses(addresses), source, options).await;
    }
    let open = async |config: &Config| Ok((open(&flags, &ipvs, config).await?, client.configured_options(config)));
    let concerns = |config: &Config| (flags.concerns(config), config.ipvs.clone());
    program::follow(*running, concerns, open, source, terminated()).await
}

/// Opens the backend of this node for a configuration, and applies the configured node settings. Must be called in a tokio
/// runtime.
///
/// # Errors
/// IPVS cannot be programmed at all.
pub async fn open(args: &ConfigArgs, ipvs: &IpvsArgs, config: &Config) -> anyhow::Result<LiveBackend> {
    let backend = LiveBackend::open(args.config(config), ipvs.options(&config.ipvs)?).await?;
    if args.kube_proxy.configures_node() {
        Setup::from_config(&config.linux).at_start(&Settings::default());
    }
    Ok(backend)
}

/// Removes everything that this backend ever wrote. Must be called in a tokio runtime.
///
/// # Errors
/// IPVS cannot be used.
pub async fn cleanup(exclude_cidrs: Vec<IpNet>) -> anyhow::Result<()> {
    // The rest of the configuration does not influence what a cleanup removes.
    let options = Options { exclude_cidrs, ..Options::default() };
    IpvsBackend::new(vips::Config::default(), options, Host::open()?).remove_all().await
}

/// Applies the settings that need more privileges, in a process of its own: the command `init`, or kube-proxy's `--init-only`.
///
/// # Errors
/// A setting could not be applied.
pub fn init(config: &Config) -> anyhow::Result<()> {
    Setup::from_config(&config.linux).init(&Settings::default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Parser)]
    struct Both {
        #[command(flatten)]
        flags: ConfigArgs,
        #[command(flatten)]
        ipvs: IpvsArgs,
    }

    fn options(flags: &[&str]) -> Result<Options, String> {
        let parsed = Both::try_parse_from([&["backend"], flags].concat()).map_err(|error| error.to_string())?;
        let running = parsed.flags.begin(Mode::Ipvs).map_err(|error| error.to_string())?;
        let running = running.ok_or("the flags only write a file")?;
        parsed.ipvs.options(&running.config().ipvs).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn flags_have_kube_proxys_names_and_short_ones() {
        let defaults = Options::default();
        let maglev = Options { scheduler: "mh".parse().unwrap(), ..defaults.clone() };
        let several = Options {
            exclude_cidrs: ["10.9.0.0/16", "fd09::/16"].map(|cidr| cidr.parse().unwrap()).into(),
            strict_arp: true,
            ..defaults.clone()
        };
        let timeouts = Options { timeouts: Timeouts { tcp: 900, tcp_fin: 60, udp: 30 }, ..defaults.clone() };
        for (flags, expected) in [
            (&[][..], defaults.clone()),
            (&["--scheduler", "maglev"], maglev.clone()),
            (&["--ipvs-scheduler", "mh"], maglev.clone()),
            (&["--ipvs-scheduler", "sh", "--scheduler", "mh"], maglev),
            (&["--exclude-cidrs", "10.9.0.0/16,fd09::/16", "--strict-arp"], several.clone()),
            (&["--ipvs-exclude-cidrs", "10.9.0.0/16,fd09::/16", "--ipvs-strict-arp"], several),
            (&["--tcp-timeout", "900", "--tcp-fin-timeout", "60", "--udp-timeout", "30"], timeouts.clone()),
            (&["--ipvs-tcp-timeout", "15m", "--ipvs-tcpfin-timeout", "1m", "--ipvs-udp-timeout", "30s"], timeouts),
            (&["--drain-limit", "90"], Options { drain_limit: Some(Duration::from_secs(90)), ..defaults.clone() }),
        ] {
            assert_eq!(options(flags), Ok(expected), "{flags:?}");
        }
        let error = options(&["--scheduler", "round robin"]).unwrap_err();
        assert!(error.contains("--scheduler") && error.contains("use one of rr, wrr"), "{error}");
    }
}
