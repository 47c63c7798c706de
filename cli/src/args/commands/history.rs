//! `localnet history`.

use clap::Args;
use jiff::Timestamp;
use localnet_proto::ServiceKey;

use super::{Answered, Global, Output, not_saved};
use crate::{
    history::{self, Selection},
    moment,
};

/// Show the last changes: when, what, why, and how long until the kernel had them
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  localnet history
  localnet history --since 03:00 --service shop/web
  localnet history -o json | jq -r '.history[] | select(.applied[].millis > 1000) | .revision'")]
pub(crate) struct History {
    /// Only events since this time: 03:12 (UTC), 10m (before now) or 2026-01-31T03:12:00Z
    #[arg(long, value_name = "TIME", value_parser = moment::time)]
    since: Option<Timestamp>,
    /// Only changes of this Service: NAMESPACE/NAME
    #[arg(long, value_name = "SERVICE")]
    service: Option<ServiceKey>,
    #[command(flatten)]
    output: Output,
}

pub(super) async fn run(flags: History, global: &Global) -> Answered {
    let brain = global.brain()?.ok_or_else(|| not_saved("has no history"))?;
    let state = global.snapshot(Some(&brain)).await?;
    let entries = global.history(&brain).await?;
    let selection = Selection { since: flags.since, service: flags.service };
    flags.output.print(global, &history::rows(state, &entries, &selection))?;
    Ok(false)
}
