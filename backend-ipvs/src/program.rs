//! `localnet-ipvs` as a [`BackendProgram`]: its flags, its help and its commands.

use std::{convert::Infallible, num::NonZeroU64, time::Duration};

use anyhow::Context as _;
use clap::Args;
use ipnet::IpNet;
use localnet_client::{
    Mode,
    program::BackendProgram,
    served::Served,
    vips::{self, flags::ConfigArgs},
};
use localnet_config::Config;
use localnet_linux::{
    addresses::NodeAddresses,
    ipvs::{Scheduler, Timeouts},
    setup,
};
use localnet_linux_backend::traffic;

use crate::{
    Host, IpvsBackend, LiveBackend, Options, desired::Desired, live, options::scheduler, plan::INTERFACE, served,
};

/// `localnet-ipvs`, with the flags for virtual servers. They take precedence over the configuration.
#[derive(Args, Clone, Debug, Default)]
pub struct Ipvs {
    /// IPVS scheduler for Services that do not request one: rr, wrr, lc, wlc, lblc, lblcr, dh, sh, sed, nq, fo, ovf, or
    /// mh, also called maglev
    #[arg(long, value_name = "NAME", value_parser = scheduler)]
    pub scheduler: Option<Scheduler>,
    /// CIDRs whose virtual servers belong to other programs and stay unchanged
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    pub exclude_cidrs: Option<Vec<IpNet>>,
    /// Answer ARP for an address only on the interface that has it; needed where other nodes or load balancers announce
    /// VIPs by ARP
    #[arg(long)]
    pub strict_arp: bool,
    /// Seconds after which the connections of a removed endpoint are cut [default: no limit]
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
    /// Count the connections, packets and bytes of at most N Service ports, and those of all other ports together; 0 counts nothing
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=traffic::MAX_PORTS))]
    pub traffic: u16,
}

impl Ipvs {
    /// The options from flags and configuration.
    ///
    /// # Errors
    /// Returns an error if the configured scheduler has an invalid name.
    pub fn options(&self, config: &localnet_config::Ipvs) -> anyhow::Result<Options> {
        let configured = || config.scheduler.as_deref().map(scheduler).transpose().context("ipvs.scheduler");
        let seconds = |flag: Option<u32>, configured: Option<Duration>| {
            // A timeout below 1 s becomes 1 s, because the kernel counts whole seconds and ignores 0.
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

impl BackendProgram for Ipvs {
    const NAME: &'static str = "ipvs";
    const PROGRAM: &'static str = "localnet-ipvs";
    const MODE: Mode = Mode::Ipvs;
    const ABOUT: &'static str = "Program Services into IPVS";
    const DRY_RUN: &'static str =
        "Print the virtual servers, addresses and tables for the current state and change nothing; needs no privileges";
    const CLEANUP: &'static str =
        "Remove the virtual servers of VIPs, the interface kube-ipvs0 and the tables localnet-ipvs, if they exist";

    type Cleanup = ();
    type Command = Infallible;
    type Backend = LiveBackend;
    type Planner = Desired;

    async fn open(&self, flags: &ConfigArgs, config: &Config) -> anyhow::Result<LiveBackend> {
        let backend = live::open(flags.config(config), self.options(&config.ipvs)?, self.traffic.into()).await?;
        if flags.kube_proxy.configures_node() {
            setup::start(&config.linux);
        }
        Ok(backend)
    }

    async fn planner(&self, flags: &ConfigArgs, config: &Config) -> anyhow::Result<Desired> {
        let mut desired = Desired::new(flags.config(config), self.options(&config.ipvs)?);
        desired.set_local_addresses(NodeAddresses::except(INTERFACE).list().await?);
        Ok(desired)
    }

    async fn dump(&self) -> anyhow::Result<Served> {
        served::read().await
    }

    async fn cleanup(&self, _: &ConfigArgs, config: &Config, (): ()) -> anyhow::Result<()> {
        // The other options do not influence what a cleanup removes.
        let exclude_cidrs = self.options(&config.ipvs)?.exclude_cidrs;
        let options = Options { exclude_cidrs, ..Options::default() };
        IpvsBackend::new(vips::Config::default(), options, Host::open()?).remove_all().await
    }

    fn init(&self, config: &Config) -> anyhow::Result<()> {
        setup::init(config, Self::MODE)
    }

    fn command(command: Infallible) -> anyhow::Result<()> {
        match command {}
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Both {
        #[command(flatten)]
        flags: ConfigArgs,
        #[command(flatten)]
        ipvs: Ipvs,
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
