//! `localnet status`.

use clap::Args;

use super::{Answered, Global, Output, not_saved};

/// Show the revisions of the brain and its backends, and the configuration of each backend
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  localnet status
  localnet status -o json")]
pub(crate) struct Status {
    #[command(flatten)]
    output: Output,
}

pub(super) async fn run(flags: &Status, global: &Global) -> Answered {
    let brain = global.brain()?.ok_or_else(|| not_saved("has no status"))?;
    let status = global.status(&brain).await?;
    flags.output.print(global, &status)?;
    Ok(!status.is_well())
}
