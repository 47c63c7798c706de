//! `localnet shadow`.

use std::{
    convert::Infallible,
    io::{self, Write as _},
    path::PathBuf,
    pin::pin,
    time::Duration,
};

use clap::Args;
use localnet_client::{Snapshot, Source as _, args::terminated, grpc::Brain};
use localnet_config::GoDuration;
use localnet_linux::conntrack::{self, Flow};
use localnet_proto::Family;
use tokio::{select, task::spawn_blocking, time::sleep};

use super::{Answered, Failure, Global, OfNode, Output, ask_status, explain, unreadable};
use crate::{
    kernel,
    shadow::{self, read::Rules},
    source::text_of,
    top,
};

/// How often differences are checked again, because kube-proxy or the brain may be busy with a change.
const ATTEMPTS: usize = 3;
/// How long to wait if the brain does not answer.
const RETRY: Duration = Duration::from_secs(1);

/// Compare kube-proxy's rules on this node with what localnet would do, without changing anything
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  localnet shadow
  localnet shadow --config /var/lib/kube-proxy/config.conf
  localnet shadow -o json --settle 5
  localnet shadow --every 30s

Exit code: 0 if no packet differs, except for a reason in docs/differences.md; 1 if one differs")]
pub(crate) struct Shadow {
    /// Compare the packets in a file instead; each line is SENDER DESTINATION; - reads standard input
    #[arg(long, value_name = "FILE")]
    packets: Option<PathBuf>,
    /// Seconds after which differences are checked again; kube-proxy syncs once per second
    #[arg(long, value_name = "SECONDS", default_value_t = 2)]
    settle: u64,
    /// Repeat the comparison after this duration, such as 30s, and report the differences to the brain, until SIGTERM or Ctrl-C
    #[arg(long, value_name = "DURATION", conflicts_with = "packets")]
    every: Option<GoDuration>,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    node: OfNode,
}

pub(super) async fn run(flags: &Shadow, global: &Global) -> Answered {
    if let Some(every) = flags.every {
        let every = every
            .positive()
            .filter(|every| !every.is_zero())
            .ok_or_else(|| Failure::Usage("--every must be longer than 0s".to_owned()))?;
        return repeat(flags, global, every).await;
    }
    let text = flags.packets.as_ref().map(|path| text_of(path)).transpose()?;
    let shadow = settled(flags, global, text.as_deref()).await?;
    flags.output.print(global, &shadow)?;
    Ok(shadow.unexplained() > 0)
}

/// Compares again and again, reports each result to the brain, and prints results that are new.
async fn repeat(flags: &Shadow, global: &Global, every: Duration) -> Answered {
    let brain = global.live("has no brain to report to")?;
    let mut ended = pin!(terminated());
    let mut following = pin!(follow(&brain));
    let mut last: Option<shadow::Shadow> = None;
    loop {
        let compared = select! {
            compared = settled(flags, global, None) => compared,
            never = &mut following => match never {},
            () = &mut ended => break,
        };
        // kube-proxy or the brain may be restarting.
        match compared {
            Ok(shadow) => {
                if let Err(error) = brain.report(&shadow.report()).await {
                    warn(&format!("the report failed: {error}"));
                }
                if last.as_ref().is_none_or(|last| last.differences != shadow.differences) {
                    flags.output.print(global, &shadow)?;
                }
                last = Some(shadow);
            }
            Err(failure) => warn(&failure.to_string()),
        }
        select! {
            () = sleep(every) => {}
            never = &mut following => match never {},
            () = &mut ended => break,
        }
    }
    Ok(last.is_some_and(|last| last.unexplained() > 0))
}

/// Reads every state, as a backend does. Otherwise, the brain would report that this backend has stopped.
async fn follow(brain: &Brain) -> Infallible {
    let mut state = Snapshot::default();
    loop {
        match brain.next(state.revision, false).await {
            Ok(update) => _ = state.apply(update),
            Err(_) => sleep(RETRY).await,
        }
    }
}

fn warn(text: &str) {
    _ = writeln!(io::stderr(), "warning: {}", text.replace('\n', " "));
}

/// Compares. Repeats this if packets differ, and keeps the differences that stay.
async fn settled(flags: &Shadow, global: &Global, text: Option<&str>) -> Result<shadow::Shadow, Failure> {
    let mut shadow = compare(flags, global, text).await?;
    for _ in 1..ATTEMPTS {
        if shadow.unexplained() == 0 {
            break;
        }
        sleep(Duration::from_secs(flags.settle)).await;
        shadow.retain(&compare(flags, global, text).await?);
    }
    Ok(shadow)
}

fn flows_of_node() -> Result<Vec<Flow>, conntrack::Error> {
    let mut flows = kernel::flows(Family::V4, |_| true)?;
    flows.extend(kernel::flows(Family::V6, |_| true)?);
    Ok(flows)
}

async fn compare(flags: &Shadow, global: &Global, text: Option<&str>) -> Result<shadow::Shadow, Failure> {
    let brain = global.brain()?;
    let brain = brain.as_ref();
    let reading = spawn_blocking(Rules::read);
    let flows = flags.node.reads_kernel(global).then(|| spawn_blocking(flows_of_node));
    let state = global.snapshot(brain).await?;
    let world = flags.node.world(global, brain, &ask_status(global, brain).await, state).await?;
    let rules = reading.await.map_err(anyhow::Error::from)?;
    let rules = rules.map_err(|error| unreadable(global, &format!("{error:#}")))?;
    let packets = match text {
        Some(text) => explain::listed(&world, text).await?.into_iter().map(|(packet, _)| packet).collect(),
        None => shadow::packets(&world, &rules),
    };
    let mut shadow = shadow::compare(&world, &rules, packets);
    if let Some(flows) = flows {
        let flows =
            flows.await.map_err(anyhow::Error::from)?.map_err(|error| unreadable(global, &error.to_string()))?;
        (shadow.flows, shadow.flows_elsewhere) = top::stale(&world.state, &world.facts, &flows);
    }
    Ok(shadow)
}
