//! The flags of `localnet-node`, and what the program does with them.

use std::{future::pending, pin::pin};

use anyhow::ensure;
use clap::Parser;
use localnet_brain::{
    args::{HistoryArgs, LogArgs, SourceArgs},
    configured::{self, Configured},
    reports::Reports,
    run::start,
    serve::{self, Listener},
    source, status,
};
use localnet_client::{Options, args::terminated, vips::flags::ConfigArgs};
use localnet_config_file::Running;
use localnet_proto::Address;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::{
    FeedSource,
    backends::{BACKENDS, BackendArgs, Ended, Entry},
    shadow::{self, ShadowArgs},
};

/// Run the brain and one backend in one process: read Services and program them into this node's kernel
#[derive(Clone, Debug, Parser)]
#[command(name = "localnet-node", version)]
pub struct Arguments {
    #[command(flatten)]
    source: SourceArgs,
    // Before the flags of backends: on Windows, they have some of these flags, too.
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    backend: BackendArgs,
    #[command(flatten)]
    config: ConfigArgs,
    #[command(flatten)]
    shadow: ShadowArgs,
    /// Apply one state, print how to resume, and exit
    #[arg(long)]
    once: bool,
    #[cfg_attr(
        unix,
        doc = "Also serve the state at this address: unix:///path or tcp://host:port of loopback; repeat for more addresses"
    )]
    #[cfg_attr(
        windows,
        doc = "Also serve the state at this address: tcp://host:port of loopback or npipe:////./pipe/name; repeat for more addresses"
    )]
    #[arg(long, value_name = "ADDR")]
    listen: Vec<Address>,
    #[command(flatten)]
    history: HistoryArgs,
}

/// Runs the program until SIGTERM, SIGINT or SIGHUP, or with `--once` until one state is applied. On Windows, the program ends on
/// Ctrl-C, or, if the configuration requests a Windows service, when the service control manager stops it.
///
/// # Errors
/// Returns an error if a flag or the configuration is invalid, the source is unusable, or the kernel cannot be programmed at all.
/// With `--once`, every other failure is an error as well; without it, the program retries.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    arguments.backend.check()?;
    // If no mode is configured, the mode of this backend applies.
    let preferred = arguments.backend.chosen.unwrap_or(&BACKENDS[0]);
    let Some(running) = arguments.config.begin(preferred.mode)? else { return Ok(()) };
    let config = running.config();
    arguments.log.start(config)?;
    running.log_warnings();
    let backend = arguments.backend.of(config.mode);
    let shadow = arguments.shadow.chosen();
    // A shadow programs no mode.
    if shadow.is_none() {
        if arguments.backend.chosen.is_none() && backend.mode != config.mode {
            warn!(mode = config.mode.as_str(), "localnet-node has no backend for this mode; using {}", backend.name);
        } else {
            ConfigArgs::warn_of_other_mode(config, backend.mode);
        }
    }
    let to_do = arguments.config.kube_proxy.to_do()?;
    ensure!(
        shadow.is_none() || !(to_do.cleanup || to_do.init_only),
        "--shadow changes nothing, but --cleanup and --init-only do; remove one of the flags"
    );
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    if to_do.cleanup {
        return runtime.block_on((backend.cleanup)(&arguments.backend.own, &arguments.config, config));
    }
    if to_do.init_only {
        return (backend.init)(&arguments.backend.own, config);
    }
    #[cfg(windows)]
    if config.windows.run_as_service {
        let arguments = arguments.clone();
        return localnet_config_file::windows::run_service("localnet-node", move |stopped| {
            runtime.block_on(serve(&arguments, *running, backend, stopped))
        });
    }
    runtime.block_on(serve(arguments, *running, backend, Box::pin(terminated())))
}

async fn serve(arguments: &Arguments, running: Running, backend: &Entry, ended: Ended) -> anyhow::Result<()> {
    let config = running.config();
    let listeners = Listener::bind_all(&arguments.listen, &serve::Options::default()).await?;
    let sources = arguments.source.sources(config, arguments.config.kube_proxy.to_do()?.master)?;
    let options = arguments.source.cluster(config)?;
    running.log_start("localnet-node", Some(&options.node_name), source::names(&sources).join(", "));
    let (node_ips, chosen_ips) = watch::channel(configured::node_ips(config));
    let mut brain = start(&sources, options, chosen_ips).await?;
    arguments.history.clone().start(brain.feed());
    brain.log_changes();
    let reports = Reports::recorded(brain.feed().history().clone());
    let chosen = running.has_file();
    let (current, mut following) = running.follow();
    let shadow = arguments.shadow.chosen();
    let metrics_at = arguments.shadow.metrics_at();
    let _metrics = metrics_at.map(|address| status::start(address, current.clone(), brain.feed(), &reports));
    let mut configured = None;
    if shadow.is_none() {
        brain.post_warnings(&reports);
        let of_brain = (brain.feed(), brain.events());
        configured = Some(Configured::start(current.clone(), chosen, node_ips, of_brain, &reports)?);
    }
    let failed_to_follow = async {
        match &mut configured {
            Some(configured) => configured.failed().await,
            None => pending().await,
        }
    };
    let stop = CancellationToken::new();
    let state = serve::ServerState {
        views: brain.feed().clone().into(),
        reports: reports.clone(),
        questions: brain.questions().clone(),
        pushers: None,
    };
    let mut served = pin!(serve::run(listeners, state, stop.clone().cancelled_owned()));
    let source = FeedSource::new(brain.feed().clone(), reports);
    let options = Options { once: arguments.once, ..Options::default() };
    let backend = match shadow {
        Some(shadow) => shadow::run(shadow, &arguments.config, current, source, ended),
        None => (backend.run)(&arguments.backend.own, &arguments.config, current, source, options, ended),
    };
    let serving = !arguments.listen.is_empty();
    let result = tokio::select! {
        result = backend => result,
        error = brain.failed() => Err(error),
        error = failed_to_follow => Err(error),
        error = following.failed() => Err(error),
        ended = &mut served, if serving => return ended,
    };
    stop.cancel();
    if serving { result.and(served.await) } else { result }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_shadow_has_no_backend() {
        let parsed = |line: &str| {
            let words = ["localnet-node", "--source", "kube"].into_iter().chain(line.split_whitespace());
            Arguments::try_parse_from(words).map(|arguments| arguments.shadow)
        };
        let shadow = parsed("--shadow --shadow-every 5m --shadow-metrics-bind-address 127.0.0.1:10349").unwrap();
        assert!(shadow.on && shadow.metrics_at.is_some());
        assert!(!parsed("--backend nft").unwrap().on);
        for line in [
            "--shadow --backend nft",
            "--shadow --once",
            "--shadow-every 5m",
            "--shadow --shadow-every 0s",
            "--shadow-metrics-bind-address [::1]:1",
        ] {
            assert_eq!(parsed(line).unwrap_err().exit_code(), 2, "{line}");
        }
    }
}
