//! The flags of `localnet-node`, and what the program does with them.

use std::pin::pin;

use anyhow::ensure;
use clap::{Parser, ValueEnum};
use localnet_brain::{
    args::{LogArgs, SourceArgs},
    configured::{self, Configured},
    reports::Reports,
    run::start,
    serve::{self, Listener},
};
use localnet_client::{Backend, Options, args::terminated, program, vips::flags::ConfigArgs};
use localnet_config::{Config, Mode};
use localnet_config_file::Running;
use localnet_iptables::Flavour;
use localnet_ipvs::args::IpvsArgs;
use localnet_proto::Address;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::FeedSource;

/// Run the brain and one backend in one process: read Services and program them into this node's kernel
#[derive(Clone, Debug, Parser)]
#[command(name = "localnet-node", version)]
pub struct Arguments {
    #[command(flatten)]
    source: SourceArgs,
    /// Backend to run [default: that of the configured mode; nft if the configuration names no mode]
    #[arg(long, value_enum)]
    backend: Option<BackendName>,
    #[command(flatten)]
    config: ConfigArgs,
    /// Variant of iptables for --backend iptables [default: the variant that already has rules on this host]
    #[arg(long, value_enum)]
    iptables_flavour: Option<Flavour>,
    /// Apply one state, print how to resume, and exit
    #[arg(long)]
    once: bool,
    /// Also serve the state at this address: unix:///path or tcp://host:port of loopback; repeat for more addresses
    #[arg(long, value_name = "ADDR")]
    listen: Vec<Address>,
    #[command(flatten)]
    log: LogArgs,
}

/// A backend that can run in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum BackendName {
    /// nf_tables, through netlink
    Nft,
    /// iptables, through its commands
    Iptables,
    /// IPVS, through netlink; deprecated
    Ipvs,
}

impl BackendName {
    /// The backend that implements a mode of kube-proxy.
    fn of(mode: Mode) -> Self {
        match mode {
            Mode::Iptables => Self::Iptables,
            Mode::Ipvs => Self::Ipvs,
            Mode::Nftables | Mode::Kernelspace => Self::Nft,
        }
    }

    fn mode(self) -> Mode {
        match self {
            Self::Nft => Mode::Nftables,
            Self::Iptables => Mode::Iptables,
            Self::Ipvs => Mode::Ipvs,
        }
    }
}

/// Runs the program until SIGTERM or SIGINT, or with `--once` until one state is applied.
///
/// # Errors
/// A flag or the configuration is invalid, the source is unusable, or the kernel cannot be programmed at all. With `--once`, any
/// other failure is an error, too.
pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    if let (Some(backend), Some(_)) = (arguments.backend, arguments.iptables_flavour) {
        ensure!(
            backend == BackendName::Iptables,
            "--iptables-flavour needs --backend iptables; choose that backend or remove --iptables-flavour"
        );
    }
    // The backend that an empty mode selects.
    let preferred = arguments.backend.unwrap_or(BackendName::Nft);
    let Some(running) = arguments.config.begin(preferred.mode())? else { return Ok(()) };
    let config = running.config();
    arguments.log.start(config)?;
    running.log_warnings();
    let backend = arguments.backend.unwrap_or(BackendName::of(config.mode));
    if arguments.backend.is_none() && backend.mode() != config.mode {
        warn!(mode = config.mode.as_str(), "localnet-node has no backend for this mode; using nft");
    } else {
        ConfigArgs::warn_of_other_mode(config, backend.mode());
    }
    let (flavour, flags) = (arguments.iptables_flavour, arguments.config.clone());
    let to_do = flags.kube_proxy.to_do()?;
    if to_do.cleanup {
        return match backend {
            BackendName::Nft => localnet_nft::args::cleanup(),
            BackendName::Iptables => localnet_iptables::args::cleanup(flavour),
            BackendName::Ipvs => localnet_ipvs::args::cleanup(config.ipvs.exclude_cidrs.clone()).await,
        };
    }
    if to_do.init_only {
        return match backend {
            BackendName::Iptables => localnet_iptables::args::init(config),
            BackendName::Nft | BackendName::Ipvs => localnet_nft::args::init(config),
        };
    }
    match backend {
        BackendName::Nft => {
            let open = async |config: &Config| localnet_nft::args::open(&flags, config).await;
            run_with(arguments, *running, open).await
        }
        BackendName::Iptables => {
            let open = async |config: &Config| localnet_iptables::args::open(&flags, config, flavour).await;
            run_with(arguments, *running, open).await
        }
        BackendName::Ipvs => {
            let ipvs = IpvsArgs::default();
            let open = async |config: &Config| localnet_ipvs::args::open(&flags, &ipvs, config).await;
            run_with(arguments, *running, open).await
        }
    }
}

async fn run_with<B: Backend>(
    arguments: Arguments,
    running: Running,
    open: impl AsyncFn(&Config) -> anyhow::Result<B>,
) -> anyhow::Result<()> {
    let config = running.config();
    let listeners = Listener::bind_all(&arguments.listen, &serve::Options::default()).await?;
    let source = arguments.source.source(config, arguments.config.kube_proxy.to_do()?.master)?;
    let options = arguments.source.cluster(config)?;
    running.log_start("localnet-node", Some(&options.node_name), &source);
    let (node_ips, chosen_ips) = watch::channel(configured::node_ips(config));
    let mut brain = start(&source, options, chosen_ips).await?;
    brain.log_changes();
    let reports = Reports::default();
    brain.post_warnings(&reports);
    let chosen = running.has_file();
    let (current, mut following) = running.follow();
    let mut configured =
        Configured::start(current.clone(), chosen, node_ips, (brain.feed(), brain.events()), &reports)?;
    let stop = CancellationToken::new();
    let state = serve::ServerState {
        views: brain.feed().clone().into(),
        reports: reports.clone(),
        questions: brain.questions().clone(),
    };
    let mut served = pin!(serve::run(listeners, state, stop.clone().cancelled_owned()));
    let source = FeedSource::new(brain.feed().clone(), reports);
    let options = Options { once: arguments.once, ..Options::default() };
    let open = async |config: &Config| Ok((open(config).await?, options.clone().configured(config)));
    let serving = !arguments.listen.is_empty();
    let result = tokio::select! {
        result = program::run(current, |config| (arguments.config.concerns(config), config.ipvs.clone(), config.iptables), open, source, terminated()) => result,
        error = brain.failed() => Err(error),
        error = configured.failed() => Err(error),
        error = following.failed() => Err(error),
        ended = &mut served, if serving => return ended,
    };
    stop.cancel();
    if serving { result.and(served.await) } else { result }
}
