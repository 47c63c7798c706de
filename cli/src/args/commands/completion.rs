//! `localnet completion`.

use std::io::Write as _;

use clap::Args;

use super::{super::command, Answered, output};

/// Print a completion script for a shell
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  localnet completion bash > /etc/bash_completion.d/localnet
  localnet completion zsh > \"${fpath[1]}/_localnet\"")]
pub(crate) struct Completion {
    /// Shell to print the script for
    shell: clap_complete::Shell,
}

pub(super) fn run(flags: &Completion) -> Answered {
    let mut script = Vec::new();
    clap_complete::generate(flags.shell, &mut command(None), "localnet", &mut script);
    output::print(|out| Ok(out.write_all(&script)?))?;
    Ok(false)
}
