//! The backend's flags, and the program that they run.

use clap::{Parser, Subcommand};
use localnet_client::{
    Options,
    args::{self, ClientArgs, terminated},
    incremental::Adapter,
    program,
    telemetry::{self, LogFormat},
    vips::{self, flags::ConfigArgs},
};
use localnet_config::{Config, Mode};
use localnet_linux::{addresses::NodeAddresses, setup::Setup, sysctl::Settings};
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
    /// Set the kernel's limits of connection tracking, as configured, and exit
    Init(ConfigArgs),
}

/// Runs the program.
///
/// # Errors
/// Flags or configuration are wrong, iptables cannot be programmed at all, or with `--once` anything failed.
pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let Arguments { command, client, config, iptables_flavour, dry_run } = arguments;
    let (config, only_init) = match command {
        Some(Command::Cleanup) => {
            telemetry::init(LogFormat::Text, "info");
            return cleanup(iptables_flavour);
        }
        Some(Command::Init(init)) => (init, true),
        None => (config, false),
    };
    let to_do = config.kube_proxy.to_do()?;
    if to_do.cleanup {
        telemetry::init(LogFormat::Text, "info");
        return cleanup(iptables_flavour);
    }
    let only_init = only_init || to_do.init_only;
    let Some(running) = config.begin(Mode::Iptables)? else { return Ok(()) };
    client.start_log(running.config());
    running.say();
    if only_init {
        return init(running.config());
    }
    ConfigArgs::say_mode(running.config(), Mode::Iptables);
    let source = client.source()?;
    if dry_run {
        let config = config.config(running.config());
        let options = Options { once: true, ..client.options() };
        let addresses = NodeAddresses::default().list().await?;
        return args::run(Adapter::new(DryRun::new(config).with_addresses(addresses)), source, options).await;
    }
    let open =
        async |said: &Config| Ok((open(&config, said, iptables_flavour).await?, client.configured_options(said)));
    let (current, _following) = running.follow();
    program::run(current, |said| config.concerns(said), open, source, terminated()).await
}

/// Opens the backend of this node for a configuration, and sets what else of the node that configures. It uses the tools of
/// `flavour`, or of the one that the host's rules show. Must be called in a tokio runtime.
///
/// # Errors
/// iptables cannot be programmed at all.
pub async fn open(args: &ConfigArgs, said: &Config, flavour: Option<Flavour>) -> anyhow::Result<Adapter<LiveBackend>> {
    let chosen = flavour.is_some();
    let flavour = flavour.unwrap_or_else(Flavour::of_host);
    info!(?flavour, chosen, "using the tools");
    let backend = LiveBackend::open(args.config(said), Tools::find(flavour)?).await?;
    if args.kube_proxy.configures_node() {
        Setup::of(&said.linux).at_start(&Settings::default());
    }
    Ok(Adapter::new(backend))
}

/// Removes the chains of this program, and of kube-proxy's iptables mode; of all flavours if none is chosen.
///
/// # Errors
/// The tools are missing, or fail.
pub fn cleanup(flavour: Option<Flavour>) -> anyhow::Result<()> {
    for flavour in flavour.map_or(vec![Flavour::Nft, Flavour::Legacy], |flavour| vec![flavour]) {
        if flavour.is_in_use() {
            // What is removed does not depend on the configuration.
            IptablesBackend::new(vips::Config::default(), Tools::find(flavour)?).remove_all()?;
        }
    }
    Ok(())
}

/// What needs more privileges than the rest, in a process of its own: the command `init`, kube-proxy's `--init-only`.
///
/// # Errors
/// Something could not be set.
pub fn init(said: &Config) -> anyhow::Result<()> {
    Setup::of(&said.linux).init(&Settings::default())
}
