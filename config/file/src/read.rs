//! Reads what flags and file say, and does what needs nothing else: `--write-config-to`.

use std::{
    error::Error,
    fmt,
    fs::{self, File},
    io::{self, Read as _},
    path::Path,
};

use anyhow::{Context as _, bail};
use localnet_config::{KubeProxyFlags, Problem, Problems, Reader, Reading, flags::ToDo};

use crate::Running;

/// What is to be done.
#[derive(Debug)]
pub enum Begin {
    /// Run with a configuration.
    Run(Box<Running>),
    /// Nothing: the configuration was written to a file.
    Done {
        /// Lines for whoever asked for it: what is odd about it, and what could not be carried over.
        said: Vec<String>,
    },
}

/// Reads the configuration that the flags name, and writes it if `--write-config-to` says so.
///
/// # Errors
/// All that is wrong with flags and file; or a file cannot be read or written.
pub fn begin(flags: KubeProxyFlags, reader: Reader) -> anyhow::Result<Begin> {
    let ToDo { config, write_config_to, .. } = flags.to_do()?;
    let (config, write_config_to) = (config.map(Path::to_owned), write_config_to.map(Path::to_owned));
    let text = config.as_deref().map(text).transpose()?;
    let reading = read(&flags, reader, config.as_deref(), text.as_deref())?;
    let Some(to) = write_config_to else {
        return Ok(Begin::Run(Box::new(Running::new(flags, reader, config, text, reading))));
    };
    fs::write(&to, reading.config.to_yaml()).with_context(|| format!("failed to write {}", to.display()))?;
    let said = reading.warnings.iter().chain(&reading.lost).map(|problem| placed(problem, config.as_deref())).collect();
    Ok(Begin::Done { said })
}

/// What flags and a text say; problems name the file.
pub(crate) fn read(
    flags: &KubeProxyFlags,
    reader: Reader,
    file: Option<&Path>,
    text: Option<&str>,
) -> anyhow::Result<Reading> {
    flags
        .read(reader, text)
        .map_err(|Problems(problems)| Invalid(problems.iter().map(|problem| placed(problem, file)).collect()).into())
}

/// A configuration that cannot be used: one line for each thing that is wrong with it.
#[derive(Debug)]
pub struct Invalid(Vec<String>);

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl Error for Invalid {}

/// Why a program ends, for its standard error: a line for each problem of a configuration, and one for anything else.
pub fn last_words(error: &anyhow::Error) -> String {
    let text = match error.downcast_ref::<Invalid>() {
        Some(invalid) => invalid.to_string(),
        None => format!("{error:#}").replace('\n', " "),
    };
    text.lines().map(|line| format!("error: {line}\n")).collect()
}

/// A problem with its place: that of a flag is its name.
pub(crate) fn placed(problem: &Problem, file: Option<&Path>) -> String {
    match file.filter(|_| !problem.field.starts_with("--")) {
        Some(file) => problem.in_file(file).to_string(),
        None => problem.to_string(),
    }
}

/// A file may have so many bytes: a real one has a few thousand.
const LARGEST: u64 = 1 << 20;

/// The text of a file. What is no regular file is refused, as nobody wants to wait for it.
pub(crate) fn text(path: &Path) -> anyhow::Result<String> {
    let unreadable = |error: io::Error| {
        let remedy = match error.kind() {
            io::ErrorKind::NotFound => "; give the path of a KubeProxyConfiguration",
            io::ErrorKind::PermissionDenied => "; let the user that this runs as read it",
            _ => "",
        };
        anyhow::anyhow!("{}: cannot be read: {error}{remedy}", path.display())
    };
    // To open a FIFO waits for its other end.
    if !fs::metadata(path).map_err(unreadable)?.is_file() {
        bail!("{}: is no regular file; give the path of a KubeProxyConfiguration", path.display());
    }
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(LARGEST + 1).read_to_end(&mut bytes)).map_err(unreadable)?;
    String::from_utf8(bytes).map_err(|_| anyhow::anyhow!("{}: is not UTF-8 text; save it as UTF-8", path.display()))
}
