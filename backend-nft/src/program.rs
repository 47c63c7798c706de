//! `localnet-nft` as a [`BackendProgram`]: its flags, its help and its commands.

use std::convert::Infallible;

use clap::Args;
use localnet_client::{
    Mode,
    program::BackendProgram,
    served::Served,
    vips::{self, flags::ConfigArgs},
};
use localnet_config::Config;
use localnet_linux::{addresses::NodeAddresses, setup, sysctl::Settings};
use localnet_linux_backend::traffic;

use crate::{LiveBackend, NftBackend, desired::Desired, kernel::Netlink, kube_proxy, live, served};

/// `localnet-nft`, with its own flags.
#[derive(Args, Default)]
pub struct Nft {
    /// Run beside another proxy, with a brain that has --canary: leave the flows to a Service alone if the Service is removed, because
    /// the other proxy serves it
    #[arg(long)]
    canary: bool,
    /// Count the connections, packets, bytes and refused packets of at most N Service ports, and those of all other ports together; 0
    /// counts nothing. The backend then sets the sysctl net.netfilter.nf_conntrack_acct
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=traffic::MAX_PORTS))]
    traffic: u16,
}

/// The flags of the command `cleanup`.
#[derive(Args, Debug, Default)]
pub struct CleanupArgs {
    /// Remove the tables of kube-proxy's mode nftables instead: ip kube-proxy and ip6 kube-proxy
    #[arg(long)]
    kube_proxy: bool,
}

/// How to switch off NodePorts on 127.0.0.1.
const NOT_ON_LOCALHOST: &str = "remove localhost from nodePortAddresses";

impl BackendProgram for Nft {
    const NAME: &'static str = "nft";
    const PROGRAM: &'static str = "localnet-nft";
    const MODE: Mode = Mode::Nftables;
    const ABOUT: &'static str = "Program Services into nf_tables";
    const DRY_RUN: &'static str =
        "Print the tables for the current state as nft text and change nothing; needs no privileges";
    const CLEANUP: &'static str = "Remove the tables ip localnet and ip6 localnet, if they exist";

    type Cleanup = CleanupArgs;
    type Command = Infallible;
    type Backend = LiveBackend;
    type Planner = Desired;

    async fn open(&self, flags: &ConfigArgs, config: &Config) -> anyhow::Result<LiveBackend> {
        let mut vips = flags.config(config);
        vips.node_port_addresses.localhost = setup::route_localhost(config, Self::MODE, NOT_ON_LOCALHOST);
        let backend = live::open(vips, Some(config.sync_period), self.canary, self.traffic.into()).await?;
        // This comes after the backend's start, because the backend's use of nf_tables makes the kernel load connection
        // tracking.
        if flags.kube_proxy.configures_node() {
            setup::start(&config.linux);
        }
        Ok(backend)
    }

    async fn planner(&self, flags: &ConfigArgs, config: &Config) -> anyhow::Result<Desired> {
        let mut vips = flags.config(config);
        vips.node_port_addresses.localhost = config.node_ports_on_localhost(Self::MODE);
        let mut desired = Desired::new(vips);
        if self.traffic > 0 {
            desired.count_refused();
        }
        desired.vips.set_local_addresses(NodeAddresses::default().list().await?);
        Ok(desired)
    }

    async fn dump(&self) -> anyhow::Result<Served> {
        served::read()
    }

    async fn cleanup(&self, _: &ConfigArgs, _: &Config, more: CleanupArgs) -> anyhow::Result<()> {
        if more.kube_proxy {
            return kube_proxy::remove();
        }
        // The objects to remove do not depend on the configuration.
        NftBackend::new(vips::Config::default(), Netlink::open()?).remove_all()
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
