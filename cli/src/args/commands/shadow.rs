//! `localnet shadow`.

use std::{path::PathBuf, time::Duration};

use clap::Args;
use tokio::{task::spawn_blocking, time::sleep};

use super::{Answered, Failure, Global, OfNode, Output, ask_status, explain, unreadable};
use crate::{
    shadow::{self, read::Rules},
    source::text_of,
};

/// How often differences are checked again, because kube-proxy or the brain may be busy with a change.
const ATTEMPTS: usize = 3;

/// Compare kube-proxy's rules on this node with what localnet would do, without changing anything
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  localnet shadow
  localnet shadow --config /var/lib/kube-proxy/config.conf
  localnet shadow -o json --settle 5

Exit code: 0 if no packet differs, except for a reason in docs/differences.md; 1 if one differs")]
pub(crate) struct Shadow {
    /// Compare the packets in a file instead; each line is SENDER DESTINATION; - reads standard input
    #[arg(long, value_name = "FILE")]
    packets: Option<PathBuf>,
    /// Seconds after which differences are checked again; kube-proxy syncs once per second
    #[arg(long, value_name = "SECONDS", default_value_t = 2)]
    settle: u64,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    node: OfNode,
}

pub(super) async fn run(flags: &Shadow, global: &Global) -> Answered {
    let text = flags.packets.as_ref().map(|path| text_of(path)).transpose()?;
    let mut shadow = compare(flags, global, text.as_deref()).await?;
    for _ in 1..ATTEMPTS {
        if shadow.unexplained() == 0 {
            break;
        }
        sleep(Duration::from_secs(flags.settle)).await;
        shadow.retain(&compare(flags, global, text.as_deref()).await?);
    }
    flags.output.print(global, &shadow)?;
    Ok(shadow.unexplained() > 0)
}

async fn compare(flags: &Shadow, global: &Global, text: Option<&str>) -> Result<shadow::Shadow, Failure> {
    let brain = global.brain()?;
    let brain = brain.as_ref();
    let reading = spawn_blocking(Rules::read);
    let state = global.snapshot(brain).await?;
    let world = flags.node.world(global, brain, &ask_status(global, brain).await, state).await?;
    let rules = reading.await.map_err(anyhow::Error::from)?;
    let rules = rules.map_err(|error| unreadable(global, &format!("{error:#}")))?;
    let packets = match text {
        Some(text) => explain::listed(&world, text).await?.into_iter().map(|(packet, _)| packet).collect(),
        None => shadow::packets(&world, &rules),
    };
    Ok(shadow::compare(&world, &rules, packets))
}
