//! `localnet version`.

use clap::Args;

use super::{Answered, Global, Output};
use crate::status::Versions;

/// Print the versions of this command and of the brain
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  localnet version
  localnet version -o json")]
pub(crate) struct Version {
    #[command(flatten)]
    output: Output,
}

pub(super) async fn run(flags: &Version, global: &Global) -> Answered {
    let brain = match global.brain()? {
        Some(brain) => Some(global.status(&brain).await.map(|status| status.version)),
        None => None,
    };
    let (brain, error) = match brain.transpose() {
        Ok(version) => (version, None),
        Err(error) => (None, Some(error)),
    };
    // The version of this command is known even if the brain does not answer.
    flags.output.print(global, &Versions { localnet: env!("CARGO_PKG_VERSION"), brain })?;
    error.map_or(Ok(false), |error| Err(error.into()))
}
