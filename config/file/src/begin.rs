//! Reads the configuration at the start of a program. If `--write-config-to` is given, writes the configuration to a
//! file.

use std::{fs, path::Path};

use anyhow::Context as _;
use localnet_config::{KubeProxyFlags, Reader, flags::ToDo};

use crate::{
    read::{placed, read, text},
    running::Running,
};

/// What a program does after it has read its configuration.
#[derive(Debug)]
pub enum Begin {
    /// Run with a configuration.
    Run(Box<Running>),
    /// Exit: the configuration was written to a file.
    Done {
        /// Lines to print: warnings, and fields that the written version cannot express.
        messages: Vec<String>,
    },
}

/// Reads the configuration from the flags and the file. If `--write-config-to` is given, writes the configuration to
/// that file.
///
/// # Errors
/// Returns every problem of the flags and the file, or an error if a file cannot be read or written.
pub fn begin(flags: KubeProxyFlags, reader: Reader) -> anyhow::Result<Begin> {
    let ToDo { config, write_config_to, .. } = flags.to_do()?;
    let (config, write_config_to) = (config.map(Path::to_owned), write_config_to.map(Path::to_owned));
    let text = config.as_deref().map(text).transpose()?;
    let reading = read(&flags, reader, config.as_deref(), text.as_deref())?;
    let Some(to) = write_config_to else {
        return Ok(Begin::Run(Box::new(Running::new(flags, reader, config, text, reading))));
    };
    fs::write(&to, reading.config.to_yaml()).with_context(|| format!("failed to write {}", to.display()))?;
    let messages = reading
        .warnings
        .iter()
        .chain(&reading.lost)
        .map(|found| placed(found, config.as_deref()).to_string())
        .collect();
    Ok(Begin::Done { messages })
}
