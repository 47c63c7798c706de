//! `localnet shadow`.

use std::{
    io::{self, Write as _},
    path::PathBuf,
    time::Duration,
};

use clap::Args;
use localnet_client::{Snapshot, args::terminated, route::Packet};
use localnet_config::GoDuration;

use super::{Answered, Failure, Global, OfNode, Output, World, ask_status, explain};
use crate::{
    peer::Peer,
    shadow::{
        Shadow as Compared,
        live::{self, News, Rhythm},
    },
    source::text_of,
};

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
    let settle = Duration::from_secs(flags.settle);
    if let Some(every) = flags.every {
        let every = every.positive().filter(|every| !every.is_zero());
        let every = every.ok_or_else(|| Failure::Usage("--every must be longer than 0s".to_owned()))?;
        return repeat(flags, global, Rhythm { every, settle }).await;
    }
    let text = flags.packets.as_ref().map(|path| text_of(path)).transpose()?;
    let listed = async |world: &World| -> Result<Option<Vec<Packet>>, Failure> {
        let Some(text) = &text else { return Ok(None) };
        Ok(Some(explain::listed(world, text).await?.into_iter().map(|(packet, _)| packet).collect()))
    };
    let compare = async || {
        let brain = global.brain()?;
        let world = async { evidence(flags, global, brain.as_ref(), global.snapshot(brain.as_ref()).await?).await };
        live::compare(world, flags.node.reads_kernel(global), &listed).await
    };
    let shadow = live::settled(settle, &compare).await?;
    flags.output.print(global, &shadow)?;
    Ok(shadow.unexplained() > 0)
}

/// Compares all packets, for other commands.
pub(super) async fn compared(node: &OfNode, global: &Global, settle: Duration) -> Result<Compared, Failure> {
    let compare = async || {
        let brain = global.brain()?;
        let state = global.snapshot(brain.as_ref()).await?;
        let world =
            async { node.world(global, brain.as_ref(), &ask_status(global, brain.as_ref()).await, state).await };
        live::compare(world, node.reads_kernel(global), async |_: &World| Ok(None)).await
    };
    live::settled(settle, &compare).await
}

/// Compares again and again, and prints results that are new.
async fn repeat(flags: &Shadow, global: &Global, rhythm: Rhythm) -> Answered {
    let (brain, peer) = (global.live("has no brain to report to")?, global.brain()?);
    let world = async |state: Snapshot| evidence(flags, global, peer.as_ref(), state).await;
    let show = |news: News<'_>| -> Result<(), Failure> {
        match news {
            News::Result(shadow) => flags.output.print(global, shadow)?,
            News::Problem(problem) => _ = writeln!(io::stderr(), "warning: {}", problem.replace('\n', " ")),
        }
        Ok(())
    };
    let last = live::repeat(&brain, rhythm, flags.node.reads_kernel(global), world, show, terminated()).await?;
    Ok(last.is_some_and(|last| last.unexplained() > 0))
}

async fn evidence(flags: &Shadow, global: &Global, brain: Option<&Peer>, state: Snapshot) -> Result<World, Failure> {
    flags.node.world(global, brain, &ask_status(global, brain).await, state).await
}
