//! Generates manual pages and completions for all programs, from the same definitions as `--help`.
//!
//! ```text
//! OUT/man/man8/localnet-nft.8, localnet-nft-cleanup.8 …
//! OUT/completions/bash/localnet-nft
//! OUT/completions/zsh/_localnet-nft
//! OUT/completions/fish/localnet-nft.fish
//! ```

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use clap::{Command, CommandFactory as _};
use clap_complete::{Shell, generate_to};
use clap_mangen::Man;

/// The section of the manual for programs that only root runs.
const SECTION: &str = "8";

/// The program that people run as a command. All others are services.
pub const COMMAND: &str = "localnet";

/// The command lines of all installed programs.
pub fn programs() -> Vec<Command> {
    let others = [
        localnet_brain::args::Arguments::command(),
        localnet_node::args::Arguments::command(),
        localnet::args::Arguments::command(),
    ];
    localnet_node::backends::BACKENDS.iter().map(|backend| (backend.program)()).chain(others).collect()
}

/// Writes manual pages and completions into a folder, and creates the folder if necessary.
///
/// # Errors
/// Returns an error if a folder cannot be created, or a file cannot be written.
pub fn write(folder: &Path) -> anyhow::Result<()> {
    let folder = |parts: &[&str]| -> anyhow::Result<PathBuf> {
        let path = parts.iter().fold(folder.to_owned(), |path, part| path.join(part));
        fs::create_dir_all(&path).with_context(|| format!("failed to create {}", path.display()))?;
        Ok(path)
    };
    let manuals = folder(&["man", &format!("man{SECTION}")])?;
    for mut program in programs() {
        let name = program.get_name().to_owned();
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let into = folder(&["completions", &shell.to_string()])?;
            let written = generate_to(shell, &mut program, &name, &into);
            let written = written.with_context(|| format!("failed to write completions of {name} for {shell}"))?;
            if shell == Shell::Bash {
                // bash-completion expects a file with the name of the program.
                fs::rename(&written, into.join(&name)).with_context(|| format!("renaming {}", written.display()))?;
            }
        }
        // Adds the full names of subcommands, and clap's own arguments.
        program.build();
        write_manual(&program, &name, &manuals)?;
    }
    Ok(())
}

fn write_manual(command: &Command, name: &str, folder: &Path) -> anyhow::Result<()> {
    let path = folder.join(format!("{name}.{SECTION}"));
    let mut page = Vec::new();
    let manual = Man::new(command.clone()).section(SECTION).source("localnet");
    // Without a date, each build writes the same page.
    manual.date("").render(&mut page)?;
    fs::write(&path, page).with_context(|| format!("failed to write {}", path.display()))?;
    for subcommand in command.get_subcommands().filter(|subcommand| subcommand.get_name() != "help") {
        write_manual(subcommand, &format!("{name}-{}", subcommand.get_name()), folder)?;
    }
    Ok(())
}
