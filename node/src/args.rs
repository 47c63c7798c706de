//! The flags of `localnet-node`, and the program that they run.

use std::pin::pin;

use clap::{Parser, ValueEnum};
use localnet_brain::{
    args::{HealthArgs, LogArgs, SourceArgs},
    health::{self, clock::Clock},
    localize::NodeIps,
    run::start,
    serve::{self, Listener, Reports},
    telemetry,
};
use localnet_client::{Backend, Options, args::terminated, vips::flags::ConfigArgs};
use localnet_iptables::Flavour;
use localnet_proto::Address;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::FeedSource;

/// Brain and one backend in one process: reads Services and programs them into this node's kernel
#[derive(Clone, Debug, Parser)]
#[command(name = "localnet-node", version)]
pub struct Arguments {
    #[command(flatten)]
    source: SourceArgs,
    /// What programs the kernel
    #[arg(long, value_enum, default_value_t)]
    backend: BackendName,
    #[command(flatten)]
    config: ConfigArgs,
    /// Which of the host's tools --backend iptables uses; by default those whose rules the host has
    #[arg(long, value_enum)]
    iptables_flavour: Option<Flavour>,
    /// Apply one state, print how to resume, and exit
    #[arg(long)]
    once: bool,
    /// Serve the state to others as well: unix:///path or tcp://host:port of loopback; may be given several times
    #[arg(long, value_name = "ADDR")]
    listen: Vec<Address>,
    #[command(flatten)]
    health: HealthArgs,
    #[command(flatten)]
    log: LogArgs,
}

/// A backend that can run in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum BackendName {
    /// nf_tables, over netlink
    #[default]
    Nft,
    /// iptables, by its tools
    Iptables,
}

/// Runs the program until SIGTERM or SIGINT, or with `--once` until one state is applied.
///
/// # Errors
/// The flags contradict each other, the source cannot be used, the kernel cannot be programmed at all, or with `--once`
/// anything failed.
pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    telemetry::init(arguments.log.log_format, &arguments.log.log_level)?;
    let config = arguments.config.config()?;
    match arguments.backend {
        BackendName::Nft => run_with(localnet_nft::LiveBackend::open(config).await?, arguments).await,
        BackendName::Iptables => {
            run_with(localnet_iptables::args::open(config, arguments.iptables_flavour).await?, arguments).await
        }
    }
}

async fn run_with(backend: impl Backend, arguments: Arguments) -> anyhow::Result<()> {
    let mut listeners = Vec::new();
    for address in &arguments.listen {
        listeners.push(Listener::bind(address, &serve::Options::default()).await?);
    }
    let node_ips = watch::channel(NodeIps::default()).1;
    let mut brain = start(&arguments.source.source, arguments.source.cluster()?, node_ips).await?;
    let reports = Reports::default();
    let _health = health::start(&arguments.health.options(), brain.feed(), &reports, Clock::System);
    let stop = CancellationToken::new();
    let mut served = pin!(serve::run(listeners, brain.feed().clone(), reports.clone(), stop.clone().cancelled_owned()));
    let source = FeedSource::new(brain.feed().clone(), reports);
    let options = Options { once: arguments.once, ..Options::default() };
    let serving = !arguments.listen.is_empty();
    let result = tokio::select! {
        result = localnet_client::run(backend, source, options, terminated()) => result,
        error = brain.failed() => Err(error),
        ended = &mut served, if serving => return ended,
    };
    stop.cancel();
    if serving { result.and(served.await) } else { result }
}
