//! The backend's flags, and the program that they run.

use std::net::IpAddr;

use clap::{Parser, Subcommand};
use localnet_client::{
    args::{self, ClientArgs},
    telemetry::{self, LogFormat},
    vips::flags::ConfigArgs,
};
use localnet_linux::addresses::Addresses;

use crate::{LiveBackend, NftBackend, dry_run::DryRun, kernel::Netlink};

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
    config: ConfigArgs,
    /// Print the tables that the present state gives, as nft text, and change nothing; needs no privileges
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Remove the tables ip localnet and ip6 localnet, if they exist
    Cleanup,
}

async fn local_addresses() -> anyhow::Result<Vec<IpAddr>> {
    Ok(Addresses::watch()?.list().await?.into_iter().map(|address| address.ip).collect())
}

/// Runs the program.
///
/// # Errors
/// The flags contradict each other, the kernel cannot be programmed at all, or with `--once` anything failed.
pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let Arguments { command, client, config, dry_run } = arguments;
    if let Some(Command::Cleanup) = command {
        telemetry::init(LogFormat::Text);
        // What is removed does not depend on the configuration.
        return NftBackend::new(config.config()?, Netlink::open()?).remove_all();
    }
    telemetry::init(client.log_format);
    let config = config.config()?;
    let source = client.source()?;
    let mut options = client.options();
    if dry_run {
        options.once = true;
        return args::run(DryRun::new(config).with_addresses(local_addresses().await?), source, options).await;
    }
    args::run(LiveBackend::open(config).await?, source, options).await
}
