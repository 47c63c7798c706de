//! `localnet status`.

use clap::Args;

use super::{Answered, Output, not_saved};
use crate::source::Global;

/// Show the revisions of the brain and its backends, and the configuration of each backend
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  localnet status
  localnet status -o json")]
pub(crate) struct Status {
    #[command(flatten)]
    output: Output,
}

impl Status {
    pub(super) async fn run(self, global: &Global) -> Answered {
        let brain = global.brain()?.ok_or_else(|| not_saved("has no status"))?;
        let status = global.status(&brain).await?;
        self.output.print(global, &status)?;
        Ok(!status.is_well())
    }
}
