//! `localnet watch`.

use clap::Args;

use super::{Answered, Global, Output};
use crate::{get::Filter, watch};

/// Print changes of Services as they happen
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  localnet watch -n shop
  localnet watch -o json | jq -c '[.type, .service.service]'")]
pub(crate) struct Watch {
    #[command(flatten)]
    filter: Filter,
    /// Exit after this many states
    #[arg(long, value_name = "NUMBER")]
    count: Option<u64>,
    #[command(flatten)]
    output: Output,
}

pub(super) async fn run(flags: Watch, global: &Global) -> Answered {
    let brain = global.live("does not change")?;
    let options = watch::Options {
        filter: flags.filter,
        format: flags.output.output,
        style: flags.output.style(global),
        count: flags.count,
    };
    watch::run(global, &brain, &options).await?;
    Ok(false)
}
