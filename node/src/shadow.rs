//! `--shadow`: compares kube-proxy's rules with what localnet would do, in place of a backend.

use std::{net::SocketAddr, time::Duration};

use clap::Args;
use localnet::{
    failure::Failure,
    shadow::live::{News, Rhythm, repeat},
    world::World,
};
use localnet_client::{Snapshot, vips::flags::ConfigArgs};
use localnet_config::{BadDuration, GoDuration};
use localnet_config_file::Current;
use tracing::{info, warn};

use crate::{
    FeedSource,
    backends::{Ended, Work},
};

/// After this pause, differences are checked again. kube-proxy syncs once per second.
const SETTLE: Duration = Duration::from_secs(2);

/// The maximum number of Services that one result logs.
const MOST: usize = 20;

/// The flags of the comparison.
#[derive(Args, Clone, Debug)]
pub struct ShadowArgs {
    /// Run beside kube-proxy: program nothing, open no ports for health checks and metrics, which kube-proxy needs, post no events,
    /// and compare kube-proxy's rules with what localnet would do
    #[arg(long = "shadow", conflicts_with_all = ["backend", "once"])]
    pub on: bool,
    /// Pause between two comparisons, such as 30s
    #[arg(long = "shadow-every", value_name = "DURATION", default_value = "30s", requires = "on", value_parser = pause)]
    pub every: Duration,
    /// With --shadow, serve /metrics and /healthz at this address
    #[arg(long = "shadow-metrics-bind-address", value_name = "IP:PORT", requires = "on")]
    pub metrics_at: Option<SocketAddr>,
}

impl ShadowArgs {
    /// Returns the flags if there is to be a comparison.
    pub fn chosen(&self) -> Option<&Self> {
        self.on.then_some(self)
    }

    /// The address for metrics and the health page.
    pub fn metrics_at(&self) -> Option<SocketAddr> {
        self.metrics_at
    }
}

/// Parses a duration in the format of Go that is longer than zero.
fn pause(text: &str) -> Result<Duration, String> {
    let duration: GoDuration = text.parse().map_err(|error: BadDuration| error.to_string())?;
    duration.positive().filter(|pause| !pause.is_zero()).ok_or_else(|| "must be longer than 0s".to_owned())
}

/// Compares until the program should end, logs each result that is new, and reports each result to the brain.
pub fn run<'a>(
    shadow: &ShadowArgs,
    flags: &'a ConfigArgs,
    current: Current,
    source: FeedSource,
    ended: Ended,
) -> Work<'a> {
    let rhythm = Rhythm { every: shadow.every, settle: SETTLE };
    Box::pin(async move {
        let world = async |state: Snapshot| -> Result<World, Failure> {
            Ok(World::of_shadow(state, flags.config(&current.now())).await)
        };
        let show = |news: News<'_>| -> Result<(), Failure> {
            log(news);
            Ok(())
        };
        repeat(&source, rhythm, true, world, show, ended).await?;
        Ok(())
    })
}

fn log(news: News<'_>) {
    let shadow = match news {
        News::Problem(problem) => return warn!("{problem}"),
        News::Result(shadow) => shadow,
    };
    info!(
        packets = shadow.compared,
        equal = shadow.equal,
        deliberate = shadow.deliberate,
        differ = shadow.unexplained(),
        "compared kube-proxy's rules with what localnet would do"
    );
    let found = shadow.diagnostics();
    found.iter().take(MOST).for_each(|diagnostic| warn!(code = %diagnostic.code, "{diagnostic}"));
    if let Some(others @ 1..) = found.len().checked_sub(MOST) {
        warn!(others, "more Services differ");
    }
}
