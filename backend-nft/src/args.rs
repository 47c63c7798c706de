//! The flags of `localnet-nft`, and what the program does with them.

use std::net::IpAddr;

use clap::{Parser, Subcommand};
use localnet_client::{
    args::{ClientArgs, terminated},
    program,
    served::print,
    telemetry::{self, LogFormat},
    vips::{self, flags::ConfigArgs},
};
use localnet_config::{Config, Mode};
use localnet_linux::{addresses::Addresses, setup::Setup, sysctl::Settings};

use crate::{LiveBackend, NftBackend, dry_run::DryRun, kernel::Netlink, kube_proxy, served};

/// `localnet-nft`
#[derive(Debug, Parser)]
#[command(
    name = "localnet-nft",
    version,
    about = "Program Services into nf_tables",
    args_conflicts_with_subcommands = true
)]
pub struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    flags: ConfigArgs,
    /// Print the tables for the current state as nft text and change nothing; needs no privileges
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Remove the tables ip localnet and ip6 localnet, if they exist
    Cleanup {
        /// Remove the tables of kube-proxy's mode nftables instead: ip kube-proxy and ip6 kube-proxy
        #[arg(long)]
        kube_proxy: bool,
    },
    /// Print the VIPs in the kernel's tables, one line for each address and port
    Dump,
    /// Apply the configured limits of connection tracking to the kernel and exit; only this needs more than CAP_NET_ADMIN
    Init(ConfigArgs),
}

async fn local_addresses() -> anyhow::Result<Vec<IpAddr>> {
    Ok(Addresses::watch()?.list().await?.into_iter().map(|address| address.ip).collect())
}

/// Opens the backend of this node for a configuration, and applies the configured settings of the node.
///
/// # Errors
/// Returns an error if nf_tables cannot be used at all, for instance without privileges.
pub async fn open(args: &ConfigArgs, config: &Config) -> anyhow::Result<LiveBackend> {
    let backend = LiveBackend::open(args.config(config)).await?.resync_every(config.sync_period);
    // After the backend, because its use of nf_tables makes the kernel load connection tracking.
    if args.kube_proxy.configures_node() {
        Setup::from_config(&config.linux).at_start(&Settings::default());
    }
    Ok(backend)
}

/// Runs the program.
///
/// # Errors
/// Returns an error if the flags or the configuration are invalid, if the kernel cannot be programmed at all, or, with
/// `--once`, if anything failed.
pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let Arguments { command, client, flags, dry_run } = arguments;
    let (flags, only_init) = match command {
        Some(Command::Cleanup { kube_proxy }) => {
            telemetry::init(LogFormat::Text, "info")?;
            return if kube_proxy { kube_proxy::remove() } else { cleanup() };
        }
        Some(Command::Init(init)) => {
            init.only("init")?;
            (init, true)
        }
        Some(Command::Dump) => return print(&served::read()?),
        None => (flags, false),
    };
    let to_do = flags.to_do(dry_run)?;
    if to_do.cleanup {
        telemetry::init(LogFormat::Text, "info")?;
        return cleanup();
    }
    let only_init = only_init || to_do.init_only;
    let Some(running) = flags.begin(Mode::Nftables)? else { return Ok(()) };
    client.start_log(running.config())?;
    running.log_warnings();
    if only_init {
        return init(running.config());
    }
    flags.warn_of_brain_flags();
    ConfigArgs::warn_of_other_mode(running.config(), Mode::Nftables);
    let source = client.source()?;
    if dry_run {
        let config = flags.config(running.config());
        let options = localnet_client::Options { once: true, dry_run: true, ..client.options() };
        let backend = DryRun::new(config).with_addresses(local_addresses().await?);
        return localnet_client::args::run(backend, source, options).await;
    }
    let open = async |config: &Config| Ok((open(&flags, config).await?, client.configured_options(config)));
    program::follow(*running, |config| flags.concerns(config), open, source, terminated()).await
}

/// Removes everything that this backend ever wrote.
///
/// # Errors
/// Returns an error if nf_tables cannot be used.
pub fn cleanup() -> anyhow::Result<()> {
    // The objects to remove do not depend on the configuration.
    NftBackend::new(vips::Config::default(), Netlink::open()?).remove_all()
}

/// Sets what needs more privileges than the rest, in a separate process: the command `init`, like kube-proxy's
/// `--init-only`.
///
/// # Errors
/// Returns an error if a setting could not be applied.
pub fn init(config: &Config) -> anyhow::Result<()> {
    Setup::from_config(&config.linux).init(&Settings::default())
}
