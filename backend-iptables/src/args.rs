//! The backend's flags, and the program that they run.

use clap::{Parser, Subcommand};
use localnet_client::{
    args::{self, ClientArgs},
    incremental::Adapter,
    telemetry::{self, LogFormat},
    vips::{Config, flags::ConfigArgs},
};
use localnet_linux::addresses::NodeAddresses;
use tracing::info;

use crate::{Flavour, IptablesBackend, LiveBackend, Tools, dry_run::DryRun};

/// `localnet-iptables`
#[derive(Debug, Parser)]
#[command(name = "localnet-iptables", version, about = "Program Services into iptables")]
pub struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    config: ConfigArgs,
    /// Which of the host's tools to use; by default those whose rules the host has
    #[arg(long, value_enum, global = true)]
    iptables_flavour: Option<Flavour>,
    /// Print what the present state gives, as iptables-restore reads it, and change nothing; needs no privileges
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Remove the chains of this program, and of kube-proxy's iptables mode; those of the kubelet stay
    Cleanup,
}

/// Runs the program.
///
/// # Errors
/// The flags contradict each other, iptables cannot be programmed at all, or with `--once` anything failed.
pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let Arguments { command, client, config, iptables_flavour, dry_run } = arguments;
    if let Some(Command::Cleanup) = command {
        telemetry::init(LogFormat::Text);
        // Without a choice all is removed, wherever it is.
        let flavours = iptables_flavour.map_or(vec![Flavour::Nft, Flavour::Legacy], |flavour| vec![flavour]);
        // What is removed does not depend on the configuration.
        let config = config.config()?;
        for flavour in flavours {
            if flavour.is_in_use() {
                IptablesBackend::new(config.clone(), Tools::find(flavour)?).remove_all()?;
            }
        }
        return Ok(());
    }
    telemetry::init(client.log_format);
    let config = config.config()?;
    let source = client.source()?;
    let mut options = client.options();
    if dry_run {
        options.once = true;
        let addresses = NodeAddresses::default().list().await?;
        return args::run(Adapter::new(DryRun::new(config).with_addresses(addresses)), source, options).await;
    }
    args::run(open(config, iptables_flavour).await?, source, options).await
}

/// The backend of this node, by the tools of a flavour or of the one that the host's rules show. Must be called in a tokio
/// runtime.
///
/// # Errors
/// iptables cannot be programmed at all.
pub async fn open(config: Config, flavour: Option<Flavour>) -> anyhow::Result<Adapter<LiveBackend>> {
    let chosen = flavour.is_some();
    let flavour = flavour.unwrap_or_else(Flavour::of_host);
    info!(?flavour, chosen, "using the tools");
    Ok(Adapter::new(LiveBackend::open(config, Tools::find(flavour)?).await?))
}
